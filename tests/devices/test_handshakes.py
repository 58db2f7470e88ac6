"""Handshakes that fail: whoever can't be served is named with what it wants, whoever ends first."""

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
import zmq
from gevent import socket as sockets

from devices.plain_sockets import (
    GREETING,
    NEWER,
    Clients,
    LaneRecorder,
    Notices,
    dial,
    ended,
    eventually,
    lane_door,
    ready,
)
from sluicemq_devices.sockets import Switchboard

Started = Callable[[Any], Any]

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"


@pytest.fixture
def counted() -> list[str]:
    return []


@pytest.fixture
def board(notices: Notices, counted: list[str]) -> Iterator[Switchboard]:
    board = Switchboard(
        notice=lambda kind, text: notices.append((kind, text)), count=counted.append, handshake=60.0
    )
    board.start()
    yield board
    board.stop()


def plain() -> dict[str, Any]:
    return {"plain_username": b"me", "plain_password": b"secret"}


def curve() -> dict[str, Any]:
    public, secret = zmq.curve_keypair()
    server, _ = zmq.curve_keypair()
    return {"curve_publickey": public, "curve_secretkey": secret, "curve_serverkey": server}


@pytest.mark.parametrize(("options", "mechanism"), [(plain, "PLAIN"), (curve, "CURVE")])
@pytest.mark.parametrize("ends", [("PULL", zmq.PUSH), ("ROUTER", zmq.REQ), ("PUSH", zmq.PULL)])
def test_clients_with_another_mechanism_are_named_with_it(
    board: Switchboard,
    recorder: LaneRecorder,
    notices: Notices,
    started: Started,
    clients: Clients,
    ends: tuple[str, int],
    options: Callable[[], dict[str, Any]],
    mechanism: str,
) -> None:
    kind, client = ends
    address = started(lane_door(board, recorder, kind)).address
    kept = clients.connect(client, address, **options())
    texts = eventually(lambda: notices.of("connections_cut"))
    assert f"it wants the mechanism b'{mechanism}', and only NULL is spoken here" in texts[0]
    assert recorder.lanes == []
    kept.close()


#: What they send when they have read the version of the other side, and its end if that is too new for
#: them: JeroMQ 0.3.6 (a PUSH socket) and libzmq 3.2, and after it their identity, a frame of ZMTP 2.
OLDER = {"JeroMQ 0.3.6": b"\x01\x08\x00\x00", "libzmq 3.2": b"\x01\x08", "libzmq 3.2, REQ": b"\x01\x03"}


@pytest.mark.parametrize("kind", OLDER)
def test_an_older_zmtp_is_named_though_its_peer_reads_ours_before_it_says_its_own(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, kind: str
) -> None:
    door = started(lane_door(board, recorder, "PULL"))
    client = dial(door.address)
    client.sendall(SIGNATURE)
    heard = b""
    while len(heard) < 12 and (data := client.recv(100)):
        heard += data
    assert heard == NEWER[:12]  # and nothing that it would take for frames
    client.sendall(OLDER[kind])
    assert ended(client)
    (text,) = eventually(lambda: notices.of("connections_cut"))
    assert "an older one: its ZeroMQ is from before 2013" in text


def test_zmtp_1_which_has_no_greeting_is_named(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    client = dial(started(lane_door(board, recorder, "PULL")).address)
    client.sendall(b"\x01\x00\x06\x00hello")
    client.close()
    (text,) = eventually(lambda: notices.of("connections_cut"))
    assert "it does not speak ZMTP 3, but sent b'\\x01\\x00" in text


@pytest.mark.parametrize(
    ("said", "offered"),
    [
        (SIGNATURE[:3], "the first 3 bytes of a greeting"),
        (SIGNATURE, "a greeting that ends before its version: as of a ZeroMQ from before 2013"),
        (GREETING[:12], "ZMTP 3.0, no mechanism"),
        (GREETING, "ZMTP 3.0, the mechanism b'NULL', no READY command"),
        (NEWER + ready(b"PUSH")[:9], "ZMTP 3.1, the mechanism b'NULL', no READY command"),
    ],
)
@pytest.mark.parametrize("ending", ["close", "reset"])
def test_who_leaves_within_the_handshake_is_named_with_what_it_offered(
    board: Switchboard,
    recorder: LaneRecorder,
    notices: Notices,
    started: Started,
    said: bytes,
    offered: str,
    ending: str,
) -> None:
    door = started(lane_door(board, recorder, "PULL"))
    client = dial(door.address)
    client.sendall(said)
    eventually(lambda: [lane for lane in door.lanes if lane.zmtp.offered.startswith(offered)])
    if ending == "reset":
        client.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    name = f"tcp://127.0.0.1:{client.getsockname()[1]} at {door.address}"
    client.close()
    (text,) = eventually(lambda: notices.of("handshakes_failed"))
    assert f"{name}: it left within its handshake, after {offered}" in text
    assert notices.of("connections_cut") == []


def test_who_leaves_without_a_word_is_counted_and_worth_no_line(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, counted: list[str], started: Started
) -> None:
    door = started(lane_door(board, recorder))
    for number in range(3):
        dial(door.address).close()
        eventually(lambda wanted=number + 1: len(counted) == wanted)
    assert counted == ["handshakes_failed"] * 3
    assert notices == []


def test_one_that_reads_our_greeting_to_its_end_before_it_says_its_own_is_served(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    board.handshake = 30.0
    client = dial(started(lane_door(board, recorder, "PULL")).address)
    heard = b""
    while len(heard) < len(NEWER) and (data := client.recv(100)):
        heard += data
    assert heard == NEWER
    client.sendall(NEWER + ready(b"PUSH") + b"\0\5hello")
    eventually(lambda: recorder.messages == [[b"hello"]])
    assert notices == []


def test_a_door_that_is_closed_tells_of_no_handshake_that_was_not_done(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, counted: list[str], started: Started
) -> None:
    door = started(lane_door(board, recorder))
    client = dial(door.address)
    client.sendall(GREETING)
    eventually(lambda: door.connections == 1)
    gevent.spawn(door.stop)
    assert ended(client)
    assert (notices, counted) == ([], [])
