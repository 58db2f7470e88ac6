from __future__ import annotations

import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
import zmq
from gevent import socket as sockets
from gevent import subprocess

from devices.plain_sockets import (
    ANY_PORT,
    GREETING,
    Clients,
    Notices,
    dial,
    ended,
    eventually,
    open_files,
    resident,
    send,
    shake_hands,
)
from sluicemq_devices.sockets import Endpoint, Lane, LaneDoor, Switchboard, parse_endpoint
from sluicemq_devices.zmtp import Message

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

Started = Callable[[Any], Any]
Python = Callable[..., subprocess.Popen]
MAX_FRAME = 1 << 20


class Inbox(list[Message]):
    def __call__(self, messages: list[Message]) -> None:
        self.extend(messages)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def door_of(
    board: Switchboard, take: Callable[[list[Message]], None], at: Endpoint = ANY_PORT, **options: Any
) -> LaneDoor:
    def opened(lane: Lane) -> None:
        lane.on(receive=take)

    return LaneDoor(board, at, "PULL", opened, **{"max_frame": MAX_FRAME, **options})


_SEND_AND_LEAVE = """
import sys, zmq
context = zmq.Context()
for _ in range(20):
    push = context.socket(zmq.PUSH)
    push.connect(sys.argv[1])
    for _ in range(500):
        push.send(b"x" * 200)
    push.close()
context.term()
"""


def test_nothing_sent_is_lost(board: Switchboard, inbox: Inbox, started: Started, python: Python) -> None:
    door = started(door_of(board, inbox))
    leavers = [python(_SEND_AND_LEAVE, door.address) for _ in range(2)]
    assert [leaver.wait(60) for leaver in leavers] == [0, 0]
    eventually(lambda: len(inbox) == 20_000)
    eventually(lambda: door.connections == 0)
    assert door.received == 20_000


def test_what_was_sent_before_a_kill_is_handed_on(board: Switchboard, inbox: Inbox, started: Started) -> None:
    door = started(door_of(board, inbox))
    client = shake_hands(door.address, b"PUSH")
    client.sendall(b"\x00\x05hello")
    client.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # with a reset, as when a process is killed
    eventually(lambda: inbox == [[b"hello"]])


def test_no_files_are_left_open(board: Switchboard, inbox: Inbox, started: Started, clients: Clients) -> None:
    door = started(door_of(board, inbox))
    files = open_files()
    for _ in range(20):
        client = dial(door.address)
        client.sendall(GREETING)
        client.close()
    eventually(lambda: door.connections == 0 and open_files() <= files)  # others of this process may end


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "it does not speak ZMTP 3, but sent b'GET / HTTP/1.1"),
        (bytes(range(256)) * 16, "it does not speak ZMTP 3"),
        (b"\x01\x00\x05hello", "it does not speak ZMTP 3"),
        (GREETING[:20], "it never finished its ZMTP greeting"),
        (b"", "it sent nothing in the time for a handshake"),
        (GREETING, "no handshake in time"),
    ],
    ids=["http", "noise", "zmtp1", "half greeting", "silence", "greeting only"],
)
def test_who_does_not_speak_zmtp_is_cut_with_a_notice_and_others_go_on(
    board: Switchboard,
    inbox: Inbox,
    notices: Notices,
    started: Started,
    clients: Clients,
    garbage: bytes,
    reason: str,
) -> None:
    door = started(door_of(board, inbox))
    good = clients.connect(zmq.PUSH, door.address)
    send(good, b"served")
    eventually(lambda: inbox == [[b"served"]])
    if garbage in (b"", GREETING, GREETING[:20]):  # only here is it the time that ends it
        board.handshake = 0.5
    bad = dial(door.address)
    bad.sendall(garbage)
    assert ended(bad)
    (notice,) = eventually(lambda: notices.of("connections_cut"))
    assert reason in notice
    assert f"tcp://127.0.0.1:{bad.getsockname()[1]}" in notice
    send(good, b"still served")
    eventually(lambda: inbox[1:] == [[b"still served"]])


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 1 << 40, (1 << 64) - 1])
def test_a_frame_over_the_limit_cuts_its_connection_only(
    board: Switchboard, inbox: Inbox, notices: Notices, started: Started, clients: Clients, length: int
) -> None:
    door = started(door_of(board, inbox))
    good = clients.connect(zmq.PUSH, door.address)
    before = resident()
    bad = shake_hands(door.address, b"PUSH")
    bad.sendall(b"\x02" + struct.pack(">Q", length) + bytes(1000))
    assert ended(bad)
    assert "a frame over the limit" in eventually(lambda: notices.of("connections_cut"))[0]
    send(good, bytes(MAX_FRAME))
    eventually(lambda: inbox == [[bytes(MAX_FRAME)]])
    assert resident() - before < 50 << 20


_FLOOD = """
import sys, zmq
push = zmq.Context().socket(zmq.PUSH)
if len(sys.argv) > 2:
    push.heartbeat_ivl = push.heartbeat_timeout = int(sys.argv[2])
push.sndtimeo = 1000
push.connect(sys.argv[1])
sent = 0
try:
    while True:
        push.send(b"x" * 1000)
        sent += 1
except zmq.Again:
    print(sent, flush=True)
sys.stdin.read()
"""


def test_a_paused_door_makes_its_producer_wait_with_bounded_memory_and_loses_nothing(
    board: Switchboard, inbox: Inbox, started: Started, python: Python
) -> None:
    door = started(door_of(board, inbox))
    producer = python(_FLOOD, door.address)
    eventually(lambda: len(inbox) > 100)
    before, seen = resident(), len(inbox)
    door.pause()
    door.pause()
    sent = int(producer.stdout.readline())  # it could not send for a second
    assert len(inbox) - seen < 3000
    assert resident() - before < 20 << 20
    door.resume()
    eventually(lambda: len(inbox) == sent)


def test_a_door_paused_in_a_flood_holds_little(board: Switchboard, started: Started, python: Python) -> None:
    # Given a door that is paused with everything that comes, and goes on a moment later
    def take(_messages: list[Message]) -> None:
        door.pause()
        gevent.spawn_later(0.001, door.resume)

    door = started(door_of(board, take))
    before = resident()
    # When three producers flood it
    producers = [python(_FLOOD, door.address) for _ in range(3)]
    eventually(lambda: door.received > 20_000)
    # Then they wait, and not in its memory
    assert resident() - before < 20 << 20
    for producer in producers:
        producer.kill()


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_what_a_producer_wrote_before_its_end_arrives_though_the_door_was_paused_all_the_time(
    inbox: Inbox, started: Started, ending: str
) -> None:
    # Given a door where paused connections are looked at all the time
    board = started(Switchboard(handshake=30.0, glance=1e-6))
    door = started(door_of(board, inbox))
    client = shake_hands(door.address, b"PUSH")
    eventually(lambda: door.connections == 1)
    door.pause()
    # When one of it ends, and another comes
    client.sendall(b"\x00\x01x" * 5000)
    if ending == "reset":
        client.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    other = shake_hands(door.address, b"PUSH")
    eventually(lambda: door.connections == 2)
    # Then nobody has looked for the end of the first meanwhile
    assert inbox == []
    door.resume()
    eventually(lambda: len(inbox) == 5000)
    other.close()
    eventually(lambda: door.connections == 0)


def test_a_closed_gate_hands_over_what_was_read_though_the_door_is_paused(
    board: Switchboard, inbox: Inbox, started: Started
) -> None:
    # Given a door that is paused with the first part of what it has read
    def take(messages: list[Message]) -> None:
        inbox.extend(messages)
        door.pause()

    door = started(door_of(board, take))
    client = shake_hands(door.address, b"PUSH")
    eventually(lambda: door.connections == 1)
    door.pause()
    client.sendall(b"\x00\x01x" * 5000)
    door.resume()
    eventually(lambda: inbox)
    assert len(inbox) < 5000
    door.stop()
    assert len(inbox) == 5000 == door.received


def test_a_producer_with_heartbeats_against_a_paused_door_does_not_kill_the_process(
    board: Switchboard, inbox: Inbox, started: Started, python: Python, clients: Clients
) -> None:
    door = started(door_of(board, inbox))
    producer = python(_FLOOD, door.address, 100)
    eventually(lambda: len(inbox) > 100)
    door.pause()
    producer.stdout.readline()  # its pings went unanswered for a second
    door.resume()
    other = clients.connect(zmq.PUSH, door.address)
    send(other, b"alive")
    eventually(lambda: inbox.count([b"alive"]))


def test_connections_over_the_budget_close_at_once(notices: Notices, inbox: Inbox, clients: Clients) -> None:
    board = Switchboard(
        notice=lambda kind, text: notices.append((kind, text)), handshake=60.0, max_connections=2
    )
    board.start()
    door = door_of(board, inbox)
    door.start()
    try:
        kept = [shake_hands(door.address, b"PUSH") for _ in range(2)]
        refused = [dial(door.address) for _ in range(5)]
        assert all(ended(client) for client in refused)
        assert len(notices.of("connections_refused")) == 5
        assert "2 connections are open" in notices.of("connections_refused")[0]
        kept[0].sendall(b"\x00\x02ok")
        eventually(lambda: inbox == [[b"ok"]])
        kept[1].close()
        eventually(lambda: door.connections == 1)
        shake_hands(door.address, b"PUSH").sendall(b"\x00\x03new")
        eventually(lambda: inbox == [[b"ok"], [b"new"]])
    finally:
        door.stop()
        board.stop()


def test_no_door_locks_another_out(notices: Notices, inbox: Inbox, started: Callable[[Any], Any]) -> None:
    board = Switchboard(
        notice=lambda kind, text: notices.append((kind, text)), handshake=60.0, max_connections=40, keep=True
    )
    board.start()
    first, second = (started(door_of(board, inbox)) for _ in range(2))
    admin = started(LaneDoor(board, ANY_PORT, "PULL", lambda _lane: None, max_frame=10, kept=True))
    crowd = [dial(door.address) for door in (first, second) for _ in range(60)]
    eventually(lambda: len(notices.of("connections_refused")) == 120 - 32)
    let_in = [shake_hands(admin.address, b"PUSH") for _ in range(8)]
    eventually(lambda: (first.connections, second.connections, admin.connections) == (32, 0, 8))
    assert "32 connections are open of 40, 8 are kept" in notices.of("connections_refused")[0]
    for peer in (*crowd, *let_in):
        peer.close()


def test_one_door_leaves_a_fifth_of_the_connections_to_the_others(
    notices: Notices, inbox: Inbox, started: Callable[[Any], Any]
) -> None:
    board = Switchboard(
        notice=lambda kind, text: notices.append((kind, text)), handshake=60.0, max_connections=100, keep=True
    )
    board.start()
    first, second = (started(door_of(board, inbox)) for _ in range(2))
    crowd = [dial(first.address) for _ in range(90)]
    eventually(lambda: len(notices.of("connections_refused")) == 10)
    crowd += [dial(second.address) for _ in range(12)]
    eventually(lambda: (first.connections, second.connections) == (80, 12))
    for peer in crowd:
        peer.close()


def test_the_budget_follows_from_the_limit_of_open_files(board: Switchboard) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
    assert board.max_connections == min(30_000, hard - 256)


_AT_THE_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
import gevent
from sluicemq_devices.sockets.doors import LaneDoor
from sluicemq_devices.sockets.endpoints import parse
from sluicemq_devices.sockets.switchboard import Switchboard
refused = []
board = Switchboard(notice=lambda kind, text: refused.append(kind), max_connections=1000)
board.start()
door = LaneDoor(board, parse("tcp://127.0.0.1:0"), "PULL", lambda _: None, max_frame=1000)
door.start()
print(door.address, flush=True)
while not refused:
    gevent.sleep(0.01)
print("refused", flush=True)
gevent.get_hub().threadpool.apply(sys.stdin.readline)
print("alive", flush=True)
"""


def test_at_the_limit_of_open_files_the_process_lives_on(python: Python) -> None:
    # Given a budget that is wrong: more connections than files
    process = python(_AT_THE_LIMIT)
    address = process.stdout.readline().decode().strip()
    # When a crowd comes and stays
    crowd = [dial(address) for _ in range(150)]
    # Then some are turned away, and the process is there to say so, also after they have gone
    assert process.stdout.readline() == b"refused\n"
    for client in crowd:
        client.close()
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"alive\n"


def test_a_thousand_idle_connections_are_held(board: Switchboard, inbox: Inbox, started: Started) -> None:
    door = started(door_of(board, inbox))
    before = resident()
    crowd = [shake_hands(door.address, b"PUSH") for _ in range(1000)]
    assert door.connections == 1000
    crowd[500].sendall(b"\x00\x05hello")
    eventually(lambda: inbox == [[b"hello"]])
    assert resident() - before < 150 << 20
    for client in crowd:
        client.close()
    eventually(lambda: door.connections == 0)


def test_a_door_that_connects_is_dialled_until_somebody_answers_and_again_after_an_end(
    board: Switchboard,
    inbox: Inbox,
    notices: Notices,
    started: Started,
    clients: Clients,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Given an address where nobody is
    producer, end = clients.bind(zmq.PUSH)
    producer.close()
    door = started(door_of(board, inbox, at=end))
    eventually(lambda: notices.of("dial_failed"))
    assert end.address in notices.of("dial_failed")[0]
    for text in (b"first", b"again"):
        # When somebody comes, and comes again
        producer = clients.context.socket(zmq.PUSH)
        eventually(lambda socket=producer: _binds(socket, end.address))
        send(producer, text)
        # Then it is read
        eventually(lambda wanted=text: [wanted] in inbox)
        producer.close()
        eventually(lambda: door.connections == 0)
    # And the log says so each time
    eventually(lambda: sum("connection is lost" in record.getMessage() for record in caplog.records) >= 2)
    assert sum(f"{end.address}: connected again" in record.getMessage() for record in caplog.records) == 2


@pytest.mark.parametrize("mark", ["@", ">"])
def test_unix_sockets_are_doors_too(
    board: Switchboard, inbox: Inbox, started: Started, clients: Clients, tmp_path: Path, mark: str
) -> None:
    end = parse_endpoint(f"{mark}ipc://{tmp_path}/door")
    other = clients.context.socket(zmq.PUSH)
    other.linger = 0
    if mark == ">":
        other.bind(end.address)
    door = started(door_of(board, inbox, at=end))
    if mark == "@":
        other.connect(end.address)
    send(other, b"hello")
    eventually(lambda: inbox == [[b"hello"]])
    door.stop()
    assert (tmp_path / "door").exists() == (mark == ">")


def test_a_socket_file_left_by_a_killed_process_is_replaced_but_not_that_of_a_living_one(
    board: Switchboard, inbox: Inbox, started: Started, tmp_path: Path
) -> None:
    with sockets.socket(sockets.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "door"))
    end = parse_endpoint(f"ipc://{tmp_path}/door")
    started(door_of(board, inbox, at=end))
    with pytest.raises(OSError, match="can't be bound: Address already in use"):
        door_of(board, inbox, at=end).start()


def test_an_address_in_use_is_named_and_none_stay(board: Switchboard, inbox: Inbox, started: Started) -> None:
    first = started(door_of(board, inbox))
    second = door_of(board, inbox, at=parse_endpoint(first.address))
    with pytest.raises(OSError, match=f"{first.address} can't be bound: Address already in use"):
        second.start()
    second.stop()
    first.stop()
    second.start()
    second.stop()


def test_a_closed_gate_hands_over_what_was_read(board: Switchboard, inbox: Inbox, started: Started) -> None:
    door = started(door_of(board, inbox))
    client = shake_hands(door.address, b"PUSH")
    client.sendall(b"\x00\x01x" * 5000)
    eventually(lambda: inbox)
    door.stop()
    assert door.connections == 0
    count = len(inbox)
    assert ended(client)
    assert len(inbox) == count
    with pytest.raises(OSError, match="refused"):
        dial(door.address)


def test_what_lies_in_the_kernel_as_a_gate_closes_may_still_be_read(inbox: Inbox, started: Started) -> None:
    board = started(Switchboard(handshake=30.0, flush=60.0))
    # Given a paused door, with a producer who has sent something and has not left
    door = started(door_of(board, inbox))
    client = shake_hands(door.address, b"PUSH")
    eventually(lambda: door.connections == 1)
    door.pause()
    client.sendall(b"\x00\x01x" * 5000)
    # When its gate is closing, and it goes on
    closing = gevent.spawn(door.stop)
    assert client.recv(100) == b""  # the producer is told
    assert inbox == []
    door.resume()
    eventually(lambda: len(inbox) == 5000)
    client.close()
    closing.get(timeout=60)


def test_starting_and_stopping_may_be_repeated(board: Switchboard, inbox: Inbox, clients: Clients) -> None:
    door = door_of(board, inbox)
    door.stop()
    door.stop()
    door.pause()
    door.resume()
    for text in (b"first", b"again"):
        door.start()
        door.start()
        client = clients.connect(zmq.PUSH, door.address)
        send(client, text)
        eventually(lambda wanted=text: [wanted] in inbox)
        door.stop()
        door.stop()
    assert door.received == 2


def _binds(socket: zmq.Socket[bytes], address: str) -> bool:
    try:
        socket.bind(address)
    except zmq.ZMQError:
        return False
    return True
