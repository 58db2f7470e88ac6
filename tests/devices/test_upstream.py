"""What publishers are told of subscriptions, and what is kept for those who do not listen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from devices.plain_sockets import eventually
from sluicemq_devices.hub import nothing
from sluicemq_devices.relays import Upstream


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
