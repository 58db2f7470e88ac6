"""Recurring jobs: each run is pushed once, however many brokers there are and whenever one of them dies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from threading import Barrier, Thread
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from sluicemq import BadHeadersError, Client, NotFoundError
from sluicemq_broker.admin import ScheduleAdmin
from sluicemq_broker.config import Config, load
from sluicemq_broker.job import Misfire, Timetable
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.queues import Queues, Schedules
from sluicemq_broker.queues.schedules import run_id
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import QueueStore, Schedule, ScheduleStore, connect
from support.between import after
from support.broker_process import BrokerProcess
from support.fakes import Clock, a_context
from support.jobs import NOW, a_job, everything
from support.own_queue import LONG, SECONDS, OwnQueue
from support.waiting import wait_until

HOUR = 3600.0
#: The first hour after the present of these tests.
NEXT = (NOW // HOUR + 1) * HOUR


class Killed(Exception):
    """The broker is gone at this point."""


class Node:
    """The schedules of one broker, without doors; its time is what the test says."""

    def __init__(self, database: Database[dict[str, Any]]) -> None:
        self.clock = Clock()
        self.counters = Counters()
        context = a_context(clock=self.clock, counters=self.counters)
        self.store = ScheduleStore(database)
        make = JobMaker(self.clock, 1 << 20).make
        self.queues = Queues(Config.default(), context, lambda _name: database, make)
        self.schedules = Schedules(self.store, self.queues, context, make)

    def resumed(self, name: str) -> float:
        """Resume a schedule; return its next run."""
        self.schedules.resume(name)
        return self.store.one(name).next_at

    def at(self, when: float) -> None:
        self.clock.time = when
        self.schedules.tick()


@pytest.fixture
def node(documents: Database[dict[str, Any]]) -> Node:
    return Node(documents)


@pytest.fixture
def mail(documents: Database[dict[str, Any]]) -> QueueStore:
    return QueueStore(documents, "queue.mail")


def hourly(name: str = "report", **fields: Any) -> Schedule:
    return Schedule(name=name, queue="mail", payload=b"hour", timetable=Timetable("0 * * * *"), **fields)


def runs(mail: QueueStore) -> list[str]:
    return sorted(everything(mail))


def hours(*numbers: int) -> list[str]:
    return [run_id("report", NEXT + number * HOUR) for number in numbers]


def test_each_run_is_pushed_once_at_its_time(node: Node, mail: QueueStore) -> None:
    node.schedules.put(hourly(headers={"priority": 7, "ttl": 60.0}), ANYBODY)
    for when in (NOW, NEXT - 0.001, NEXT, NEXT + 1, NEXT + HOUR, NEXT + HOUR + 2):
        node.at(when)
    assert runs(mail) == hours(0, 1)
    job = everything(mail)[hours(0)[0]]
    assert (job["state"], job["payload"], job["priority"]) == ("ready", b"hour", 7)
    counted = node.counters.values
    assert (counted[Count.RECURRED], counted[Count.PUSHED]) == (2, 2)


def test_of_any_number_of_brokers_one_pushes(mongo_uri: str, node: Node, mail: QueueStore) -> None:
    # Given brokers that all see the run before any of them pushes it
    node.schedules.put(hourly(), ANYBODY)
    seen = node.store.one("report")
    name = mail.jobs.database.name
    told: list[Any] = []
    together = Barrier(4)

    def push() -> None:
        with connect(mongo_uri) as mongo:
            store, queue = ScheduleStore(mongo[name]), QueueStore(mongo[name], "queue.mail")
            together.wait(SECONDS)
            told.append(store.push(seen, NEXT + HOUR, [a_job(f"run {Thread}-{id(store)}")], queue, NOW))

    brokers = [Thread(target=push) for _ in range(4)]
    for broker in brokers:
        broker.start()
    for broker in brokers:
        broker.join(SECONDS)
    assert sorted(jobs is None for jobs in told) == [False, True, True, True]
    assert len(runs(mail)) == 1


@pytest.mark.parametrize("after", ["the schedule was moved on", "the jobs were inserted"])
def test_a_broker_killed_between_two_statements_leaves_neither_and_another_pushes_the_run(
    node: Node, mail: QueueStore, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    node.schedules.put(hourly(), ANYBODY)
    insert = QueueStore.insert_within

    def killed(self: QueueStore, *arguments: Any) -> None:
        if after == "the jobs were inserted":
            insert(self, *arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(QueueStore, "insert_within", killed)
        node.at(NEXT)
    assert node.counters.values[Count.SCHEDULES_FAILED] == 1
    assert (runs(mail), node.store.one("report").next_at) == ([], NEXT)
    Node(mail.jobs.database).at(NEXT + 1)
    assert runs(mail) == hours(0)


def test_a_broker_killed_after_its_transaction_has_pushed_the_run_and_nobody_does_again(
    node: Node, mail: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.schedules.put(hourly(), ANYBODY)
    push = ScheduleStore.push

    def killed(*arguments: Any) -> None:
        push(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ScheduleStore, "push", killed)
        node.at(NEXT)
    mail.jobs.delete_many({})  # it is done and gone
    Node(mail.jobs.database).at(NEXT + 1)
    assert runs(mail) == []


@pytest.mark.parametrize(
    ("misfire", "made_up_for"), [(Misfire.SKIP, ()), (Misfire.ONE, (4,)), (Misfire.ALL, (0, 1, 2, 3, 4))]
)
def test_what_was_missed_is_made_up_for_as_it_says(
    node: Node, mail: QueueStore, misfire: Misfire, made_up_for: tuple[int, ...]
) -> None:
    node.schedules.put(hourly(misfire=misfire), ANYBODY)
    node.at(NEXT + 4.5 * HOUR)
    node.at(NEXT + 4.6 * HOUR)
    assert runs(mail) == hours(*made_up_for)
    node.at(NEXT + 5 * HOUR)
    assert runs(mail) == hours(*made_up_for, 5)


def test_all_that_was_missed_in_a_month_comes_though_in_parts(node: Node, mail: QueueStore) -> None:
    node.schedules.put(hourly(misfire=Misfire.ALL), ANYBODY)
    for _ in range(9):
        node.at(NEXT + 719 * HOUR)
    assert runs(mail) == sorted(hours(*range(720)))


def test_of_missed_runs_for_which_a_transaction_is_too_old_fewer_are_pushed_at_once(
    node: Node, mail: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a MongoDB that takes no more than ten jobs in time
    insert, tried = Collection.insert_many, list[int]()

    def of_age(self: Any, documents: list[Any], **options: Any) -> Any:
        tried.append(len(documents))
        if len(documents) > 10:
            raise OperationFailure("the transaction has been aborted", 251)
        return insert(self, documents, **options)

    node.schedules.put(hourly(misfire=Misfire.ALL), ANYBODY)
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "insert_many", of_age)
        for _ in range(40):
            node.at(NEXT + 99 * HOUR)
    assert tried[:5] == [100, 50, 25, 12, 6]
    assert runs(mail) == sorted(hours(*range(100)))
    assert "schedules_failed" not in node.counters.values


def test_a_run_whose_id_is_there_is_not_pushed_again(node: Node, mail: QueueStore) -> None:
    mail.prepare()
    mail.push([a_job(hours(0)[0], b"by hand")], NOW)
    node.schedules.put(hourly(), ANYBODY)
    node.at(NEXT)
    assert everything(mail)[hours(0)[0]]["payload"] == b"by hand"
    assert node.counters.values[Count.REPEATED] == 1
    assert node.store.one("report").next_at == NEXT + HOUR


@pytest.mark.parametrize(("misfire", "skipped"), [(Misfire.ALL, 0), (Misfire.ONE, 4), (Misfire.SKIP, 5)])
def test_missed_runs_that_are_left_out_are_counted(node: Node, misfire: Misfire, skipped: int) -> None:
    node.schedules.put(hourly(misfire=misfire), ANYBODY)
    node.at(NEXT + 4.5 * HOUR)
    assert node.store.one("report").skipped == skipped
    assert node.counters.values[Count.RUNS_SKIPPED] == skipped


def test_a_zone_unknown_to_this_host_is_named_and_its_runs_stay_due(node: Node, mail: QueueStore) -> None:
    # Given a schedule of a broker with newer time zones
    node.schedules.put(hourly(), ANYBODY)
    node.store.schedules.update_one({"_id": "report"}, {"$set": {"timezone": "Mars/Base"}})
    admin = ScheduleAdmin(node.schedules)
    [row] = admin.do("list", {}, ANYBODY)
    assert "timezone is 'Mars/Base'" in row.problem
    with pytest.raises(
        BadHeadersError, match="schedule 'report' can't run at this broker: timezone is 'Mars/Base'"
    ):
        admin.do("resume", {"name": "report"}, ANYBODY)
    node.at(NEXT + 1)
    assert (runs(mail), node.counters.values[Count.SCHEDULES_FAILED]) == ([], 1)
    assert node.store.one("report").next_at == NEXT


def test_what_was_changed_meanwhile_is_not_pushed_as_it_was(node: Node, mail: QueueStore) -> None:
    node.schedules.put(hourly(), ANYBODY)
    seen = node.store.one("report")
    node.schedules.put(hourly(misfire=Misfire.SKIP), ANYBODY)
    mail.prepare()
    assert node.store.push(seen, NEXT + HOUR, [a_job()], mail, NOW) is None
    assert runs(mail) == []


@pytest.mark.parametrize("misfire", [Misfire.ONE, Misfire.ALL])
def test_one_that_is_declared_again_misses_no_run(node: Node, mail: QueueStore, misfire: Misfire) -> None:
    # Given a run that is due, and was not pushed yet
    node.schedules.put(hourly(misfire=misfire), ANYBODY)
    node.clock.time = NEXT + 0.02
    # When an application that starts says the same again
    assert not node.schedules.put(hourly(misfire=misfire), ANYBODY)
    # Then it stays due, also if it was missed
    node.at(NEXT + 1)
    assert runs(mail) == hours(0)
    node.clock.time = NEXT + 2.5 * HOUR
    node.schedules.put(hourly(misfire=misfire), ANYBODY)
    node.at(NEXT + 2.5 * HOUR)
    assert runs(mail) == (hours(0, 1, 2) if misfire is Misfire.ALL else hours(0, 2))


def test_one_that_counts_seconds_runs_though_it_is_declared_more_often(node: Node, mail: QueueStore) -> None:
    every = replace(hourly(), timetable=Timetable(every=6.0))
    for second in range(0, 20, 4):
        node.clock.time = NOW + second
        node.schedules.put(every, ANYBODY)
        node.schedules.tick()
    assert runs(mail) == [run_id("report", NOW + 6), run_id("report", NOW + 12)]


def test_another_payload_leaves_the_next_run_and_other_times_plan_anew(node: Node) -> None:
    node.schedules.put(hourly(), ANYBODY)
    node.clock.time = NEXT + HOUR
    assert node.schedules.put(replace(hourly(), payload=b"other"), ANYBODY)
    stored = node.store.one("report")
    assert (stored.payload, stored.next_at) == (b"other", NEXT)
    assert node.schedules.put(replace(hourly(), timetable=Timetable("30 * * * *")), ANYBODY)
    assert node.store.one("report").next_at == NEXT + 1.5 * HOUR


def test_a_declaration_beside_another_is_held_to_that(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.schedules.put(hourly(), ANYBODY)
    other = replace(hourly(), timetable=Timetable("30 * * * *"))
    after(monkeypatch, Collection, "find_one", lambda: node.schedules.put(other, ANYBODY))
    node.schedules.put(replace(hourly(), payload=b"other"), ANYBODY)
    stored = node.store.one("report")
    assert (stored.payload, stored.timetable.cron, stored.next_at) == (b"other", "0 * * * *", NEXT)


@pytest.mark.parametrize("kind", ["cron", "every"])
def test_a_plan_by_a_wrong_clock_is_made_anew(node: Node, mail: QueueStore, kind: str) -> None:
    # Given one that was made, or has run, while MongoDB's clock was a month ahead
    month = 30 * 86400.0
    timetable = Timetable("0 * * * *") if kind == "cron" else Timetable(every=HOUR)
    node.clock.time = NOW + month
    node.schedules.put(replace(hourly(), timetable=timetable), ANYBODY)
    node.clock.time = NOW
    planned = node.store.one("report").next_at
    resumed = node.resumed("report")
    # Then it is due within the hour, and again is harmless
    assert planned >= NOW + month
    assert NOW < resumed <= NOW + HOUR
    node.at(resumed)
    assert len(runs(mail)) == 1
    assert node.resumed("report") == resumed + HOUR


def test_resume_leaves_a_run_due_that_is_overdue(node: Node) -> None:
    node.schedules.put(hourly(), ANYBODY)
    node.clock.time = NEXT + 1.5 * HOUR
    assert node.resumed("report") == NEXT


def test_a_paused_one_misses_nothing(node: Node, mail: QueueStore) -> None:
    node.schedules.put(hourly(misfire=Misfire.ALL), ANYBODY)
    node.schedules.store.pause("report")
    node.at(NEXT + 3.5 * HOUR)
    assert node.resumed("report") == NEXT + 4 * HOUR
    node.at(NEXT + 4 * HOUR)
    assert runs(mail) == hours(4)


def test_while_its_queues_intake_is_paused_a_run_waits(node: Node, mail: QueueStore) -> None:
    node.schedules.put(hourly(), ANYBODY)
    queue = node.queues.open("mail")
    queue.pause(frozenset({"intake"}))
    node.at(NEXT)
    assert runs(mail) == []
    queue.pause(frozenset())
    node.at(NEXT + 10)
    assert runs(mail) == hours(0)


def test_one_that_fails_keeps_none_from_its_turn(node: Node, mail: QueueStore) -> None:
    for name in ("a", "report", "z"):
        node.schedules.put(hourly(name), ANYBODY)
    node.store.schedules.update_many({"_id": {"$ne": "report"}}, {"$set": {"headers": {"ttl": "soon"}}})
    node.at(NEXT)
    assert runs(mail) == hours(0)
    assert node.counters.values[Count.SCHEDULES_FAILED] == 2


def test_the_configuration_makes_them_and_a_restart_moves_none(node: Node, tmp_path: Any) -> None:
    file = tmp_path / "mail.toml"
    text = "[schedules.report]\nqueue = 'mail'\npayload = 'hour'\ncron = '0 * * * *'\n"
    file.write_text(text)
    wanted = partial(load, file, {}, {})
    node.schedules.configure(wanted().schedules)
    node.clock.time = NEXT + 2.5 * HOUR
    node.schedules.configure(wanted().schedules)
    assert node.store.one("report").next_at == NEXT
    file.write_text(text.replace("0 *", "30 *"))
    node.schedules.configure(wanted().schedules)
    assert node.store.one("report").next_at == NEXT + 3.5 * HOUR


# ------------------------------------------------------------ at real brokers


@pytest.fixture
def admin(jobs: OwnQueue) -> Iterator[Client]:
    yield jobs.client
    for schedule in jobs.client.schedules():
        jobs.client.schedules.delete(schedule["name"])


def test_a_worker_gets_a_run_whose_id_tells_when_it_was_due(jobs: OwnQueue, admin: Client) -> None:
    admin.add_schedule(jobs.queue, jobs.queue, b"tick", every=1.0, priority=3)
    job = jobs.take()
    assert job.payload == b"tick"
    name, due = job.id.split("@")
    assert name == jobs.queue
    assert abs(datetime.fromisoformat(due).timestamp() - datetime.now(UTC).timestamp()) < LONG
    job.commit()


def test_one_is_run_by_hand_listed_paused_and_removed(jobs: OwnQueue, admin: Client) -> None:
    added = admin.add_schedule("nightly", jobs.queue, b"x", cron="0 3 * * *", timezone="Europe/Berlin")
    job_id = admin.run_schedule("nightly")
    assert jobs.take().id == job_id
    admin.pause_schedule("nightly")
    [row] = admin.schedules()
    assert (row["cron"], row["timezone"], row["paused"]) == ("0 3 * * *", "Europe/Berlin", True)
    assert admin.resume_schedule("nightly")["next_at"] == added["next_at"]
    admin.remove_schedule("nightly")
    for gone in (admin.remove_schedule, admin.pause_schedule, admin.resume_schedule, admin.run_schedule):
        with pytest.raises(NotFoundError, match="no schedule 'nightly'"):
            gone("nightly")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "timezone is 'Mars/Base'"),
        ({"every": 0.1}, "every is 0.1"),
        ({"every": 60.0, "dedupe_id": "a"}, "no 'dedupe_id'"),
        ({"every": 60.0, "priority": 300}, "priority"),
    ],
)
def test_impossible_ones_fail(admin: Client, jobs: OwnQueue, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadHeadersError, match=message):
        admin.add_schedule("bad", jobs.queue, b"x", **fields)
    assert admin.schedules() == []


@pytest.mark.full
def test_of_two_brokers_one_is_killed_and_no_run_is_missing(mongo_uri: str, database: str) -> None:
    config = {"broker": {"poll": 0.05, "lease": 2.0}}
    with (
        BrokerProcess(mongo_uri, database, config=config) as stays,
        BrokerProcess(mongo_uri, database, config=config) as dies,
        Client(endpoint=stays.doors["smq"]) as client,
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
    ):
        client.schedules.add("tick", "ticks", b"x", every=1.0, misfire="all")
        for _ in range(3):
            wait_until(partial(has_pushed, client, client.schedules.list()[0].pushed + 3), SECONDS)
            dies.kill()
            dies.restart()
        client.schedules.delete("tick")
        times = sorted(
            datetime.fromisoformat(document["_id"].partition("@")[2]).timestamp()
            for document in mongo[database]["queue.ticks"].find()
        )
        assert {round(later - sooner, 3) for sooner, later in pairwise(times)} == {1.0}
        assert len(times) > 8


def has_pushed(client: Client, count: int) -> bool:
    return bool(client.schedules.list()[0].pushed >= count)
