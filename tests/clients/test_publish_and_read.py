"""The library's Publisher and Reader, at a real broker."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from sluicemq import (
    BadStreamError,
    BadTopicError,
    Client,
    ConflictError,
    GapError,
    Message,
    Publisher,
    Reader,
    Start,
    TooLargeError,
)
from sluicemq.protocol import wire
from support.broker_under_test import BrokerUnderTest
from support.own_queue import quick_broker
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with quick_broker(mongo_uri) as broker:
        yield broker


@pytest.fixture(scope="module")
def endpoint(broker: BrokerUnderTest) -> str:
    return broker.doors["smq"]


@pytest.fixture
def publisher(endpoint: str) -> Iterator[Publisher]:
    with Publisher(endpoint=endpoint) as publisher:
        yield publisher


def numbers(found: list[Message]) -> list[int]:
    return [message.sequence for message in found]


def publish(publisher: Publisher, stream: str, *topics: str) -> None:
    for topic in topics:
        publisher.publish(stream, topic, topic.encode())
    publisher.flush(TIMEOUT)


class TestPublisher:
    def test_a_receipt_has_the_number_of_its_message(self, publisher: Publisher, stream: str) -> None:
        receipts = [publisher.publish(stream, "a", b"%d" % number) for number in range(5000)]
        assert [receipt.wait(TIMEOUT) for receipt in receipts] == list(range(1, 5001))
        assert [receipt.sequence for receipt in receipts[:2]] == [1, 2]
        assert publisher.unconfirmed == 0

    def test_what_was_published_is_read_in_its_order(
        self, publisher: Publisher, stream: str, endpoint: str
    ) -> None:
        for number in range(3000):
            publisher.publish(stream, f"t.{number % 7}", b"%d" % number)
        publisher.flush(TIMEOUT)
        with Reader(stream, endpoint=endpoint) as reader:
            found = list(reader)
        assert [job.payload for job in found] == [b"%d" % number for number in range(3000)]
        assert numbers(found) == list(range(1, 3001))
        assert [message.topic for message in found[:8]] == [f"t.{number % 7}" for number in range(8)]
        assert all(earlier.time <= later.time for earlier, later in pairwise(found))

    def test_an_id_is_stored_once(self, publisher: Publisher, stream: str) -> None:
        first = publisher.publish(stream, "a", b"1", id="x")
        again = publisher.publish(stream, "a", b"1", id="x")
        publisher.publish(stream, "a", b"2", id="y")
        assert (first.wait(TIMEOUT), again.wait(TIMEOUT)) == (1, 1)
        assert (first.existed, again.existed) == (False, True)
        assert publisher.publish(stream, "a", b"3").wait(TIMEOUT) == 3

    def test_a_conflict_tells_where_the_stream_ends(self, publisher: Publisher, stream: str) -> None:
        publisher.publish(stream, "a", b"1", expect=0).wait(TIMEOUT)
        with pytest.raises(ConflictError) as conflict:
            publisher.publish(stream, "a", b"2", expect=0).wait(TIMEOUT)
        assert conflict.value.last == 1
        assert publisher.publish(stream, "a", b"2", expect=1).wait(TIMEOUT) == 2

    def test_a_topic_can_be_expected_to_end_somewhere(self, publisher: Publisher, stream: str) -> None:
        publish(publisher, stream, "a", "b", "a")
        assert publisher.publish(stream, "b", b"", expect_topic=2).wait(TIMEOUT) == 4
        refused = publisher.publish(stream, "a", b"", expect_topic=1)
        with pytest.raises(ConflictError, match="topic 'a' ends with 3, not with 1"):
            refused.wait(TIMEOUT)

    def test_a_refusal_nobody_has_heard_is_raised_by_flush(self, publisher: Publisher, stream: str) -> None:
        publisher.publish(stream, "a", b"", expect=7)
        with pytest.raises(ConflictError, match="1 messages were refused"):
            publisher.flush(TIMEOUT)
        publisher.flush(TIMEOUT)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (("no stream!", "a", b""), BadStreamError),
            (("s", "t" * 256, b""), BadTopicError),
            (("s", "a", "text"), TypeError),
            (("s", 5, b""), TypeError),
        ],
    )
    def test_what_is_no_message_is_refused_at_once(
        self, publisher: Publisher, arguments: tuple[Any, ...], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            publisher.publish(*arguments)

    def test_large_messages_go_and_no_larger(self, publisher: Publisher, stream: str, endpoint: str) -> None:
        large = bytes(12 << 20)
        publisher.publish(stream, "a", large).wait(TIMEOUT)
        with pytest.raises(TooLargeError):
            publisher.publish(stream, "a", large + b"!")
        with Reader(stream, endpoint=endpoint) as reader:
            assert [job.payload for job in reader] == [large]


class TestReader:
    @pytest.fixture
    def filled(self, publisher: Publisher, stream: str) -> str:
        publish(publisher, stream, *(f"{word}.{number % 10}" for number in range(100) for word in "ab"))
        return stream

    def test_it_begins_behind_any_number(self, filled: str, endpoint: str) -> None:
        with Reader(filled, start=Start.at(196), endpoint=endpoint) as reader:
            assert numbers(list(reader)) == [196, 197, 198, 199, 200]
            assert (reader.position, reader.newest) == (200, 200)

    def test_topics_are_chosen_by_the_broker(self, filled: str, endpoint: str) -> None:
        with Reader(filled, topics=["a.3", "=b.4", "*.9"], endpoint=endpoint) as reader:
            found = list(reader)
        assert {message.topic for message in found} == {"a.3", "b.4", "a.9", "b.9"}
        assert len(found) == 40
        assert numbers(found) == sorted(numbers(found))

    def test_it_begins_at_a_time(self, filled: str, publisher: Publisher, endpoint: str) -> None:
        with Reader(filled, endpoint=endpoint) as reader:
            last = list(reader)[-1]
        wait_until(lambda: publisher.publish(filled, "later", b"").wait(TIMEOUT))
        with Reader(filled, start=Start.since(last.time + 0.0005), endpoint=endpoint) as reader:
            assert [message.topic for message in reader][-1] == "later"
        with Reader(filled, start=Start.since(0), endpoint=endpoint) as reader:
            assert next(reader).sequence == 1

    def test_following_waits_for_the_next(self, publisher: Publisher, stream: str, endpoint: str) -> None:
        publish(publisher, stream, "a")
        with Reader(stream, follow=True, endpoint=endpoint) as reader:
            assert next(reader).topic == "a"
            for number in range(2, 20):
                publish(publisher, stream, f"t{number}")
                assert (message := reader.read(TIMEOUT))
                assert (message.sequence, message.topic) == (number, f"t{number}")

    def test_it_can_begin_with_what_is_new(self, publisher: Publisher, stream: str, endpoint: str) -> None:
        publish(publisher, stream, "old")
        with Reader(stream, start=Start.new(), follow=True, endpoint=endpoint) as reader:
            assert reader.read(0.0) is None
            wait_until(lambda: publisher.publish(stream, "new", b"").wait(TIMEOUT) and reader.read(0.1))

    def test_beyond_the_end_there_is_nothing_yet(self, filled: str, endpoint: str) -> None:
        with Reader(filled, start=Start.at(10001), endpoint=endpoint) as reader:
            assert list(reader) == []

    def test_an_unknown_stream_is_refused(self, endpoint: str) -> None:
        with (
            Reader("nobody.has.published", endpoint=endpoint) as reader,
            pytest.raises(BadStreamError, match="no stream"),
        ):
            next(reader)

    @pytest.mark.parametrize("topic", ["a*", "a.>.b", "t" * 256])
    def test_a_bad_pattern_is_refused(self, filled: str, endpoint: str, topic: str) -> None:
        with Reader(filled, topics=[topic], endpoint=endpoint) as reader, pytest.raises(BadTopicError):
            next(reader)

    def test_what_was_removed_before_it_was_read_is_told(self, filled: str, endpoint: str) -> None:
        with Client(endpoint=endpoint) as client:
            assert client.streams.trim(filled, 50) == 49
        with Reader(filled, start=Start.at(21), endpoint=endpoint) as reader:
            with pytest.raises(GapError) as gap:
                next(reader)
            assert (gap.value.first, gap.value.last, gap.value.missing) == (21, 49, 29)
            assert next(reader).sequence == 50
        gaps: list[GapError] = []
        with Reader(filled, start=Start.at(21), on_gap=gaps.append, endpoint=endpoint) as reader:
            assert next(reader).sequence == 50
        assert [found_gap.missing for found_gap in gaps] == [29]
        with Reader(filled, endpoint=endpoint) as reader:
            assert next(reader).sequence == 50

    def test_a_stream_is_trimmed_while_read(self, stream: str, endpoint: str, publisher: Publisher) -> None:
        for _ in range(20):  # a segment each
            publish(publisher, stream, "before")
        with Reader(stream, follow=True, page_bytes=1, endpoint=endpoint) as reader:
            assert next(reader).sequence == 1
            with Client(endpoint=endpoint) as client:
                client.streams.erase(stream)
            publish(publisher, stream, "after")
            found: list[int | GapError] = []
            while not found or found[-1] != 21:
                try:
                    found.append(next(reader).sequence)
                except GapError as gap:
                    found.append(gap)

        told = [error for error in found if isinstance(error, GapError)]
        assert [event.last for event in told] == [20]
        assert len(found) - 1 + told[0].missing == 20

    def test_one_that_does_not_read_is_alone(self, publisher: Publisher, stream: str, endpoint: str) -> None:
        publisher.publish(stream, "a", b"").wait(TIMEOUT)
        with (
            Reader(stream, follow=True, endpoint=endpoint) as idle,
            Reader(stream, follow=True, endpoint=endpoint) as busy,
        ):
            for _ in range(200):
                publisher.publish(stream, "a", bytes(100_000))
            publisher.flush(TIMEOUT)
            assert [busy.read(TIMEOUT) is not None for _ in range(201)] == [True] * 201
            assert numbers(
                [message for message in (idle.read(TIMEOUT) for _ in range(201)) if message]
            ) == list(range(1, 202))


class TestAdministration:
    def test_streams_are_listed_and_trimmed(self, publisher: Publisher, stream: str, endpoint: str) -> None:
        publish(publisher, stream, "a", "b", "c")
        with Client(endpoint=endpoint) as client:
            listed = {row["name"]: row for row in client.streams()}[stream]
            client.streams.trim(stream, 3)
            shown = client.streams.get(stream)
            erased = client.streams.erase(stream)
            left = [listed.name for listed in client.streams.list()]
        assert (listed["first"], listed["last"], listed["messages"]) == (1, 3, 3)
        assert (shown.first, shown.messages, shown.max_age) == (3, 1, None)
        assert erased == 1
        assert stream not in left
        assert publisher.publish(stream, "d", b"").wait(TIMEOUT) == 4

    def test_what_is_no_publish_and_no_read_is_refused(self, endpoint: str, stream: str) -> None:
        with Client(endpoint=endpoint) as client:
            ask = client._asker.ask
            refused: list[tuple[Any, ...]] = [
                (stream, b"\x01\x05ab", {}),
                (stream, b"", {}),
                (stream, b"\x00\x01a", {"nonsense": 1}),
                (stream, b"\x00\x01a", {"ids": [[1, "x"]]}),
                (stream, b"\x00\x01a", {"id": ""}),
                (stream, b"\x00\x01a", {"last": -1}),
                (stream, b"\x00\x00" * 4097, {}),
                (stream, b"\x00\x00" * 1_000_000, {}),
                ("no stream!", b"\x00\x01a", {}),
                (stream, "text", {}),
            ]
            for fields in refused:
                with pytest.raises(
                    (BadStreamError, Exception), match=r"PUBLISH|message|stream|id|last|field"
                ):
                    ask(wire.PUBLISH, *fields, timeout=TIMEOUT)
            for options in (
                {"after": -1},
                {"most": 0},
                {"bytes": 0},
                {"wait": 1e9},
                {"topics": ["a"]},
                {"x": 1},
            ):
                with pytest.raises(Exception, match="READ"):
                    ask(wire.READ, stream, options, timeout=TIMEOUT)
