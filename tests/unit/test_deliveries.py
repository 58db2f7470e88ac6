"""The table of deliveries: whatever happens, no credit is lost and none is given twice."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from sluicemq_broker.job import Reservation
from sluicemq_broker.queue import Delivery, Marks
from sluicemq_broker.queue.deliveries import Deliveries
from sluicemq_broker.queue.worker import DeliveryState
from support.fakes import FakeWorker
from support.jobs import a_job, some_jobs

ENDED = {DeliveryState.SETTLED, DeliveryState.VOID}
LASTS = 10.0  # seconds, the visibility timeout of every job


class Table(RuleBasedStateMachine):
    """Workers come and go, get jobs, answer in time, late, or never."""

    workers = Bundle("workers")
    deliveries = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.table = Deliveries()
        self.marks = Marks(12, 2**30)
        self.now = 0.0
        self.everybody: list[FakeWorker] = []
        self.all: list[Delivery] = []

    @rule(target=workers, prefetch=st.integers(0, 5), pops=st.booleans())
    def come(self, prefetch: int, *, pops: bool) -> FakeWorker:
        worker = FakeWorker(prefetch)
        worker.pops, worker.marks = pops, None if pops else self.marks
        self.table.attach(worker, 0.0)
        self.everybody.append(worker)
        self._recount()
        return worker

    @rule(target=deliveries, worker=workers, owner=st.sampled_from(["one", "other"]))
    def give(self, worker: FakeWorker, owner: str) -> object:
        if not worker.free:
            return multiple()
        jobs = some_jobs(worker.free, visibility_timeout=LASTS)
        for job in jobs:
            job.reserve(Reservation(owner, 1))
        opened = self.table.open(worker, jobs, self.now)
        self.all += opened
        self._recount()
        return multiple(*opened)

    @rule(delivery=deliveries)
    def answer(self, delivery: Delivery) -> None:
        before = delivery.state
        settled = self.table.settle(delivery.receipt)
        assert (settled is delivery) == (before is DeliveryState.IN_FLIGHT)
        late = None if settled else self.table.answered_late(delivery.receipt)
        assert (late is delivery.worker) == (before is DeliveryState.OVERDUE)
        self._recount()

    @rule(delivery=deliveries, seconds=st.floats(0, 3 * LASTS))
    def extend(self, delivery: Delivery, seconds: float) -> None:
        extended = self.table.extend(delivery.receipt, delivery.worker, self.now + seconds)
        assert extended == (delivery.state is DeliveryState.IN_FLIGHT)
        assert not self.table.extend(delivery.receipt, FakeWorker(), self.now)

    @rule(worker=workers)
    def removed(self, worker: FakeWorker) -> None:
        popped = [
            delivery for delivery in worker.in_flight.values() if delivery.state is DeliveryState.REMOVING
        ]
        self.table.removed(worker, popped)
        assert all(job.state is DeliveryState.SETTLED for job in popped)
        self._recount()

    @rule(seconds=st.floats(0, 2 * LASTS))
    def pass_time(self, seconds: float) -> None:
        since, self.now = self.now, self.now + seconds
        silent = self.table.never_answered(since)
        late = self.table.time_out(self.now, since)
        assert all(delivery.state is DeliveryState.VOID for delivery in silent)
        assert all(delivery.state is DeliveryState.OVERDUE for delivery in late)
        assert all(delivery.overdue_at > since for delivery in self.table.in_flight.values())
        self._recount()

    @rule(owner=st.sampled_from(["one", "other"]))
    def lose(self, owner: str) -> None:
        lost = self.table.lose(owner, self.now)
        assert all(delivery.job.owner != owner for delivery in self.table.in_flight.values())
        assert all(delivery.state is DeliveryState.OVERDUE for delivery in lost)
        self._recount()

    @rule(worker=consumes(workers))
    def leave(self, worker: FakeWorker) -> None:
        had = [
            delivery
            for delivery in self.all
            if delivery.worker is worker and delivery.state is DeliveryState.IN_FLIGHT
        ]
        assert self.table.leave(worker) == had
        assert all(delivery.state in ENDED for delivery in self.all if delivery.worker is worker)

    @invariant()
    def each_table_holds_what_the_states_say(self) -> None:
        in_flight = {delivery.receipt for delivery in self.all if delivery.state is DeliveryState.IN_FLIGHT}
        assert self.table.in_flight.keys() == in_flight
        for worker in self.everybody:
            mine = [delivery for delivery in self.all if delivery.worker is worker]
            taken = {DeliveryState.IN_FLIGHT, DeliveryState.REMOVING}
            assert worker.in_flight.keys() == {
                delivery.receipt for delivery in mine if delivery.state in taken
            }
            overdue = {delivery.receipt for delivery in mine if delivery.state is DeliveryState.OVERDUE}
            assert overdue <= worker.overdue.keys()  # and those that never answered

    @invariant()
    def the_marks_count_what_is_in_flight(self) -> None:
        flying = [delivery.job for delivery in self.table.in_flight.values() if delivery.worker.marks]
        assert (self.marks.jobs, self.marks.bytes) == (len(flying), sum(delivery.size for delivery in flying))
        assert self.marks.jobs <= self.marks.most_jobs

    @invariant()
    def the_sums_are_those_of_the_workers(self) -> None:
        assert self.table.capacity == sum(worker.takes.at_most for worker in self.table.workers)
        assert self.table.free == sum(worker.takes.now for worker in self.table.workers)

    def _recount(self) -> None:
        """As the dispatcher does for whom it offers."""
        for worker in self.everybody:
            self.table.recount(worker)


TestTable = Table.TestCase


def test_a_worker_that_never_answers_keeps_its_credit_taken() -> None:
    table, worker = Deliveries(), FakeWorker(1)
    table.attach(worker, 0.0)
    table.open(worker, [a_job(visibility_timeout=LASTS, owner="me")], 0.0)
    table.time_out(LASTS, LASTS)
    [silent] = table.never_answered(2 * LASTS)
    assert silent.state is DeliveryState.VOID
    assert worker.free == 0


def test_receipts_are_never_the_same() -> None:
    table, worker = Deliveries(), FakeWorker(100)
    opened = table.open(worker, some_jobs(50, owner="me"), 0.0) + table.open(
        worker, some_jobs(50, owner="me"), 0.0
    )
    assert len({delivery.receipt for delivery in opened}) == 100


def test_a_hard_limit_counts_from_when_a_worker_has_begun_a_job() -> None:
    # Given a worker that has two jobs, one after the other
    table, worker = Deliveries(), FakeWorker(2)
    worker.concurrency = 1
    table.attach(worker, 0.0)
    first, second = table.open(worker, some_jobs(2, hard_time_limit=LASTS, owner="me"), 0.0)
    # When its first is over its limit
    assert over_limit(table, 0.0) == over_limit(table, LASTS - 1) == []
    assert over_limit(table, LASTS) == [first]
    # Then the second has begun only when the worker has answered, in time or not
    assert over_limit(table, 2 * LASTS) == []
    table.answered_late(first.receipt)
    assert over_limit(table, 2 * LASTS) == over_limit(table, 3 * LASTS - 1) == []
    assert over_limit(table, 3 * LASTS) == [second]


def over_limit(table: Deliveries, now: float) -> list[Delivery]:
    return table.over_limit(now, now)


def test_a_worker_that_commits_on_arrival_works_on_nothing_that_it_has_not_got() -> None:
    table, worker = Deliveries(), FakeWorker(1)
    worker.commits_on_arrival = True
    table.attach(worker, 0.0)
    table.open(worker, [a_job(hard_time_limit=LASTS, owner="me")], 0.0)
    assert over_limit(table, 0.0) == over_limit(table, 2 * LASTS) == []
