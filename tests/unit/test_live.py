"""What open dashboards are told: one snapshot for all of them, none for nobody."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import gevent
import pytest

from sluicemq.errors import Unavailable
from sluicemq_broker.http.live import INTERVAL, LiveFeed
from sluicemq_broker.http.snapshots import Snapshot, Snapshots, View
from virtual_time import VirtualTime, come_to_rest

LOOK = View()


class Made:
    """Snapshots, counted."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Snapshot:
        self.count += 1
        return Snapshot([], {"number": self.count}, {})


@pytest.fixture
def made() -> Made:
    return Made()


def a_feed(make: Callable[[], Snapshot]) -> LiveFeed:
    """One that makes snapshots without a pause."""
    return LiveFeed(Snapshots(make), interval=0.01, slowest=0.01)


def number(event: bytes) -> int:
    return int(json.loads(event.removeprefix(b"data: "))["number"])


def three(events: Iterator[bytes]) -> list[int]:
    return [number(next(events)) for _ in range(3)]


def after(seconds: float, time: VirtualTime, events: Iterator[bytes]) -> bytes:
    """What is told when so much time has passed."""
    told = gevent.spawn(next, events)
    come_to_rest()
    time.passes(seconds)
    event: bytes = told.get(timeout=60)
    return event


def until(condition: Callable[[], bool]) -> None:
    with gevent.Timeout(20):
        while not condition():
            gevent.sleep(0.001)


def listening(feed: LiveFeed) -> Iterator[bytes]:
    events = feed.listen(LOOK)
    assert next(events).startswith(b"retry: ")
    return events


def test_all_who_look_get_the_same_snapshots(made: Made) -> None:
    feed = a_feed(made)
    first, second = listening(feed), listening(feed)
    assert number(next(first)) == number(next(second)) == 1
    jobs = [gevent.spawn(three, each) for each in (first, second)]
    gevent.joinall(jobs, timeout=60)
    assert jobs[0].value == jobs[1].value == [2, 3, 4]
    first.close()  # type: ignore[attr-defined]
    second.close()  # type: ignore[attr-defined]
    assert feed.open == 0


def test_nothing_is_made_while_nobody_looks_and_it_goes_on_when_somebody_does(made: Made) -> None:
    # Given a dashboard that was told twice
    time = VirtualTime()
    feed = LiveFeed(Snapshots(made), timer=time)
    events = listening(feed)
    assert [number(next(events)), number(after(INTERVAL, time, events))] == [1, 2]
    # When it leaves, and what was to be made next is made
    events.close()  # type: ignore[attr-defined]
    time.passes(INTERVAL)
    before = made.count
    # Then nothing more is, until there is another
    time.passes(1000.0)
    assert made.count == before
    again = listening(feed)
    next(again)
    assert number(after(INTERVAL, time, again)) == made.count > before
    again.close()  # type: ignore[attr-defined]


def test_who_is_slow_gets_the_latest_and_nothing_is_kept_for_them(made: Made) -> None:
    feed = a_feed(made)
    events = listening(feed)
    next(events)
    next(events)
    until(lambda: made.count >= 10)
    assert number(next(events)) >= 10
    events.close()  # type: ignore[attr-defined]


def test_a_stopping_broker_ends_them_all(made: Made) -> None:
    feed = a_feed(made)
    events = listening(feed)
    next(events)
    feed.close()
    assert list(events) == []
    with pytest.raises(Unavailable):
        feed.listen(LOOK)


def test_a_snapshot_that_fails_ends_nothing(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    fails = [False, True, False, False]

    def make() -> Snapshot:
        if fails and fails.pop(0):
            raise RuntimeError("not now")
        return made()

    feed = a_feed(make)
    events = listening(feed)
    assert number(next(events)) == 1
    assert number(next(events)) == 2
    assert "there is no snapshot" in caplog.text
    events.close()  # type: ignore[attr-defined]
