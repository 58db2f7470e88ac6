"""Ctrl-C: what a command has done by then, what it still waits for, and how to go on."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clients.scripted_broker import SECONDS, SILENCE, ScriptedBroker
from sluicemq.protocol import wire
from support.waiting import wait_until


@contextmanager
def command(broker: ScriptedBroker, *words: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    program = [sys.executable, "-m", "sluicemq.cli", "--endpoint", broker.endpoint, *words]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    with subprocess.Popen(program, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def write_lines(process: subprocess.Popen[bytes], lines: Sequence[bytes]) -> None:
    assert process.stdin
    process.stdin.write(b"".join(line + b"\n" for line in lines))
    process.stdin.flush()


def end(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], str]:
    output, errors = process.communicate(timeout=SECONDS)
    return json.loads(output), errors.decode()


def test_push_of_lines_says_what_is_stored_and_goes_on_with_the_next(broker: ScriptedBroker) -> None:
    with command(broker, "--json", "push", "mail", "--lines") as process:
        write_lines(process, [b"1", b"2", b"3"])
        broker.wait_until(lambda: len(broker.pushed()) == 3)

        process.send_signal(signal.SIGINT)

        told, errors = end(process)
    assert process.returncode == 1
    ids = [job_id for job_id, _payload in broker.pushed()]
    assert told == {
        "queue": "mail", "pushed": 3, "refused": 0, "ids": ids, "unconfirmed": 0, "start": 4
    }  # fmt: skip
    assert errors.splitlines()[-1] == "3 jobs pushed to mail, 0 refused; go on with --start 4"
    with command(broker, "--json", "push", "mail", "--lines", "--start", "4") as again:
        write_lines(again, [b"1", b"2", b"3", b"4", b"5"])
        assert end(again)[0]["pushed"] == 2
    assert [payload for _id, payload in broker.pushed()] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("signals", [1, 2], ids=["in its time", "at once"])
def test_push_tells_what_is_not_confirmed(broker: ScriptedBroker, signals: int) -> None:
    broker.on[wire.PUSH] = lambda message: SILENCE if b"2" in message.fields[1][0][1] else []
    timeout = "0.5" if signals == 1 else "600"
    with command(broker, "--timeout", timeout, "--json", "push", "mail", "--lines") as process:
        write_lines(process, [b"1"])
        broker.wait_until(lambda: len(broker.pushed()) == 1)
        write_lines(process, [b"2"])
        broker.wait_until(lambda: len(broker.pushed()) == 2)

        process.send_signal(signal.SIGTERM)
        assert process.stderr
        seen = process.stderr.readline().decode()
        if signals == 2:
            process.send_signal(signal.SIGINT)

        told, errors = end(process)
    # It may have been interrupted before it read the first one's confirmation.
    assert seen in [f"stopping: waiting for {count} confirmations; Ctrl-C: do not\n" for count in (1, 2)]
    ids = [broker.pushed()[0][0], None]
    assert told == {"queue": "mail", "pushed": 1, "refused": 0, "ids": ids, "unconfirmed": 1, "start": 2}
    assert errors == (
        "1 jobs pushed to mail, 0 refused, 1 not confirmed: they may be stored nevertheless; "
        "go on with --start 2\n"
    )


def test_push_that_waits_for_room_hears_it(broker: ScriptedBroker, tmp_path: Path) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE
    (tmp_path / "lines").write_bytes((b"x" * 8_000_000 + b"\n") * 20)  # more than the window
    with (tmp_path / "lines").open() as lines, command(
        broker, "--json", "push", "mail", "--lines", stdin=lines
    ) as process:  # fmt: skip
        broker.wait_for(wire.PUSH)
        process.send_signal(signal.SIGINT)
        assert process.stderr
        assert b"Ctrl-C: do not" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        told, _errors = end(process)
    assert (told["pushed"], told["start"]) == (0, 1)
    assert 1 <= told["unconfirmed"] < 20


def test_push_of_a_file_as_stdin_shows_how_far_it_is(broker: ScriptedBroker, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(2000)))
    terminal, end_of_command = pty.openpty()
    with (tmp_path / "lines").open() as lines, command(
        broker, "push", "mail", "--lines", stdin=lines, stderr=end_of_command
    ) as process:  # fmt: skip
        os.close(end_of_command)
        shown = all_of(terminal)
        assert process.wait(SECONDS) == 0
    assert "100%" in shown
    assert re.search(r"2,000 jobs, [\d,]+/s", shown)


def test_work_says_what_it_waits_for(broker: ScriptedBroker, tmp_path: Path) -> None:
    go = tmp_path / "go"
    task = f"touch {tmp_path}/begun; while [ ! -e {go} ]; do sleep 0.02; done"
    with command(broker, "--json", "work", "q", "--exec", task) as process:
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"x"])
        wait_until((tmp_path / "begun").exists, SECONDS)

        process.send_signal(signal.SIGINT)

        assert process.stderr
        seen = process.stderr.readline().decode()
        go.touch()
        told, errors = end(process)
    assert seen.startswith("stopping: waiting up to 30 s for 1 of ")
    assert re.search(r"to end: job \S+ for \d+ \w+; Ctrl-C ends them now, and their jobs go back$", seen)
    assert told == {"queue": "q", "committed": 1, "rejected": 0, "rolled_back": 0}
    assert errors == "1 committed, 0 rejected, 0 rolled back\n"


def all_of(terminal: int) -> str:
    """What is written to a terminal until its other end is closed."""
    shown = b""
    try:
        while data := os.read(terminal, 65536):
            shown += data
    except OSError:  # how a terminal says that nobody has it open any more
        pass
    finally:
        os.close(terminal)
    return shown.decode()
