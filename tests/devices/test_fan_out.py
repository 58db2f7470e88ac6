"""What is for many subscribers goes out in turns; what publishers are told of subscriptions."""

import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent import socket as sockets
from hypothesis import given
from hypothesis import strategies as st

from devices.plain_sockets import ANY_PORT, eventually, shake_hands
from sluicemq_devices.hub import nothing
from sluicemq_devices.relays import FanOut, Forwarder, Upstream
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


class PublisherLane:
    """In place of a publisher's lane: hears so many runs of subscriptions, and then no more."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.heard: list[tuple[bytes, bool]] = []
        self.unblocked: Any = nothing
        self.closed: Any = nothing

    def on(self, **handlers: Callable[..., None]) -> None:
        vars(self).update(handlers)

    @property
    def writable(self) -> bool:
        return self.room > 0

    def subscription(self, topic: bytes, *, on: bool) -> tuple[bytes, bool]:
        return topic, on

    def post(self, subscriptions: list[tuple[bytes, bool]]) -> None:
        self.room -= 1
        self.heard += subscriptions

    @property
    def topics(self) -> set[bytes]:
        """What it believes to be wanted; it is never told what it knows."""
        known: set[bytes] = set()
        for topic, on in self.heard:
            assert (topic in known) != on
            (known.add if on else known.remove)(topic)
        return known


def listening(upstream: Upstream, room: int = 1_000_000) -> Any:
    publisher: Any = PublisherLane(room)
    upstream.connected(publisher)
    return publisher


def test_a_topic_is_told_once_and_taken_back_when_nobody_wants_it_any_more() -> None:
    upstream = Upstream()
    publisher = listening(upstream)
    for _ in range(2):
        upstream.want(b"a")
        upstream.notify()
    assert publisher.heard == [(b"a", True)]
    upstream.want_no_more(b"a")
    upstream.notify()
    assert publisher.heard == [(b"a", True)]
    upstream.want_no_more(b"a")
    upstream.notify()
    assert publisher.heard == [(b"a", True), (b"a", False)]


def test_one_that_comes_later_is_told_all_and_one_that_has_left_nothing() -> None:
    upstream = Upstream()
    first = listening(upstream)
    for number in range(1000):
        upstream.want(b"%d" % number)
    first.closed()
    upstream.notify()
    assert first.heard == []
    assert listening(upstream).topics == {b"%d" % number for number in range(1000)}


def test_what_is_kept_for_one_that_does_not_listen_is_the_difference_only() -> None:
    # Given one that has heard of a topic and hears nothing more
    upstream = Upstream()
    upstream.want(b"known")
    deaf = listening(upstream, room=1)
    # When thousands come and go, and one stays, and the known one goes
    for number in range(10_000):
        upstream.want(b"%d" % number)
        upstream.notify()
        if number != 17:
            upstream.want_no_more(b"%d" % number)
    upstream.want_no_more(b"known")
    upstream.notify()
    assert deaf.heard == [(b"known", True)]
    assert upstream.publishers[deaf].unsent == {b"17": True, b"known": False}
    # And when it listens again it hears just that
    deaf.room = 10
    deaf.unblocked()
    assert deaf.topics == {b"17"}


def test_many_changes_for_one_that_does_not_listen_cost_no_more_each_than_one() -> None:
    upstream = Upstream()
    deaf = listening(upstream, room=0)
    since = time.process_time()
    for number in range(30_000):
        upstream.want(b"%d" % number)
        upstream.notify()
    assert time.process_time() - since < 5  # it takes 0.1
    deaf.room = 1000
    deaf.unblocked()
    eventually(lambda: len(deaf.heard) == 30_000)
    assert len(deaf.topics) == 30_000


def test_many_topics_are_told_in_many_turns_of_the_hub() -> None:
    upstream = Upstream()
    for number in range(5000):
        upstream.want(b"%d" % number)
    # When one comes, and another, and topics go that nobody or only the first has heard of
    first, second = listening(upstream), listening(upstream)
    upstream.notify()
    for number in range(2000):
        upstream.want_no_more(b"%d" % number)
        upstream.want_no_more(b"%d" % (4999 - number))
    assert len(first.heard) <= 1000
    upstream.notify()
    wanted = {b"%d" % number for number in range(2000, 3000)}
    eventually(lambda: first.topics == second.topics == wanted)
    assert len(second.heard) < len(first.heard) <= 7000


def test_one_that_comes_between_a_change_and_its_telling_hears_of_it_once() -> None:
    upstream = Upstream()
    first = listening(upstream)
    upstream.want(b"a")
    upstream.want(b"b")
    upstream.want_no_more(b"b")
    second = listening(upstream)
    upstream.notify()
    assert first.topics == second.topics == {b"a"}
    assert second.heard == [(b"a", True)]


def test_one_that_stops_listening_in_the_middle_is_told_the_rest_later() -> None:
    upstream = Upstream()
    for number in range(1000):
        upstream.want(b"%d" % number)
    publisher = listening(upstream, room=3)
    assert 0 < len(publisher.topics) < 1000
    publisher.room = 1000
    publisher.unblocked()
    assert len(publisher.topics) == 1000


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["want", "not", "tell", "hear"]))))
def test_whoever_listens_in_the_end_knows_what_is_wanted(steps: list[tuple[str, str]]) -> None:
    upstream = Upstream()
    publisher = listening(upstream, room=0)
    wanted: list[bytes] = []
    for letter, step in steps:
        topic = letter.encode()
        if step == "want":
            upstream.want(topic)
            wanted.append(topic)
        elif step == "not" and topic in wanted:
            upstream.want_no_more(topic)
            wanted.remove(topic)
        elif step == "tell":
            upstream.notify()
        elif step == "hear":
            publisher.room = 1
            publisher.unblocked()
            publisher.room = 0
    publisher.room = 10
    publisher.unblocked()
    assert publisher.topics == set(wanted)
