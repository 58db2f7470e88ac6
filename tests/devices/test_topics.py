"""Which message is for whom: a tree of topics against the rule itself, and what it costs."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_devices.relays import topics as topics_module
from sluicemq_devices.relays.topics import Topics
from sluicemq_devices.zmtp.frames import LONG, encode

TOPICS = st.builds(
    lambda same, data: bytes(same) + bytes(byte % 3 for byte in data),
    st.sampled_from([0, 0, 3, 30]),
    st.binary(min_size=1, max_size=6),
)
STEPS = st.lists(st.tuples(st.sampled_from("abc"), TOPICS), max_size=40)
FRAMES = st.lists(st.one_of(st.just(b""), TOPICS, st.builds(bytes.__add__, TOPICS, TOPICS)), max_size=12)


def chosen(topics: Topics[str], messages: list[Any]) -> dict[str, list[bytes]]:
    return dict(topics.wanted(messages))


@pytest.mark.parametrize("few", [0, 8], ids=["in their order", "by their lengths"])
@given(steps=STEPS, frames=FRAMES)
def test_everybody_gets_what_a_topic_of_theirs_begins_once_and_in_order(
    few: int, steps: list[tuple[str, bytes]], frames: list[bytes]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics_module, "_FEW_LENGTHS", few)
        everybody_gets_theirs(steps, frames)


def everybody_gets_theirs(steps: list[tuple[str, bytes]], frames: list[bytes]) -> None:
    # Given topics that come and go: each step turns one on or off
    topics: Topics[str] = Topics()
    wanted: dict[str, set[bytes]] = {name: set() for name in "abc"}
    messages = [encode([frame, b"\0\1\2"]) for frame in frames]
    for name, topic in steps:
        (topics.remove if topic in wanted[name] else topics.add)(topic, name)
        wanted[name] ^= {topic}
        # Then
        rule = {
            name: [
                message
                for frame, message in zip(frames, messages, strict=True)
                if any(frame.startswith(each) for each in wanted[name])
            ]
            for name in wanted
        }
        assert chosen(topics, messages) == {name: run for name, run in rule.items() if run}


@given(st.sets(TOPICS))
def test_when_all_topics_are_gone_nothing_is_left_of_them(all_of_them: set[bytes]) -> None:
    topics: Topics[str] = Topics()
    for topic in all_of_them:
        topics.add(topic, "a")
    for topic in all_of_them:
        topics.remove(topic, "a")
    assert not topics._root.children
    assert not topics._order.firsts
    assert not topics._nodes
    assert not topics._lengths
    assert not topics._known


def test_a_topic_is_found_in_a_long_frame_and_nowhere_behind_the_first() -> None:
    topics: Topics[str] = Topics()
    topics.add(b"t" * 300 + b"\0\1b", "a")
    long = encode([b"t" * 300 + b"\0\1bc"])
    small_but_long = bytes((LONG,)) + (300 + 4).to_bytes(8) + b"t" * 300 + b"\0\1bc"
    assert chosen(topics, [encode([b"t" * 300, b"b"]), long, bytearray(small_but_long)]) == {
        "a": [long, small_but_long]
    }


@pytest.mark.parametrize("length", [2, 3, 5, 9])
def test_a_topic_is_not_found_across_the_end_of_a_first_frame(length: int) -> None:
    topics: Topics[str] = Topics()
    frames = [b"t" * (length - 1), b"bbbbbbbb"]
    topics.add(encode(frames)[2 : 2 + length + 3], "a")
    assert chosen(topics, [encode(frames)]) == {}


def test_of_topics_that_begin_each_other_all_are_served() -> None:
    topics: Topics[str] = Topics()
    for name, topic in {"a": b"abcd", "b": b"abcde", "c": b"abcdef", "d": b"a", "e": b"abcdeg"}.items():
        topics.add(topic, name)
    message = encode([b"abcdef and more"])
    assert chosen(topics, [message]) == {name: [message] for name in "abcd"}


@pytest.mark.parametrize("seed", range(5))
def test_what_was_learnt_of_many_topics_of_many_lengths_holds_until_they_change(seed: int) -> None:
    # Given topics with more lengths than are looked up one by one, in many blocks of their order,
    # some known by their beginning alone and some not
    draw = random.Random(seed)
    letters = "ab" if seed % 2 else "abcdefghijkl"
    topics: Topics[str] = Topics()
    there: dict[bytes, str] = {}
    for _ in range(500):
        topic = "".join(draw.choices(letters, k=draw.randint(3, 24))).encode()
        if topic not in there:
            there[topic] = draw.choice("xyz")
            topics.add(topic, there[topic])
    frames = [*there, *(topic[:-1] + b"a" for topic in there), *(topic + b"b" for topic in there)]
    messages = [encode([frame]) for frame in frames]
    for gone in (None, *draw.sample(list(there), 3)):
        # When one of them has gone, and messages come twice
        if gone is not None:
            topics.remove(gone, there.pop(gone))
        for _ in range(2):
            # Then each has what a topic of its own begins
            assert chosen(topics, messages) == {
                name: wanted
                for name in "xyz"
                if (
                    wanted := [
                        message
                        for message, frame in zip(messages, frames, strict=True)
                        if any(frame.startswith(topic) for topic, owner in there.items() if owner == name)
                    ]
                )
            }


def test_those_who_want_just_the_same_share_one_list() -> None:
    topics: Topics[int] = Topics()
    for number in range(100):
        topics.add(b"a", number)
    runs = [run for _, run in topics.wanted([encode([b"ab"]), encode([b"b"])])]
    assert runs == [[encode([b"ab"])]] * 100
    assert len({id(run) for run in runs}) == 1


SHAPES = {
    "of one length": lambda draw: b"%08d" % draw.randrange(10**8),
    "of any length": lambda draw: bytes(draw.choices(range(97, 123), k=draw.randint(4, 40))),
    "with much in common": lambda draw: b"market.stocks.%d.%05d" % (draw.randrange(9), draw.randrange(10**5)),
}


COUNTS = pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.full)])


@COUNTS
@pytest.mark.parametrize("shape", SHAPES)
def test_very_many_topics_cost_a_message_little_more_than_one(shape: str, count: int) -> None:
    """At most 30 times as much (busy machines): 100,000 asked one by one cost 3,000 times as much."""
    draw = random.Random(shape)
    all_of_them = list({SHAPES[shape](draw) for _ in range(count)})
    frames = [draw.choice(all_of_them)[:40] for _ in range(1000)]
    one, many = _cost(all_of_them[:1], all_of_them[:1] * 1000), _cost(all_of_them, frames)
    assert many < 30 * one


def _cost(all_of_them: list[bytes], frames: list[bytes]) -> float:
    """Seconds of CPU, the least of a few attempts."""
    topics: Topics[str] = Topics()
    for topic in all_of_them:
        topics.add(topic, "a")
    messages = [encode([frame]) for frame in frames]
    costs = []
    for _ in range(10):
        since = time.process_time()
        list(topics.wanted(messages))
        costs.append(time.process_time() - since)
    return min(costs)


@COUNTS
def test_very_many_topics_come_and_go_at_a_cost_that_does_not_grow(count: int) -> None:
    draw = random.Random(8)
    all_of_them = [b"%08d" % draw.randrange(10**8) for _ in range(count)]
    all_of_them = list(dict.fromkeys(all_of_them))
    topics: Topics[str] = Topics()
    costs = []
    for change in (topics.add, topics.remove):
        for start in range(0, len(all_of_them), count // 10):
            since = time.process_time()
            for topic in all_of_them[start : start + count // 10]:
                change(topic, "a")
            costs.append(time.process_time() - since)
    assert sorted(costs)[-3] < 30 * min(costs)  # two may have met another process
