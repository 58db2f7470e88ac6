"""Heartbeats: who knows them is asked and cut for its silence; who does not, never."""

import contextlib
import ctypes
import struct
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent import socket as sockets

from devices.plain_sockets import (
    GREETING,
    NEWER,
    PING,
    PONG,
    LaneRecorder,
    Notices,
    eventually,
    lane_door,
    shake_hands,
)
from sluicemq_devices.sockets import Switchboard
from sluicemq_devices.sockets.connection import Connection
from sluicemq_devices.sockets.incomplete import Unfinished

Started = Callable[[Any], Any]

BEATS: dict[str, Any] = {"heartbeat": 0.05, "silence": 0.15}
MANY = 12  # beats, four times the silence


class AnsweringPeer:
    """A peer of ZMTP 3.1 at the same door, which answers each PING and counts them."""

    def __init__(self, address: str, kind: bytes) -> None:
        self.pings = 0
        self._client = shake_hands(address, kind, NEWER)
        self._greenlet = gevent.spawn(self._answer)
        self.say = self._client.sendall

    def wait(self) -> None:
        """Wait until it has been asked many times from now."""
        before = self.pings
        eventually(lambda: self.pings >= before + MANY)

    def _answer(self) -> None:
        heard = b""
        while data := self._client.recv(4096):
            heard += data
            self.pings += (count := heard.count(PING))
            heard = heard[len(PING) * count :]
            self._client.sendall(PONG * count)


def lane_of(recorder: LaneRecorder, client: sockets.socket) -> Any:
    name = f"tcp://127.0.0.1:{client.getsockname()[1]}"
    return eventually(lambda: next((lane for lane in recorder.lanes if lane.peer == name), None))


def heard(client: sockets.socket) -> bytes:
    """What has come for it and was not read."""
    client.setblocking(False)  # noqa: FBT003 - that is how it is called
    try:
        return bytes(client.recv(4096))
    except BlockingIOError:
        return b""


@pytest.mark.parametrize(("kind", "other"), [("DEALER", b"REP"), ("DEALER", b"DEALER"), ("PUSH", b"PULL")])
def test_one_of_zmtp_3_0_hears_no_ping_and_is_not_cut_for_its_silence(
    board: Switchboard, recorder: LaneRecorder, started: Started, kind: str, other: bytes
) -> None:
    door = started(lane_door(board, recorder, kind, **BEATS))
    older = shake_hands(door.address, other)
    lane = lane_of(recorder, older)
    AnsweringPeer(door.address, other).wait()
    assert heard(older) == b""
    lane.send([b"job"])
    older.setblocking(True)  # noqa: FBT003
    assert older.recv(100) == b"\0\3job"
    assert recorder.closed == []


@pytest.mark.parametrize("word", [PING, PONG])
def test_one_of_zmtp_3_0_that_sends_heartbeats_is_asked_and_cut_when_it_answers_no_more(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, word: bytes
) -> None:
    door = started(lane_door(board, recorder, **BEATS))
    older = shake_hands(door.address, b"REP")
    older.sendall(word)
    said = b""
    while data := older.recv(100):
        said += data
    assert PING in said
    assert "no answer to heartbeats for 0.15 s" in eventually(lambda: notices.of("connections_cut"))[0]


def test_one_of_zmtp_3_0_that_does_not_read_is_not_cut_while_its_kernel_acknowledges(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, **BEATS))
    older = shake_hands(door.address, b"REP")
    lane = lane_of(recorder, older)
    lane.send([bytes(20 << 20)])
    assert lane.backlog
    AnsweringPeer(door.address, b"REP").wait()
    assert recorder.closed == []
    left = (20 << 20) + 9
    while left:
        left -= len(older.recv(left))


def vanish(client: sockets.socket) -> None:
    """Have the kernel throw away all that comes for it: as if its machine were gone."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # a filter: return 0
    program = struct.pack("HL", 1, ctypes.addressof(nothing))
    client.setsockopt(sockets.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


def test_one_of_zmtp_3_0_whose_machine_has_vanished_is_cut_for_what_it_does_not_acknowledge(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, **BEATS))
    older = shake_hands(door.address, b"REP")
    lane = lane_of(recorder, older)
    vanish(older)
    AnsweringPeer(door.address, b"REP").wait()
    assert recorder.closed == []  # it had nothing to acknowledge
    lane.send([b"job"])
    (text,) = eventually(lambda: notices.of("connections_cut"))
    assert "what was sent is not acknowledged for 0.15 s" in text
    assert recorder.closed == [lane]


def test_one_nobody_reads_is_not_silent(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    """Its heartbeats may be messages, which lie unread."""
    lane = lane_of(recorder, shake_hands(started(lane_door(board, recorder)).address, b"REP"))
    lane.gave_sign_of_life()
    signs = [lane.gave_sign_of_life()]
    lane.pause()
    signs += [lane.gave_sign_of_life(), lane.gave_sign_of_life()]
    lane.resume()
    assert [*signs, lane.gave_sign_of_life()] == [False, True, True, False]


def test_one_that_is_not_read_for_want_of_memory_is_not_cut_for_its_silence(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    # Given a budget for one large message only, which has begun, and another one
    board.unfinished = Unfinished(1, short=lambda _: None)
    door = started(lane_door(board, recorder, **BEATS))
    beginning = b"\3" + (100_000).to_bytes(8) + bytes(100_000)
    first = AnsweringPeer(door.address, b"REP")
    first.say(beginning)
    eventually(lambda: board.unfinished.bytes)
    second = shake_hands(door.address, b"REP", NEWER)
    second.sendall(beginning)
    eventually(lambda: board.unfinished.waiting == 1)
    # When many beats have passed, which the second answered if it were read
    first.wait()
    # Then it is there, and has its turn
    assert recorder.closed == []
    first.say(b"\0\1x")
    eventually(lambda: lane_of(recorder, second).reading)
    second.sendall(b"\0\1y")
    eventually(lambda: [message[-1] for message in recorder.messages] == [b"x", b"y"])


def flood(client: sockets.socket, data: bytes) -> None:
    """Send until the kernel takes no more."""
    client.setblocking(False)  # noqa: FBT003
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(data)


def test_a_paused_router_ends_with_its_peer_though_megabytes_are_unread_before_that_end(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, "ROUTER"))
    asker = shake_hands(door.address, b"DEALER", NEWER)
    lane = recorder.lane()
    lane.pause()
    flood(asker, b"\1\0\0\xc8" + bytes(200) * 300)
    asker.close()
    eventually(lambda: recorder.closed == [lane])
    assert recorder.messages == []
    assert "it has left while it was not read" in notices.of("connections_cut")[0]


@pytest.mark.parametrize("greeting", [GREETING, NEWER])
def test_a_paused_router_ends_with_a_peer_that_left_a_few_questions(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, greeting: bytes
) -> None:
    door = started(lane_door(board, recorder, "ROUTER"))
    asker = shake_hands(door.address, b"REQ", greeting)
    lane = recorder.lane()
    door.pause()
    asker.sendall(b"\1\0\0\1x")
    asker.close()
    eventually(lambda: recorder.closed == [lane])
    assert recorder.messages == []
    assert "of what it sent, 5 bytes or more are dropped" in notices.of("connections_cut")[0]


def test_a_paused_router_whose_answer_can_t_be_sent_reads_no_more_of_its_peer(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, "ROUTER"))
    asker = shake_hands(door.address, b"DEALER", NEWER)
    lane = recorder.lane()
    lane.pause()
    flood(asker, b"\1\0\0\xc8" + bytes(200) * 300)
    asker.close()
    for _ in range(10):
        lane.send([b"", b"answer"])
        gevent.sleep(0)
    eventually(lambda: recorder.closed)
    assert recorder.messages == []


def test_a_paused_one_that_is_there_is_not_taken_for_gone(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, "ROUTER"))
    asker = shake_hands(door.address, b"DEALER", NEWER)
    lane = recorder.lane()
    lane.pause()
    asker.sendall(b"\1\0\0\1x")
    assert asker.recv(len(PING)) == PING  # a glance
    assert asker.recv(len(PING)) == PING  # and another
    lane.resume()
    eventually(lambda: recorder.messages == [[b"\0", b"", b"x"]])
    assert (recorder.closed, notices) == ([], [])


def test_one_of_zmtp_3_0_hears_no_ping_when_it_is_paused_either(
    board: Switchboard, recorder: LaneRecorder, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    look = Connection.look_for_its_end
    monkeypatch.setattr(Connection, "look_for_its_end", lambda lane: looks.append(lane) or look(lane))
    door = started(lane_door(board, recorder, "ROUTER"))
    older = shake_hands(door.address, b"DEALER")
    lane = recorder.lane()
    lane.pause()
    older.sendall(b"\1\0\0\1x")
    eventually(lambda: len(looks) == 2)
    assert heard(older) == b""
    assert recorder.closed == []
