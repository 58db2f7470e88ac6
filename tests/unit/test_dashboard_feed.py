"""What open dashboards are told: one snapshot for all of them, none for nobody."""

import json
from collections.abc import Generator, Iterator

import gevent
import pytest
from msgspec.structs import replace

from sluicemq.protocol.errors import UnavailableError
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq.protocol.rows import CountersRow, Figures, QueueRow, from_document
from sluicemq_broker.admin import Snapshot, Snapshots, View
from sluicemq_broker.admin.snapshots import About, Sorting
from sluicemq_broker.parts.dashboard.live import CHECK, INTERVAL, LiveFeed
from sluicemq_broker.security import ANYBODY, Caller, Principal
from sluicemq_broker.store import SHOWN_STATES
from support.virtual_time import VirtualTime, come_to_rest

LOOK = View()


def _about(counters: dict[str, int], broker: Figures | None = None) -> About:
    return About(0.0, CountersRow(broker=broker or {}, counters=counters), {}, actions=False)


class Made:
    """Snapshots, counted."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Snapshot:
        self.count += 1
        return Snapshot([], _about({"number": self.count}), {})


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def feed(made: Made, time: VirtualTime) -> LiveFeed:
    return LiveFeed(Snapshots(made), timer=time)


def number(event: bytes) -> int:
    return int(json.loads(event.removeprefix(b"data: "))["counters"]["number"])


def told(events: Iterator[bytes], time: VirtualTime, *, seconds: float = INTERVAL) -> int:
    """The snapshot that a dashboard is told of when so much time has passed."""
    waiting = gevent.spawn(next, events)
    come_to_rest()
    time.passes(seconds)
    return number(waiting.get(timeout=60))


def listening(feed: LiveFeed) -> Generator[bytes, None, None]:
    """A dashboard that has had its first snapshot."""
    events = feed.listen(LOOK, ANYBODY, lambda: True)
    assert next(events).startswith(b"retry: ")
    next(events)
    return events


def test_all_who_look_get_the_same_snapshots(feed: LiveFeed, time: VirtualTime) -> None:
    first, second = listening(feed), listening(feed)
    waiting = [gevent.spawn(next, feed) for feed in (first, second)]
    come_to_rest()
    time.passes(INTERVAL)
    assert [number(job.get(timeout=60)) for job in waiting] == [2, 2]
    first.close()
    second.close()
    assert feed.open == 0


def test_nothing_is_made_while_nobody_looks(feed: LiveFeed, made: Made, time: VirtualTime) -> None:
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
    with pytest.raises(UnavailableError):
        feed.listen(LOOK, ANYBODY, lambda: True)


def test_a_failed_snapshot_is_no_end(made: Made, time: VirtualTime, caplog: pytest.LogCaptureFixture) -> None:
    fails = [False, True, False]

    def make() -> Snapshot:
        if fails.pop(0):
            raise RuntimeError("not now")
        return made()

    events = listening(LiveFeed(Snapshots(make), timer=time))
    assert told(events, time, seconds=2 * INTERVAL) == 2
    assert "no snapshot for the dashboards" in caplog.text
    events.close()


def test_a_stream_ends_soon_when_its_caller_loses_rights(feed: LiveFeed, time: VirtualTime) -> None:
    # Given two dashboards, the second with permissions that change
    stays = listening(feed)
    permitted = [True]
    ends = feed.listen(LOOK, ANYBODY, lambda: permitted[0])
    next(ends), next(ends)
    waiting = gevent.spawn(list, ends)
    come_to_rest()
    permitted.clear()
    permitted.append(False)
    time.passes(CHECK)
    assert waiting.get(timeout=60) == []
    assert feed.open == 1
    assert told(stays, time) == 2
    stays.close()


def test_each_caller_gets_what_it_may_see(time: VirtualTime) -> None:
    rows = [row(name) for name in ("mail", "sms")]
    snapshot = Snapshot(rows, _about({"pushed": 1}, {"name": "b", "pid": 7}), {"sms": 2})
    reader = Caller(Principal("reader", Permissions({Action.READ: ("mail",)})))
    seen = snapshot.of(reader).whole(View(limit=10))
    assert [queue.name for queue in seen.queues] == ["mail"]
    assert (seen.totals.queues, seen.totals.ready) == (1, 1)
    assert (seen.dying, seen.counters, seen.broker) == ({}, {}, {"name": "b"})
    # callers with equal permissions share one, and who may see everything has the snapshot itself
    twin = Caller(Principal("twin", Permissions({Action.READ: ("mail",), Action.PUSH: ("*",)})))
    assert snapshot.of(twin) is snapshot.of(reader)
    assert snapshot.of(ANYBODY) is snapshot


def row(name: str) -> QueueRow:
    rates = {"pushed": 1.0, "delivered": 1.0, "committed": 1.0}
    figures = {**dict.fromkeys(SHOWN_STATES, 1), "rates": rates, "paused": (), "oldest_ready_age": 1.0}
    return from_document(QueueRow, {"name": name, "exact": True, **figures})


@pytest.mark.parametrize(
    ("sort", "reverse", "names"),
    [("name", False, "abc"), ("name", True, "cba"), ("ready", False, "cab"), ("ready", True, "bac")],
)
def test_a_page_has_the_queues_in_the_wanted_order(sort: str, names: str, *, reverse: bool) -> None:
    rows = [replace(row(name), ready=ready) for name, ready in (("a", 2), ("b", 1), ("c", 3))]
    page = Snapshot(rows, _about({}), {}).page(View(sort=Sorting(sort), reverse=reverse, limit=9))
    assert [queue.name for queue in page.queues] == list(names)


class Rows(list[QueueRow]):
    """Rows of queues; ``looks``: how often somebody went over them."""

    looks = 0

    def __iter__(self) -> Iterator[QueueRow]:
        self.looks += 1
        return super().__iter__()


def test_fifty_dashboards_of_one_caller_cost_one_look_at_the_queues() -> None:
    # Given more queues than are looked at in one turn of the hub
    rows = Rows(row(f"q{number}") for number in range(5000))
    snapshot = Snapshot(rows, _about({}), {})
    reader = Caller(Principal("reader", Permissions({Action.READ: ("q1*",)})))
    before = rows.looks
    # When many ask at one time
    asking = [gevent.spawn(snapshot.of, reader) for _ in range(50)]
    assert len({id(asking_one.get(timeout=60)) for asking_one in asking}) == 1
    assert rows.looks == before + 1


def test_what_others_see_is_not_what_a_caller_may_see_since_its_permissions_have_changed() -> None:
    # Given a caller for whom more queues are looked at than in one turn of the hub
    snapshot = Snapshot([row(f"q{number}") for number in range(5000)], _about({}), {})
    mail, all_queues = (Permissions({Action.READ: (name,)}) for name in ("q1", "q*"))
    grows, twin = Principal("grows", mail), Caller(Principal("twin", mail))
    asking = gevent.spawn(snapshot.of, Caller(grows))
    gevent.sleep(0)
    # When it is permitted more meanwhile
    grows.change(all_queues)
    asking.get(timeout=60)
    assert [queue.name for queue in snapshot.of(twin).page(View(limit=10)).queues] == ["q1"]
