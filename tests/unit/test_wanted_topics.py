"""Which topics a reader wants: as regular expressions say it, at a cost that patterns don't multiply."""

import re
import sys
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from time import monotonic, thread_time
from types import FrameType
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.errors import BadTopicError
from sluicemq.protocol.packed import pack
from sluicemq_broker.store import Segment
from sluicemq_broker.streams import Topics, Usage
from sluicemq_broker.streams.choosing import TURN, Choosing
from sluicemq_broker.streams.segments import choose
from sluicemq_broker.streams.topics import MOST_WORDS

WORDS = st.sampled_from(["a", "b", "ab", "", "*", ">", "=a", "\n"])
NAMES = st.lists(WORDS, max_size=5).map(lambda words: ".".join(words).encode())


def by_expression(wanted: Sequence[bytes], topic: bytes) -> bool:
    """The rules of the documents, as they were written with regular expressions."""
    return not wanted or any(fits(pattern, topic) for pattern in wanted)


def fits(wanted: bytes, topic: bytes) -> bool:
    if wanted.startswith(b"="):
        return topic == wanted[1:]
    if not (b"*" in wanted or b">" in wanted):
        return topic.startswith(wanted)
    parts = [{b"*": rb"[^.]+", b">": rb".+"}.get(word, re.escape(word)) for word in wanted.split(b".")]
    return re.fullmatch(rb"\.".join(parts), topic, re.DOTALL) is not None


@given(wanted=st.lists(NAMES, max_size=6), topics=st.lists(NAMES, max_size=6))
def test_topics_are_wanted_as_regular_expressions_say(wanted: list[bytes], topics: list[bytes]) -> None:
    try:
        mine = Topics(wanted)
    except BadTopicError:
        return
    assert [mine.want(topic) for topic in topics] == [by_expression(wanted, topic) for topic in topics]


def test_the_patterns_of_one_filter_have_a_bound_of_words_in_all() -> None:
    patterns = [b".".join([b"*"] * 63 + [b"%d" % at]) for at in range(MOST_WORDS // 64)]
    Topics(patterns)
    with pytest.raises(BadTopicError, match=f"at most {MOST_WORDS}"):
        Topics([*patterns, b"*"])


def lines(step: Callable[[], object]) -> int:
    """Lines of code that a step runs."""
    counted, before = count(), sys.gettrace()

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            next(counted)
        return trace

    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return next(counted)


def busy(seconds: float) -> None:
    until = thread_time() + seconds
    while thread_time() < until:
        pass


MANY = {
    "beginnings": [b"prices.%d." % at for at in range(1000)],
    "patterns that begin alike": [b"prices.*.%d.>" % at for at in range(1000)],
    "patterns that begin differently": [b"%d.*.paid" % at for at in range(1000)],
}


@pytest.mark.parametrize("wanted", MANY.values(), ids=MANY)
def test_a_topic_costs_with_many_patterns_about_what_it_costs_with_few(wanted: list[bytes]) -> None:
    topics = [b"prices.x%d.paid.now" % at for at in range(1000)]
    few, many, place = Topics(wanted[:10]), Topics(wanted), count(1)
    few.among(topics, next(place), 60.0)
    many.among(topics, next(place), 60.0)
    assert lines(lambda: many.among(topics, next(place), 60.0)) <= 2 * lines(
        lambda: few.among(topics, next(place), 60.0)
    )


def test_a_topic_that_fits_every_part_of_every_pattern_costs_their_words_at_most() -> None:
    random = Random(1)
    hostile = Topics([b".".join(random.choices([b"a", b"*"], k=120)) for _ in range(34)])
    topic = b".".join([b"a"] * 127)
    hostile.want(topic)
    assert lines(lambda: hostile.want(topic)) < 10 * 127


def segment_of(topics: list[bytes]) -> Segment:
    packed = b"".join(pack(topic, b"") for topic in topics)
    return Segment(11, len(topics), 0.0, len(packed), len(packed), "", packed, tuple(sorted(set(topics))))


@pytest.mark.parametrize("wanted", [[b"a.*.5"], [b"a.>"], [b"b"], [b"a.1", b"=a.23.4"], []])
@pytest.mark.parametrize("most", [7, 1000])
def test_choosing_goes_on_inside_a_segment_where_its_time_ran_out(wanted: list[bytes], most: int) -> None:
    segment = segment_of([b"a.%d.%d" % (at % 30, at % 7) for at in range(300)])
    first, found, steps, topics = segment.first, [], 0, Topics(wanted)
    while first < segment.next:
        steps += 1
        chosen, first = choose(segment, first, topics, most, seconds=0.0)
        if chosen:
            places = range(segment.count) if chosen.places is None else chosen.places
            found += [segment.first + at for at in places]
    names = [b"a.%d.%d" % (at % 30, at % 7) for at in range(300)]
    assert found == [11 + at for at, name in enumerate(names) if by_expression(wanted, name)]
    assert steps > 1 or (not wanted and most == 1000)


class TestTurns:
    """Readers that choose in the same time."""

    def order(self, *readers: tuple[str, float, float]) -> list[str]:
        """In which order readers have their turns; of each its name, when it comes, and what it has used."""
        now, told = 0.0, list[str]()
        turns = Choosing(lambda: now)

        def read(name: str, usage: Usage) -> None:
            turns.wait(usage)
            told.append(name)

        begun = []
        for name, came, used in readers:
            now, usage = came, Usage()
            usage.of_late(now)
            usage.add(used)
            begun.append(gevent.spawn(read, name, usage))
            begun[-1].start()
            gevent.sleep(0)
        gevent.joinall(begun)
        return told

    def test_a_reader_that_has_used_less_goes_first(self) -> None:
        assert self.order(("much", 0.0, 1.0), ("some", 0.0, 0.01), ("new", 0.0, 0.0)) == [
            "new",
            "some",
            "much",
        ]

    def test_equal_readers_go_in_the_order_of_coming(self) -> None:
        assert self.order(*((name, 0.0, 0.5) for name in "abcd")) == list("abcd")

    def test_a_heavy_reader_waits_for_those_only_that_come_soon(self) -> None:
        heavy, soon, late = ("heavy", 0.0, 1.1), ("soon", 49.0, 0.1), ("late", 51.0, 0.1)
        assert self.order(heavy, soon, late) == ["soon", "heavy", "late"]

    def test_what_was_used_is_forgotten_by_and_by(self) -> None:
        usage = Usage()
        usage.add(1.0)
        assert [usage.of_late(now) for now in (0.0, 10.0, 25.0, 100.0)] == [1.0, pytest.approx(0.8), 0.5, 0.0]

    def test_after_a_turn_of_a_heavy_reader_the_hub_is_free_for_longer(self) -> None:
        turns, usage = Choosing(), Usage()
        usage.of_late(monotonic())
        usage.add(1.0)
        began = monotonic()
        for _ in range(10):
            turns.wait(usage)
            with turns.counted(usage):
                busy(0.002)
        turns.wait(usage)
        assert monotonic() - began > 10 * 4 * 0.002

    def test_light_readers_share_the_time_of_a_turn(self) -> None:
        turns, usage = Choosing(), Usage()
        assert turns.may_choose(Usage())
        with turns.counted(usage):
            busy(TURN)
        assert 0 < usage.of_late(monotonic()) < 10 * TURN
        assert not turns.may_choose(Usage())
        turns.wait(Usage())
        assert turns.may_choose(Usage())
