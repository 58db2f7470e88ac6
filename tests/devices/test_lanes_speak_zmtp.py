"""Lanes against real ZeroMQ sockets, and against those who speak it badly."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from socket import MSG_WAITALL
from typing import Any

import pytest
import zmq
from gevent import subprocess

from devices.plain_sockets import (
    GREETING,
    NEWER,
    PING,
    Clients,
    LaneRecorder,
    Notices,
    dial,
    ended,
    eventually,
    lane_door,
    open_files,
    ready,
    receive,
    resident,
    send,
    shake_hands,
)
from sluicemq_devices.sockets import Lane, Switchboard, parse_endpoint
from sluicemq_devices.sockets.liveness import Life

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

Started = Callable[[Any], Any]
Python = Callable[..., subprocess.Popen]


@pytest.fixture
def beats_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lane], int]:
    """How many heartbeats a lane has had."""
    counted: Counter[int] = Counter()
    beat = Life.beat

    def counting(life: Life) -> None:
        counted[id(life)] += 1
        beat(life)

    monkeypatch.setattr(Life, "beat", counting)
    return lambda lane: counted[id(lane.life)]


BODIES = [
    [b""],
    [b"x" * 255],
    [b"x" * 256],
    [b"one", b"", b"three", b""],
    [bytes(65_535), bytes(65_536), b"", bytes(65_537)],
    [bytes(range(256)) * (12 << 12)],  # 12 MiB
]
ROOMY: dict[str, Any] = {"max_frame": 16 << 20}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: "+".join(str(len(frame)) for frame in body))
@pytest.mark.parametrize(
    ("kind", "other", "envelope"),
    [
        ("DEALER", zmq.REP, [b""]),
        ("DEALER", zmq.DEALER, []),
        ("DEALER", zmq.ROUTER, []),
        ("ROUTER", zmq.REQ, [b"me", b""]),
        ("ROUTER", zmq.DEALER, [b"me"]),
    ],
)
def test_messages_of_any_shape_go_both_ways(
    board: Switchboard,
    recorder: LaneRecorder,
    started: Started,
    clients: Clients,
    kind: str,
    other: int,
    envelope: list[bytes],
    body: list[bytes],
) -> None:
    door = started(lane_door(board, recorder, kind, **ROOMY))
    client = clients.connect(other, door.address, routing_id=b"me", heartbeat_ivl=20, heartbeat_timeout=5000)
    lane = recorder.lane()
    for _ in range(2):
        if kind == "DEALER":
            lane.send([*envelope, *body])
            there = receive(client)
            send(client, *there)
            assert there[-len(body) :] == body
            assert eventually(lambda: recorder.messages).pop() == [*envelope, *body]
        else:
            send(client, *body)
            assert eventually(lambda: recorder.messages).pop() == [*envelope, *body]
            lane.send([*envelope, *body])
            assert receive(client)[-len(body) :] == body


@pytest.mark.parametrize("rcvhwm", [1, 1000])
def test_a_pull_worker_gets_all_in_order_however_slowly_it_takes_it(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients, rcvhwm: int
) -> None:
    door = started(lane_door(board, recorder, "PUSH", **ROOMY))
    worker = clients.connect(zmq.PULL, door.address, rcvhwm=rcvhwm)
    lane = recorder.lane()
    sent = [[b"%d" % number, b"x" * (number * number)] for number in range(400)]
    lane.post(sent[:200])
    for message in sent[200:]:
        lane.send(message)
    lane.send([b"large", bytes(8 << 20)])
    assert lane.backlog
    assert [receive(worker) for _ in sent] == sent
    assert len(receive(worker)[1]) == 8 << 20
    eventually(lambda: lane.writable)
    assert (lane.held.count, lane.held.bytes) == (0, 0)


_ASK_AND_LEAVE = """
import sys, zmq
context = zmq.Context()
for _ in range(10):
    dealer = context.socket(zmq.DEALER)
    dealer.connect(sys.argv[1])
    for _ in range(500):
        dealer.send(b"x" * 200)
    dealer.close()
context.term()
"""


def test_nothing_is_lost_of_clients_that_send_and_leave(
    board: Switchboard, recorder: LaneRecorder, started: Started, python: Python
) -> None:
    door = started(lane_door(board, recorder, "ROUTER"))
    assert python(_ASK_AND_LEAVE, door.address).wait(60) == 0
    eventually(lambda: len(recorder.messages) == 5000)
    eventually(lambda: len(recorder.closed) == 10)


def test_clients_with_heartbeats_stay_connected_to_one_that_has_none_and_to_one_that_has(
    board: Switchboard,
    recorder: LaneRecorder,
    notices: Notices,
    started: Started,
    python: Python,
    beats_of: Callable[[Lane], int],
) -> None:
    beats: dict[str, Any] = {"heartbeat": 0.1, "silence": 3.0}
    doors = [started(lane_door(board, recorder, **options)) for options in ({}, beats)]
    for number, door in enumerate(doors):
        python(_BEATING_WORKER, door.address)
        recorder.lane(number)
    eventually(lambda: beats_of(recorder.lanes[1]) > 40)  # four seconds: longer than either would wait
    for lane in recorder.lanes:
        lane.send([b"", b"job"])
    eventually(lambda: recorder.messages == [[b"", b"job"]] * 2)
    assert (len(recorder.lanes), recorder.closed, notices) == (2, [], [])


_BEATING_WORKER = """
import sys, zmq
worker = zmq.Context().socket(zmq.REP)
worker.heartbeat_ivl, worker.heartbeat_timeout = 50, 3000
worker.connect(sys.argv[1])
while True:
    worker.send(worker.recv())
"""


def test_a_lane_that_is_paused_for_longer_than_its_silence_is_not_taken_for_dead(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, heartbeat=0.05, silence=0.1))
    client = shake_hands(door.address, b"DEALER", NEWER)
    lane = recorder.lane()
    lane.pause()
    for _ in range(8):  # pings, to which nobody could hear an answer
        assert client.recv(len(PING), MSG_WAITALL) == PING
    assert recorder.closed == []
    client.close()
    eventually(lambda: recorder.closed)


def test_who_reads_a_large_job_slowly_is_not_taken_for_dead(
    board: Switchboard, recorder: LaneRecorder, started: Started, beats_of: Callable[[Lane], int]
) -> None:
    door = started(lane_door(board, recorder, heartbeat=0.05, silence=0.5))
    client = shake_hands(door.address, b"DEALER", NEWER)
    lane = recorder.lane()
    lane.send([bytes(20 << 20)])
    left, began = 20 << 20, beats_of(lane)
    while left > 0:  # and it answers no ping: they are behind the job
        wanted = 5 << 20
        while wanted > 0 and left > 0:
            got = len(client.recv(65_536))
            wanted, left = wanted - got, left - got
        read_at = beats_of(lane)
        eventually(lambda before=read_at: beats_of(lane) >= before + 4)
    assert beats_of(lane) - began > 10  # so many make the silence
    assert recorder.closed == []


@pytest.mark.parametrize("size", [300_000, 8 << 20])
def test_what_was_sent_to_one_whose_own_words_are_unread_still_comes_when_its_lane_is_closed(
    recorder: LaneRecorder, started: Started, size: int
) -> None:
    board = started(Switchboard(handshake=30.0, flush=60.0))
    # Given words that nobody reads, for which the kernel would reset a connection that is closed
    door = started(lane_door(board, recorder, max_frame=16 << 20))
    client = shake_hands(door.address, b"DEALER")
    lane = recorder.lane()
    lane.pause()
    client.sendall(b"\0\5hello" * 100)
    lane.send([bytes(size)])
    lane.close()
    got = 0
    while data := client.recv(65_536):
        got += len(data)
    assert got == 9 + size
    client.close()
    eventually(lambda: recorder.closed)
    assert recorder.messages == []


@pytest.mark.parametrize("mark", ["@", ">"])
def test_unix_sockets_have_lanes_too(
    board: Switchboard, recorder: LaneRecorder, started: Started, clients: Clients, tmp_path: Path, mark: str
) -> None:
    end = parse_endpoint(f"{mark}ipc://{tmp_path}/door")
    worker = clients.context.socket(zmq.REP)
    worker.linger = 0
    if mark == ">":
        worker.bind(end.address)
    started(lane_door(board, recorder, at=end))
    if mark == "@":
        worker.connect(end.address)
    lane = recorder.lane()
    lane.send([b"", b"job"])
    send(worker, *receive(worker))
    eventually(lambda: recorder.messages == [[b"", b"job"]])
    lane.pause()
    worker.close()
    eventually(lambda: recorder.closed)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\xff" + bytes(8) + b"\x7f\x01\x05", "an older one: its ZeroMQ is from before 2013"),
        (GREETING + ready(b"PUSH"), "it is a PUSH socket, here is a DEALER for REP, DEALER, ROUTER"),
        (b"GET / HTTP/1.1\r\n\r\n", "it does not speak ZMTP 3, but sent b'GET / HTTP/1.1"),
        (GREETING[:30], "it never finished its ZMTP greeting"),
        (GREETING, "no handshake in time"),
        (GREETING + ready(b"REP") + b"\x02" + (1 << 40).to_bytes(8), "a frame over the limit"),
        (GREETING + ready(b"REP") + b"\x01\x00" * 65_537, "a message of too many frames"),
    ],
    ids=["ZMTP 2", "wrong kind", "HTTP", "half greeting", "greeting only", "huge", "endless"],
)
def test_who_speaks_no_zmtp_or_badly_is_cut_with_a_notice_and_others_go_on(
    board: Switchboard,
    recorder: LaneRecorder,
    notices: Notices,
    started: Started,
    clients: Clients,
    said: bytes,
    reason: str,
) -> None:
    door = started(lane_door(board, recorder))
    good = clients.connect(zmq.DEALER, door.address)
    recorder.lane()
    if said in (GREETING, GREETING[:30]):  # only here is it the time that ends it
        board.handshake = 0.5
    bad = dial(door.address)
    bad.sendall(said)
    assert ended(bad)
    (notice,) = eventually(lambda: notices.of("connections_cut"))
    assert reason in notice
    assert f"tcp://127.0.0.1:{bad.getsockname()[1]} at {door.address}" in notice
    send(good, b"still served")
    eventually(lambda: recorder.messages == [[b"still served"]])
    assert door.connections == 1


def test_one_that_floods_does_not_keep_others_waiting(
    board: Switchboard, recorder: LaneRecorder, started: Started, python: Python
) -> None:
    door = started(lane_door(board, recorder, "ROUTER"))
    python(_FLOOD, door.address)
    eventually(lambda: len(recorder.messages) > 1000)
    client = shake_hands(door.address, b"DEALER")
    heard: list[int] = []  # for each message, how many of the flood had come before it
    recorder.lane(1).on(receive=lambda messages: heard.extend(len(recorder.messages) for _ in messages))
    for number in range(20):
        before = len(recorder.messages)
        client.sendall(b"\0\1x" * 10)
        eventually(lambda wanted=number: len(heard) >= 10 * (wanted + 1))
        # Of its own it takes 256 before others have their turn; but the kernel too has much to deliver.
        assert heard[-1] - before < 500_000


_FLOOD = """
import sys, zmq
dealer = zmq.Context().socket(zmq.DEALER)
dealer.connect(sys.argv[1])
while True:
    dealer.send(b"")
"""


@pytest.mark.full
def test_a_thousand_idle_lanes_are_held_in_little_memory_and_few_files(
    board: Switchboard, recorder: LaneRecorder, started: Started
) -> None:
    door = started(lane_door(board, recorder, "ROUTER"))
    before, files = resident(), open_files()
    crowd = [shake_hands(door.address, b"DEALER") for _ in range(1000)]
    assert door.connections == 1000
    crowd[500].sendall(b"\0\5hello")
    eventually(lambda: recorder.messages == [[b"\0", b"hello"]])
    assert resident() - before < 30 << 20
    assert open_files() - files == 2000  # theirs and ours
    for client in crowd:
        client.close()
    eventually(lambda: door.connections == 0 and open_files() <= files + 1)


def test_what_a_worker_lacks_is_known(board: Switchboard, recorder: LaneRecorder, started: Started) -> None:
    door = started(lane_door(board, recorder, "PUSH"))
    client = shake_hands(door.address, b"PULL")
    lane = recorder.lane()
    lane.post([[bytes(1000)] for _ in range(20_000)])
    held = lane.backlog
    assert 0 < held < 20_000
    assert lane.held.bytes == 1000 * held
    client.close()
    eventually(lambda: recorder.closed)
    assert lane.backlog == held
