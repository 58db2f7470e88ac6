from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
import zmq
from plain_sockets import Clients, eventually, receive, send

from devices.flow import Watermark
from devices.port import Message, Port

Pair = Callable[..., tuple[Port, zmq.Socket[bytes]]]


@pytest.fixture
def pair(clients: Clients) -> Iterator[Pair]:
    """A port on one socket and the plain socket it is connected to."""
    ports: list[Port] = []

    def make(
        kind: int, other: int, receive: Callable[[list[Message]], None] = lambda _: None, **options: Any
    ) -> tuple[Port, zmq.Socket[bytes]]:
        mine, peer = clients.context.socket(kind), clients.context.socket(other)
        mine.sndhwm, peer.rcvhwm = options.pop("sndhwm", 1000), 1
        mine.rcvhwm = 0
        mine.bind(f"inproc://{len(ports)}")
        peer.connect(f"inproc://{len(ports)}")
        ports.append(Port(mine, receive, **options))
        ports[-1].start()
        return ports[-1], peer

    yield make
    for port in ports:
        port.close(0)


def test_messages_come_in_order_in_lists_no_longer_than_a_round(pair: Pair) -> None:
    rounds: list[list[Message]] = []
    port, peer = pair(zmq.PULL, zmq.PUSH, rounds.append, round_size=10)
    for number in range(95):
        send(peer, b"%d" % number, b"more")
    eventually(lambda: port.received == 95)
    assert [message for each in rounds for message in each] == [[b"%d" % n, b"more"] for n in range(95)]
    assert max(map(len, rounds)) <= 10


def test_a_flood_does_not_keep_timers_from_running(pair: Pair) -> None:
    port, peer = pair(zmq.PULL, zmq.PUSH)
    peer.sndhwm = 0
    for _ in range(20_000):
        peer.send(b"x")
    ticks = [gevent.spawn_later(0.001 * n, lambda: port.received) for n in range(1, 4)]
    gevent.joinall(ticks)
    assert ticks[0].value < 20_000, "the first timer waited for the whole flood"
    eventually(lambda: port.received == 20_000)


def test_sends_from_outside_do_not_make_it_miss_a_message(pair: Pair) -> None:
    replies: list[Message] = []
    port, peer = pair(zmq.DEALER, zmq.DEALER, replies.extend)
    for number in range(500):
        peer.send(b"in")  # its edge is there to be eaten by the next line
        assert port.send([b"out"])
        receive(peer)
        eventually(lambda wanted=number + 1: len(replies) == wanted, seconds=0.9)


def test_of_messages_to_many_those_that_can_be_sent_are_and_the_others_are_counted(pair: Pair) -> None:
    # Given a peer that a ROUTER knows
    inbox: list[Message] = []
    port, peer = pair(zmq.ROUTER, zmq.DEALER, inbox.extend)
    port.socket.router_mandatory = 1
    send(peer, b"")
    ((address, empty),) = eventually(lambda: inbox)
    assert empty == b""
    # When messages go to it and to somebody unknown
    refused = port.send_each([[b"nobody", b"1"], [address, b"2"], [b"nobody", b"3"], [address, b"4", b"5"]])
    # Then
    assert refused == 2
    assert [receive(peer), receive(peer)] == [[b"2"], [b"4", b"5"]]


def test_what_the_socket_does_not_take_is_held_in_order_and_counted(pair: Pair) -> None:
    marks: list[str] = []
    held = Watermark(50, 1 << 20, lambda: marks.append("full"), lambda: marks.append("drained"))
    port, peer = pair(zmq.DEALER, zmq.DEALER, sndhwm=1, held=held)
    for number in range(100):
        port.post([[b"%d" % number]])
    assert held.count >= 90
    assert marks == ["full"]
    assert [receive(peer) for _ in range(100)] == [[b"%d" % number] for number in range(100)]
    eventually(lambda: (held.count, held.bytes) == (0, 0))
    assert marks == ["full", "drained"]


def test_it_says_when_it_is_writable_again(pair: Pair) -> None:
    unblocked: list[bool] = []
    port, peer = pair(zmq.DEALER, zmq.DEALER, sndhwm=1, unblocked=lambda: unblocked.append(True))
    while port.send([b"x"]):
        pass
    assert not port.writable
    gevent.sleep(0)
    assert not unblocked
    eventually(lambda: peer.recv(zmq.NOBLOCK) if peer.poll(0) else unblocked)
    eventually(lambda: unblocked and port.writable)


def test_a_callback_that_raises_is_logged_and_the_next_message_comes(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Message] = []

    def fail_once(messages: list[Message]) -> None:
        seen.extend(messages)
        if len(seen) == 1:
            raise RuntimeError("at the first message")

    _port, peer = pair(zmq.PULL, zmq.PUSH, fail_once)
    send(peer, b"first")
    eventually(lambda: len(seen) == 1)
    send(peer, b"second")
    eventually(lambda: len(seen) == 2)
    assert "at the first message" in caplog.text


def test_closing_it_inside_its_own_callback_is_harmless(pair: Pair) -> None:
    made: list[Port] = []
    port, peer = pair(zmq.PULL, zmq.PUSH, lambda _: made[0].close(0))
    made.append(port)
    send(peer, b"x")
    eventually(lambda: port.closed)
    port.close(0)
    assert not port.send([b"x"])
    assert not port.writable
