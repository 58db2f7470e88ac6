"""What is for many subscribers goes out in turns of the hub: all of it, in order, and nobody else waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent import socket as sockets

from devices.plain_sockets import ANY_PORT, eventually, shake_hands
from sluicemq_devices.relays import FanOut, Forwarder
from sluicemq_devices.relays.bounds import Bounds, TopicBounds
from sluicemq_devices.sockets import Switchboard
from sluicemq_devices.zmtp import encode

Started = Callable[[Any], Any]

MANY = 100  # subscribers
TOPICS = [b"", b"a", b"ab"]
ONE_BY_ONE = Bounds(turn=0.0, chosen=0)  # turns end after each thing that is sent


@pytest.fixture
def forwarder(board: Switchboard, started: Started) -> Forwarder:
    """One whose turns end after each thing that is sent."""
    device: Forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT, bounds=ONE_BY_ONE))
    return device


def subscribed(forwarder: Forwarder, topics: list[bytes]) -> list[sockets.socket]:
    crowd = [shake_hands(forwarder.addresses[1], b"SUB") for _ in topics]
    for peer, topic in zip(crowd, topics, strict=True):
        peer.sendall(encode([b"\1" + topic]))
    eventually(
        lambda: (
            sum(len(subscriber.topics) for subscriber in forwarder.fan_out.subscriptions.subscribers)
            == len(topics)
        )
    )
    return crowd


def read(subscriber: sockets.socket, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        heard += subscriber.recv(1 << 20)
    return heard


def test_many_subscribers_get_what_they_want_and_others_have_turns(forwarder: Forwarder) -> None:
    # Given subscribers of everything, of a topic, and of one within it, and two publishers
    topics = [TOPICS[number % 3] for number in range(MANY)]
    crowd = subscribed(forwarder, topics)
    publishers = [shake_hands(forwarder.addresses[0], b"PUB") for _ in range(2)]
    eventually(lambda: len(forwarder.upstream.publishers) == 2)
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            gevent.sleep(1e-9)
            turns += bool(forwarder.fan_out.under_way)

    counting = gevent.spawn(count)
    # When both publish several lots
    lots = [
        [encode([b"%s %d %d" % (start, who, number)]) for number in range(60) for start in (b"ab", b"ac")]
        for who in range(2)
    ]
    for publisher, lot in zip(publishers, lots, strict=True):
        for message in lot:
            publisher.sendall(message)
    for peer, topic in zip(crowd, topics, strict=True):
        wanted = [[message for message in lot if message[2:].startswith(topic)] for lot in lots]
        heard = read(peer, sum(map(len, wanted[0] + wanted[1])))
        for who, messages in enumerate(wanted):
            of_one = [
                b"\0" + line for line in heard.split(b"\0")[1:] if line.split(b" ")[1:2] == [b"%d" % who]
            ]
            assert of_one == messages
    assert turns >= 2 * MANY
    eventually(lambda: not forwarder.backlog)
    counting.kill()


def test_where_much_is_learnt_of_topics_few_subscribers_have_turns_between_too(
    board: Switchboard, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscriber of many topics, of which no two are learnt at once
    bounds = ONE_BY_ONE._replace(topics=TopicBounds(learnt_at_once=1))
    forwarder = started(Forwarder(board, ANY_PORT, ANY_PORT, bounds=bounds))
    subscriber = subscribed(forwarder, [b"."])[0]
    topics = [b"%02d" % number for number in range(MANY)]
    subscriber.sendall(b"".join(encode([b"\1" + topic]) for topic in topics))
    publisher = shake_hands(forwarder.addresses[0], b"PUB")
    eventually(lambda: len(forwarder.upstream.wanted) > MANY and forwarder.upstream.publishers)
    forwarder.fan_out.subscriptions.topics.forget()
    # When there is a message for each
    turns: list[None] = []
    turn = FanOut.take_turn
    monkeypatch.setattr(FanOut, "take_turn", lambda fan_out: turns.append(None) or turn(fan_out))
    messages = b"".join(encode([topic]) for topic in topics)
    publisher.sendall(messages)
    assert read(subscriber, len(messages)) == messages
    assert len(turns) > MANY / 2
    eventually(lambda: not forwarder.backlog)


def test_subscribers_and_publishers_may_come_and_go_meanwhile(forwarder: Forwarder) -> None:
    crowd = subscribed(forwarder, [TOPICS[number % 2] for number in range(MANY)])
    publisher = shake_hands(forwarder.addresses[0], b"PUB")
    eventually(lambda: forwarder.upstream.publishers)
    messages = [encode([b"a %d" % number]) for number in range(1000)]

    publisher.sendall(b"".join(messages))
    eventually(lambda: forwarder.fan_out.under_way)
    for peer in crowd[::4]:
        peer.close()
    publisher.close()
    crowd[1].sendall(encode([b"\1"]))  # everything, from now on, of which it had all that there was
    later = subscribed_later(forwarder)

    for number, peer in enumerate(crowd):
        if number % 4:
            assert read(peer, sum(map(len, messages))) == b"".join(messages)
    eventually(lambda: not forwarder.backlog)
    later.close()


def subscribed_later(forwarder: Forwarder) -> sockets.socket:
    later = shake_hands(forwarder.addresses[1], b"SUB")
    later.sendall(encode([b"\1"]))
    return later


def test_a_device_that_stops_passes_on_what_is_under_way(forwarder: Forwarder) -> None:
    crowd = subscribed(forwarder, [b"a"] * MANY)
    publisher = shake_hands(forwarder.addresses[0], b"PUB")
    eventually(lambda: forwarder.upstream.publishers)
    messages = b"".join(encode([b"a %d" % number]) for number in range(200))
    publisher.sendall(messages)
    eventually(lambda: forwarder.fan_out.under_way)
    stopping = gevent.spawn(forwarder.stop, 30.0)
    for peer in crowd:
        assert read(peer, len(messages)) == messages
    stopping.join()
