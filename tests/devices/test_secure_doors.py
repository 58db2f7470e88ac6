"""Doors and relays with PLAIN and CURVE, and libzmq on the other side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest
import zmq
from gevent import socket as sockets

from devices.keyed_sockets import (
    CLIENT,
    DIALLING,
    SERVER,
    Events,
    KeyedPeer,
    KeyGuard,
    LateGuard,
    as_client,
    as_server,
    new_pair,
    read_all,
)
from devices.plain_sockets import (
    ANY_PORT,
    GREETING,
    PING,
    Clients,
    LaneRecorder,
    Notices,
    dial,
    ended,
    eventually,
    lane_door,
    ready,
    receive,
    send,
)
from sluicemq.protocol.keys import key_id
from sluicemq_devices.relays import Forwarder, QueueDevice, Streamer
from sluicemq_devices.sockets import Endpoint, Guard, Switchboard, parse_endpoint
from sluicemq_devices.zmtp import encode
from sluicemq_devices.zmtp.greeting import VERSION, choice

Started = Callable[[Any], Any]

USERS = {"me": "secret"}
LARGE = [b"x" * 300, bytes(70_000), b"", b"y" * (3 << 20)]


def guard_of(end: Endpoint) -> Guard:
    """The rule of a door, by whether it dials."""
    return KeyGuard() if end.bind else DIALLING


def join(clients: Clients, kind: int, mark: str) -> tuple[Endpoint, Callable[[str], zmq.Socket[bytes]]]:
    """An end of a door that binds (@) or dials (>); and what gives a plain socket there."""
    if mark == "@":
        return ANY_PORT, lambda address: clients.connect(kind, address, **as_client())
    server, end = clients.bind(kind, **as_server())
    return end, lambda _address: server


BOTH_WAYS = pytest.mark.parametrize("mark", ["@", ">"])


# ---------------------------------------------------------------- at every kind of door


@BOTH_WAYS
@pytest.mark.parametrize(
    ("kind", "other"),
    [("DEALER", zmq.REP), ("ROUTER", zmq.REQ), ("ROUTER", zmq.DEALER), ("DEALER", zmq.ROUTER)],
)
def test_messages_go_both_ways_sealed(
    board: Switchboard,
    recorder: LaneRecorder,
    started: Started,
    clients: Clients,
    kind: str,
    other: int,
    mark: str,
) -> None:
    end, client = join(clients, other, mark)
    door = started(lane_door(board, recorder, kind, end, max_frame=8 << 20, guard=guard_of(end)))
    plain = client(door.address)
    lane = recorder.lane()
    assert lane.who == (CLIENT if mark == "@" else SERVER).public
    envelope = [lane.zmtp.identity or b"\0"] if kind == "ROUTER" else []
    if other in (zmq.REQ, zmq.DEALER):
        send(plain, *([b""] if other == zmq.DEALER else []), b"question", *LARGE)
        eventually(lambda: recorder.messages == [[b"\0", b"", b"question", *LARGE]])
        lane.post([[*envelope, b"", b"answer"]])
        assert receive(plain)[-1] == b"answer"
    else:
        lane.post([[b"", b"job", *LARGE]])
        frames = receive(plain)
        assert frames[-5:] == [b"job", *LARGE]
        send(plain, *(frames[:2] if other == zmq.ROUTER else []), b"done")
        eventually(lambda: recorder.messages == [[b"", b"done"]])


@BOTH_WAYS
def test_a_pull_has_messages_of_all_sizes(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients, mark: str
) -> None:
    end, client = join(clients, zmq.PUSH, mark)
    door = started(lane_door(board, recorder, "PULL", end, max_frame=16 << 20, guard=guard_of(end)))
    plain = client(door.address)
    sizes = [0, 1, 220, 222, 223, 224, 254, 255, 256, 65_500, 65_536, 70_000, 1 << 20, 5 << 20]
    for size in sizes:
        send(plain, bytes(size), b"z" * size)
    eventually(lambda: len(recorder.messages) == len(sizes))
    assert recorder.messages == [[bytes(size), b"z" * size] for size in sizes]
    eventually(lambda: board.unfinished.bytes == 0)


@BOTH_WAYS
def test_messages_arrive_by_the_pongs_of_a_sealed_connection(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients, mark: str
) -> None:
    end, client = join(clients, zmq.PULL, mark)
    plain = client(started(lane_door(board, recorder, "PUSH", end, guard=guard_of(end))).address)
    arrived: list[int] = []
    for number in range(10):
        recorder.lane().post([[b"%d" % number]], partial(arrived.append, number))
    assert [receive(plain) for _ in range(10)] == [[b"%d" % number] for number in range(10)]
    eventually(lambda: arrived == list(range(10)))


MARKS = pytest.mark.parametrize("marks", ["@@", "@>", ">@", ">>"])


@MARKS
def test_sealed_messages_go_on(board: Switchboard, started: Started, clients: Clients, marks: str) -> None:
    (front, producer), (back, worker) = (
        join(clients, kind, mark) for kind, mark in zip((zmq.PUSH, zmq.PULL), marks, strict=True)
    )
    streamer = started(Streamer(board, front, back, guard=guard_of))
    push, pull = producer(streamer.addresses[0]), worker(streamer.addresses[1])
    for number in range(100):
        send(push, b"%d" % number, *LARGE[: number % 4])
    assert [receive(pull) for _ in range(100)] == [[b"%d" % n, *LARGE[: n % 4]] for n in range(100)]


@MARKS
def test_sealed_questions_go_on(board: Switchboard, started: Started, clients: Clients, marks: str) -> None:
    (front, client), (back, worker) = (
        join(clients, kind, mark) for kind, mark in zip((zmq.REQ, zmq.REP), marks, strict=True)
    )
    queue = started(QueueDevice(board, front, back, guard=guard_of))
    req, rep = client(queue.addresses[0]), worker(queue.addresses[1])
    for number in range(20):
        send(req, b"%d" % number, *LARGE[: number % 4])
        send(rep, *receive(rep), b"answer")
        assert receive(req) == [b"%d" % number, *LARGE[: number % 4], b"answer"]


@MARKS
@pytest.mark.parametrize("subscriber", [zmq.SUB, zmq.XSUB])
def test_a_forwarder_relays_sealed_subscriptions_up_and_messages_down(
    board: Switchboard, started: Started, clients: Clients, marks: str, subscriber: int
) -> None:
    (front, publisher), (back, reader) = (
        join(clients, kind, mark) for kind, mark in zip((zmq.XPUB, subscriber), marks, strict=True)
    )
    forwarder = started(Forwarder(board, front, back, guard=guard_of))
    pub, sub = publisher(forwarder.addresses[0]), reader(forwarder.addresses[1])
    _subscribe(sub, b"a", on=True)
    eventually(lambda: (sub.poll(0), pub.poll(0))[1])  # a SUB that binds sees a peer when it is used
    assert receive(pub) == [b"\1a"]
    send(pub, b"another", *LARGE)
    send(pub, b"beyond")
    send(pub, b"all")
    assert [receive(sub) for _ in range(2)] == [[b"another", *LARGE], [b"all"]]
    _subscribe(sub, b"a", on=False)
    assert receive(pub) == [b"\0a"]


def _subscribe(socket: zmq.Socket[bytes], topic: bytes, *, on: bool) -> None:
    if socket.type == zmq.XSUB:
        send(socket, (b"\1" if on else b"\0") + topic)
    else:
        socket.setsockopt(zmq.SUBSCRIBE if on else zmq.UNSUBSCRIBE, topic)


def test_a_pub_socket_publishes_sealed(board: Switchboard, started: Started, clients: Clients) -> None:
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT, guard=guard_of))
    pub, sub = (
        clients.connect(kind, address, **as_client())
        for kind, address in zip((zmq.PUB, zmq.SUB), forwarder.addresses, strict=True)
    )
    sub.setsockopt(zmq.SUBSCRIBE, b"")
    eventually(lambda: pub.send(b"news") or sub.poll(0))


def test_one_door_serves_all_its_mechanisms(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients
) -> None:
    guard = LateGuard(passwords=USERS)
    guard.mechanisms |= {"NULL"}
    door = started(lane_door(board, recorder, "PULL", guard=guard))
    kept = []
    for options in ({}, {"plain_username": b"me", "plain_password": b"secret"}, as_client()):
        kept.append(clients.connect(zmq.PUSH, door.address, **options))
        send(kept[-1], b"hello")
        credentials, decide = eventually(lambda: guard.asked and guard.asked.pop())
        decide(credentials.mechanism, "")
    eventually(lambda: recorder.messages == [[b"hello"]] * 3)
    assert [lane.who for lane in recorder.lanes] == ["NULL", "PLAIN", "CURVE"]


# ----------------------------------------------------------------------- who does not get in


def test_a_key_that_is_not_allowed_is_refused_and_its_libzmq_says_so(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, clients: Clients
) -> None:
    door = started(lane_door(board, recorder, "PULL", guard=KeyGuard()))
    stranger = new_pair()
    plain = clients.context.socket(zmq.PUSH)
    events = Events(plain)
    for name, value in as_client(stranger).items():
        setattr(plain, name, value)
    plain.connect(door.address)
    assert events.next() == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
    (text, *_) = eventually(lambda: notices.of("handshakes_refused"))
    assert text.startswith("tcp://127.0.0.1:")
    assert f"key {key_id(stranger.public)} is not allowed" in text
    assert recorder.lanes == []
    plain.close()


def test_a_wrong_password_is_refused_and_its_libzmq_says_so(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, clients: Clients
) -> None:
    door = started(lane_door(board, recorder, "PULL", guard=KeyGuard(passwords=USERS)))
    plain = clients.context.socket(zmq.PUSH)
    events = Events(plain)
    plain.plain_username, plain.plain_password = b"me", b"a guess"
    plain.connect(door.address)
    assert events.next()[0] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL  # its PLAIN can't read ERROR
    assert "user me: a wrong password" in eventually(lambda: notices.of("handshakes_refused"))[0]
    assert not [text for _, text in notices if "guess" in text]
    plain.close()


def test_a_client_that_has_another_key_of_the_server_is_named(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, clients: Clients
) -> None:
    door = started(lane_door(board, recorder, "PULL", guard=KeyGuard()))
    plain = clients.connect(zmq.PUSH, door.address, **as_client(server=new_pair().public))
    assert "made for another key" in eventually(lambda: notices.of("handshakes_failed"))[0]
    plain.close()


@pytest.mark.parametrize(
    ("options", "mechanism"),
    [(dict, "NULL"), (lambda: {"plain_username": b"me", "plain_password": b"secret"}, "PLAIN")],
)
def test_a_client_with_another_mechanism_than_the_door_is_named_with_both(
    board: Switchboard,
    recorder: LaneRecorder,
    notices: Notices,
    started: Started,
    clients: Clients,
    options: Callable[[], dict[str, Any]],
    mechanism: str,
) -> None:
    door = started(lane_door(board, recorder, "PULL", guard=KeyGuard()))
    plain = clients.connect(zmq.PUSH, door.address, **options())
    (text, *_) = eventually(lambda: notices.of("connections_cut"))
    assert f"it wants the mechanism b'{mechanism}', and only CURVE is spoken here" in text
    assert recorder.lanes == []
    plain.close()


@pytest.mark.parametrize("options", [dict, lambda: {"plain_server": 1}])
def test_a_door_that_dials_accepts_no_server_without_the_key(
    board: Switchboard,
    recorder: LaneRecorder,
    notices: Notices,
    started: Started,
    clients: Clients,
    options: Callable[[], dict[str, Any]],
) -> None:
    server, end = clients.bind(zmq.PULL, **options())
    started(lane_door(board, recorder, "PUSH", end, guard=DIALLING))
    eventually(lambda: notices.of("connections_cut") + notices.of("handshakes_failed"))
    assert recorder.lanes == []
    server.close()


def test_a_door_that_dials_a_server_with_another_key_says_what_may_be_wrong(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, clients: Clients
) -> None:
    server, end = clients.bind(zmq.PULL, **as_server(new_pair()))
    started(lane_door(board, recorder, "PUSH", end, guard=DIALLING))
    (text, *_) = eventually(lambda: notices.of("handshakes_failed"))
    assert "no WELCOME command" in text
    assert "server key" in text
    server.close()


def test_a_door_answers_no_weaker_mechanism_than_the_server_that_it_dials_must_have(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    with sockets.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        end = Endpoint(f"tcp://127.0.0.1:{listener.getsockname()[1]}", bind=False)
        started(lane_door(board, recorder, "PUSH", end, guard=DIALLING))
        outside, _ = listener.accept()
        outside.sendall(GREETING + ready(b"PULL"))
        assert b"READY" not in read_all(outside)
    assert (
        "wants the mechanism b'NULL', and only CURVE" in eventually(lambda: notices.of("connections_cut"))[0]
    )


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (VERSION, "it never finished its ZMTP greeting"),
        (VERSION + choice("CURVE", as_server=False), "the HELLO command is missing"),
    ],
)
def test_a_half_handshake_ends_with_its_time(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, said: bytes, reason: str
) -> None:
    board.handshake = 0.5
    client = dial(started(lane_door(board, recorder, guard=KeyGuard())).address)
    client.sendall(said)
    assert ended(client)
    assert reason in eventually(lambda: notices.of("connections_cut"))[0]


def test_a_handshake_that_stops_before_initiate_ends_with_its_time(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    board.handshake = 0.5
    client = KeyedPeer(started(lane_door(board, recorder, guard=KeyGuard())).address, "DEALER")
    client.hear(lambda: b"HELLO" in client.sent[-1])
    assert b"WELCOME" in read_all(client.socket)
    assert "the INITIATE command is missing" in eventually(lambda: notices.of("connections_cut"))[0]


# ------------------------------------------------------------------------- decisions


def test_what_came_early_is_kept(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    guard = LateGuard(passwords=USERS)
    door = started(lane_door(board, recorder, "PULL", guard=guard))
    client = dial(door.address)
    hello, initiate = b"\x05HELLO\2me\6secret", b"\x08INITIATE" + ready(b"PUSH")[8:]
    client.sendall(VERSION + choice("PLAIN", as_server=False) + _command(hello) + _command(initiate))
    client.sendall(encode([b"early"]) * 3)
    _, decide = eventually(lambda: guard.asked and guard.asked.pop())
    client.sendall(encode([b"later"]) * 3)
    assert recorder.lanes == []
    decide("me", "")
    eventually(lambda: recorder.messages == [[b"early"]] * 3 + [[b"later"]] * 3)
    assert recorder.lane().who == "me"


def _command(body: bytes) -> bytes:
    return bytes((4, len(body))) + body


def test_no_more_than_a_read_is_kept_of_who_is_not_decided_about(
    board: Switchboard, recorder: LaneRecorder, started: Started, tmp_path: Path
) -> None:
    guard = LateGuard()
    door = started(lane_door(board, recorder, "PULL", parse_endpoint(f"ipc://{tmp_path}/door"), guard=guard))
    client = KeyedPeer(door.address, "PUSH")
    client.hear(lambda: client.zmtp.offered and b"INITIATE" in b"".join(client.sent))
    eventually(lambda: guard.asked)
    client.socket.setblocking(False)  # noqa: FBT003 - that is how it is called
    with contextlib.suppress(BlockingIOError):
        while True:
            client.socket.send(bytes(65_536))  # into the kernel's buffers
    for _ in range(100):
        gevent.sleep(0.001)
    with pytest.raises(BlockingIOError):  # nobody has read any of it
        client.socket.send(bytes(65_536))


@pytest.mark.parametrize("why", ["", "it is too late"])
def test_a_decision_about_a_peer_that_has_left_is_ignored(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, why: str
) -> None:
    board.handshake = 0.5
    guard = LateGuard()
    door = started(lane_door(board, recorder, "PULL", guard=guard))
    client = KeyedPeer(door.address, "PUSH")
    client.hear(lambda: b"INITIATE" in b"".join(client.sent))
    _, decide = eventually(lambda: guard.asked and guard.asked.pop())
    client.socket.close()
    eventually(lambda: not door.connections)
    decide("me", why)
    assert recorder.lanes == []
    assert notices.of("handshakes_refused") == []
    assert "was not decided" in notices.of("connections_cut")[0]


def test_a_refusal_is_heard_also_by_who_has_sent_more(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    guard = LateGuard()
    client = KeyedPeer(started(lane_door(board, recorder, "PULL", guard=guard)).address, "PUSH")
    client.hear(lambda: b"INITIATE" in b"".join(client.sent))
    _, decide = eventually(lambda: guard.asked and guard.asked.pop())
    client.socket.sendall(bytes(100_000))  # unread bytes: a plain close would be a reset
    decide(None, "nobody knows it")
    assert b"\x05ERROR\x03400" in read_all(client.socket)
    client.socket.close()
    assert "nobody knows it" in eventually(lambda: notices.of("handshakes_refused"))[0]


def test_a_peer_that_is_refused_for_now_is_not_told_and_tries_again(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, clients: Clients
) -> None:
    guard = LateGuard()
    door = started(lane_door(board, recorder, "PULL", guard=guard))
    plain = clients.connect(zmq.PUSH, door.address, reconnect_ivl=10, **as_client())
    for _ in range(2):
        _, decide = eventually(lambda: guard.asked and guard.asked.pop())
        decide(None, "too many at once", for_now=True)
    _, decide = eventually(lambda: guard.asked and guard.asked.pop())
    decide("me", "")
    send(plain, b"at last")
    eventually(lambda: recorder.messages == [[b"at last"]])
    assert len(notices.of("handshakes_refused")) == 2


def test_connections_are_cut_whose_owner_may_stay_no_longer(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, clients: Clients
) -> None:
    guard, others = KeyGuard(), [new_pair() for _ in range(3)]
    guard.allowed |= {pair.public for pair in others}
    doors = [started(lane_door(board, recorder, "PULL", guard=guard)) for _ in range(2)]
    peers = [
        KeyedPeer(door.address, "PUSH", KeyGuard(own=pair, server=SERVER.public)).open()
        for door in doors
        for pair in others
    ]
    eventually(lambda: len(recorder.lanes) == len(peers))
    gone = others[0].public
    board.cut_if(lambda who: who == gone, "its key was removed")
    eventually(lambda: len(notices.of("connections_cut")) == 2)
    assert all("its key was removed" in text for text in notices.of("connections_cut"))
    assert sorted(lane.who for lane in recorder.closed) == [gone, gone]
    assert [door.connections for door in doors] == [2, 2]


# --------------------------------------------------------------------------- traffic


def test_heartbeats_are_sealed(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    door = started(lane_door(board, recorder, "PULL", guard=KeyGuard(), heartbeat=0.02, silence=60.0))
    client = KeyedPeer(door.address, "PUSH").open()
    pongs: list[bytes] = []
    client.zmtp.answered = pongs.append
    client.say(b"\x04\x09\x04PING\0\0me")
    client.hear(lambda: pongs and len(client.sent) > 10)  # these are answers to PINGs
    assert pongs == [b"me"]
    client.say(encode([b"still here"]))
    eventually(lambda: recorder.messages == [[b"still here"]])


def test_a_peer_whose_sealed_heartbeats_are_missing_is_cut(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, "PULL", guard=KeyGuard(), heartbeat=0.05, silence=0.15))
    client = KeyedPeer(door.address, "PUSH").open()
    assert PING not in read_all(client.socket)  # it comes sealed
    assert "no answer to heartbeats" in eventually(lambda: notices.of("connections_cut"))[0]


def test_a_recorded_session_that_is_played_back_byte_by_byte_is_refused(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, "PULL", guard=KeyGuard()))
    client = KeyedPeer(door.address, "PUSH").open()
    client.say(encode([b"once"]))
    eventually(lambda: recorder.messages == [[b"once"]])
    thief = dial(door.address)
    with contextlib.suppress(ConnectionError):
        for byte in b"".join(client.sent):
            thief.sendall(bytes((byte,)))
            gevent.sleep(0)
    assert ended(thief)
    assert "INITIATE" in eventually(lambda: notices.of("handshakes_failed"))[0]
    assert recorder.messages == [[b"once"]]


@pytest.mark.parametrize("what", ["altered", "again", "plain"])
def test_messages_that_are_not_what_comes_next_are_refused(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started, what: str
) -> None:
    door = started(lane_door(board, recorder, "PULL", guard=KeyGuard()))
    client = KeyedPeer(door.address, "PUSH").open()
    client.say(encode([b"good"]))
    forged = {
        "altered": client.seal(encode([b"bad"]))[:-1] + b"?",
        "again": client.sent[-1],
        "plain": encode([b"in clear text, of more than thirty-three bytes"]),
    }
    client.socket.sendall(forged[what])
    assert ended(client.socket)
    assert "broken CURVE" in eventually(lambda: notices.of("connections_cut"))[0]
    assert recorder.messages == [[b"good"]]


def test_what_a_worker_has_not_taken_goes_to_another_and_is_sealed_for_that_one(
    board: Switchboard, started: Started, clients: Clients
) -> None:
    streamer = started(Streamer(board, ANY_PORT, ANY_PORT, guard=guard_of))
    front, back = streamer.addresses
    lazy = KeyedPeer(back, "PULL").open()
    push = clients.connect(zmq.PUSH, front, **as_client())
    texts = [b"%d" % number + bytes(100_000) for number in range(200)]
    for text in texts:
        send(push, text)
    eventually(lambda: streamer.received == len(texts))
    held = streamer.backlog
    assert 0 < held < len(texts)
    pull = clients.connect(zmq.PULL, back, **as_client())
    lazy.socket.close()
    assert [receive(pull) for _ in range(held)] == [[text] for text in texts[-held:]]


def test_a_drop_leaves_no_gap(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    door = started(lane_door(board, recorder, "DEALER", guard=KeyGuard()))
    client = KeyedPeer(door.address, "DEALER").open()
    lane = recorder.lane()
    lane.send([bytes(30 << 20)])
    assert lane.backlog
    lane.say(PING)  # bytes wait: it is not sent
    lane.send([b"next"])
    client.hear(lambda: len(client.messages) == 2)
    assert client.messages == [[bytes(30 << 20)], [b"next"]]


def test_large_messages_of_many_take_no_more_memory_than_the_budget_allows(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, "PULL", max_frame=64 << 20, guard=KeyGuard()))
    client = KeyedPeer(door.address, "PUSH").open()
    sealed = client.seal(encode([bytes(20 << 20)]))
    client.socket.sendall(sealed[: 10 << 20])
    eventually(lambda: board.unfinished.bytes > 9 << 20)
    client.socket.sendall(sealed[10 << 20 :])
    eventually(lambda: len(recorder.messages) == 1)
    assert board.unfinished.bytes == 0


def test_a_sealed_frame_over_the_limit_is_cut_at_its_header(
    board: Switchboard, recorder: LaneRecorder, notices: Notices, started: Started
) -> None:
    door = started(lane_door(board, recorder, "PULL", max_frame=1 << 20, guard=KeyGuard()))
    client = KeyedPeer(door.address, "PUSH").open()
    client.socket.sendall(b"\x02" + (1 << 40).to_bytes(8))
    assert ended(client.socket)
    assert "broken CURVE" in eventually(lambda: notices.of("connections_cut"))[0]
