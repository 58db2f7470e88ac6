"""``max_running`` and ``rate`` of two brokers over the real MongoDB: who may run how many jobs, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq.protocol import wire
from sluicemq_broker.bus import BusEvent, BusKind
from sluicemq_broker.queue import Push, Settlement, Verdict
from sluicemq_broker.store import LimitStore, QueueStore
from support.fakes import FakeWorker
from support.faulty_mongo import Fault, Kind, Line
from support.jobs import some_jobs
from support.small_broker import BEAT, LEASE, SmallBroker, VirtualClock
from support.virtual_time import VirtualTime, come_to_rest

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

Setting = dict[str, Any]


class LimitsRig:
    """Brokers that share the queue ``mail``, whose limits a test chooses."""

    def __init__(self, documents: Database[dict[str, Any]], limits: Setting) -> None:
        self.documents = documents
        self.limits = limits
        self.time = VirtualTime()
        self.clock = VirtualClock(self.time)
        self.brokers: list[SmallBroker] = []
        self.deaf = True  # the brokers are, to each other

    def broker(self) -> SmallBroker:
        number = len(self.brokers)
        line = Line(lambda *_stored: None, self.time)
        ids = iter(f"owner-{number}-{again}" for again in range(100))
        new_id: Callable[[], str] = lambda: next(ids)  # noqa: E731 - it is no method of the rig
        broker = SmallBroker(
            f"broker {number}", self.documents, self.time, self.clock, line, new_id, self.limits, self._tell
        )
        self.brokers.append(broker)
        return broker

    def push(self, broker: SmallBroker, count: int) -> None:
        now = self.clock.now()
        broker.queue.intake.push(Push(some_jobs(count, eligible_at=now), lambda *_told: None))
        come_to_rest()
        self.time.passes(0.01)  # what is accepted in a moment is claimed after it

    def worker(self, broker: SmallBroker, prefetch: int = 100) -> FakeWorker:
        worker = FakeWorker(prefetch)
        broker.queue.attach(worker)
        come_to_rest()
        return worker

    def finish(
        self, worker: FakeWorker, broker: SmallBroker, count: int = 1, kind: str = wire.COMMIT
    ) -> None:
        receipts = list(worker.in_flight)[:count]
        assert len(receipts) == count
        broker.queue.settling.settle([Verdict(receipt, kind, b"") for receipt in receipts], Settlement())
        come_to_rest()
        self.time.passes(0.1)  # without a tick

    def passes(self, seconds: float) -> None:
        """Time, in which the brokers that live do what they do from time to time."""
        come_to_rest()
        while seconds > 0:
            step = min(seconds, 1.0)
            seconds -= step
            self.time.passes(step)
            for broker in self.brokers:
                if not broker.line.dead:
                    broker.beat()
                    broker.tick()

    def _tell(self, event: BusEvent) -> None:
        for broker in self.brokers:
            if event.kind is BusKind.FREED and not self.deaf:
                broker.queues.on_freed(event)

    def reserved(self) -> int:
        return self.documents["queue.mail"].count_documents({"state": "reserved"})

    def permits(self) -> dict[str, int]:
        return LimitStore(self.documents, "mail").holders()

    def reconfigure(self, broker: SmallBroker, **limits: Any) -> None:
        broker.queue.reconfigure(replace(broker.queue.settings, **limits))
        come_to_rest()


@pytest.fixture
def limits() -> Setting:
    return {"max_running": 3}


@pytest.fixture
def rig(documents: Database[dict[str, Any]], store: QueueStore, limits: Setting) -> Iterator[LimitsRig]:
    """``store`` has made the queue's indexes."""
    rig = LimitsRig(documents, limits)
    yield rig
    for broker in rig.brokers:
        broker.line.dead = True
    rig.time.passes(100.0)


def test_as_many_run_as_may_whether_inserted_reserved_or_claimed(rig: LimitsRig) -> None:
    broker = rig.broker()
    worker = rig.worker(broker)
    rig.push(broker, 2)
    rig.push(broker, 10)
    assert len(worker.in_flight) == 3 == rig.reserved()


def test_a_job_that_has_ended_makes_room_for_the_next_at_once(rig: LimitsRig) -> None:
    broker = rig.broker()
    rig.push(broker, 10)
    worker = rig.worker(broker)
    rig.finish(worker, broker, 2)
    assert len(worker.jobs) == 5
    rig.finish(worker, broker, 1, kind=wire.ROLLBACK)
    assert len(worker.jobs) == 6
    assert len(worker.in_flight) == 3 == rig.reserved()


def test_a_job_runs_until_its_commit_is_durable(rig: LimitsRig) -> None:
    broker = rig.broker()
    rig.push(broker, 4)
    worker = rig.worker(broker)
    broker.line.fault = Fault(Kind.HELD, "delete_many")
    rig.finish(worker, broker, 1)
    assert len(worker.jobs) == 3
    broker.line.let_go(delivered=True)
    rig.passes(0.1)
    assert len(worker.jobs) == 4


def test_nothing_is_held_ahead_that_other_workers_could_run(rig: LimitsRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.push(one, 10)
    slow = rig.worker(one, prefetch=1)
    quick = rig.worker(other, prefetch=5)
    assert (len(slow.in_flight), len(quick.in_flight)) == (1, 2)


def test_a_broker_with_all_permits_asks_nobody_for_them(rig: LimitsRig) -> None:
    broker = rig.broker()
    rig.push(broker, 10)
    worker = rig.worker(broker)
    broker.line.fault = fault = Fault(Kind.CUT, "find_one_and_update", times=1000)
    rig.finish(worker, broker, 3)
    rig.passes(10)
    assert fault.times == 1000
    assert len(worker.jobs) == 6


def test_a_broker_that_is_told_of_jobs_and_gets_no_permit_asks_again_later(rig: LimitsRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.push(one, 10)
    rig.worker(one)
    second = rig.worker(other)
    rig.passes(10.0)
    other.line.fault = fault = Fault(Kind.INSIDE_AFTER, "find_one_and_update", times=1000)
    for _ in range(100):
        other.queue.on_ready(0)
        come_to_rest()
    rig.passes(10.0)
    assert second.jobs == []
    assert 10 <= 1000 - fault.times <= 30


def test_permits_that_lie_idle_are_another_brokers_in_a_moment(rig: LimitsRig) -> None:
    # Given: all permits are with the first, and it knows the second
    one, other = rig.broker(), rig.broker()
    rig.push(one, 3)
    first, second = rig.worker(one), rig.worker(other)
    rig.passes(2 * BEAT)
    assert len(first.in_flight) == 3
    rig.push(other, 2)
    assert second.jobs == []
    rig.finish(first, one, 3)
    rig.passes(2.0)
    assert len(first.in_flight) + len(second.in_flight) == 2
    assert sum(rig.permits().values()) <= 3


def test_whoever_waits_for_permits_hears_of_those_that_are_idle(rig: LimitsRig) -> None:
    # Given: all are with the first, and the other has waited for so long that it asks once a second
    one, other = rig.broker(), rig.broker()
    rig.push(one, 3)
    first, second = rig.worker(one), rig.worker(other)
    rig.passes(2 * BEAT)
    rig.push(other, 2)
    rig.passes(10.0)
    rig.deaf = False
    first.prefetch = 0
    one.queue.offer(first)
    rig.finish(first, one, 3)  # and a tenth of a second
    assert len(second.in_flight) == 2


def test_a_dead_brokers_permits_are_given_back_with_its_jobs(rig: LimitsRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.push(one, 3)
    rig.worker(one)
    rig.passes(2 * BEAT)
    worker = rig.worker(other)
    one.line.dead = True
    rig.passes(2 * LEASE)
    assert worker.jobs == []
    other.sweep()
    rig.passes(2.0)
    assert len(worker.in_flight) == 3
    assert rig.permits() == {other.owners.current: 3}


def test_a_broker_that_stops_leaves_its_permits_to_others_at_once(rig: LimitsRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.push(one, 3)
    rig.worker(one)
    worker = rig.worker(other)
    one.release_all()
    one.end()
    rig.passes(2.0)
    assert len(worker.in_flight) == 3
    assert rig.permits() == {other.owners.current: 3}


def test_a_broker_that_was_taken_for_dead_takes_permits_anew(rig: LimitsRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.push(one, 5)
    former = rig.worker(one)
    rig.passes(2 * BEAT)
    # When: it is silent, and what it had goes to others
    one.line.dead = True
    rig.passes(2 * LEASE)
    other.sweep()
    one.line.dead = False
    rig.passes(BEAT)
    new = rig.worker(one)
    rig.passes(BEAT)
    assert former.jobs
    assert rig.reserved() == 3
    assert len({*former.in_flight, *new.in_flight}) == sum(rig.permits().values()) == 3


def test_permits_of_a_dead_broker_without_jobs_are_given_back_too(rig: LimitsRig) -> None:
    # Given: permits that were taken for a claim, which was never sent
    one, other = rig.broker(), rig.broker()
    rig.push(other, 3)
    rig.passes(2 * BEAT)
    one.line.fault = Fault(Kind.KILLED_AFTER, "find_one_and_update")
    rig.worker(one)
    assert (rig.permits(), rig.reserved()) == ({one.owners.current: 3}, 0)
    worker = rig.worker(other)
    rig.passes(2 * LEASE)
    other.sweep()
    rig.passes(2.0)
    assert len(worker.in_flight) == 3


def test_what_is_being_given_back_is_not_used_meanwhile(rig: LimitsRig) -> None:
    # Given: nothing more lies ready, so that what comes would be inserted reserved
    one, other = rig.broker(), rig.broker()
    worker = rig.worker(one)
    rig.passes(2 * BEAT)
    rig.push(one, 2)
    rig.passes(1.0)
    one.line.fault = Fault(Kind.HELD, "find_one_and_update")
    rig.finish(worker, one, 2)
    assert rig.permits()[one.owners.current] == 0
    # When: others have them before the answer is there
    rig.push(one, 2)
    rig.push(other, 3)
    second = rig.worker(other)
    assert len(second.in_flight) == 3 == rig.reserved()
    one.line.let_go(delivered=True)


def test_a_claim_that_goes_on_under_a_new_id_needs_new_permits(rig: LimitsRig) -> None:
    # Given: a claim that is not sent, since MongoDB is away for it
    one, other = rig.broker(), rig.broker()
    rig.push(one, 6)
    one.line.fault = Fault(Kind.AWAY, "find", times=100)
    rig.worker(one)
    assert rig.permits() == {one.owners.current: 3}
    # When: it is silent until others have its permits, and hears of that before it goes on
    one.line.fault = Fault(Kind.AWAY, times=10**6)
    rig.passes(2 * LEASE)
    other.sweep()
    second = rig.worker(other)
    assert len(second.in_flight) == 3
    one.line.fault = None
    one.beat()
    rig.passes(5.0)
    assert rig.reserved() == 3


def test_what_is_inserted_reserved_counts_before_it_is_durable(rig: LimitsRig) -> None:
    # Given: all permits, and two inserts of which one has no answer yet
    broker = rig.broker()
    rig.push(broker, 3)
    worker = rig.worker(broker)
    rig.finish(worker, broker, 3)
    broker.line.fault = Fault(Kind.HELD, "insert")
    rig.push(broker, 3)
    rig.push(broker, 3)
    assert rig.reserved() == 3
    broker.line.let_go(delivered=True)
    rig.passes(1.0)
    assert len(worker.in_flight) == 3 == rig.reserved()


def test_a_claim_under_way_counts_as_what_it_may_bring(rig: LimitsRig) -> None:
    # Given: all permits, and a claim of a job of the other broker that has no answer
    one, other = rig.broker(), rig.broker()
    rig.push(one, 3)
    worker = rig.worker(one)
    rig.push(other, 3)
    one.line.fault = Fault(Kind.HELD, "update_many")
    rig.finish(worker, one, 3)
    assert rig.reserved() == 3
    rig.passes(3.0)  # nobody waits for that claim any longer
    rig.push(one, 3)
    assert rig.reserved() == 3
    one.line.let_go(delivered=True)


def test_more_may_run_at_once_when_the_settings_say_so_and_fewer_when_jobs_have_ended(rig: LimitsRig) -> None:
    broker = rig.broker()
    rig.push(broker, 10)
    worker = rig.worker(broker)
    rig.reconfigure(broker, max_running=5)
    assert len(worker.in_flight) == 5
    rig.reconfigure(broker, max_running=2)
    rig.finish(worker, broker, 3)
    assert len(worker.in_flight) == 2
    rig.finish(worker, broker, 1)
    assert len(worker.in_flight) == 2


def test_without_a_limit_any_more_all_run_and_no_permit_is_kept(rig: LimitsRig) -> None:
    broker = rig.broker()
    rig.push(broker, 10)
    worker = rig.worker(broker)
    rig.reconfigure(broker, max_running=None)
    rig.passes(1.0)
    assert len(worker.in_flight) == 10
    assert sum(rig.permits().values()) == 0


def test_a_limit_that_comes_later_counts_what_runs_here_already(rig: LimitsRig, limits: Setting) -> None:
    limits["max_running"] = None
    broker = rig.broker()
    rig.push(broker, 10)
    worker = rig.worker(broker, prefetch=5)
    rig.reconfigure(broker, max_running=4)
    rig.finish(worker, broker, 1)
    assert len(worker.in_flight) == 4
    rig.finish(worker, broker, 1)
    assert len(worker.in_flight) == 4


@pytest.mark.parametrize("kind", [Kind.LOST_REPLY, Kind.CUT, Kind.AWAY])
def test_a_statement_without_an_answer_is_repeated(rig: LimitsRig, kind: Kind) -> None:
    broker = rig.broker()
    rig.push(broker, 10)
    broker.line.fault = Fault(kind, "find_one_and_update")
    worker = rig.worker(broker)
    rig.passes(5.0)
    assert len(worker.in_flight) == 3
    assert sum(rig.permits().values()) == 3


def test_what_lands_late_gives_back_no_permit_that_is_used(rig: LimitsRig) -> None:
    """An order to keep none is repeated; its first sending lands when jobs run again."""
    one, other = rig.broker(), rig.broker()
    rig.push(one, 3)
    worker = rig.worker(one)
    rig.passes(2 * BEAT)
    one.line.fault = Fault(Kind.LATE, "find_one_and_update")
    rig.finish(worker, one, 3)
    rig.passes(5.0)
    assert one.line.late
    rig.push(one, 3)
    rig.passes(2.0)
    one.line.land()
    assert rig.permits()[one.owners.current] == 3
    rig.push(other, 3)
    assert rig.worker(other).jobs == []


# --------------------------------------------------------------------------- rate


@pytest.fixture
def slowly(limits: Setting) -> None:
    limits.clear()
    limits.update(rate=2.0, burst=3)


@pytest.mark.usefixtures("slowly")
def test_a_burst_begins_at_once_and_then_so_many_a_second(rig: LimitsRig) -> None:
    broker = rig.broker()
    worker = rig.worker(broker)
    rig.push(broker, 100)
    assert len(worker.jobs) == 3
    began = []
    for _ in range(5):
        rig.passes(1.0)
        began.append(len(worker.jobs))
    assert began == [5, 7, 9, 11, 13]


@pytest.mark.usefixtures("slowly")
def test_the_rate_is_that_of_all_brokers_together(rig: LimitsRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.push(one, 100)
    workers = [rig.worker(one), rig.worker(other)]
    rig.passes(10.0)
    assert 3 + 2 * 10 - 2 <= sum(len(worker.jobs) for worker in workers) <= 3 + 2 * 10


@pytest.mark.usefixtures("slowly")
def test_a_killed_broker_takes_no_more_than_a_block_of_the_rate_with_it(rig: LimitsRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.push(other, 100)
    one.line.fault = Fault(Kind.KILLED_AFTER, "find_one_and_update")
    rig.worker(one)
    rig.passes(1.0)
    worker = rig.worker(other)
    rig.passes(10.0)
    assert 3 + 2 * 11 - 2 <= len(worker.jobs) <= 3 + 2 * 11


@pytest.mark.usefixtures("slowly")
def test_what_was_not_stored_takes_nothing_of_the_rate(rig: LimitsRig) -> None:
    """Inserted reserved, and there already: the ids are those of jobs that wait."""
    broker = rig.broker()
    worker = rig.worker(broker)
    jobs = some_jobs(3, eligible_at=rig.clock.now())
    for _ in range(3):
        broker.queue.intake.push(Push(jobs, lambda *_told: None))
        come_to_rest()
    rig.passes(0.4)
    assert len(worker.jobs) == 3
    rig.push(broker, 100)
    rig.passes(5.0)
    assert len(worker.jobs) >= 3 + 2 * 5


@pytest.mark.usefixtures("slowly")
def test_a_rate_that_is_raised_holds_at_once(rig: LimitsRig) -> None:
    broker = rig.broker()
    worker = rig.worker(broker)
    rig.push(broker, 100)
    rig.reconfigure(broker, rate=1000.0, burst=1000)
    rig.passes(1.0)
    assert len(worker.jobs) == 100


def test_both_limits_hold_together(rig: LimitsRig, limits: Setting) -> None:
    limits.update(rate=100.0, burst=100)
    broker = rig.broker()
    rig.push(broker, 100)
    worker = rig.worker(broker)
    assert len(worker.in_flight) == 3
    for _ in range(10):
        rig.finish(worker, broker, 3)
    assert len(worker.in_flight) == 3
