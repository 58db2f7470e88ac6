"""Messages that are not complete: many large ones share a budget, nobody waits for ever."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import psutil
import pytest
from gevent import socket as sockets
from gevent import subprocess
from hypothesis import given
from hypothesis import strategies as st

from devices.plain_sockets import (
    NEWER,
    LaneRecorder,
    Notices,
    ended,
    eventually,
    lane_door,
    ready,
    shake_hands,
)
from sluicemq_devices.sockets import Switchboard
from sluicemq_devices.sockets.incomplete import SMALL, Unfinished

Started = Callable[[Any], Any]
Python = Callable[..., subprocess.Popen]

MIB = 1 << 20
BUDGET = 8 * MIB


class Reader:
    """One that is told to read, or not to."""

    def __init__(self) -> None:
        self.received = 0
        self.reading = True
        self.cuts: list[str] = []

    def pause(self, by: object) -> None:
        assert self.reading
        self.reading = False

    def resume(self, by: object) -> None:
        assert not self.reading
        self.reading = True

    def stalled(self, why: str) -> None:
        self.cuts.append(why)


def header(size: int, *, more: bool = False) -> bytes:
    return bytes((2 | more,)) + size.to_bytes(8)


# ---------------------------------------------------------------------- the rule


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100)), max_size=60))
def test_whoever_holds_most_reads_on_while_there_is_room(steps: list[tuple[int, int]]) -> None:
    budget = Unfinished(200, short=lambda _: None)
    readers = [Reader() for _ in range(10)]
    held: dict[int, int] = {}
    for number, size in steps:
        if size and not readers[number].reading:
            continue  # nothing comes of one that is not read
        budget.hold(readers[number], size)
        if size:
            held[number] = size
        else:
            held.pop(number, None)
        assert budget.bytes == sum(held.values())
        assert budget.waiting == sum(not reader.reading for reader in readers)
        if held:
            assert readers[next(iter(held))].reading
    for number in list(held):
        budget.hold(readers[number], 0)
    assert (budget.bytes, budget.waiting) == (0, 0)
    assert all(reader.reading for reader in readers)


def test_those_who_wait_read_on_as_room_comes_the_smallest_first() -> None:
    told: list[str] = []
    budget = Unfinished(10 * MIB, short=told.append)
    first, other, large, small = (Reader() for _ in range(4))
    budget.hold(first, 50 * MIB)  # it is outside the budget
    budget.hold(other, 4 * MIB)
    budget.hold(large, 4 * MIB)
    budget.hold(small, 2 * MIB)
    assert [peer.reading for peer in (first, other, large, small)] == [True, True, False, False]
    assert len(told) == 1
    budget.hold(other, 0)
    assert [peer.reading for peer in (first, large, small)] == [True, False, True]
    budget.hold(first, 0)
    assert large.reading


def test_those_whose_receiver_has_paused_them_keep_their_room_and_others_go_on_before_them() -> None:
    budget = Unfinished(10 * MIB, short=lambda _: None)
    aside, other, honest = Reader(), Reader(), Reader()
    for peer in (aside, other):
        budget.hold(peer, 5 * MIB)
        budget.set_aside(peer)
    budget.hold(honest, 6 * MIB)  # as if it had begun first
    assert honest.reading
    assert budget.bytes == 16 * MIB
    assert not budget.may_read(other)
    budget.hold(honest, 0)
    assert other.reading
    for peer in (other, aside):
        budget.hold(peer, 0)
    assert (budget.bytes, budget.waiting) == (0, 0)


def test_while_the_budget_is_closed_nobody_reads_on_and_the_first_neither() -> None:
    budget = Unfinished(10 * MIB, short=lambda _: None)
    first, other = Reader(), Reader()
    budget.close()
    budget.hold(first, MIB)
    budget.hold(other, MIB)
    assert [peer.reading for peer in (first, other)] == [False, False]
    budget.open()
    assert [peer.reading for peer in (first, other)] == [True, True]


def test_many_who_wait_cost_little() -> None:
    budget = Unfinished(MIB, short=lambda _: None)
    first, crowd = Reader(), [Reader() for _ in range(20_000)]
    budget.hold(first, MIB)
    for peer in crowd:
        budget.hold(peer, SMALL)
    assert budget.waiting > 19_900
    for peer in crowd:
        budget.hold(peer, 0)
    assert budget.waiting == 0


def test_who_sends_nothing_while_others_wait_is_cut_and_who_sends_is_not() -> None:
    budget = Unfinished(4 * MIB, short=lambda _: None, timeout=0.3)
    first, silent, busy, ended_one, waiting = (Reader() for _ in range(5))
    budget.hold(first, MIB)
    budget.hold(silent, MIB)
    budget.hold(busy, MIB)
    budget.hold(ended_one, MIB)
    looked = 0
    budget.hold(waiting, 3 * MIB)
    assert not waiting.reading
    while not silent.cuts:
        looked += 1
        assert looked < 1000, "many times its timeout"
        first.received += 1
        busy.received += 1
        budget.hold(busy, MIB + looked)
        budget.hold(ended_one, 0)
        gevent.sleep(0.01)
    assert "it sent no more of a message of which 1048576 bytes had come" in silent.cuts[0]
    assert first.cuts == busy.cuts == ended_one.cuts == waiting.cuts == []


# -------------------------------------------------------------------- at a door


@pytest.fixture
def board(board: Switchboard, notices: Notices) -> Switchboard:
    board.unfinished = Unfinished(BUDGET, short=lambda text: notices.append(("short", text)))
    return board


def begin(address: str, size: int, sent: int) -> sockets.socket:
    """A producer that sends so much of a message, or as much as is read."""
    client = shake_hands(address, b"PUSH", NEWER)
    gevent.spawn(_send, client, header(size) + bytes(sent))
    return client


def _send(client: sockets.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sendall(data)


def test_twenty_unfinished_messages_of_many_megabytes_take_no_more_than_the_budget(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, "PULL", max_frame=6 * MIB))
    crowd = [begin(door.address, 5 * MIB, 4 * MIB) for _ in range(20)]
    eventually(lambda: board.unfinished.waiting >= 15)
    # The one that began first ends in any case
    assert board.unfinished.bytes <= BUDGET + 5 * MIB + 4 * SMALL
    # Others are served, with large messages too
    for size in (10, 10_000, 100_000, 150_000):
        honest = shake_hands(door.address, b"PUSH", NEWER)
        honest.sendall(header(size) + bytes(size))
        eventually(lambda wanted=size: recorder.messages and len(recorder.messages[-1][0]) == wanted)
    assert len(notices.of("short")) >= 1
    for peer in crowd:
        peer.close()
    door.stop()
    eventually(lambda: board.unfinished.bytes == 0)
    assert board.unfinished.waiting == 0


def test_messages_that_are_larger_than_the_whole_budget_all_arrive(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, "PULL", max_frame=20 * MIB))
    for _ in range(8):
        begin(door.address, 10 * MIB, 10 * MIB)
    eventually(lambda: len(recorder.messages) == 8)
    assert board.unfinished.bytes == 0


def test_messages_of_many_frames_count(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    door = started(lane_door(board, recorder, "PULL", max_frame=20 * MIB))
    client = shake_hands(door.address, b"PUSH", NEWER)
    client.sendall(b"\1\0" * 60_000)
    eventually(lambda: board.unfinished.bytes >= 60_000 * 40)
    client.sendall(b"\0\0")
    eventually(lambda: board.unfinished.bytes == 0)
    assert len(recorder.messages[0]) == 60_001


def test_one_that_stops_within_its_message_is_cut_when_others_wait_for_its_memory(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    board.unfinished = Unfinished(BUDGET, short=lambda _: None, timeout=1.0)
    door = started(lane_door(board, recorder, "PULL", max_frame=20 * MIB))
    stalled = [begin(door.address, 10 * MIB, 6 * MIB) for _ in range(2)]
    eventually(lambda: board.unfinished.bytes >= 8 * MIB)
    begin(door.address, 5 * MIB, 5 * MIB)
    assert any(ended(peer) for peer in stalled)
    assert "it sent no more of a message" in notices.of("connections_cut")[0]
    eventually(lambda: [len(message[0]) for message in recorder.messages] == [5 * MIB])
    assert len(notices.of("connections_cut")) <= 2


def test_one_that_stops_within_its_message_is_left_alone_while_nobody_waits(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    board.unfinished = Unfinished(BUDGET, short=lambda _: None, timeout=0.01)
    door = started(lane_door(board, recorder, "PULL", max_frame=20 * MIB))
    slow = begin(door.address, MIB, MIB - 1)
    for number in range(20):  # one by one: all at once would have to wait for memory
        begin(door.address, MIB, MIB)
        eventually(lambda wanted=number + 1: len(recorder.messages) == wanted)
    slow.sendall(b"\0")
    eventually(lambda: len(recorder.messages) == 21)
    assert notices.of("connections_cut") == []


# --------------------------------------------------------------- of a real process

_STREAMER = """
import runpy, sys
sys.argv = ["sluicemq device", "streamer", sys.argv[1], sys.argv[2]]
runpy.run_module("sluicemq_devices", run_name="__main__")
"""


def resident(process: subprocess.Popen) -> int:
    return int(psutil.Process(process.pid).memory_info().rss)


@pytest.fixture
def streamer(python: Python, tmp_path: Path) -> tuple[subprocess.Popen, str]:
    end = f"ipc://{tmp_path}/in"
    process = python(_STREAMER, end, f"ipc://{tmp_path}/out")
    eventually(lambda: listens(end))
    return process, end


def listens(end: str) -> bool:
    with sockets.socket(sockets.AF_UNIX) as client:
        return bool(client.connect_ex(end.removeprefix("ipc://")) == 0)


def say(end: str, data: bytes) -> sockets.socket:
    """A producer at a Unix socket that says this, as far as it is read."""
    client = sockets.socket(sockets.AF_UNIX)
    client.connect(end.removeprefix("ipc://"))
    client.sendall(NEWER + ready(b"PUSH"))
    gevent.spawn(_send, client, data)
    return client


def served(end: str) -> bool:
    """Another one is served after all who came before."""
    other = say(end, b"")
    heard = b""
    while b"READY" not in heard:
        heard += other.recv(100)
    return True


def test_nine_bytes_that_name_a_mebibyte_take_none(streamer: tuple[subprocess.Popen, str]) -> None:
    process, end = streamer
    before = resident(process)
    crowd = [say(end, header(MIB)) for _ in range(500)]
    assert served(end)
    assert resident(process) - before < 60 * MIB  # once it was 500
    for peer in crowd:
        peer.close()


def test_twenty_of_forty_mebibytes_take_the_budget_at_most(streamer: tuple[subprocess.Popen, str]) -> None:
    process, end = streamer
    before = resident(process)
    crowd = [say(end, header(40 * MIB) + bytes(39 * MIB)) for _ in range(20)]
    assert served(end)
    most = 0
    still = 0
    while still < 200:  # until it takes no more, and goes on serving
        assert served(end)
        now = resident(process) - before
        still, most = (still + 1, most) if now <= most else (0, now)
    assert 40 * MIB < most < 250 * MIB  # once it was 800
    for peer in crowd:
        peer.close()
