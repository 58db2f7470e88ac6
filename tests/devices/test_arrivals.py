"""When what was sent has arrived: a PONG with the number of its PING, or what only the kernel can tell."""

import socket as plain
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq
from gevent import socket as sockets

from devices.plain_sockets import (
    GREETING,
    NEWER,
    PING,
    PONG,
    Clients,
    LaneRecorder,
    Notices,
    eventually,
    lane_door,
    ready,
    receive,
    shake_hands,
)
from devices.test_signs_of_life import BEATS, AnsweringPeer, heard, lane_of, vanish
from sluicemq_devices.sockets import Switchboard, parse_endpoint

Started = Callable[[Any], Any]


class Posts:
    """Messages posted on one lane, and those that have arrived."""

    def __init__(self, lane: Any) -> None:
        self.lane = lane
        self.arrived: list[bytes] = []

    def post(self, *texts: bytes) -> None:
        """Each in a post of its own."""
        for text in texts:
            self.lane.post([[text]], partial(self.arrived.append, text))


def asked(number: int) -> bytes:
    """The PING of this number."""
    return b"\x04\x0f\x04PING\0\0" + number.to_bytes(8, "big")


def answer(number: int) -> bytes:
    return b"\x04\x0d\x04PONG" + number.to_bytes(8, "big")


def text(*texts: bytes) -> bytes:
    return b"".join(b"\0" + bytes([len(part)]) + part for part in texts)


def read(client: sockets.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += client.recv(size - len(data))
    return data


@pytest.fixture
def door(board: Switchboard, recorder: LaneRecorder, started: Started) -> Any:
    return started(lane_door(board, recorder, "PUSH"))


def test_a_message_has_arrived_when_the_pong_behind_it_comes(door: Any, recorder: LaneRecorder) -> None:
    peer = shake_hands(door.address, b"PULL", NEWER)
    posts = Posts(recorder.lane())
    posts.post(b"a")
    assert read(peer, 20) == text(b"a") + asked(1)
    peer.sendall(PONG + answer(2) + answer(0) + PING)  # of a heartbeat, and of nothing
    assert peer.recv(100) == PONG
    assert posts.arrived == []
    peer.sendall(answer(1))
    eventually(lambda: posts.arrived == [b"a"])


def test_one_ping_is_under_way_at_a_time_behind_all_sent_before(door: Any, recorder: LaneRecorder) -> None:
    peer = shake_hands(door.address, b"PULL", NEWER)
    posts = Posts(recorder.lane())
    posts.post(b"a", b"b", b"c")
    assert read(peer, 26) == text(b"a") + asked(1) + text(b"b", b"c")
    peer.sendall(answer(1))
    assert read(peer, 17) == asked(2)
    assert posts.arrived == [b"a"]
    peer.sendall(answer(2))
    eventually(lambda: posts.arrived == [b"a", b"b", b"c"])
    posts.post(b"d")
    assert read(peer, 20) == text(b"d") + asked(3)


def test_nothing_arrives_once_the_connection_has_ended(door: Any, recorder: LaneRecorder) -> None:
    for greeting in (NEWER, GREETING):
        peer = shake_hands(door.address, b"PULL", greeting)
        lane = lane_of(recorder, peer)
        posts = Posts(lane)
        if greeting is GREETING:
            vanish(peer)
        posts.post(b"a")
        lane.cut("it is a test")
        eventually(lambda lane=lane: lane in recorder.closed)
        posts.post(b"b")
        assert posts.arrived == []


@pytest.mark.parametrize("hwm", [1, 10])
def test_no_more_arrives_than_has_room(door: Any, recorder: LaneRecorder, clients: Clients, hwm: int) -> None:
    worker = clients.connect(zmq.PULL, door.address, rcvhwm=hwm)
    posts = Posts(recorder.lane())
    jobs = [b"%03d" % number for number in range(5 * hwm)]

    def post_the_next() -> None:
        number = len(posts.arrived)
        assert number <= len(taken) + hwm
        if number < len(jobs):
            job = jobs[number]
            posts.lane.post([[job]], lambda: (posts.arrived.append(job), post_the_next()))

    taken: list[list[bytes]] = []
    post_the_next()
    eventually(lambda: len(posts.arrived) == hwm)
    while len(taken) < len(jobs):
        taken.append(receive(worker))
    eventually(lambda: posts.arrived == jobs)
    assert taken == [[job] for job in jobs]


def test_of_zmtp_3_0_what_its_kernel_acknowledged_has_arrived(door: Any, recorder: LaneRecorder) -> None:
    older = shake_hands(door.address, b"PULL")
    posts = Posts(lane_of(recorder, older))
    posts.post(b"a", b"b")
    eventually(lambda: posts.arrived == [b"a", b"b"])
    assert heard(older) == text(b"a", b"b")  # and no PING
    gone = shake_hands(door.address, b"PULL")
    lost = Posts(lane_of(recorder, gone))
    vanish(gone)
    lost.post(b"c")
    posts.post(*[b"d"] * 100)
    eventually(lambda: len(posts.arrived) == 102)
    assert lost.arrived == []


def test_on_a_unix_socket_arrived_is_what_one_of_zmtp_3_0_has_read(
    board: Switchboard, recorder: LaneRecorder, started: Started, tmp_path: Path
) -> None:
    path = str(tmp_path / "door")
    started(lane_door(board, recorder, "PUSH", parse_endpoint(f"ipc://{path}")))
    older = sockets.socket(plain.AF_UNIX)
    older.connect(path)
    older.sendall(GREETING + ready(b"PULL"))
    while b"READY" not in (said := older.recv(4096)):
        assert said
    posts = Posts(recorder.lane())
    quick = shake_hands_at(path)
    others = Posts(recorder.lane(1))
    posts.post(b"a")
    others.post(b"b")
    assert quick.recv(10) == text(b"b")
    eventually(lambda: others.arrived == [b"b"])
    assert posts.arrived == []
    assert older.recv(10) == text(b"a")
    eventually(lambda: posts.arrived == [b"a"])


def shake_hands_at(path: str) -> sockets.socket:
    """The same as a peer of ZMTP 3.0 on a Unix socket."""
    older = sockets.socket(plain.AF_UNIX)
    older.connect(path)
    older.sendall(GREETING + ready(b"PULL"))
    while b"READY" not in (said := older.recv(4096)):
        assert said
    return older


def test_one_that_has_no_room_is_not_cut_for_its_silence_and_one_that_has_is(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, "PUSH", **BEATS))
    full = shake_hands(door.address, b"PULL", NEWER)
    lane = lane_of(recorder, full)
    posts = Posts(lane)
    posts.post(b"a")
    AnsweringPeer(door.address, b"PULL").wait()
    assert recorder.closed == []
    assert heard(full) == text(b"a") + asked(1)  # and no heartbeat
    full.sendall(answer(1))
    (why,) = eventually(lambda: notices.of("connections_cut"))
    assert "no answer to heartbeats" in why
    assert posts.arrived == [b"a"]


def test_one_that_has_no_room_is_cut_when_its_machine_has_vanished(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, "PUSH", **BEATS))
    peer = shake_hands(door.address, b"PULL", NEWER)
    posts = Posts(lane_of(recorder, peer))
    vanish(peer)
    posts.post(b"a")
    (why,) = eventually(lambda: notices.of("connections_cut"))
    assert "what was sent is not acknowledged" in why
    assert posts.arrived == []
