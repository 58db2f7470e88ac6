"""The counts that a broker keeps of its queues: what is counted when, and what is an estimate."""

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol.errors import NotFoundError, UnavailableError
from sluicemq.protocol.rows import QueueRow
from sluicemq_broker.config import Config
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push, Queue
from sluicemq_broker.queues import Census, Queues
from sluicemq_broker.queues import census as census_module
from sluicemq_broker.store import SHOWN_STATES, Inspector, Unclear
from support.fakes import FakeOwners, FakeWorker, a_context, a_maker
from support.jobs import NOW, a_job, some_jobs
from support.virtual_time import VirtualTime, come_to_rest
from support.waiting import wait_until

ALL = tuple(sorted(SHOWN_STATES))


class CensusRig:
    """Queues in MongoDB and their census; ``counted`` are the names of those counted, in their order.

    ``meanwhile`` is called when a count has begun, before MongoDB is asked.
    """

    def __init__(self, documents: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = VirtualTime()
        self.owners = FakeOwners()
        context = a_context(self.owners, timer=self.time)
        self.queues = Queues(Config.default(), context, lambda _name: documents, a_maker())
        self.census = Census(self.queues, context)
        self.counted: list[str] = []
        self.away: Exception | None = None
        self.cost = 0.0
        self.meanwhile: Callable[[], Any] = lambda: None
        count = Inspector.counts

        def counts(inspector: Inspector, queue: str, now: float) -> dict[str, Any]:
            if self.away:
                raise self.away
            self.counted.append(queue)
            self.time.value += self.cost
            self.meanwhile()
            return count(inspector, queue, now)

        monkeypatch.setattr(Inspector, "counts", counts)
        monkeypatch.setattr(Inspector, "small_counts", lambda *_: {})  # each is counted by itself

    def open(self, *names: str) -> list[Queue]:
        queues = [self.queues.open(name) for name in names]
        for queue in queues:
            queue.store.prepare()
        return queues

    def push(self, queue: Queue, *jobs: Job) -> None:
        """As a door does."""
        stored: list[Any] = []
        queue.intake.push(Push(list(jobs), lambda *told: stored.append(told)))
        wait_until(lambda: come_to_rest() or stored, what="the push")

    def asked_for_all(self) -> dict[str, QueueRow]:
        """What is told, and what is counted for it; that counts no time that has passed since."""
        self.counted.clear()
        return {row.name: row for row in self.census.all()}

    def later(self, seconds: float) -> None:
        self.time.value += seconds


@pytest.fixture
def rig(documents: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> CensusRig:
    for name in documents.list_collection_names(filter={"name": {"$regex": "^queue"}}):
        documents.drop_collection(name)
    return CensusRig(documents, monkeypatch)


def counts(row: QueueRow) -> dict[str, int]:
    return {state: count for state in ALL if (count := getattr(row, state))}


def test_who_asks_for_one_queue_has_it_counted_and_no_other(rig: CensusRig) -> None:
    mail, *_ = rig.open("mail", "a", "b")
    mail.store.push(some_jobs(3), NOW)
    row = rig.census.one("mail")
    assert (counts(row), row.exact, row.estimates) == ({"ready": 3}, True, ())
    assert rig.counted == ["mail"]


def test_few_jobs_are_one_count(documents: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: many that are alike, one with a job in a line, and one whose jobs have expired
    for name in documents.list_collection_names(filter={"name": {"$regex": "^queue"}}):
        documents.drop_collection(name)
    small_counts = Inspector.small_counts
    broker = CensusRig(documents, monkeypatch)
    monkeypatch.setattr(Inspector, "small_counts", small_counts)
    names = [f"queue-{number:02}" for number in range(40)]
    queues = broker.open(*names, "lines", "over")
    for number, queue in enumerate(queues[:40]):
        queue.store.push(some_jobs(number % 3) + some_jobs(number % 2, eligible_at=NOW + 60), NOW)
    documents["queue.lines"].insert_one({"_id": "a", "state": "waiting", "wait": {"group": "g", "place": 1}})
    queues[41].store.push(some_jobs(2, expires_at=1.0), NOW)
    rows = broker.asked_for_all()
    assert sorted(broker.counted) == ["lines", "over"]
    assert {name: (rows[name].ready, rows[name].scheduled) for name in names} == {
        name: (number % 3, number % 2) for number, name in enumerate(names)
    }
    assert all(rows[name].exact for name in names)
    assert (rows["queue-01"].oldest_ready_age, rows["queue-00"].oldest_ready_age) == (0.0, None)


def test_a_queue_that_is_not_there_is_refused(rig: CensusRig) -> None:
    with pytest.raises(NotFoundError):
        rig.census.one("nosuch")


def test_asking_for_all_counts_what_has_changed_first_then_the_oldest_counts(rig: CensusRig) -> None:
    # Given: two that were counted one after the other, then something happened in the second
    _first, second = rig.open("first", "second")
    for name in ("first", "second"):
        rig.census.one(name)
        rig.later(1.0)
    rig.push(second, a_job())
    rig.open("third")
    rig.asked_for_all()
    assert rig.counted == ["third", "second", "first"]


def test_what_is_not_counted_in_time_is_told_with_what_happened_here_since(rig: CensusRig) -> None:
    (mail,) = rig.open("mail")
    mail.store.push(some_jobs(5) + some_jobs(2, eligible_at=NOW + 60), NOW)
    rig.census.one("mail")
    rig.later(7.0)
    rig.push(mail, *some_jobs(3))
    (row,) = rig.census.rows()
    assert counts(row) == {"ready": 8, "scheduled": 2}
    assert (row.exact, row.estimates, row.counted_ago) == (False, ALL, 7.0)


@pytest.mark.parametrize("counted_before", [False, True])
def test_jobs_that_come_during_a_count_are_estimated_once(rig: CensusRig, *, counted_before: bool) -> None:
    # Given: a count that begins before three jobs come, and finds them
    (mail,) = rig.open("mail")
    rig.push(mail, a_job())
    if counted_before:
        rig.census.one("mail")
    rig.meanwhile = lambda: rig.push(mail, *some_jobs(3))
    rig.census.one("mail")
    (row,) = rig.census.rows()
    assert (counts(row), row.exact) == ({"ready": 4}, False)


def test_a_count_that_jobs_which_come_meanwhile_do_not_explain_is_believed(rig: CensusRig) -> None:
    # Given: five jobs that this broker has not pushed, and one that comes while they are counted
    (mail,) = rig.open("mail")
    rig.census.one("mail")
    mail.store.push(some_jobs(5), NOW)
    rig.meanwhile = lambda: rig.push(mail, a_job())
    rig.census.one("mail")
    (row,) = rig.census.rows()
    assert counts(row) == {"ready": 6}


def test_jobs_that_went_to_workers_are_reserved_in_an_estimate(rig: CensusRig) -> None:
    (mail,) = rig.open("mail")
    rig.census.one("mail")
    mail.attach(FakeWorker(3))
    rig.push(mail, *some_jobs(4))
    wait_until(lambda: come_to_rest() or mail.in_flight == 3, what="the delivery")
    (row,) = rig.census.rows()
    assert row.reserved == mail.held >= 3
    assert row.ready + row.reserved == 4


def test_asking_for_all_begins_no_more_counts_than_there_is_time_for(rig: CensusRig) -> None:
    rig.open(*(f"q{number}" for number in range(10)))
    rig.cost = census_module.QUESTION_TIME / 2.5
    rows = rig.asked_for_all()
    assert len(rig.counted) == 3
    assert sum(row.exact for row in rows.values()) == 3
    assert [row.counted_ago for row in rows.values()].count(None) == 7


def test_an_idle_queue_is_no_estimate_while_there_is_one_broker(rig: CensusRig) -> None:
    (mail,) = rig.open("mail")
    mail.store.push(some_jobs(5), NOW)
    rig.census.one("mail")
    rig.later(30.0)
    assert rig.census.rows()[0].exact
    rig.owners.others = 1
    assert rig.census.rows()[0].estimates == ALL


def test_what_time_alone_changes_is_an_estimate(rig: CensusRig) -> None:
    (mail,) = rig.open("mail")
    mail.store.push(some_jobs(5, eligible_at=NOW + 60), NOW)
    rig.census.one("mail")
    rig.later(30.0)
    assert rig.census.rows()[0].estimates == ("ready", "scheduled")


def test_what_other_brokers_do_is_found_in_the_background(rig: CensusRig) -> None:
    (mail,) = rig.open("mail")
    rig.census.tick()
    mail.store.push(some_jobs(4), NOW)
    rig.later(30.0)
    rig.census.tick()
    before = rig.census.rows()[0].ready
    rig.later(31.0)
    rig.census.tick()
    assert (before, rig.census.rows()[0].ready) == (0, 4)


def test_a_queue_in_which_something_happens_is_counted_again_sooner(rig: CensusRig) -> None:
    mail, _quiet = rig.open("mail", "quiet")
    rig.census.tick()
    rig.push(mail, a_job())
    rig.counted.clear()
    rig.later(6.0)
    rig.census.tick()
    assert rig.counted == ["mail"]


def test_the_background_takes_a_small_part_of_the_time_however_many_queues_there_are(rig: CensusRig) -> None:
    rig.open(*(f"q{number}" for number in range(30)))
    while len(rig.counted) < 30:
        rig.census.tick()
    rig.later(100.0)
    rig.counted.clear()
    rig.cost = 0.02
    rig.census.tick()
    assert len(rig.counted) == 3


def test_an_order_that_changes_jobs_makes_what_was_counted_void(rig: CensusRig) -> None:
    (mail,) = rig.open("mail")
    rig.census.one("mail")
    rig.census.recount(mail)
    assert rig.census.rows()[0].estimates == ALL


def test_while_mongodb_is_away_who_asks_is_told_so_and_what_is_known_can_be_had(rig: CensusRig) -> None:
    (mail,) = rig.open("mail")
    mail.store.push(some_jobs(5), NOW)
    rig.census.one("mail")
    rig.later(3.0)
    rig.away = UnavailableError("no primary")
    with pytest.raises(UnavailableError):
        rig.census.all()
    assert rig.census.rows()[0].ready == 5


def test_a_silent_mongodb_keeps_nobody_waiting(rig: CensusRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.open("mail")
    monkeypatch.setattr(Inspector, "counts", lambda *_: rig.time.sleep(1000.0))
    with pytest.raises(UnavailableError, match="has not answered"):
        Census(rig.queues, rig.queues.context, wait=0.01).all()


def test_while_mongodb_is_known_not_to_answer_it_is_not_asked(rig: CensusRig) -> None:
    rig.open("mail")
    census = Census(rig.queues, rig.queues.context, trusted=lambda: False)
    with pytest.raises(UnavailableError):
        census.all()
    assert rig.counted == []


def test_a_queue_that_can_not_be_counted_says_why_until_it_can_be(rig: CensusRig) -> None:
    rig.open("mail")
    rig.away = Unclear("cut")
    assert "queue 'mail' can't be counted" in str(rig.census.one("mail").error)
    rig.away = None
    assert rig.census.one("mail").error is None
