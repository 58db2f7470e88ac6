"""The log of a stream in MongoDB: numbers, lost answers, late writes, removal, searches."""

from collections.abc import Sequence
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database

from sluicemq_broker.store import Appended, Segment, StreamStore, Tail, stream_names
from support.jobs import NOW


@pytest.fixture
def log(documents: Database[dict[str, Any]]) -> StreamStore:
    prices = StreamStore(documents, "prices")
    prices.prepare(NOW)
    return prices


@pytest.fixture
def segments(documents: Database[dict[str, Any]]) -> Collection[dict[str, Any]]:
    return documents["stream.prices"]


def segment(first: int, count: int = 1, mark: str = "a", **fields: Any) -> Segment:
    """One of ``count`` messages of 10 bytes, a second for each number."""
    last = first + count - 1
    kept: dict[str, Any] = {"size": 10 * count, "total": 10 * last, "packed": b"m" * 10 * count, **fields}
    return Segment(first, count, NOW + first, mark=mark, **kept)


def fill(log: StreamStore, counts: Sequence[int]) -> None:
    first = 1
    for count in counts:
        assert log.append(segment(first, count)) is Appended.STORED
        first += count


def firsts(found: Sequence[Segment]) -> list[int]:
    return [segment.first for segment in found]


class TestAppend:
    def test_a_segment_goes_where_the_last_one_ended(self, log: StreamStore) -> None:
        fill(log, [3, 1, 2])
        assert log.tail() == Tail(7, NOW + 5, 60)
        assert log.read(1, 1000).segments == [segment(1, 3), segment(4), segment(5, 2)]

    def test_an_empty_stream_begins_with_1(self, log: StreamStore) -> None:
        assert log.tail() == Tail(1, 0.0, 0)

    def test_of_two_writers_with_one_tail_one_is_told_that_it_is_taken(self, log: StreamStore) -> None:
        outcomes = [log.append(segment(1, 2, "a")), log.append(segment(1, 3, "b"))]
        assert outcomes == [Appended.STORED, Appended.TAKEN]
        assert log.tail().next == 3

    def test_the_same_segment_again_is_stored_once(self, log: StreamStore) -> None:
        outcomes = [log.append(segment(1, 2, "a")) for _ in range(3)]
        assert outcomes == [Appended.STORED] * 3
        assert log.tail().next == 3

    def test_a_writer_reads_what_others_have_written_since(self, log: StreamStore) -> None:
        fill(log, [2, 3])
        log.append(segment(6, 1, "b", ids=("x",), places=(0,)))
        newer = log.newer(Tail(3))
        assert [(segment.first, segment.next, segment.ids) for segment in newer] == [
            (3, 6, ()),
            (6, 7, ("x",)),
        ]

    def test_ids_are_found_with_their_numbers(self, log: StreamStore) -> None:
        log.append(segment(1, 3, ids=("x", "y"), places=(0, 2)))
        log.append(segment(4, 1, ids=("z",), places=(0,)))
        assert log.stored(["y", "z", "none"]) == {"y": (3, NOW + 1), "z": (4, NOW + 4)}

    def test_preparing_again_is_harmless(self, log: StreamStore, documents: Database[dict[str, Any]]) -> None:
        fill(log, [2, 2])
        log.raise_first(3)
        StreamStore(documents, "prices").prepare(NOW + 1000)
        assert log.head().first == 3

    def test_streams_are_listed_by_name(self, log: StreamStore, documents: Database[dict[str, Any]]) -> None:
        StreamStore(documents, "a.b").prepare(NOW)
        assert {"a.b", log.name} <= set(stream_names(documents))


class TestRead:
    def test_reading_begins_with_the_segment_that_has_the_message(self, log: StreamStore) -> None:
        fill(log, [3, 3, 3])
        assert firsts(log.read(5, 1000).segments) == [4, 7]

    def test_reading_behind_the_end_finds_nothing(self, log: StreamStore) -> None:
        fill(log, [3])
        assert log.read(4, 1000).segments == []

    def test_no_more_is_read_than_about_the_bytes_asked_for(self, log: StreamStore) -> None:
        fill(log, [5] * 20)
        assert firsts(log.read(1, 100).segments) == [1, 6]

    def test_what_lies_behind_a_hole_is_not_read_with_what_is_before_it(
        self, log: StreamStore, segments: Collection[dict[str, Any]]
    ) -> None:
        fill(log, [2, 2, 2])
        segments.delete_one({"_id": 3})
        assert firsts(log.read(1, 1000).segments) == [1]
        assert firsts(log.read(3, 1000).segments) == [5]

    @pytest.mark.parametrize(
        ("time", "number"), [(0, 1), (NOW + 1, 1), (NOW + 1.5, 4), (NOW + 7, 7), (NOW + 99, 9)]
    )
    def test_a_time_is_found_as_a_number(self, log: StreamStore, time: float, number: int) -> None:
        fill(log, [3, 3, 1, 1])
        assert log.since(time) == number

    def test_a_time_in_an_empty_stream_is_its_end(self, log: StreamStore) -> None:
        assert log.since(NOW) == 1

    def test_the_newest_segment_with_a_topic_is_found(self, log: StreamStore) -> None:
        log.append(segment(1, 2, topics=(b"eur", b"usd")))
        log.append(segment(3, 2, topics=(b"usd",)))
        assert log.last_of_topic(b"eur") == (1, 2)
        assert log.last_of_topic(b"usd") == (3, 2)
        assert log.last_of_topic(b"chf") is None

    def test_any_number_is_two_keys(self, log: StreamStore, segments: Collection[dict[str, Any]]) -> None:
        fill(log, [7] * 500)
        inside: dict[str, Any] = {"_id": {"$lt": 1703, "$gt": 0}}
        plans = [
            segments.find({"_id": {"$gte": 1703}}, sort=[("_id", 1)], limit=1).explain(),
            segments.find(inside, sort=[("_id", -1)], limit=1).explain(),
        ]
        assert sum(plan["executionStats"]["totalKeysExamined"] for plan in plans) == 2


class TestRemoval:
    def test_what_is_before_the_first_is_not_read(self, log: StreamStore) -> None:
        fill(log, [3, 3, 3])
        log.raise_first(5)
        page = log.read(1, 1000)
        assert (firsts(page.segments), page.first) == ([4, 7], 5)

    def test_what_is_kept_is_found_behind_however_much_is_not_removed_yet(self, log: StreamStore) -> None:
        fill(log, [1] * 300)  # more than one read has
        log.raise_first(299)
        page = log.read(1, 1 << 20)
        assert (firsts(page.segments), page.first) == ([299, 300], 299)

    def test_the_first_never_falls(self, log: StreamStore) -> None:
        log.raise_first(5)
        log.raise_first(2)
        assert log.head().first == 5

    def test_whole_segments_are_removed(self, log: StreamStore, segments: Collection[dict[str, Any]]) -> None:
        fill(log, [3, 3, 3])
        log.raise_first(10)
        assert (log.remove(6), log.remove(10), log.remove(10)) == (1, 1, 0)
        assert log.tail() == Tail(10, NOW + 7, 90)
        assert log.bytes_kept() == 0
        assert segments.count_documents({"_id": {"$gt": 0}}) == 1

    def test_what_is_kept_is_not_removed(self, log: StreamStore) -> None:
        fill(log, [3, 3, 3])
        log.raise_first(5)
        assert log.remove(100) == 1
        assert firsts(log.read(1, 1000).segments) == [4, 7]

    def test_a_late_write_is_not_read(self, log: StreamStore, segments: Collection[dict[str, Any]]) -> None:
        fill(log, [3, 3, 3])
        log.raise_first(8)
        log.remove(100)

        late = log.append(segment(4, 100, "late"))

        assert late is Appended.STORED  # as far as MongoDB goes; so its writer must look
        assert log.head().removed > 4
        assert firsts(log.read(1, 100_000).segments) == [7]
        assert firsts(log.read(4, 1).segments) == [7]  # where it goes on
        assert firsts(log.read(8, 1000).segments) == [7]
        assert log.tail().next == 10
        assert log.remove(100) == 0

        fill_behind = log.append(segment(10, 1))
        log.raise_first(10)

        assert fill_behind is Appended.STORED
        assert log.remove(100) == 2  # with what came late
        assert segments.count_documents({"_id": {"$gt": 0}}) == 1

    @pytest.mark.parametrize(
        ("most", "first"), [(1000, 1), (90, 1), (89, 4), (60, 4), (31, 7), (5, 7), (0, 7)]
    )
    def test_bytes_are_kept_of_the_newest(self, log: StreamStore, most: int, first: int) -> None:
        fill(log, [3, 3, 3])
        assert log.first_within(most) == first

    def test_bytes_that_are_kept_are_counted_from_where_the_stream_begins(self, log: StreamStore) -> None:
        fill(log, [1] * 50)
        log.raise_first(20)
        log.remove(20)
        assert [log.first_within(most) for most in (310, 300, 290, 10)] == [20, 21, 22, 50]
