"""A STREAMER deals to whom has room."""

import itertools
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from gevent import socket as sockets
from gevent import subprocess
from hypothesis import given
from hypothesis import strategies as st

from devices.plain_sockets import ANY_PORT, Clients, Notices, eventually, receive, send, shake_hands
from sluicemq_devices.hub import Watermark
from sluicemq_devices.relays import Streamer
from sluicemq_devices.sockets import Switchboard
from sluicemq_devices.sockets.connection import Connection
from sluicemq_devices.sockets.outbox import Outbox
from sluicemq_devices.zmtp import encode

Started = Callable[[Any], Any]
Python = Callable[..., subprocess.Popen]


class TakingLane:
    """In place of a lane: takes so many messages and then no more."""

    def __init__(self, room: int = 1000) -> None:
        self.got: list[bytes] = []
        self.room = room
        self.unsent: list[bytes] = []

    def on(self, **_handlers: object) -> None:
        """Nothing is ever received."""

    @property
    def writable(self) -> bool:
        return len(self.got) < self.room

    @property
    def backlog(self) -> int:
        return 0

    def post(self, messages: list[bytes]) -> None:
        self.got += messages


def taking_lane(room: int = 1000) -> Any:
    return TakingLane(room)


def dealt(streamer: Streamer, *runs: list[bytes]) -> None:
    for run in runs:
        streamer.take(run)


def messages(count: int) -> list[bytes]:
    return [encode([b"%d" % number]) for number in range(count)]


@pytest.fixture
def streamer(board: Switchboard) -> Streamer:
    return Streamer(board, ANY_PORT, ANY_PORT)


def come(streamer: Streamer, *hands: Any) -> None:
    for hand in hands:
        streamer.on_worker(hand)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 20])
def test_messages_go_round_one_by_one_however_many_come_at_once(streamer: Streamer, size: int) -> None:
    hands = [taking_lane() for _ in range(3)]
    come(streamer, *hands)
    every = messages(40)
    dealt(streamer, *(every[at : at + size] for at in range(0, 40, size)))
    assert [hand.got for hand in hands] == [every[0::3], every[1::3], every[2::3]]


def test_one_that_takes_no_more_is_passed_over_and_the_others_go_on_in_turn(streamer: Streamer) -> None:
    hands = [taking_lane(), taking_lane(room=2), taking_lane()]
    come(streamer, *hands)
    every = messages(12)
    dealt(streamer, every[:4], every[4:6], every[6:])
    assert [hand.got for hand in hands] == [
        [every[at] for at in (0, 3, 6, 8, 10)],
        [every[at] for at in (1, 4)],
        [every[at] for at in (2, 5, 7, 9, 11)],
    ]


def test_what_none_takes_is_held_in_order_until_somebody_does(streamer: Streamer) -> None:
    hands = taking_lane(room=0)
    come(streamer, hands)
    dealt(streamer, messages(3), messages(6)[3:])
    assert (hands.got, streamer.backlog) == ([], 6)
    hands.room = 100
    streamer.on_room(hands)
    assert (hands.got, streamer.backlog) == (messages(6), 0)


def test_one_that_takes_more_does_not_get_all_that_is_held_at_once(streamer: Streamer) -> None:
    dealt(streamer, [encode([bytes(10_000)])] * 100)
    hands = taking_lane(room=1)
    come(streamer, hands)
    assert 0 < len(hands.got) < 10
    assert streamer.backlog == 100 - len(hands.got)


def test_what_a_worker_that_has_gone_did_not_get_is_the_next_for_others(streamer: Streamer) -> None:
    gone, other = taking_lane(room=6), taking_lane()
    come(streamer, gone)
    dealt(streamer, messages(6))
    gone.unsent = messages(6)[4:]
    dealt(streamer, messages(8)[6:])
    streamer.on_worker_gone(gone)
    assert streamer.backlog == 4
    come(streamer, other)
    assert other.got == messages(8)[4:]
    assert streamer.backlog == 0


class FakeSocket:
    """In place of a socket: takes as many bytes as it is told to."""

    def __init__(self, rooms: list[int]) -> None:
        self.taken = b""
        self._rooms = rooms

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: list[bytes]) -> int:
        data = b"".join(buffers)
        if not self._rooms:
            raise BlockingIOError
        sent = min(len(data), self._rooms.pop(0))
        self.taken += data[:sent]
        return sent


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 64, 5000, 70_000]), min_size=1, max_size=5), max_size=5),
    st.lists(st.integers(1, 100_000), max_size=30),
)
def test_what_an_outbox_relays_is_whole_and_the_rest_known(runs: list[list[int]], rooms: list[int]) -> None:
    # Given a kernel that takes what it likes
    socket, held = FakeSocket(rooms), Watermark(10**9, 10**9, print, print)
    outbox: Any = Outbox(socket, held)  # type: ignore[arg-type]
    numbers = iter(range(256))
    sent = [[encode([bytes([next(numbers)]) + bytes(size)]) for size in run] for run in runs]
    for run in sent:
        outbox.relay(run)
        outbox.flush()
    every = [message for run in sent for message in run]
    ends = list(itertools.accumulate(map(len, every)))
    taken = len(socket.taken)
    assert socket.taken == b"".join(every)[:taken]
    waiting = [message for message, end in zip(every, ends, strict=True) if end > taken]
    assert (held.count, held.bytes) == (len(waiting), sum(map(len, waiting)))
    assert outbox.unsent == waiting  # also the one that was cut in two


def test_what_a_killed_worker_lacks_is_others(board: Switchboard, started: Started, clients: Clients) -> None:
    # Given a worker that reads nothing of 300 messages
    streamer = started(Streamer(board, ANY_PORT, ANY_PORT))
    front, back = streamer.addresses
    stuck = shake_hands(back, b"PULL")
    push = clients.connect(zmq.PUSH, front)
    for number in range(300):
        send(push, b"%d" % number, bytes(100_000))
    eventually(lambda: streamer.received == 300)
    left = streamer.backlog
    assert left > 100
    # When it is killed
    stuck.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    stuck.close()
    # Then another gets all that had not gone to it, also the one that was cut in two
    pull = clients.connect(zmq.PULL, back)
    got = [receive(pull) for _ in range(left)]
    assert [int(number) for number, _ in got] == list(range(300 - left, 300))
    assert all(body == bytes(100_000) for _, body in got)
    eventually(lambda: streamer.backlog == 0)


def test_workers_take_turns_as_with_libzmq(board: Switchboard, started: Started, clients: Clients) -> None:
    streamer = started(Streamer(board, ANY_PORT, ANY_PORT))
    front, back = streamer.addresses
    workers = [clients.connect(zmq.PULL, back) for _ in range(4)]
    eventually(lambda: streamer.workers.connections == 4 and len(streamer.free) == 4)
    push = clients.connect(zmq.PUSH, front)
    for number in range(400):
        send(push, b"%d" % number)
    eventually(lambda: streamer.received == 400)
    got = [[int(receive(worker)[0]) for _ in range(90)] for worker in workers]
    assert sorted(got) == [list(range(first, 360, 4)) for first in range(4)]


_SEND_AND_LEAVE = """
import sys, zmq
context = zmq.Context()
for _ in range(10):
    push = context.socket(zmq.PUSH)
    push.connect(sys.argv[1])
    for number in range(2000):
        push.send(b"x" * (number % 300))
    push.close()
context.term()
"""


def test_a_burst_of_producers_that_leave_arrives_though_the_marks_are_low(
    board: Switchboard, started: Started, clients: Clients, python: Python
) -> None:
    streamer = started(Streamer(board, ANY_PORT, ANY_PORT, hwm=100))
    front, back = streamer.addresses
    leaver = python(_SEND_AND_LEAVE, front)
    pull = clients.connect(zmq.PULL, back, rcvhwm=100)
    sizes = [len(receive(pull)[0]) for _ in range(20_000)]
    assert sorted(sizes) == sorted([number % 300 for number in range(2000)] * 10)
    assert leaver.wait(60) == 0


def test_clients_with_heartbeats_stay_connected_at_both_ends(
    board: Switchboard, started: Started, clients: Clients, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a client at each end that is gone when its heartbeats are not answered
    answers, say = Counter[object](), Connection.say

    def note(connection: Any, data: bytes) -> None:
        answers[connection] += b"PONG" in data
        say(connection, data)

    monkeypatch.setattr(Connection, "say", note)
    streamer = started(Streamer(board, ANY_PORT, ANY_PORT))
    front, back = streamer.addresses
    beats = {"heartbeat_ivl": 50, "heartbeat_timeout": 3000}
    push, pull = clients.connect(zmq.PUSH, front, **beats), clients.connect(zmq.PULL, back, **beats)
    eventually(lambda: streamer.clients.connections == streamer.workers.connections == 1)
    lanes = {*streamer.clients.lanes, *streamer.workers.lanes}
    # When many were answered
    eventually(lambda: len(answers) == 2 and min(answers.values()) >= 10)
    # Then both are still those that came
    send(push, b"still here")
    assert receive(pull) == [b"still here"]
    assert {*streamer.clients.lanes, *streamer.workers.lanes} == lanes
    assert notices == []
