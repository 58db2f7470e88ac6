"""What open dashboards are told: one snapshot for all of them, none for nobody."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator

import gevent
import pytest

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.admin.snapshots import Snapshot, Snapshots, View
from sluicemq_broker.parts.dashboard.live import INTERVAL, LiveFeed
from support.virtual_time import VirtualTime, come_to_rest

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


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def feed(made: Made, time: VirtualTime) -> LiveFeed:
    return LiveFeed(Snapshots(made), timer=time)


def number(event: bytes) -> int:
    return int(json.loads(event.removeprefix(b"data: "))["number"])


def told(events: Iterator[bytes], time: VirtualTime, *, seconds: float = INTERVAL) -> int:
    """The snapshot that a dashboard is told of when so much time has passed."""
    waiting = gevent.spawn(next, events)
    come_to_rest()
    time.passes(seconds)
    return number(waiting.get(timeout=60))


def listening(feed: LiveFeed) -> Generator[bytes, None, None]:
    """A dashboard that has had its first snapshot."""
    events = feed.listen(LOOK)
    assert next(events).startswith(b"retry: ")
    next(events)
    return events


def test_all_who_look_get_the_same_snapshots(feed: LiveFeed, time: VirtualTime) -> None:
    first, second = listening(feed), listening(feed)
    waiting = [gevent.spawn(next, each) for each in (first, second)]
    come_to_rest()
    time.passes(INTERVAL)
    assert [number(each.get(timeout=60)) for each in waiting] == [2, 2]
    first.close()
    second.close()
    assert feed.open == 0


def test_nothing_is_made_while_nobody_looks_and_it_goes_on_when_somebody_does(
    feed: LiveFeed, made: Made, time: VirtualTime
) -> None:
    # Given a dashboard that was told twice
    events = listening(feed)
    assert told(events, time) == 2
    # When it leaves
    events.close()
    # Then nothing more is made, until there is another
    time.passes(1000.0)
    assert made.count == 2
    again = listening(feed)
    assert told(again, time) == made.count > 2
    again.close()


def test_who_is_slow_gets_the_latest_and_nothing_is_kept_for_them(feed: LiveFeed, time: VirtualTime) -> None:
    events = listening(feed)
    assert told(events, time, seconds=10 * INTERVAL) == 2
    assert number(next(events)) == 11
    events.close()


def test_a_stopping_broker_ends_them_all(feed: LiveFeed) -> None:
    events = listening(feed)
    feed.close()
    assert list(events) == []
    with pytest.raises(Unavailable):
        feed.listen(LOOK)


def test_a_snapshot_that_fails_ends_nothing(
    made: Made, time: VirtualTime, caplog: pytest.LogCaptureFixture
) -> None:
    fails = [False, True, False]

    def make() -> Snapshot:
        if fails.pop(0):
            raise RuntimeError("not now")
        return made()

    events = listening(LiveFeed(Snapshots(make), timer=time))
    assert told(events, time, seconds=2 * INTERVAL) == 2
    assert "no snapshot for the dashboards" in caplog.text
    events.close()
