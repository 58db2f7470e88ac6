"""Streams at brokers that share a MongoDB: order, lost answers, ids, expectations, reading, retention."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import gevent
import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import (
    BadStreamError,
    BadTopicError,
    ConflictError,
    SluiceError,
    UnavailableError,
)
from sluicemq.protocol.packed import pack, scan, unpack
from sluicemq_broker.bus import BusEvent, BusKind
from sluicemq_broker.config import Config, DeviceSettings, StreamSettings
from sluicemq_broker.context import Retry
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import GUARD, ServerClock, StreamStore, Tail, connect
from sluicemq_broker.streams import (
    BatchNumber,
    Expected,
    StoredNumbers,
    Stream,
    Streams,
    StreamServices,
    Topics,
    Wanted,
    read_batch,
)
from sluicemq_broker.streams.carried import carried
from support.faulty_mongo import Fault, FaultyDatabase, Kind, Line
from support.jobs import NOW
from support.waiting import TIMEOUT

full = pytest.mark.full


def eventually(condition: Callable[[], bool]) -> None:
    """Let the brokers work until it is so."""
    with gevent.Timeout(TIMEOUT):
        while not condition():
            gevent.sleep(0.001)


class StreamsTime:
    """Passes when the test says so: the server's, and that of the guard."""

    def __init__(self) -> None:
        self.value = 0.0

    def passed(self) -> float:
        return self.value

    def clock(self) -> ServerClock:
        clock = ServerClock()
        clock.now = lambda: NOW + self.value  # type: ignore[method-assign]
        return clock


class StreamsRig:
    """The streams of one broker, on a MongoDB of which statements can fail."""

    def __init__(self, documents: Any, time: StreamsTime, **settings: Any) -> None:
        self.line = Line(born=lambda *_stored: None)
        self.counters = Counters()
        self.answers: list[StoredNumbers | SluiceError] = []
        faulty: Any = FaultyDatabase(documents, self.line)
        config = dataclasses.replace(Config.default(), other_streams=StreamSettings(**settings))
        self.context = StreamServices(time.clock(), self.counters, Retry(0.001, 0.002), passed=time.passed)
        self.streams = Streams(config, self.context, lambda _name: faulty)
        self.stream: Stream = self.streams.open("orders")

    def publish(self, *topics: str, id: str = "", **fields: Any) -> StoredNumbers | SluiceError:  # noqa: A002
        """Publish one batch, a message for each topic with its name as payload; what became of it."""
        answer = self.begin(*topics, id=id, **fields)
        eventually(lambda: bool(answer))
        return answer[0]

    def begin(self, *topics: str, id: str = "", **fields: Any) -> list[StoredNumbers | SluiceError]:  # noqa: A002
        answer: list[StoredNumbers | SluiceError] = []
        messages = read_batch(
            b"".join(pack(topic.encode(), topic.encode()) for topic in topics), answer.append
        )
        messages.key = id
        for key, value in fields.items():
            setattr(messages, key, value)
        self.stream.publish(messages)
        return answer

    def fails(self, kind: Kind, method: str, **more: Any) -> None:
        self.line.fault = Fault(kind, method, **more)

    def read(self, first: int = 1, topics: tuple[bytes, ...] = (), most: int = 1000) -> list[tuple[int, str]]:
        """Numbers and topics of all messages from there on."""
        found: list[tuple[int, str]] = []
        while True:
            reading = self.stream.read(Wanted(first, Topics(topics), most - len(found), 1 << 20))
            for part in reading.chosen:
                names = [message[0].decode() for message in unpack(part.packed)]
                places = range(len(names)) if part.places is None else part.places
                found += [(part.segment.first + at, name) for at, name in zip(places, names, strict=True)]
            if not reading.more or len(found) == most:
                return found
            first = reading.first


@pytest.fixture
def time() -> StreamsTime:
    return StreamsTime()


@pytest.fixture
def brokers(documents: Database[dict[str, Any]], time: StreamsTime) -> Callable[..., StreamsRig]:
    """Makes brokers on one MongoDB."""

    def make(**settings: Any) -> StreamsRig:
        return StreamsRig(documents, time, **settings)

    return make


@pytest.fixture
def rig(brokers: Callable[..., StreamsRig]) -> StreamsRig:
    return brokers()


@pytest.fixture
def two(brokers: Callable[..., StreamsRig]) -> tuple[StreamsRig, StreamsRig]:
    return brokers(), brokers()


def batch(number: int, *, of: str = "p", again: bool = False) -> dict[str, Any]:
    """The id of a publisher's batch, as the door reads it."""
    key = f"#{of}/{number:012}"
    return {"id": key, "numbered": BatchNumber.read(key), "repeated": again}


def assert_stored(answer: StoredNumbers | SluiceError) -> None:
    assert isinstance(answer, StoredNumbers)


def numbered(*topics: str, first: int = 1) -> list[tuple[int, str]]:
    return list(enumerate(topics, first))


class TestPublishing:
    def test_messages_are_numbered_from_1_in_the_order_of_their_batches(self, rig: StreamsRig) -> None:
        answers = [rig.publish("a", "b"), rig.publish("c"), rig.publish("d", "e")]
        assert answers == [StoredNumbers(1), StoredNumbers(3), StoredNumbers(4)]
        assert rig.read() == numbered("a", "b", "c", "d", "e")

    def test_what_comes_while_an_insert_is_under_way_makes_one_segment(
        self, rig: StreamsRig, documents: Database[dict[str, Any]]
    ) -> None:
        answers = [rig.begin("a"), *(rig.begin("b") for _ in range(50))]
        eventually(lambda: all(answers))
        assert [answer[0] for answer in answers] == [StoredNumbers(number) for number in range(1, 52)]
        assert documents["stream.orders"].count_documents({"_id": {"$gt": 0}}) <= 2

    def test_two_brokers_make_one_order_without_a_hole(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        names = [f"{number}" for number in range(20)]
        answers = [two[number % 2].publish(name) for number, name in enumerate(names)]
        assert answers == [StoredNumbers(number) for number in range(1, 21)]
        assert two[0].read() == two[1].read() == numbered(*names)

    @pytest.mark.parametrize("kind", [Kind.CUT, Kind.LOST_REPLY, Kind.AWAY])
    def test_an_insert_without_an_answer_is_stored_once(self, rig: StreamsRig, kind: Kind) -> None:
        rig.publish("a")
        rig.fails(kind, "insert", times=2)
        assert rig.publish("b") == StoredNumbers(2)
        assert rig.read() == numbered("a", "b")

    def test_an_insert_landing_late_finds_its_place_taken(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        one, other = two
        one.publish("a")
        one.fails(Kind.LATE, "insert")
        answer = one.publish("b")
        other.publish("c")
        one.line.land()
        assert answer == StoredNumbers(2)
        assert one.read() == numbered("a", "b", "c")

    def test_messages_that_are_broken_are_refused(self, rig: StreamsRig) -> None:
        with pytest.raises(SluiceError, match="not whole"):
            read_batch(b"\x01\x05ab", lambda _outcome: None)


class TestIds:
    def test_a_batch_that_comes_again_is_stored_once(self, rig: StreamsRig) -> None:
        first = rig.publish("a", "b", id="p/1")
        again = rig.publish("a", "b", id="p/1", repeated=True)
        assert (first, again) == (StoredNumbers(1), StoredNumbers(0, {0: 1, 1: 2}))
        assert rig.read() == numbered("a", "b")

    def test_it_is_known_elsewhere_and_after_a_restart(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        two[0].publish("a", id="p/1")
        two[0].publish("b", id="p/2")
        assert two[1].publish("b", id="p/2", repeated=True) == StoredNumbers(0, {0: 2})

    def test_a_batch_both_brokers_have_is_stored_by_one(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        one, other = two
        one.publish("a")
        other.publish("b")  # each knows a tail; that of the first is old

        def meanwhile() -> None:
            assert other.publish("c", id="p/1", repeated=True) == StoredNumbers(3)

        one.line.inside = meanwhile
        one.fails(Kind.INSIDE_BEFORE, "insert")
        assert one.publish("c", id="p/1") == StoredNumbers(0, {0: 3})
        assert one.read() == numbered("a", "b", "c")

    def test_a_broker_that_has_just_started_sees_a_batch_that_is_stored_while_it_looks_for_it(
        self, two: tuple[StreamsRig, StreamsRig], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = two
        other.publish("a")
        read, meanwhile = StreamStore.tail, [lambda: other.publish("b", id="p/1")]

        def read_tail(store: StreamStore) -> Tail:
            while meanwhile:
                meanwhile.pop()()
            return read(store)

        monkeypatch.setattr(StreamStore, "tail", read_tail)
        assert one.publish("b", id="p/1", repeated=True) == StoredNumbers(0, {0: 2})
        assert one.read() == numbered("a", "b")

    def test_the_same_batch_twice_in_one_segment_is_stored_once(self, rig: StreamsRig) -> None:
        answers = [rig.begin("a"), rig.begin("b", id="p/1"), rig.begin("b", id="p/1", repeated=True)]
        eventually(lambda: all(answers))
        assert [answer[0] for answer in answers] == [
            StoredNumbers(1),
            StoredNumbers(2),
            StoredNumbers(0, {0: 2}),
        ]
        assert rig.read() == numbered("a", "b")

    def test_a_second_copy_hears_of_the_first_once_that_is_durable(self, rig: StreamsRig) -> None:
        rig.publish("a")
        heard: list[list[StoredNumbers | SluiceError]] = []
        rig.line.inside = lambda: heard.extend([*copy] for copy in copies)
        rig.fails(Kind.INSIDE_BEFORE, "insert")
        copies = [rig.begin("b"), *(rig.begin("c", id="p/1", ids={"=x": 0}) for _ in range(2))]
        copies.append(rig.begin("c", "d", ids={"=x": 0}))
        eventually(lambda: all(copies))
        assert heard == [[]] * 4
        assert [copy[0] for copy in copies] == [
            StoredNumbers(2),
            StoredNumbers(3),
            StoredNumbers(0, {0: 3}),
            StoredNumbers(4, {0: 3}),
        ]

    def test_the_answer_to_a_second_copy_follows_the_first_behind_what_another_broker_has_stored(
        self, two: tuple[StreamsRig, StreamsRig]
    ) -> None:
        one, other = two
        one.publish("a")
        one.line.inside = lambda: assert_stored(other.publish("elsewhere"))
        one.fails(Kind.INSIDE_BEFORE, "insert")
        copies = [one.begin("b", ids={"=x": 0}), one.begin("c", "b", ids={"=x": 1})]
        eventually(lambda: all(copies))
        assert [copy[0] for copy in copies] == [StoredNumbers(3), StoredNumbers(4, {1: 3})]
        assert one.read() == numbered("a", "elsewhere", "b", "c")

    def test_a_second_copy_is_stored_if_the_first_is_not(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        one, other = two
        one.publish("a")
        one.line.inside = lambda: assert_stored(other.publish("elsewhere"))
        one.fails(Kind.INSIDE_BEFORE, "insert")
        first, second = one.begin("b", ids={"=x": 0}, expected=Expected(1)), one.begin("b", ids={"=x": 0})
        eventually(lambda: bool(first and second))
        assert isinstance(first[0], ConflictError)
        assert second == [StoredNumbers(3)]
        assert one.read() == numbered("a", "elsewhere", "b")

    def test_who_expects_another_end_hears_once_it_is_so(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        one, other = two
        one.publish("a")
        one.line.inside = lambda: assert_stored(other.publish("elsewhere"))
        one.fails(Kind.INSIDE_BEFORE, "insert")
        first, second = one.begin("b"), one.begin("c", expected=Expected(1))
        eventually(lambda: bool(first and second))
        assert first == [StoredNumbers(3)]
        assert isinstance(second[0], ConflictError)
        assert second[0].last == 3

    def test_a_batch_of_which_a_part_was_there_hears_its_own_numbers_again(self, rig: StreamsRig) -> None:
        rig.publish("a", ids={"=x": 0})
        assert rig.publish("b", "a", "c", id="p/1", ids={"=x": 1}) == StoredNumbers(2, {1: 1})
        again = rig.publish("b", "a", "c", id="p/1", ids={"=x": 1}, repeated=True)
        assert again == StoredNumbers(0, {0: 2, 1: 1, 2: 3})

    def test_a_message_with_an_id_is_stored_once_and_those_beside_it_are_new(self, rig: StreamsRig) -> None:
        rig.publish("a", "b", ids={"=x": 0})
        again = rig.publish("c", "a", "d", ids={"=x": 1, "=y": 2})
        assert again == StoredNumbers(3, {1: 1})
        assert rig.read() == numbered("a", "b", "c", "d")
        assert rig.publish("d", ids={"=y": 0}) == StoredNumbers(0, {0: 4})

    def test_an_id_is_free_after_a_while(self, brokers: Callable[..., StreamsRig], time: StreamsTime) -> None:
        broker = brokers(dedupe_window=60.0)
        broker.publish("a", ids={"=x": 0})
        time.value += 61
        assert broker.publish("b", ids={"=x": 0}) == StoredNumbers(2)


class TestLateCopies:
    """Batches of a publisher that numbers them, sent again elsewhere before their first copies came."""

    def test_a_first_copy_that_comes_after_its_repeat_is_not_stored_again(self, rig: StreamsRig) -> None:
        rig.publish("a", **batch(1, again=True))
        rig.publish("b", **batch(2))
        assert rig.publish("a", **batch(1)) == StoredNumbers(0, {0: 1})
        assert rig.publish("c", **batch(3)) == StoredNumbers(3)
        assert rig.read() == numbered("a", "b", "c")

    @pytest.mark.parametrize("wrote_before", [False, True])
    def test_nor_at_one_that_slept(self, two: tuple[StreamsRig, StreamsRig], *, wrote_before: bool) -> None:
        one, other = two
        if wrote_before:
            one.publish("0", **batch(0))
        first = one.stream.newest + 1
        for at in range(1, 4):
            other.publish(f"{at}", **batch(at, again=True))
        other.publish("5", **batch(5))
        late = [one.publish(f"{at}", **batch(at)) for at in range(1, 5)]
        assert late[:3] == [StoredNumbers(0, {0: first + at}) for at in range(3)]
        assert isinstance(late[3], UnavailableError)  # its publisher has gone on: it was refused there
        assert one.publish("4", **batch(4, again=True)) == StoredNumbers(first + 4)
        assert one.publish("6", **batch(6)) == StoredNumbers(first + 5)

    def test_nor_if_its_repeat_is_stored_in_between(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        one, other = two
        one.publish("0", **batch(0))
        one.line.inside = lambda: assert_stored(other.publish("2", **batch(2, again=True)))
        one.fails(Kind.INSIDE_BEFORE, "insert")
        late = [one.begin("1", **batch(1)), one.begin("2", **batch(2)), one.begin("3", **batch(3))]
        eventually(lambda: all(late))
        assert isinstance(late[0][0], UnavailableError)
        assert late[1:] == [[StoredNumbers(0, {0: 2})], [StoredNumbers(3)]]
        assert one.read() == numbered("0", "2", "3")

    def test_nor_if_its_publisher_was_forgotten(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        one, other = two
        one.context.publishers.numbers.most = 2
        one.publish("a", **batch(1))
        other.publish("b", **batch(2, again=True))
        for at in range(3):
            one.publish("x", **batch(1, of=f"other{at}"))
        assert one.publish("b", **batch(2)) == StoredNumbers(0, {0: 2})

    def test_nor_behind_retention(self, two: tuple[StreamsRig, StreamsRig], time: StreamsTime) -> None:
        one, other = two
        one.publish("a", **batch(1))
        for at in range(2, 6):
            other.publish("b", **batch(at, again=True))
        time.value += 2 * GUARD
        other.stream.store.raise_first(5)
        other.stream.store.remove(5)
        one.publish("x")
        assert isinstance(one.publish("b", **batch(4)), UnavailableError)

    def test_batches_of_a_known_publisher_are_not_looked_up(self, rig: StreamsRig) -> None:
        rig.publish("a", **batch(1))
        rig.fails(Kind.AWAY, "find", times=1000)
        answers = [rig.begin("b", **batch(at)) for at in range(2, 10)]
        eventually(lambda: all(answers))
        assert rig.publish("c", **batch(11)) == StoredNumbers(10)
        assert rig.line.fired == 0

    def test_a_batch_without_a_number_is_looked_up(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        two[0].publish("a", id="#mine", repeated=True)
        assert two[1].publish("a", id="#mine") == StoredNumbers(0, {0: 1})


class TestExpectations:
    def test_it_is_stored_if_the_stream_ends_there(self, rig: StreamsRig) -> None:
        assert rig.publish("a", expected=Expected(0)) == StoredNumbers(1)
        assert rig.publish("b", "c", expected=Expected(1)) == StoredNumbers(2)
        assert rig.publish("d", expected=Expected(3)) == StoredNumbers(4)

    @pytest.mark.parametrize("last", [0, 1, 3, 99])
    def test_else_it_is_refused_and_told_where_it_ends(self, rig: StreamsRig, last: int) -> None:
        rig.publish("a", "b")
        answer = rig.publish("c", expected=Expected(last))
        assert isinstance(answer, ConflictError)
        assert answer.last == 2
        assert rig.read() == numbered("a", "b")

    def test_what_another_broker_has_stored_counts(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        two[0].publish("a")
        two[1].publish("b")
        assert two[0].publish("c", expected=Expected(2)) == StoredNumbers(3)
        assert isinstance(two[1].publish("d", expected=Expected(2)), ConflictError)

    def test_of_two_with_the_same_expectation_one_is_stored(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        one, other = two
        one.publish("a")
        answers: list[StoredNumbers | SluiceError] = []
        one.line.inside = lambda: answers.append(other.publish("b", expected=Expected(1)))
        one.fails(Kind.INSIDE_BEFORE, "insert")
        answers.append(one.publish("c", expected=Expected(1)))
        assert answers[0] == StoredNumbers(2)
        assert isinstance(answers[1], ConflictError)

    def test_a_topic_ends_with_its_own_last_message(self, rig: StreamsRig) -> None:
        rig.publish("x", "y", "x", "y")
        assert rig.publish("x", expected=Expected(3, b"x")) == StoredNumbers(5)
        assert rig.publish("new", expected=Expected(0, b"new")) == StoredNumbers(6)
        assert isinstance(rig.publish("y", expected=Expected(3, b"y")), ConflictError)
        answers = [rig.begin("y", expected=Expected(last, b"y")) for last in (4, 7, 7)]
        eventually(lambda: all(answers))
        assert [type(answer[0]) for answer in answers] == [StoredNumbers, StoredNumbers, ConflictError]


class TestReading:
    @pytest.fixture
    def filled(self, rig: StreamsRig) -> StreamsRig:
        for topics in (("a.x", "b"), ("a.y", "a"), ("b.x.z", "c")):
            rig.publish(*topics)
        return rig

    @pytest.mark.parametrize(
        ("wanted", "numbers"),
        [
            (["a"], [1, 3, 4]),
            (["a."], [1, 3]),
            (["=a"], [4]),
            (["*.x"], [1]),
            (["b.>"], [5]),
            (["*.x.>", "c"], [5, 6]),
            (["*"], [2, 4, 6]),
            ([""], [1, 2, 3, 4, 5, 6]),
            ([], [1, 2, 3, 4, 5, 6]),
            (["none"], []),
        ],
    )
    def test_topics_are_chosen(self, filled: StreamsRig, wanted: list[str], numbers: list[int]) -> None:
        found = filled.read(topics=tuple(topic.encode() for topic in wanted))
        assert [number for number, _topic in found] == numbers

    @pytest.mark.parametrize("topic", [b"a.>.b", b"a*", b"x.a>", b"*a.b", b"t" * 256])
    def test_what_is_no_pattern_is_refused(self, topic: bytes) -> None:
        with pytest.raises(BadTopicError):
            Topics([topic])

    def test_of_segments_with_very_many_topics_few_are_read_at_once(self, rig: StreamsRig) -> None:
        topics = [f"t{at}" for at in range(4096)]
        for _ in range(20):
            rig.publish(*topics)
        rig.stream.store.read(1, 4 << 20)
        assert len(rig.stream.store.read(1, 4 << 20).segments) == 8
        assert len(rig.read(1, most=10**6)) == 20 * 4096

    def test_reading_can_begin_and_end_inside_a_segment(self, filled: StreamsRig) -> None:
        assert filled.read(2, most=3) == [(2, "b"), (3, "a.y"), (4, "a")]

    def test_memory_is_as_mongodb(self, filled: StreamsRig, brokers: Callable[..., StreamsRig]) -> None:
        other = brokers()
        assert [other.read(first) for first in range(1, 8)] == [filled.read(first) for first in range(1, 8)]
        assert filled.stream.read_recent(Wanted(1, Topics(), 10, 1000)) is not None
        assert other.stream.read_recent(Wanted(1, Topics(), 10, 1000)) is None

    def test_who_waits_is_woken_by_this_broker(self, rig: StreamsRig) -> None:
        woken: list[int] = []
        rig.stream.wait("me", 1, lambda: woken.append(1))
        rig.publish("a")
        eventually(lambda: bool(woken))
        rig.publish("b")
        assert woken == [1]

    def test_who_waits_for_what_is_there_is_woken_at_once(self, rig: StreamsRig) -> None:
        rig.publish("a")
        woken: list[int] = []
        rig.stream.wait("me", 1, lambda: woken.append(1))
        eventually(lambda: bool(woken))

    def test_who_waits_wakes_at_what_another_publishes(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        woken: list[int] = []
        two[0].stream.wait("me", 1, lambda: woken.append(1))
        two[1].publish("a")
        two[0].stream.read_newer()
        eventually(lambda: bool(woken))
        assert two[0].read() == numbered("a")

    def test_a_segment_told_whole_needs_no_look(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        woken: list[int] = []
        two[1].publish("a")
        two[0].stream.wait("me", 2, lambda: woken.append(1))
        two[0].stream.read_newer()  # where it ends
        eventually(lambda: two[0].stream.newest == 1)
        woken.clear()
        two[0].stream.wait("me", 2, lambda: woken.append(1))
        two[1].publish("b")
        segments, _kept = two[1].stream.segments(2)
        two[0].fails(Kind.AWAY, "find", times=1000)

        two[0].streams.on_segment(BusEvent(BusKind.SEGMENT, "orders", 2, carried(segments[0])))

        assert woken == [1]
        reading = two[0].stream.read_recent(Wanted(2, Topics(()), 10, 1000))
        assert reading is not None
        assert [unpack(message.packed) for message in reading.chosen] == [[[b"b", b"b"]]]

    def test_a_segment_told_behind_a_hole_is_given_to_none(self, two: tuple[StreamsRig, StreamsRig]) -> None:
        woken: list[int] = []
        two[1].publish("a")
        two[1].publish("b")
        two[1].publish("c")
        segments, _kept = two[1].stream.segments(3)
        two[0].stream.wait("me", 1, lambda: woken.append(1))
        two[0].streams.on_segment(BusEvent(BusKind.SEGMENT, "orders", 3, carried(segments[0])))
        assert woken == []
        assert two[0].read() == numbered("a", "b", "c")


class TestRetention:
    def test_what_is_over_is_told_as_gone(self, brokers: Callable[..., StreamsRig]) -> None:
        broker = brokers(max_messages=3)
        for _ in range(5):
            broker.publish("a", "b")
        broker.streams.sweep()
        reading = brokers().stream.read(Wanted(2, Topics(), 100, 1 << 20))
        assert (reading.gone, reading.first) == (6, 11)
        assert brokers().read() == numbered("b", "a", "b", first=8)

    def test_old_messages_go_by_age(self, brokers: Callable[..., StreamsRig], time: StreamsTime) -> None:
        broker = brokers(max_age=100.0)
        broker.publish("a")
        time.value = 60
        broker.publish("b")
        time.value = 120
        broker.streams.sweep()
        assert brokers().read() == numbered("b", first=2)

    def test_bytes_are_bounded(self, brokers: Callable[..., StreamsRig]) -> None:
        broker = brokers(max_bytes=30)
        for name in "abcdefg":
            broker.publish(name)  # 6 bytes each
        broker.streams.sweep()
        assert brokers().read() == numbered("c", "d", "e", "f", "g", first=3)

    def test_segments_are_removed_once_no_writer_can_take_them_for_the_tail(
        self, brokers: Callable[..., StreamsRig], time: StreamsTime, documents: Database[dict[str, Any]]
    ) -> None:
        broker = brokers(max_messages=1)
        for name in "abc":
            broker.publish(name)

        def left() -> int:
            broker.streams.sweep()
            return documents["stream.orders"].count_documents({"_id": {"$gt": 0}})

        before = left()
        time.value += 39
        just_before = left()
        time.value += 2
        after = left()

        assert (before, just_before, after) == (3, 3, 1)
        assert broker.counters.values[Count.SEGMENTS_REMOVED] == 2
        assert broker.publish("d") == StoredNumbers(4)

    def test_a_broker_that_was_away_does_not_write_into_a_removed_place(
        self,
        brokers: Callable[..., StreamsRig],
        documents: Database[dict[str, Any]],
        mongo_uri: str,
        time: StreamsTime,
    ) -> None:
        listening = connect(mongo_uri, lambda _command, _seconds: None)  # so it hears of answers at once
        away, other = StreamsRig(listening[documents.name], time, max_messages=1), brokers(max_messages=1)
        away.publish("a")
        newest: list[int] = []
        away.stream.wait("me", 2, lambda: newest.append(away.stream.newest))

        def meanwhile() -> None:
            for name in "bcd":
                other.publish(name)
            other.streams.sweep()
            time.value += 100
            other.streams.sweep()

        away.line.inside = meanwhile  # between its look at the tail and the arrival of its insert
        away.fails(Kind.INSIDE_BEFORE, "insert")

        assert away.publish("late") == StoredNumbers(5)
        assert other.read(4) == [(4, "d"), (5, "late")]
        assert newest == [5]  # nobody was told of number 2
        listening.close()

    def test_what_is_unread_is_kept_up_to_its_bound(self, brokers: Callable[..., StreamsRig]) -> None:
        broker = brokers(max_messages=2, max_unread=5)
        for name in "abcdefgh":
            broker.publish(name)
        unread = 7

        broker.streams.keep(lambda _stream: unread)
        broker.streams.sweep()
        first = broker.stream.store.head().first
        broker.publish("i")
        unread = 2
        broker.streams.sweep()

        assert (first, broker.stream.store.head().first) == (7, 7)
        for name in "jklm":
            broker.publish(name)
        broker.streams.sweep()
        assert broker.stream.store.head().first == 9

    def test_a_stream_that_was_deleted_goes_on_with_its_numbers(self, rig: StreamsRig) -> None:
        rig.publish("a", "b")
        assert rig.streams.remove("orders") == 2
        assert rig.publish("c") == StoredNumbers(3)
        assert rig.read(3) == [(3, "c")]


def test_who_reads_from_the_oldest_gets_what_came_after_all_was_erased(rig: StreamsRig) -> None:
    for _ in range(300):
        rig.publish("old")
    rig.streams.remove("orders")
    rig.publish("new")
    assert rig.read() == [(301, "new")]


class TestClocks:
    @pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
    def test_times_never_fall_and_numbers_go_on_whatever_the_servers_clock_does(
        self, two: tuple[StreamsRig, StreamsRig], time: StreamsTime, jump: float
    ) -> None:
        for at, broker in enumerate((*two, *two)):
            if at == 2:
                time.value += jump
            broker.publish(f"t{at}")
        segments, _first = two[0].stream.segments(1)
        times = [segment.at for segment in segments]
        assert [segment.first for segment in segments] == [1, 2, 3, 4]
        assert times == sorted(times)
        assert two[1].read() == numbered("t0", "t1", "t2", "t3")

    def test_no_id_is_stored_twice_ever(self, two: tuple[StreamsRig, StreamsRig], time: StreamsTime) -> None:
        two[0].publish("a", ids={"x": 0})
        time.value -= 86_400
        two[1].publish("a", ids={"x": 0})
        assert two[0].read() == numbered("a")

    def test_a_clock_that_was_set_back_and_is_right_again_removes_nothing_that_is_young(
        self, brokers: Callable[..., StreamsRig], time: StreamsTime
    ) -> None:
        broker = brokers(max_age=3600.0)
        time.value -= 86_400
        broker.publish("old")
        time.value += 86_400
        broker.publish("young")
        broker.streams.sweep()
        assert broker.read() == [(2, "young")]


def test_a_segment_scanned_is_what_was_published(rig: StreamsRig) -> None:
    rig.publish("a", "b")
    segments, _first = rig.stream.segments(1)
    assert [scan(segment.packed)[1] for segment in segments] == [[b"a", b"b"]]


def test_a_forwarders_stream_may_be_made_without_auto_create(documents: Database[dict[str, Any]]) -> None:
    default = Config.default()
    config = dataclasses.replace(
        default,
        broker=dataclasses.replace(default.broker, auto_create=False),
        devices=(DeviceSettings(kind="forwarder", stream="prices"),),
    )
    context = StreamServices(StreamsTime().clock(), Counters(), Retry())
    streams = Streams(config, context, lambda _name: documents)
    assert streams.for_publish("prices", caller=ANYBODY).name == "prices"
    with pytest.raises(BadStreamError, match="auto_create is off"):
        streams.for_publish("others", caller=ANYBODY)


class Connected:
    """A connection of a publisher to one broker: what it has sent arrives in order, and perhaps late."""

    def __init__(self, rig: StreamsRig) -> None:
        self.broker = rig
        self.sent: deque[tuple[int, bool]] = deque()
        self.answers: dict[int, list[StoredNumbers | SluiceError]] = {}

    def deliver(self) -> None:
        number, again = self.sent.popleft()
        self.answers[number] = self.broker.begin(f"{number}", **batch(number, again=again))


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(number, marks=full) for number in range(4, 100))])
def test_whatever_arrives_late_each_batch_is_once(two: tuple[StreamsRig, StreamsRig], seed: int) -> None:
    """A publisher changes brokers again and again, before much of what it has sent has arrived."""
    rng, count = Random(seed), 60
    connections, unconfirmed, number = [Connected(rng.choice(two))], list[int](), 0
    confirmed: dict[int, int] = {}
    while number < count or unconfirmed:
        now = connections[-1]
        step = rng.random()
        if step < 0.4 and number < count and len(unconfirmed) < 6:
            number += 1
            unconfirmed.append(number)
            now.sent.append((number, False))
        elif step < 0.43:
            connections.append(Connected(rng.choice(two)))
            connections[-1].sent.extend((receipt, True) for receipt in unconfirmed)
        elif some := [connection for connection in connections if connection.sent]:
            (some[-1] if rng.random() < 0.8 else rng.choice(some)).deliver()
        if rng.random() < 0.6:
            gevent.sleep(rng.choice([0, 0.001, 0.01]))
        for job_id in [receipt for receipt in unconfirmed if now.answers.get(receipt)]:
            answer = now.answers[job_id][0]
            assert isinstance(answer, StoredNumbers), (answer, seed)
            confirmed[job_id] = answer.there.get(0, answer.first)
            unconfirmed.remove(job_id)
    for left in connections:
        while left.sent:
            left.deliver()
    eventually(lambda: all(answer for connection in connections for answer in connection.answers.values()))

    assert two[0].read() == [(place, f"{place}") for place in range(1, count + 1)]
    assert confirmed == {place: place for place in range(1, count + 1)}
