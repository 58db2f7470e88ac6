"""Long orders: what takes more than a moment goes on as a task, whoever leaves, stops or dies."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from gevent.event import Event
from pymongo.database import Database

from sluicemq.protocol.errors import NotFoundError, PausedError, QueueFullError, UnavailableError
from sluicemq.protocol.wire import INTAKE
from sluicemq_broker.queues import Task, Tasks
from sluicemq_broker.queues.bulk_operations import PAGE
from sluicemq_broker.store import QueueStore, RolledBack
from support.faulty_mongo import Fault, Kind, Line
from support.jobs import NOW, a_job, some_jobs, stored
from support.small_broker import BEAT, LEASE, SmallBroker, VirtualClock
from support.virtual_time import VirtualTime, come_to_rest

JOBS = 6 * PAGE


class SlowTime(VirtualTime):
    """Time that passes at each look at it too, so that a page takes some; and in which waits are waited."""

    def now(self) -> float:
        self.value += 0.1
        return self.value

    def wait(self, event: Event, seconds: float) -> bool:
        if not event.is_set():
            self.sleep(seconds)
        return bool(event.is_set())


class TasksRig:
    """Two brokers that share the queue ``mail``, in which lie jobs."""

    def __init__(self, documents: Database[dict[str, Any]], store: QueueStore) -> None:
        self.documents = documents
        self.store = store
        self.time = SlowTime()
        self.clock = VirtualClock(self.time)
        self._ids = itertools.count()
        self.first = self.broker("first")
        self.second = self.broker("second")
        store.push(some_jobs(JOBS), NOW)

    def broker(self, name: str) -> SmallBroker:
        line = Line(lambda *_stored: None, self.time)
        new_id = f"{name}-{next(self._ids)}"
        return SmallBroker(name, self.documents, self.time, self.clock, line, lambda: new_id)

    def left(self, state: str = "ready") -> int:
        return self.store.jobs.count_documents({"state": state})

    def purge(self) -> Task:
        """A purge that is under way, and has left its first moment."""
        task = self.first.tasks.begin("purge", "mail", state="ready")
        come_to_rest()
        assert 0 < self.left() < JOBS, "it is over already"
        return task

    def bury(self) -> None:
        """Make dead letters of all jobs."""
        jobs = self.store.reserve(JOBS, NOW, "me").jobs
        for start in range(0, JOBS, PAGE):
            dead = [RolledBack(job, "bad", "worker", dead=True) for job in jobs[start : start + PAGE]]
            self.store.roll_back(dead, NOW)

    def carry_out(self) -> None:
        """Let as much time pass as it takes."""
        come_to_rest()
        self.time.passes(100.0)

    def die(self, broker: SmallBroker, survivor: SmallBroker) -> None:
        """A broker is killed, and the other one learns that its lease is over."""
        broker.line.dead = True
        for _ in range(int(2 * LEASE / BEAT) + 2):
            self.time.passes(BEAT)
            survivor.beat()


@pytest.fixture
def rig(documents: Database[dict[str, Any]], store: QueueStore) -> Iterator[TasksRig]:
    rig = TasksRig(documents, store)
    yield rig
    for broker in (rig.first, rig.second):
        broker.tasks.stop()
    rig.carry_out()


def test_an_order_that_is_over_at_once_is_answered_and_leaves_no_trace(rig: TasksRig) -> None:
    rig.store.jobs.delete_many({"seq": {"$gt": stored(rig.store, rig_first(rig))["seq"]}})
    task = rig.first.tasks.begin("purge", "mail", state="ready")
    come_to_rest()
    assert task.outcome() == 1
    assert rig.first.tasks.latest() == []


def rig_first(rig: TasksRig) -> str:
    return str(rig.store.jobs.find_one({}, sort=[("seq", 1)], projection={})["_id"])  # type: ignore[index]


def test_who_has_its_id_finds_it_at_another_broker_before_its_first_page_ends(rig: TasksRig) -> None:
    rig.first.line.fault = Fault(Kind.HELD, "delete_many", times=1)
    task = rig.first.tasks.begin("purge", "mail", state="ready")
    come_to_rest()
    given = task.outcome(wait=0)["task"]
    rig.first.line.dead = True
    assert rig.second.tasks.find(given).kind == "purge"


def test_what_takes_longer_goes_on_page_by_page_and_is_seen_at_every_broker(rig: TasksRig) -> None:
    task = rig.purge()
    done = JOBS - rig.left()
    assert task.outcome(wait=0) == {"task": task.id, "done": done, "total": JOBS}
    for broker in (rig.first, rig.second):
        [row] = broker.tasks.latest()
        assert (row.id, row.kind, row.queue, row.state) == (task.id, "purge", "mail", "running")
    rig.carry_out()
    assert task.outcome() == JOBS
    assert rig.left() == 0
    row = rig.second.tasks.find(task.id)
    assert (row.state, row.done, row.total, row.answer) == ("done", JOBS, JOBS, JOBS)


def test_there_is_a_pause_after_every_page(rig: TasksRig) -> None:
    rig.purge()
    before = rig.left()
    rig.time.passes(0.01)
    assert rig.left() == before


def seconds_of_a_purge(rig: TasksRig) -> float:
    task, began = rig.purge(), rig.time.value
    while not task.left.is_set():
        rig.time.passes(0.1)
    return rig.time.value - began


def test_another_broker_slows_a_task_only_while_it_works_on_jobs(rig: TasksRig) -> None:
    alone = seconds_of_a_purge(rig)
    rig.first.owners.others = 1
    rig.store.push(some_jobs(JOBS), NOW)
    beside_one_at_rest = seconds_of_a_purge(rig)
    rig.first.owners.others_at_work = True
    rig.store.push(some_jobs(JOBS), NOW)
    assert beside_one_at_rest < 1.5 * alone
    assert seconds_of_a_purge(rig) > 2 * alone


def test_what_is_accepted_after_the_order_is_spared(rig: TasksRig) -> None:
    task = rig.purge()
    late = a_job("late")
    late.created_at = rig.clock.now() + 5
    rig.store.push([late], late.created_at)
    rig.carry_out()
    assert task.outcome() == JOBS
    assert stored(rig.store, "late")


def test_a_task_that_is_cancelled_at_another_broker_ends_after_its_page(rig: TasksRig) -> None:
    task = rig.purge()
    rig.second.tasks.cancel(task.id)
    rig.carry_out()
    left = rig.left()
    assert 0 < left < JOBS
    found = rig.first.tasks.find(task.id)
    assert (found.state, found.done) == ("cancelled", JOBS - left)
    assert task.outcome() == {"task": task.id, "done": JOBS - left, "total": JOBS}
    with pytest.raises(NotFoundError, match="cancelled already"):
        rig.second.tasks.cancel(task.id)


def test_a_task_whose_broker_is_killed_is_seen_as_interrupted_and_goes_on_at_another(rig: TasksRig) -> None:
    task = rig.purge()
    rig.die(rig.first, rig.second)
    left = rig.left()
    assert 0 < left < JOBS
    assert rig.second.tasks.find(task.id).state == "interrupted"
    rig.second.tasks.take_up()
    rig.carry_out()
    assert rig.left() == 0
    found = rig.second.tasks.find(task.id)
    assert (found.state, found.done, found.broker) == ("done", JOBS, "second")


def test_a_task_of_a_live_broker_is_left_to_it(rig: TasksRig) -> None:
    task = rig.purge()
    rig.second.tasks.take_up()
    assert rig.second.tasks.find(task.id).broker == "first"
    assert not rig.second.tasks.busy


def test_a_broker_whose_task_another_has_taken_goes_on_with_it_no_more(rig: TasksRig) -> None:
    task = rig.purge()
    rig.documents["tasks"].update_one({"_id": task.id}, {"$set": {"owner": "another"}})
    rig.time.passes(10.0)
    assert not rig.first.tasks.busy
    assert rig.left() > 0


def test_a_broker_that_stops_leaves_its_task_to_the_next_at_once(rig: TasksRig) -> None:
    task = rig.purge()
    rig.first.tasks.stop()
    rig.time.passes(1.0)
    assert not rig.first.tasks.busy
    assert "task" in task.outcome()
    rig.second.tasks.take_up()
    rig.carry_out()
    assert rig.left() == 0
    assert rig.second.tasks.find(task.id).state == "done"


def test_while_mongodb_is_away_a_task_waits_and_goes_on_afterwards(rig: TasksRig) -> None:
    task = rig.purge()
    rig.first.line.fault = Fault(Kind.AWAY, "delete_many", times=3)
    rig.carry_out()
    assert rig.first.line.fired == 3
    assert task.outcome() == JOBS


def test_an_order_that_mongodb_does_not_take_at_all_is_refused_to_whoever_gave_it(rig: TasksRig) -> None:
    rig.first.line.fault = Fault(Kind.AWAY, "delete_many")
    task = rig.first.tasks.begin("purge", "mail", state="ready")
    come_to_rest()
    with pytest.raises(UnavailableError):
        task.outcome()
    assert not rig.first.tasks.busy


def test_a_redrive_with_a_limit_that_another_broker_ends_moves_no_more_than_that(rig: TasksRig) -> None:
    rig.bury()
    limit = JOBS - PAGE // 2
    task = rig.first.tasks.begin("redrive", "mail", limit=limit)
    come_to_rest()
    rig.die(rig.first, rig.second)
    assert 0 < rig.left() < limit
    rig.second.tasks.take_up()
    rig.carry_out()
    assert (rig.left("ready"), rig.left("dead")) == (limit, JOBS - limit)
    answer = rig.second.tasks.find(task.id).answer
    assert answer == {"moved": limit, "left": JOBS - limit, "refused": []}


def test_a_task_whose_queue_is_gone_is_not_taken_up(rig: TasksRig) -> None:
    task = rig.purge()
    rig.first.tasks.stop()
    rig.time.passes(1.0)
    rig.documents["tasks"].update_one({"_id": task.id}, {"$set": {"queue": "nowhere"}})
    rig.second.tasks.take_up()
    found = rig.second.tasks.find(task.id)
    assert found.error
    assert (found.state, found.error.code) == ("failed", NotFoundError.code)


def test_a_redrive_goes_on_though_its_target_is_paused_or_full_by_then(rig: TasksRig) -> None:
    # Given: both brokers know the other queue, and it was open when the order was given
    rig.bury()
    for broker in (rig.first, rig.second):
        broker.queues.open("other").store.prepare(again=True)
    task = rig.first.tasks.begin("redrive", "mail", to="other")
    come_to_rest()
    rig.first.tasks.stop()
    rig.time.passes(1.0)
    assert rig.left("dead") > 0
    rig.second.queues.open("other").pause(frozenset([INTAKE]))
    rig.second.tasks.take_up()
    rig.carry_out()
    assert rig.left("dead") == 0
    assert rig.second.tasks.find(task.id).state == "done"
    with pytest.raises(PausedError):
        rig.second.tasks.begin("redrive", "mail", to="other")


def test_a_task_that_can_not_go_holds_up_none(rig: TasksRig, caplog: pytest.LogCaptureFixture) -> None:
    # Given two tasks without a broker, of which the first is nothing that this version knows
    task = rig.purge()
    rig.first.tasks.stop()
    rig.time.passes(1.0)
    strange = rig.documents["tasks"].find_one({"_id": task.id}) or {}
    strange |= {"_id": "0", "order": {"nobody": "knows"}}
    rig.documents["tasks"].insert_one(strange)
    rig.second.tasks.take_up()
    rig.carry_out()
    assert rig.second.tasks.find(task.id).state == "done"
    assert "task 0 of a dead broker is not continued" in caplog.text


def test_what_has_expired_beyond_a_page_is_ended_beside_all_else(rig: TasksRig) -> None:
    rig.store.jobs.update_many({}, {"$set": {"expires_at": stored(rig.store, rig_first(rig))["created_at"]}})
    rig.first.sweep()
    assert 0 < rig.left() < JOBS
    rig.first.sweep()  # begins no other
    rig.carry_out()
    assert rig.left() == 0
    assert rig.first.counters.values["expired"] == JOBS


def test_beyond_a_number_of_tasks_orders_are_refused(rig: TasksRig) -> None:
    queues = rig.first.queues
    tasks = Tasks(queues, queues.context, lambda _name: rig.documents, most=1)
    tasks.begin("purge", "mail", state="ready")
    with pytest.raises(QueueFullError, match="1 tasks are under way"):
        tasks.begin("purge", "mail", state="dead")
    tasks.stop()


def test_an_unknown_task_is_not_found(rig: TasksRig) -> None:
    for ask in (rig.first.tasks.find, rig.first.tasks.cancel):
        with pytest.raises(NotFoundError):
            ask("nosuch")
