"""The history: what brokers have counted in each minute adds up, once, in the minute in which it happened."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import BadFramesError, UnavailableError
from sluicemq_broker.config import Config
from sluicemq_broker.history import History, Series
from sluicemq_broker.history.history import ALL, FLUSH
from sluicemq_broker.queues import Census, Queues
from sluicemq_broker.runtime import Count, Timing
from sluicemq_broker.store import HistoryStore, HistorySubject, MinuteCounts, day_of
from sluicemq_broker.store.admin.history import DAYS_KEPT, MINUTES_KEPT
from support.broker_under_test import BrokerUnderTest
from support.fakes import Clock, FakeOwners, a_context, a_maker
from support.http_reader import Web
from support.jobs import NOW
from support.own_queue import OwnQueue
from support.virtual_time import VirtualTime
from support.waiting import wait_until

MAIL = HistorySubject("queue", "mail")
DAY = day_of(NOW)
MINUTE = int(NOW // 60)


class Chance:
    """What is drawn: by default nothing is made ahead."""

    value = 1.0

    def random(self) -> float:
        return self.value


class HistoryRig:
    """A broker that counts in queue ``mail``; its time passes with :meth:`later`."""

    def __init__(self, documents: Database[dict[str, Any]], host: str = "host") -> None:
        self.time, self.clock, self.chance = VirtualTime(), Clock(), Chance()
        self.clock.time = NOW
        context = a_context(FakeOwners(), clock=self.clock, timer=self.time)
        self.queues = Queues(Config.default(), context, lambda _name: documents, a_maker())
        chance: Any = self.chance
        self.census = Census(self.queues, context)
        self.history = History(
            *(self.queues, self.census, context, [self.queues.subjects]),
            *(lambda _name: documents, "own", host, chance),
        )
        self.mail = self.queues.open("mail")

    def count(self, figure: Count = Count.PUSHED, times: int = 1) -> None:
        self.mail.counters.add(figure, times)

    def later(self, seconds: float) -> None:
        """Time passes, second by second, as a broker notices it."""
        for _ in range(int(seconds)):
            self.time.value += 1.0
            self.clock.time += 1.0
            self.history.tick()

    def total(self, span: str = "minute", day: str | None = None) -> dict[str, int]:
        return dict(self.history.read("queue", "mail", day, span).total)

    def by_time(self, span: str = "minute", day: str | None = None) -> dict[str, dict[str, int]]:
        points = self.history.read("queue", "mail", day, span).points
        return {f"{datetime.fromtimestamp(point.at, UTC):%d %H:%M}": point.counted for point in points}


@pytest.fixture
def store(documents: Database[dict[str, Any]]) -> HistoryStore:
    return HistoryStore(documents)


@pytest.fixture
def rig(documents: Database[dict[str, Any]]) -> HistoryRig:
    return HistoryRig(documents)


def counted(added: dict[str, int], minute: int = MINUTE, **most: int) -> MinuteCounts:
    return MinuteCounts(MAIL, minute, added, most)


def at(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%d %H:%M}"


# ------------------------------------------------------------------------- writing


def test_what_is_counted_stands_in_its_minute_its_hour_and_its_day(rig: HistoryRig) -> None:
    rig.count(Count.PUSHED, 3)
    rig.later(60)
    rig.count(Count.PUSHED, 2)
    rig.count(Count.EXPIRED)
    rig.later(FLUSH)
    assert rig.by_time() == {at(MINUTE): {"pushed": 3}, at(MINUTE + 1): {"pushed": 2, "expired": 1}}
    assert list(rig.by_time("hour").values()) == [{"pushed": 5, "expired": 1}]
    assert list(rig.by_time("day").values()) == [{"pushed": 5, "expired": 1}]
    assert rig.total() == {"pushed": 5, "expired": 1}


def test_what_several_brokers_count_adds_up(rig: HistoryRig, documents: Database[dict[str, Any]]) -> None:
    other = HistoryRig(documents, "other")
    for broker in (rig, other):
        broker.count(Count.COMMITTED, 7)
        broker.later(FLUSH)
    assert rig.total() == {"committed": 14}
    assert rig.history.read("broker", ALL, None, "day").total == {"committed": 14}
    assert rig.history.read("broker", "other", None, "day").total == {"committed": 7}


def test_a_broker_that_was_killed_is_missing_with_what_it_counted_since_its_last_flush(
    rig: HistoryRig, documents: Database[dict[str, Any]]
) -> None:
    killed, written = HistoryRig(documents), 0
    for _ in range(5):
        killed.count(times=10)
        rig.count(times=10)
        killed.later(FLUSH)
        written += 10
    killed.count(times=10)
    killed.later(FLUSH - 1)  # and no more
    rig.later(FLUSH)
    assert rig.total() == {"pushed": 50 + written}


def test_a_flush_that_is_sent_again_is_added_once(store: HistoryStore) -> None:
    for _ in range(3):
        store.add("writer", 1, [counted({"pushed": 5})])
    store.add("writer", 2, [counted({"pushed": 1})])
    store.add("other", 1, [counted({"pushed": 10})])
    store.add("writer", 1, [counted({"pushed": 5})])  # one that lands late
    assert store.days(MAIL, DAY, DAY) == {DAY: {"pushed": 16}}


def test_while_mongodb_is_away_what_is_counted_waits_and_comes_to_its_own_minute(
    rig: HistoryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: one flush that was carried out and not answered, and a while without any
    add = HistoryStore.add

    def lost(store: HistoryStore, *arguments: Any) -> None:
        add(store, *arguments)
        raise UnavailableError("the reply is lost")

    monkeypatch.setattr(HistoryStore, "add", lost)
    for _ in range(3):
        rig.count(times=4)
        for _ in range(60):
            try:
                rig.later(1)
            except UnavailableError:
                monkeypatch.setattr(HistoryStore, "add", _away)
    monkeypatch.setattr(HistoryStore, "add", add)
    rig.later(2 * FLUSH)
    assert [row["pushed"] for row in rig.by_time().values()] == [4, 4, 4]


def _away(*_: Any) -> None:
    raise UnavailableError("no primary")


def test_a_day_ends_at_midnight_whenever_it_is_written(rig: HistoryRig) -> None:
    # Given: five seconds before midnight
    rig.clock.time = DAY.replace(tzinfo=UTC).timestamp() + 86400 - 5
    rig.history.minute = int(rig.clock.time // 60)
    rig.count(times=2)
    rig.later(6)
    rig.count(times=3)
    rig.later(FLUSH)
    days = rig.history.read("queue", "mail", None, "day").points
    assert [day.counted for day in days] == [{"pushed": 2}, {"pushed": 3}]
    assert list(rig.by_time(day=f"{DAY:%Y-%m-%d}")) == [f"{DAY:%d} 23:59"]


def test_a_queue_that_is_made_again_counts_on(rig: HistoryRig) -> None:
    rig.count(times=5)
    rig.later(FLUSH)
    rig.queues._open.clear()
    rig.mail = rig.queues.open("mail")
    rig.count(times=2)
    rig.later(FLUSH)
    assert rig.total() == {"pushed": 7}


def test_percentiles_are_those_of_all_brokers_and_of_each_minute(documents: Database[dict[str, Any]]) -> None:
    # Given: one broker has quick jobs, the other a slow one
    quick, slow = HistoryRig(documents), HistoryRig(documents, "other")
    quick.mail.counters.took(Timing.TIME_IN_QUEUE, [0.004] * 90)
    slow.mail.counters.took(Timing.TIME_IN_QUEUE, [20.0] * 10)
    for rig in (quick, slow):
        rig.later(FLUSH)
    for kind, name in (("queue", "mail"), ("broker", ALL)):
        latency = Series(quick.history).of(kind, name, "hour", quick.clock.time).latency
        median, last = (latency[f"time_in_queue_{text}"] for text in ("p50", "p95"))
        assert 0.0025 < (median[-1] or 0) < 0.005
        assert 10 < (last[-1] or 0) < 30
        assert not any(median[:-1])
        assert not any(latency["time_at_worker_p99"])
    # And they are no counters
    assert quick.total() == {"waited": 200_360}


def test_a_queue_that_is_made_again_has_no_duration_twice(rig: HistoryRig) -> None:
    for _ in range(2):
        rig.mail.counters.took(Timing.TIME_IN_QUEUE, [0.004])
        rig.later(FLUSH)
        rig.queues._open.clear()
        rig.later(FLUSH)
        rig.mail = rig.queues.open("mail")
    (day,) = rig.history.where("queue", "mail").days(MAIL, DAY, DAY).values()
    assert day["q3"] == 2


def test_the_largest_backlog_of_each_minute_is_kept(store: HistoryStore) -> None:
    store.add("a", 1, [counted({}, ready=5), counted({"pushed": 1}, MINUTE + 1, ready=3)])
    store.add("b", 1, [counted({}, ready=4)])
    assert [minute["ready"] for minute in store.minutes(MAIL, DAY).values()] == [5, 3]
    assert store.days(MAIL, DAY, DAY)[DAY]["ready"] == 5


def test_nothing_is_written_for_an_idle_queue(rig: HistoryRig, documents: Database[dict[str, Any]]) -> None:
    rig.later(3 * FLUSH)
    assert documents["history"].count_documents({}) == 0


# ------------------------------------------------------------------- made ahead


def test_hours_stand_in_their_order_whenever_something_is_counted_first(
    store: HistoryStore, documents: Database[dict[str, Any]]
) -> None:
    """Else an update would have to look for a late one behind others."""
    for number, minute in enumerate((1439, 0, 700), 1):
        store.add(
            "writer",
            number,
            [counted({"pushed": 1}, int(DAY.replace(tzinfo=UTC).timestamp()) // 60 + minute)],
        )
    found = documents["history"].find_one() or {}
    assert list(found["hours"]) == [f"{hour:02}" for hour in range(24)]
    assert [hour for hour, row in found["hours"].items() if row["minutes"]] == ["00", "11", "23"]


def test_tomorrows_document_is_made_ahead(rig: HistoryRig, documents: Database[dict[str, Any]]) -> None:
    tomorrow = {"_id": f"queue/mail/{DAY + timedelta(days=1):%Y-%m-%d}"}
    rig.count()
    rig.later(FLUSH)
    assert documents["history"].find_one(tomorrow) is None
    # When chance has it
    rig.chance.value = 0.0
    rig.count()
    rig.later(FLUSH)
    assert documents["history"].find_one(tomorrow)
    assert rig.total("day", f"{DAY + timedelta(days=1):%Y-%m-%d}") == {"pushed": 2}


def test_at_the_end_of_a_day_it_is_made_anyway(rig: HistoryRig, documents: Database[dict[str, Any]]) -> None:
    rig.chance.value = 0.999
    rig.clock.time = DAY.replace(tzinfo=UTC).timestamp() + 86400 - 30
    rig.count()
    rig.later(FLUSH)
    assert documents["history"].count_documents({"name": "mail"}) == 2


# ------------------------------------------------------------------- retention


@pytest.fixture
def old(store: HistoryStore) -> HistoryStore:
    """A year of days, each with its number of pushes."""
    for ago in (0, 1, 2, 5, MINUTES_KEPT + 1, 40):
        store.add("writer", ago + 1, [counted({"pushed": ago + 1}, MINUTE - ago * 1440)])
    return store


def test_days_that_are_over_go_into_their_month_once(old: HistoryStore) -> None:
    for _ in range(3):
        old.roll_up(DAY)
    months = old.months(MAIL)
    assert sum(month["pushed"] for month in months.values()) == 3 + 6 + MINUTES_KEPT + 2 + 41


def test_old_minutes_go_and_hours_and_days_stay(old: HistoryStore) -> None:
    while old.roll_up(DAY):
        pass
    long_ago, lately = DAY - timedelta(days=MINUTES_KEPT + 1), DAY - timedelta(days=5)
    assert (len(old.minutes(MAIL, long_ago)), len(old.minutes(MAIL, lately))) == (0, 1)
    assert list(old.hours(MAIL, long_ago, long_ago).values()) == [{"pushed": MINUTES_KEPT + 2}]
    assert len(old.days(MAIL, DAY - timedelta(days=100), DAY)) == 6


def test_a_day_is_removed_in_time(store: HistoryStore, documents: Database[dict[str, Any]]) -> None:
    store.prepare()
    store.add("writer", 1, [counted({"pushed": 1})])
    assert (documents["history"].find_one() or {})["remove_at"] == DAY + timedelta(days=DAYS_KEPT)
    assert any(
        "expireAfterSeconds" in document for document in documents["history"].index_information().values()
    )


def test_months_are_made_where_a_history_lies(rig: HistoryRig, documents: Database[dict[str, Any]]) -> None:
    """That of brokers and devices lies in the broker's own database, whether or not a queue does."""
    # Given: what is counted is two days old
    rig.count()
    rig.later(FLUSH)
    rig.clock.time += 3 * 86400
    rolled: list[str] = []
    rig.history._database = lambda name: rolled.append(name) or documents
    rig.history.roll_up()
    assert "own" in rolled
    assert documents["history_months"].count_documents({"subject": "broker"}) >= 1


# --------------------------------------------------------------------- asking


@pytest.mark.parametrize(
    ("kind", "day", "span"), [("plant", None, "day"), ("queue", "soon", "day"), ("queue", None, "week")]
)
def test_what_can_not_be_asked_is_refused(rig: HistoryRig, kind: str, day: str | None, span: str) -> None:
    with pytest.raises(BadFramesError):
        rig.history.read(kind, "mail", day, span)


def test_the_library_and_the_api_tell_the_same(jobs: OwnQueue, shared_broker: BrokerUnderTest) -> None:
    for _ in range(3):
        jobs.push()
    told = wait_until(
        lambda: (found := jobs.client.history(jobs.queue))["total"].get("pushed") == 3 and found,
        what="the flush",
    )
    answer = Web(shared_broker.process.http).get(f"/api/v1/history/queue/{jobs.queue}?span=minute")
    assert {**answer.json, "until": 0} == {**told, "until": 0}
    assert sum(row["counted"].get("pushed", 0) for row in told["points"]) == 3
