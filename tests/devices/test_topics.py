"""Which message is for whom: a tree of topics against the rule itself, and what it costs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_devices.relays import prefixes
from sluicemq_devices.relays.bounds import TOPIC_BOUNDS, TopicBounds
from sluicemq_devices.relays.topics import SubscribedTopics
from sluicemq_devices.zmtp import LONG, encode
from support.long_forms import first_of

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

TOPICS = st.builds(
    lambda same, data: bytes(same) + bytes((0, 1, 255)[byte % 3] for byte in data),
    st.sampled_from([0, 0, 3, 30]),
    st.binary(min_size=1, max_size=6),
)
STEPS = st.lists(st.tuples(st.sampled_from("abc"), TOPICS), max_size=40)
FRAMES = st.lists(st.one_of(st.just(b""), TOPICS, st.builds(bytes.__add__, TOPICS, TOPICS)), max_size=12)


def chosen(topics: SubscribedTopics[Any], messages: list[Any]) -> dict[Any, list[bytes]]:
    """What is for whom, of all lots."""
    runs: dict[Any, list[bytes]] = {}
    for subscriber, run in filter(None, topics.wanted(messages)):
        runs.setdefault(subscriber, []).extend(run)
    return runs


def small(largest: int, chain_bytes: int) -> TopicBounds:
    """Bounds of topics in lists of so many, where all else is as small."""
    return TopicBounds(
        listed=largest,
        in_dictionary=largest,
        table_slots=8,
        chain_bytes=chain_bytes,
        learnt=10 * largest,
        learnt_at_once=3 * largest,
    )


@pytest.mark.parametrize(
    "bounds",
    [small(1, chain_bytes=0), small(2, chain_bytes=4), small(64, chain_bytes=2048)],
    ids=["parted at once", "parted early", "in one list"],
)
@given(steps=STEPS, frames=FRAMES)
def test_everybody_gets_what_a_topic_of_theirs_begins_once_and_in_order(
    bounds: TopicBounds, steps: list[tuple[str, bytes]], frames: list[bytes]
) -> None:
    # Given topics that come and go: each step turns one on or off
    topics: SubscribedTopics[str] = SubscribedTopics(bounds)
    wanted: dict[str, set[bytes]] = {name: set() for name in "abc"}
    messages = [encode([frame, b"\0\1\2"]) for frame in frames]
    for name, topic in steps:
        (topics.remove if topic in wanted[name] else topics.add)(topic, name)
        wanted[name] ^= {topic}
        rule = {
            name: [
                message
                for frame, message in zip(frames, messages, strict=True)
                if any(frame.startswith(prefix) for prefix in wanted[name])
            ]
            for name in wanted
        }
        assert chosen(topics, messages) == {name: run for name, run in rule.items() if run}


@pytest.mark.parametrize("largest", [1, 64])
@given(all_of_them=st.sets(TOPICS), draw=st.randoms(use_true_random=False))
def test_when_all_go_nothing_is_left(largest: int, all_of_them: set[bytes], draw: random.Random) -> None:
    topics: SubscribedTopics[str] = SubscribedTopics(TopicBounds(listed=largest, in_dictionary=largest))
    for topic in all_of_them:
        topics.add(topic, "a")
    chosen(topics, [encode([topic + b"b"]) for topic in all_of_them])
    for topic in draw.sample(sorted(all_of_them), len(all_of_them)):
        topics.remove(topic, "a")
    assert topics.remembered == 0


def test_a_topic_is_found_in_a_long_frame_and_nowhere_behind_the_first() -> None:
    topics: SubscribedTopics[str] = SubscribedTopics()
    topics.add(b"t" * 300 + b"\0\1b", "a")
    long = encode([b"t" * 300 + b"\0\1bc"])
    small_but_long = bytes((LONG,)) + (300 + 4).to_bytes(8) + b"t" * 300 + b"\0\1bc"
    assert chosen(topics, [encode([b"t" * 300, b"b"]), long, bytearray(small_but_long)]) == {
        "a": [long, small_but_long]
    }


@pytest.mark.parametrize("length", [2, 3, 5, 9])
def test_a_topic_is_not_found_across_the_end_of_a_first_frame(length: int) -> None:
    topics: SubscribedTopics[str] = SubscribedTopics()
    frames = [b"t" * (length - 1), b"bbbbbbbb"]
    topics.add(encode(frames)[2 : 2 + length + 3], "a")
    assert chosen(topics, [encode(frames)]) == {}


def test_of_topics_that_begin_each_other_all_are_served() -> None:
    topics: SubscribedTopics[str] = SubscribedTopics()
    for name, topic in {"a": b"abcd", "b": b"abcde", "c": b"abcdef", "d": b"a", "e": b"abcdeg"}.items():
        topics.add(topic, name)
    message = encode([b"abcdef and more"])
    assert chosen(topics, [message]) == {name: [message] for name in "abcd"}


def test_what_is_looked_up_first_follows_topics_that_come_and_go() -> None:
    # Given more beginnings than are looked up in a dictionary
    topics: SubscribedTopics[str] = SubscribedTopics(TopicBounds(in_dictionary=100))
    some = [b"%06d" % number for number in range(1000)]
    for topic in some:
        topics.add(topic, "a")
    assert topics.prefixes.table
    messages = [encode([topic + b"bc"]) for topic in some]
    assert chosen(topics, messages) == {"a": messages}
    # When each begins one of another subscriber
    for topic in some:
        topics.add(topic + b"b", "b")
    # Then both have the messages; and the second alone when the first has gone
    assert chosen(topics, messages) == {"a": messages, "b": messages}
    for topic in some:
        topics.remove(topic, "a")
    assert chosen(topics, messages) == {"b": messages}


def test_a_frame_that_ends_within_a_chain_of_topics_is_for_those_it_reaches() -> None:
    """Also where they go on with zeros, or are longer than what is compared at once."""
    topics: SubscribedTopics[int] = SubscribedTopics()
    chain = b"a" + bytes(9) + b"b" * 400
    for size in range(1, len(chain) + 1, 3):
        topics.add(chain[:size], size)
    for size in range(len(chain) + 1):
        for message in (
            encode([chain[:size], b"\0"]),
            encode([chain[:size] + b"c"]),
            encode([chain[:size] + b"A"]),
        ):
            assert set(chosen(topics, [message])) == set(range(1, size + 1, 3))


FAMILIES: dict[str, Callable[[random.Random], bytes]] = {
    "of few letters": lambda draw: bytes(draw.choices(b"ab", k=draw.randint(3, 24))),
    "of many letters": lambda draw: bytes(draw.choices(b"abcdefghijkl", k=draw.randint(3, 24))),
    "that begin each other": lambda draw: b"%d/" % draw.randrange(9) + b"x" * draw.randint(1, 60),
    "with much in common": lambda draw: b"market.stocks.%d.%05d" % (draw.randrange(3), draw.randrange(10**5)),
    "with much in common, or little": lambda draw: (
        (b"market." * 9 + b"%d")[draw.randrange(64) :] % draw.randrange(99)
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("largest", first_of(4, 64))
def test_what_was_learnt_of_many_topics_holds_until_they_change(family: str, largest: int) -> None:
    # Given topics of many lengths, of three subscribers, on several levels, and frames that one of them
    # is, or begins, or begins up to some byte
    draw = random.Random(family)
    topics: SubscribedTopics[str] = SubscribedTopics(
        TopicBounds(listed=largest, in_dictionary=2 * largest, table_slots=256)
    )
    there: dict[bytes, set[str]] = {}
    for _ in range(700):
        turn(topics, there, FAMILIES[family](draw), draw.choice("xyz"))
    frames = [*there, *(topic[:-1] + b"a" for topic in there), *(topic + b"z" for topic in there)]
    frames += [topic[: draw.randrange(len(topic))] + letter for topic in there for letter in (b"A", b"~")]
    messages = [encode([frame]) for frame in frames]
    for _ in range(8):
        # When some come and go, each twice or not, and messages come twice
        for _ in range(draw.choice([0, 1, 30])):
            turn(topics, there, FAMILIES[family](draw)[: draw.choice([2, 6, 99])], draw.choice("xyz"))
        for _ in range(2):
            # Then each has what a topic of its own begins
            wanted = {
                name: [encode([frame]) for frame in frames if wants(there, name, frame)] for name in "xyz"
            }
            assert chosen(topics, messages) == {name: run for name, run in wanted.items() if run}


def turn(topics: SubscribedTopics[str], there: dict[bytes, set[str]], topic: bytes, name: str) -> None:
    """On, or off."""
    subscribers = there.setdefault(topic, set())
    (topics.remove if name in subscribers else topics.add)(topic, name)
    subscribers ^= {name}


def wants(there: dict[bytes, set[str]], name: str, frame: bytes) -> bool:
    return any(name in there.get(frame[:size], ()) for size in range(len(frame) + 1))


def test_what_is_near_a_frame_is_known_also_when_what_came_first_has_gone() -> None:
    """One of what begins the same is taken where a frame goes on like none: the last, not the first."""
    topics: SubscribedTopics[str] = SubscribedTopics()
    topics.add(b"a", "x")
    many = [b"ab%05d" % number for number in range(2000)]
    for topic in many:
        topics.add(topic, "y")
    for topic in many[:-1]:
        topics.remove(topic, "y")
    assert chosen(topics, [encode([b"abc"])]) == {"x": [encode([b"abc"])]}


def test_levels_are_few_however_topics_part() -> None:
    """Each fifty of them part 20 bytes behind those before: a comb of 60 teeth."""
    topics: SubscribedTopics[str] = SubscribedTopics()
    comb = [b"." * 20 * tooth + b"%02d" % number for tooth in range(60) for number in range(70)]
    for topic in comb:
        topics.add(topic, "a")
    messages = [encode([topic]) for topic in comb]
    assert chosen(topics, messages) == {"a": messages}
    entry, levels = topics.prefixes.root, 0
    while isinstance(entry, prefixes.PrefixLevel):
        entry, levels = entry.groups.get(b"." * entry.size), levels + 1
    assert 1 <= levels <= prefixes.DEEPEST


def test_of_nested_topics_most_messages_need_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given 200 chains of 100 topics each, and messages for them, which were learnt with the first ones
    draw = random.Random(4)
    topics: SubscribedTopics[str] = SubscribedTopics()
    for number in range(20_000):
        topics.add(b"%d/" % (number // 100) + b"x" * (number % 100 + 1), "a")
    frames = [b"%d/" % draw.randrange(200) + b"x" * draw.randint(1, 100) for _ in range(1000)]
    messages = [encode([frame + draw.choice([b"!", b"~"]) * 80]) for frame in frames]
    assert chosen(topics, messages) == {"a": messages}
    looks = counted(monkeypatch, "_search")
    # When they come again
    assert chosen(topics, messages) == {"a": messages}
    # Then only those take more, whose topic is shorter than what tells chains apart
    assert len(looks) < len(messages) / 4


def test_of_topics_that_begin_each_other_those_are_heard_that_come_and_go() -> None:
    topics: SubscribedTopics[str] = SubscribedTopics()
    messages = [encode([frame]) for frame in (b"a!", b"ab!", b"abc!", b"abcd!")]
    for topic in (b"a", b"ab", b"abc"):
        topics.add(topic, "x")
    assert chosen(topics, messages) == {"x": messages}
    topics.add(b"abc", "y")
    assert chosen(topics, messages) == {"x": messages, "y": messages[2:]}
    topics.add(b"abcd", "z")
    assert chosen(topics, messages) == {"x": messages, "y": messages[2:], "z": messages[3:]}
    topics.remove(b"abcd", "z")
    topics.remove(b"abc", "y")
    assert chosen(topics, messages) == {"x": messages}


def test_when_what_begins_very_many_changes_little_is_learnt_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given chains of topics, and a message for each
    topics: SubscribedTopics[str] = SubscribedTopics()
    messages = []
    for number in range(300):
        for size in range(1, 101):
            topics.add(b"%03d/" % number + b"x" * size, "a")
        messages.append(encode([b"%03d/" % number + b"x" * 50 + b"~"]))
    # When somebody wants what begins all of some of them
    topics.add(b"0", "b")
    learnt, steps, heard = counted(monkeypatch, "_learn_one"), [0], []
    for delivery in topics.wanted(messages):
        heard += [] if delivery is None else [delivery]
        steps += [len(learnt)] if delivery is None else []
    # Then what is learnt for each lot is little more than it may be
    most = max(later - sooner for sooner, later in pairwise([*steps, len(learnt)]))
    assert len(learnt) >= 30_000
    assert most <= TOPIC_BOUNDS.learnt_at_once + 200
    # And they have it all, in order
    assert [message for name, run in heard if name == "a" for message in run] == messages
    assert [message for name, run in heard if name == "b" for message in run] == messages[:100]


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[None]:
    """One for each call of a method of topics from now on."""
    calls: list[None] = []
    method = getattr(SubscribedTopics, name)

    def called(*arguments: Any) -> Any:
        calls.append(None)
        return method(*arguments)

    monkeypatch.setattr(SubscribedTopics, name, called)
    return calls


def test_those_who_want_just_the_same_share_one_list() -> None:
    topics: SubscribedTopics[int] = SubscribedTopics()
    for number in range(100):
        topics.add(b"a", number)
    runs = [run for _, run in filter(None, topics.wanted([encode([b"ab"]), encode([b"b"])]))]
    assert runs == [[encode([b"ab"])]] * 100
    assert len({id(run) for run in runs}) == 1


SHAPES: dict[str, Callable[[random.Random], bytes]] = {
    "of one length": lambda draw: b"%08d" % draw.randrange(10**8),
    "of any length": lambda draw: bytes(draw.choices(range(97, 123), k=draw.randint(4, 40))),
    "with much in common": lambda draw: b"market.stocks.%d.%05d" % (draw.randrange(9), draw.randrange(10**5)),
    "that begin each other": lambda draw: b"%d/" % draw.randrange(400) + b"x" * draw.randint(1, 250),
}


COUNTS = pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.full)])


@COUNTS
@pytest.mark.parametrize("shape", SHAPES)
def test_very_many_topics_cost_a_message_little_more_than_one(shape: str, count: int) -> None:
    """At most 30 times as much (busy machines): 100,000 asked one by one cost 3,000 times as much."""
    draw = random.Random(shape)
    all_of_them = list({SHAPES[shape](draw) for _ in range(count)})
    frames = [draw.choice(all_of_them) + b"z" for _ in range(1000)]
    one, many = _cost(all_of_them[:1], all_of_them[:1] * 1000), _cost(all_of_them, frames)
    assert many < 30 * one


def _cost(all_of_them: list[bytes], frames: list[bytes]) -> float:
    """Seconds of CPU, the least of a few attempts."""
    topics: SubscribedTopics[str] = SubscribedTopics()
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
    topics: SubscribedTopics[str] = SubscribedTopics()
    costs = []
    for change in (topics.add, topics.remove):
        for start in range(0, len(all_of_them), count // 10):
            since = time.process_time()
            for topic in all_of_them[start : start + count // 10]:
                change(topic, "a")
            costs.append(time.process_time() - since)
    assert sorted(costs)[-3] < 30 * min(costs)  # two may have met another process
