"""Parts of streams: carried segments, last values, publishers, lags, messages as stored and sent."""

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.errors import BadFramesError, UnavailableError
from sluicemq.protocol.packed import LONGEST_TOPIC, extended, frames, pack, scan, slices, unpack
from sluicemq_broker.parts.streams.last_values import LastValues, LateMessages
from sluicemq_broker.store import Segment
from sluicemq_broker.streams import BatchNumber, Lags
from sluicemq_broker.streams.carried import MOST, carried, read_carried
from sluicemq_broker.streams.publishers import Progress, Publishers
from sluicemq_devices.zmtp import encode

MESSAGE = pack(b"topic", b"payload")
SEGMENT = Segment(7, 2, 1700000000.123, 2 * len(MESSAGE), 99, "a1:3", 2 * MESSAGE, (b"topic",))


def test_a_small_segment_is_read_as_it_was_told() -> None:
    assert read_carried(7, carried(SEGMENT)) == SEGMENT


def test_a_large_one_is_not_carried() -> None:
    packed = pack(b"topic", bytes(MOST))
    assert carried(Segment(7, 1, 1.0, len(packed), 99, "a:3", packed, (b"topic",))) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "words",
        carried(SEGMENT)[:-4],
        carried(SEGMENT).replace("2 ", "3 ", 1),
        "0 1 1 a:1 ",
        "1 1 1 a:1 ////",
        "1 1 1 a:1 ä",
    ],
)
def test_what_is_none_is_passed_over(text: str) -> None:
    assert read_carried(7, text) is None


@given(st.text())
def test_nothing_that_somebody_tells_does_any_harm(text: str) -> None:
    assert read_carried(7, text) is None


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


@pytest.fixture
def publishers() -> Publishers:
    return Publishers(most=3)


@pytest.fixture
def stream(publishers: Publishers) -> Progress:
    return publishers.of_stream()


def known(stream: Progress, *names: str) -> list[str]:
    """Return those of some publishers whose first batch the stream had."""
    return [name for name in names if stream.is_new(BatchNumber(name, 2))]


class TestIds:
    """Ids of batches that have a publisher and a number."""

    @pytest.mark.parametrize(
        ("batch_id", "read"),
        [
            ("p/000000000012", BatchNumber("p", 12)),
            ("#c0ffee/999999999999", BatchNumber("#c0ffee", 999_999_999_999)),
            ("a/b/000000000000", BatchNumber("a/b", 0)),
            ("/000000000012", None),  # nobody's
            ("000000000012", None),
            ("p-000000000012", None),
            ("p/00000000012", None),  # eleven digits
            ("p/0000000000012", None),
            ("p/00000000001x", None),
            ("p/-00000000012", None),
            ("p/٠٠٠٠٠٠٠٠٠٠١٢", None),  # digits, but not ours
            ("p/00000000001²", None),
            ("", None),
        ],
    )
    def test_an_id_names_publisher_and_number(self, batch_id: str, read: BatchNumber | None) -> None:
        assert BatchNumber.read(batch_id) == read

    @pytest.mark.parametrize(
        ("batch_id", "is_later"),
        [
            ("p/000000000041", False),
            ("p/000000000042", False),
            ("p/000000000043", True),
            ("p/999999999999", True),
            ("o/000000000043", False),
            ("p0/000000000043", False),
            ("p.a/000000000043", False),
            ("q/000000000043", False),
            ("p", False),
        ],
    )
    def test_between_two_ids_are_its_publishers_batches(self, batch_id: str, *, is_later: bool) -> None:
        low, high = BatchNumber("p", 42).later_ids
        assert (low < batch_id < high) == is_later


class TestProgress:
    """What a stream knows of its publishers."""

    def test_nothing_is_new_of_a_publisher_that_is_not_known(self, stream: Progress) -> None:
        assert not stream.is_new(BatchNumber("p", 1))

    @pytest.mark.parametrize(("number", "is_new"), [(6, False), (7, False), (8, True), (900, True)])
    def test_a_batch_is_new_above_those_noted(self, stream: Progress, number: int, *, is_new: bool) -> None:
        stream.note(BatchNumber("p", 7))
        stream.note(BatchNumber("p", 5))
        assert stream.is_new(BatchNumber("p", number)) == is_new

    def test_a_batch_with_number_nought_is_noted_too(self, stream: Progress) -> None:
        stream.note(BatchNumber("p", 0))
        assert not stream.is_new(BatchNumber("p", 0))
        assert stream.is_new(BatchNumber("p", 1))

    def test_what_is_stored_raises_the_number_of_known_publishers_only(self, stream: Progress) -> None:
        stream.note(BatchNumber("p", 0))
        for publisher in ("p", "stranger"):
            stream.pass_by(BatchNumber(publisher, 9))
        assert not stream.is_new(BatchNumber("p", 9))
        assert stream.is_new(BatchNumber("p", 10))
        assert not stream.is_new(BatchNumber("stranger", 10))

    def test_each_stream_knows_its_own(self, publishers: Publishers) -> None:
        one, other = publishers.of_stream(), publishers.of_stream()
        one.note(BatchNumber("p", 1))
        assert known(one, "p") == ["p"]
        assert known(other, "p") == []

    def test_publishers_that_published_longest_ago_are_forgotten(self, stream: Progress) -> None:
        for name in ("a", "b", "c"):
            stream.note(BatchNumber(name, 1))
        stream.pass_by(BatchNumber("a", 1))
        stream.note(BatchNumber("d", 1))
        assert known(stream, "a", "b", "c", "d") == ["a", "c", "d"]

    def test_the_bound_is_one_for_all_streams(self, publishers: Publishers, stream: Progress) -> None:
        other = publishers.of_stream()
        for name in ("a", "b"):
            stream.note(BatchNumber(name, 1))
        for name in ("c", "d"):
            other.note(BatchNumber(name, 1))
        assert known(stream, "a", "b") == ["b"]
        assert known(other, "c", "d") == ["c", "d"]


class Subscriptions:
    """They stand like this, or nobody can tell."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] | None = [{"name": "sums", "behind": 3}]

    def known(self) -> list[dict[str, Any]]:
        if self.rows is None:
            raise UnavailableError("no primary")
        return self.rows


def test_what_was_seen_last_is_kept_until_nobody_can_tell() -> None:
    subscriptions: Any = Subscriptions()
    lags = Lags(subscriptions)
    assert lags.rows == []
    lags.measure()
    assert lags.rows == subscriptions.rows
    subscriptions.rows = None
    with pytest.raises(UnavailableError):
        lags.measure()
    assert lags.rows == []


MESSAGES = st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=4), max_size=8)


def test_a_message_is_packed_as_zeromq_sends_it() -> None:
    assert pack(b"eur", b"1.08") == b"\x01\x03eur\x00\x041.08"
    assert pack(b"t" * 300, b"p" * 70_000) == encode([b"t" * 300, b"p" * 70_000])


@given(MESSAGES)
def test_what_is_packed_is_unpacked(messages: list[list[bytes]]) -> None:
    packed_ones = [encode(message) for message in messages]
    packed = b"".join(packed_ones)
    ends, topics = scan(packed)
    assert unpack(packed) == messages
    assert slices(packed, ends) == packed_ones
    assert topics == [message[0][:LONGEST_TOPIC] for message in messages]
    assert [frames(packed, start) for start in [0, *ends][:-1]] == messages


@given(MESSAGES)
def test_a_frame_more_is_the_last(messages: list[list[bytes]]) -> None:
    for message in messages:
        assert extended(encode(message), b"7 1.5") == encode([*message, b"7 1.5"])


@given(st.binary(max_size=40))
def test_what_is_no_whole_messages_is_refused(text: bytes) -> None:
    try:
        ends, _topics = scan(text)
    except BadFramesError:
        return
    assert b"".join(slices(text, ends)) == text
    assert len(unpack(text)) == len(ends)


@pytest.mark.parametrize(
    "text", [b"\x00", b"\x01\x00", b"\x00\x05abc", b"\x02\x00\x00", b"\x04\x01a", b"\x01\x00\x08\x00"]
)
def test_half_a_message_and_a_command_are_refused(text: bytes) -> None:
    with pytest.raises(BadFramesError):
        scan(text)
