"""Deliveries, reservations, permits: no credit is lost or given twice, and memory is bounded."""

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.context import Memory
from sluicemq_broker.job import Job, Pack, Reservation
from sluicemq_broker.queue import Delivery, Marks
from sluicemq_broker.queue.deliveries import Deliveries
from sluicemq_broker.queue.limits import QueueLimits
from sluicemq_broker.queue.reservations import Reservations
from sluicemq_broker.queue.scheduler import LEAST_CLAIM, Scheduler
from sluicemq_broker.queue.staging import Staging
from sluicemq_broker.queue.worker import DeliveryState
from sluicemq_broker.store import StagedByPriority
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


@pytest.fixture
def reservations() -> Reservations:
    return Reservations()


def held(job_id: str, hold: int) -> Job:
    job = Job(job_id, b"")
    job.reserve(Reservation("me", hold))
    return job


def test_a_reservation_is_known_by_its_hold_and_not_by_the_id_alone(reservations: Reservations) -> None:
    reservations.add([held("job", 2)])
    assert not reservations.unknown([("job", 2)])
    assert reservations.unknown([("job", 1)])  # a claim that has landed late: nobody has it
    assert reservations.unknown([("other", 2)])


def test_what_lies_under_the_number_of_an_open_claim_is_known(reservations: Reservations) -> None:
    reservations.begin(7)
    assert not reservations.unknown([("job", 7)])
    reservations.end(7)
    assert reservations.unknown([("job", 7)])


def test_two_lives_of_one_id_are_both_known_until_each_is_over(reservations: Reservations) -> None:
    former, later = held("job", 1), held("job", 2)
    reservations.add([former])
    reservations.add([later])
    assert not reservations.unknown([("job", 1)])
    assert not reservations.unknown([("job", 2)])
    reservations.remove([former])
    assert reservations.unknown([("job", 1)])
    assert not reservations.unknown([("job", 2)])
    assert "job" in reservations
    reservations.remove([later])
    assert "job" not in reservations
    assert len(reservations) == 0


def test_a_pack_is_known_while_one_of_its_jobs_is(reservations: Reservations) -> None:
    jobs, pack = [held("a", 3), held("b", 3)], Pack("pack/m/1", 0, 2)
    for job in jobs:
        job.pack_into(pack)
    reservations.add(jobs)
    reservations.remove(jobs[:1])
    assert reservations.unknown([("pack/m/1", 3), ("pack/m/1", 2), ("pack/m/2", 3)]) == [
        ("pack/m/1", 2),
        ("pack/m/2", 3),
    ]
    reservations.remove(jobs[1:])
    assert reservations.unknown([("pack/m/1", 3)])


def test_permits_of_a_former_id_are_not_given_back_however_the_limits_change() -> None:
    limits = QueueLimits(QueueSettings(max_running=5))
    limits.use("former")
    limits.permits = 5
    limits.give_back_later(1000.0)
    limits.reconfigure(QueueSettings())
    limits.use("new")
    assert limits.next(1001.0) == math.inf


MIB = 2**20


def test_a_claim_may_bring_an_eighth_of_what_is_free_and_always_a_little() -> None:
    memory = Memory(hwm_bytes=64 * MIB)
    scheduler = Scheduler(QueueLimits(QueueSettings()), StagedByPriority(), memory.staged, memory.expiries)
    assert scheduler.room_bytes == 8 * MIB
    memory.staged.take(32 * MIB)
    assert scheduler.room_bytes == 4 * MIB
    memory.staged.take(32 * MIB)
    assert (scheduler.room_bytes, memory.staged.full) == (LEAST_CLAIM, True)


def test_what_is_held_for_the_workers_of_all_queues_adds_up() -> None:
    memory = Memory()
    one, other = [Staging(memory.staged, StagedByPriority()) for _ in range(2)]
    one.add(some_jobs(2, size=10))
    other.add(some_jobs(3, size=100))
    assert memory.staged.used == 320
    one.clear()
    other.take_last(1)
    assert memory.staged.used == 200


def test_jobs_on_their_way_fill_it_by_their_bytes_and_verdicts_by_their_number_too() -> None:
    memory, told = Memory(hwm=10, hwm_bytes=1000), list[bool]()
    memory.follow(lambda: told.append(memory.takes_no_more))
    memory.pushes.take(100, 999)
    memory.pushes.take(1, 1)
    memory.pushes.give(101, 1000)
    went_on: list[bool] = []

    def go_on() -> None:
        went_on.append(True)

    memory.verdicts.take(go_on, 10, 0)
    memory.verdicts.give(go_on, 10, 0)
    assert told == [True, False, True, False]
    assert went_on == [True]
