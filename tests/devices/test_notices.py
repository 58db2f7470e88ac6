"""What goes wrong is counted and said, without flooding the log, and without waiting for who reads it."""

import fcntl
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from gevent import socket as sockets
from gevent import subprocess

from devices.plain_sockets import ANY_PORT, Clients, dial, ended, eventually, receive, send
from sluicemq_devices.hub import Notices, shielded
from sluicemq_devices.hub.stderr import Unblocking
from sluicemq_devices.sockets import Switchboard


def test_what_was_too_much_to_be_said_is_said_a_little_later(caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "of this test"]

    notices = Notices(logging.getLogger("of this test"))
    for number in range(500):
        notices.notice("cut", f"number {number}")
    assert said() == ["cut: number 0"]
    eventually(lambda: len(said()) > 1)
    assert said() == ["cut: number 0", "cut: number 499 (and 498 more like it)"]
    notices.notice("cut", "one more")
    eventually(lambda: len(said()) > 2)
    assert said()[2:] == ["cut: one more"]


def test_what_is_unsaid_at_the_end_is_said_then(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(logging.getLogger("devices"))
    for number in range(3):
        notices.notice("cut", f"number {number}")
    notices.say_rest()
    notices.say_rest()
    assert caplog.messages == ["cut: number 0", "cut: number 2 (and 1 more like it)"]


def test_a_switchboard_says_what_it_is_told_in_the_same_way(caplog: pytest.LogCaptureFixture) -> None:
    board = Switchboard()
    for _ in range(100):
        board.notice("cut", "somebody")
    assert caplog.messages == ["cut: somebody"]


def test_a_callback_that_fails_each_time_is_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    failures = Notices(logging.getLogger("devices"))

    def fails() -> None:
        raise ValueError("broken")

    for _ in range(100):
        shielded(fails, failures=failures)
    assert caplog.text.count("ValueError: broken") == 1
    assert "a callback of a device failed" in caplog.text
    assert failures.values == {"callbacks_failed": 100}


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def fill(end: int) -> int:
    """Write until the kernel takes no more; how many bytes that were."""
    flags = fcntl.fcntl(end, fcntl.F_GETFL)
    fcntl.fcntl(end, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    count = 0
    try:
        while True:
            count += os.write(end, bytes(4096))
    except BlockingIOError:
        fcntl.fcntl(end, fcntl.F_SETFL, flags)
        return count


def reading(end: int) -> bytearray:
    """What a thread reads there, until the other end is closed."""
    got = bytearray()

    def read() -> None:
        while data := os.read(end, 65_536):
            got.extend(data)

    threading.Thread(target=read, daemon=True).start()
    return got


@pytest.mark.parametrize("blocks", [True, False])
def test_a_stream_nobody_reads_keeps_some_and_counts_the_rest(pipe: tuple[int, int], *, blocks: bool) -> None:
    there, here = pipe
    filled = fill(here)
    os.set_blocking(here, blocks)
    stream = Unblocking(os.dup(here), most_bytes=10_000)
    # When more is written than there is room for
    for number in range(2000):
        print(f"line {number:4}", file=stream, flush=True)
    # Then the end of a process does not wait for ever
    assert not stream.drain(0.01)
    # And when it is read, what was kept comes, and what is missing is said
    got = reading(there)
    eventually(lambda: stream.drain(0.01))
    assert stream.write("last\n") == 5
    eventually(lambda: got.endswith(b"last\n"))
    lines = got[filled:].decode().splitlines()
    kept = [line for line in lines if line.startswith("line")]
    assert kept == [f"line {number:4}" for number in range(len(kept))]
    assert 900 < len(kept) < 1100
    (lost,) = re.findall(r"\((\d+) lines were lost here", got[filled:].decode())
    assert int(lost) == 2 * (2000 - len(kept))  # print() writes the end of a line by itself


def test_a_stream_whose_reader_has_gone_takes_everything() -> None:
    there, here = os.pipe()
    stream = Unblocking(here)
    os.close(there)
    stream.write("x" * 100_000)
    assert stream.drain(10)
    os.close(here)


Start = Callable[..., Any]


@pytest.fixture
def unread() -> Iterator[Start]:
    """Start a device whose stderr is a full pipe that nobody reads; and the reading end of that."""
    started: list[tuple[subprocess.Popen, int]] = []

    def start(*arguments: object) -> tuple[subprocess.Popen, int]:
        there, here = os.pipe()
        fill(here)
        command = [sys.executable, "-m", "sluicemq_devices", *map(str, arguments)]
        started.append((subprocess.Popen(command, stderr=here), there))
        os.close(here)
        return started[-1]

    yield start
    for process, end in started:
        process.kill()
        process.wait()
        os.close(end)


def test_a_device_whose_stderr_nobody_reads_can_stop(unread: Start, clients: Clients, tmp_path: Path) -> None:
    # Given a device that could say nothing so far
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    device, _ = unread("streamer", front, back)
    push, pull = clients.connect(zmq.PUSH, front), clients.connect(zmq.PULL, back)
    send(push, b"first")
    assert receive(pull) == [b"first"]
    # When it has more and more to say
    for _ in range(600):
        with eventually(lambda: stranger(f"{tmp_path}/front")) as someone:
            someone.sendall(b"garbage" * 20)
            assert ended(someone)
    send(push, b"second")
    assert receive(pull) == [b"second"]
    device.send_signal(signal.SIGTERM)
    assert device.wait(60) == 0


def stranger(path: str) -> Any:
    someone = sockets.socket(sockets.AF_UNIX)
    someone.connect(path)
    return someone


def test_a_flood_of_strangers_is_a_few_lines_that_count_them_all() -> None:
    command = [sys.executable, "-m", "sluicemq_devices", "streamer", str(ANY_PORT), str(ANY_PORT)]
    device = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        front = device.stderr.readline().decode().split()[2].rstrip(",")
        for number in range(300):
            with dial(front) as someone:
                someone.sendall(b"garbage\nconnections_cut: forged %d" % number)
                assert ended(someone)
        device.send_signal(signal.SIGTERM)
        lines = device.stderr.read().decode().splitlines()
    finally:
        device.kill()
        device.wait()
        device.stderr.close()
    cut = [line for line in lines if line.startswith("connections_cut: ")]
    assert len(cut) < 100
    assert sum(1 + int((re.findall(r"and (\d+) more like it", line) or [0])[0]) for line in cut) == 300
    assert lines[-1] == "streamer: stopped after 0 messages, connections_cut 300"


def test_what_a_line_is_about_is_with_it_also_where_it_comes_later(caplog: pytest.LogCaptureFixture) -> None:
    def jobs() -> list[str]:
        return [record.__dict__["job"] for record in caplog.records if record.name == "about"]

    notices = Notices(logging.getLogger("about"))
    for number in range(3):
        notices.notice("dead", "a job is dead", about={"job": f"j{number}"})
    assert jobs() == ["j0"]
    notices.say_rest()
    assert jobs() == ["j0", "j2"]
