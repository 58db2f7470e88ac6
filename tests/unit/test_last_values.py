"""The last message of each topic, for subscribers that come late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent

from sluicemq_broker.parts.streams.last_values import LastValues, LateMessages


def test_of_too_many_bytes_the_topics_published_longest_ago_are_forgotten_and_counted() -> None:
    latest = LastValues(30)
    assert latest.note([b"a", b"b", b"c"], [bytes(10)] * 3) == 0
    assert latest.note([b"a"], [b"new"]) == 0
    assert latest.note([b"d"], [bytes(20)]) == 2
    assert [payload for payload in latest.of(b"", {b""}) if payload] == [b"new", bytes(20)]


def test_what_others_of_its_prefixes_have_brought_is_not_sent_once_more() -> None:
    latest = LastValues(1000)
    latest.note([b"price.eur", b"price.usd", b"news"], [b"1", b"2", b"3"])
    assert list(latest.of(b"price", {b"price", b"price.eur"})) == [None, b"2"]
    assert list(latest.of(b"price.eur", {b"", b"price.eur"})) == []


def test_topics_that_come_and_go_are_found_in_their_order_and_once() -> None:
    latest = LastValues(3000)
    for round_ in range(3):
        topics = [b"%d.%04d" % (round_, at) for at in range(2000)]
        latest.note(topics, [b"%d" % at for at in range(2000)])
    latest.note([b"2.1999", b"0.0001"], [b"again", b"back"])
    found = [payload for payload in latest.of(b"", {b""}) if payload is not None]
    assert found[0] == b"back"
    assert found[-1] == b"again"
    assert len(found) == len(latest.messages)
    assert len(latest.in_order) < 3 * 2000


class Late:
    """A subscriber, and the lane that is read for it."""

    def __init__(self) -> None:
        self.lane = self
        self.topics: set[bytes] = set()
        self.got: list[bytes] = []
        self.is_there = True
        self.is_read = True
        self.turns = 0

    def subscribe(self, late: LateMessages, topic: bytes) -> None:
        self.topics.add(topic)
        subscriber: Any = self
        late.add(subscriber, topic)

    def work(self, step: Callable[[], bool]) -> bool:
        gevent.sleep(0)
        self.turns += 1
        return step()

    def pause(self, _by: object) -> None:
        self.is_read = False

    def resume(self, _by: object) -> None:
        self.is_read = True


def test_one_that_subscribes_without_end_is_not_read_meanwhile_and_others_get_theirs() -> None:
    # Given many topics, and one that subscribes to each of them as long as it is read
    topics = [b"%05d" % number for number in range(20_000)]
    latest = LastValues(1 << 30)
    latest.note(topics, topics)
    late = LateMessages(latest, lambda subscriber, messages: subscriber.got.extend(messages))  # type: ignore[attr-defined]
    late.begin()
    greedy, other = Late(), Late()
    rest = iter(topics)

    def subscribe() -> None:
        while greedy.is_read and (topic := next(rest, None)) is not None:
            greedy.subscribe(late, topic)

    subscribe()
    assert len(greedy.topics) < 2_000
    # When another subscribes
    other.subscribe(late, topics[7])
    while not other.got:
        gevent.sleep(0)
    # Then it has its message while most of the others' wait, and at the end each came once
    assert len(greedy.got) < 2_000
    while len(greedy.got) < len(topics):
        gevent.sleep(0)
        subscribe()
    assert (sorted(greedy.got), other.got) == (topics, [topics[7]])


def test_a_subscriber_before_all_is_known_gets_its_messages_then_one_that_has_left_none() -> None:
    latest = LastValues(1 << 20)
    late = LateMessages(latest, lambda subscriber, messages: subscriber.got.extend(messages))  # type: ignore[attr-defined]
    early, gone = Late(), Late()
    early.subscribe(late, b"new")
    gone.subscribe(late, b"new")
    gone.is_there = False
    latest.note([b"news"], [b"last"])
    late.begin()
    gevent.sleep(0.01)
    assert (early.got, gone.got) == ([b"last"], [])
