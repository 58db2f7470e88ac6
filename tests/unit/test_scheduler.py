"""The scheduler in plain values: in every order of events each job goes to one worker, and is done once."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.queue.ledger import Arrival, Claiming
from sluicemq_broker.queue.limits import QueueLimits
from sluicemq_broker.queue.plans import ClaimPlan, Conditions
from sluicemq_broker.queue.scheduler import Scheduler
from sluicemq_broker.runtime import Budget
from sluicemq_broker.store import StagedByPriority
from support.fakes import FakeWorker
from support.jobs import NOW, a_job

ME = "me"
SOME = st.integers(1, 6)


class Queue(RuleBasedStateMachine):
    """A queue without clock, MongoDB or greenlets: its rules are events; ``ready`` is in MongoDB."""

    def __init__(self) -> None:
        super().__init__()
        settings = QueueSettings()
        self.scheduler = Scheduler(QueueLimits(settings), StagedByPriority(), Budget(2**26), Budget(1000))
        self.now = 1000.0
        self.numbers = 0
        self.seq = int(NOW * 1e6)
        self.pushes: list[tuple[Arrival, list[Job]]] = []
        self.claims: list[tuple[Claiming, ClaimPlan, list[Job]]] = []
        self.ready: list[Job] = []
        self.pushed: set[str] = set()
        self.done: list[str] = []
        self.workers: list[FakeWorker] = []

    @property
    def conditions(self) -> Conditions:
        return Conditions(self.now, NOW, ME, 0, 0, may_hand_out=True)

    def go_on(self) -> None:
        """What the queue does after each event."""
        scheduler, conditions = self.scheduler, self.conditions
        scheduler.wake(conditions)
        self.give_back(scheduler.unwanted(conditions))
        while message := scheduler.hand_out.next_message(2**20, self.now):
            message.worker.deliver(message.deliveries)
            scheduler.hand_out.sent(message)
        scheduler.take_news()
        if claiming := scheduler.next_claiming(conditions):
            self.begin_claim(claiming)

    def begin_claim(self, claiming: Claiming) -> None:
        limit = self.scheduler.wanted(claiming, self.conditions)
        if not limit:
            self.scheduler.ledger.end(claiming)
            return
        self.numbers += 1
        plan = self.scheduler.plan(claiming, limit, self.numbers, self.conditions)
        found = sorted(self.ready, key=lambda job: (-job.priority, job.seq))
        taken = [job for job in found if job.seq < plan.bound.before][:limit]
        for job in taken:
            self.ready.remove(job)
            job.reserve(Reservation(ME, plan.number))
        self.claims.append((claiming, plan, taken))

    def give_back(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.attempts -= 1
            job.reservation = Reservation("", 0)
        self.scheduler.ended(jobs)
        self.ready += jobs
        if jobs:
            self.scheduler.some_ready(count=len(jobs))

    # ------------------------------------------------------------ what happens

    @rule(count=SOME, priority=st.integers(0, 2))
    def push(self, count: int, priority: int) -> None:
        jobs = [a_job(priority=priority) for _ in range(count)]
        for job in jobs:
            self.seq += 1
            job.accept(self.seq, NOW)
        self.numbers += 1
        self.pushes.append((self.scheduler.admit(jobs, self.numbers, NOW, self.conditions), jobs))
        self.pushed |= {job.id for job in jobs}
        self.go_on()

    @precondition(lambda self: self.pushes)
    @rule(data=st.data())
    def push_is_durable(self, data: Any) -> None:
        self.durable(data.draw(st.integers(0, len(self.pushes) - 1)))

    def durable(self, which: int) -> None:
        arrival, jobs = self.pushes.pop(which)
        plain = [job for job in jobs if not job.owner]
        self.ready += plain
        self.scheduler.arrived(arrival, arrival.jobs)
        if plain:
            self.scheduler.some_ready(max(job.priority for job in plain), 0)
        self.go_on()

    @precondition(lambda self: self.claims)
    @rule()
    def claim_is_answered(self) -> None:
        claiming, plan, jobs = self.claims.pop(0)
        more = len(jobs) == plan.limit
        self.scheduler.claimed(plan, jobs, {}, self.conditions, more=more)
        self.scheduler.answered(plan, len(jobs))
        if claiming.catches_up:
            self.scheduler.ledger.caught_up(plan.bound)
        self.scheduler.ledger.end(claiming)
        self.go_on()

    @rule(prefetch=SOME)
    def worker_comes(self, prefetch: int) -> None:
        worker = FakeWorker(prefetch)
        self.workers.append(worker)
        self.scheduler.deliveries.attach(worker, self.now)
        self.scheduler.hand_out.offer(worker)
        self.go_on()

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def worker_leaves(self, data: Any) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        self.workers.remove(worker)
        self.give_back([delivery.job for delivery in self.scheduler.hand_out.leave(worker)])
        self.go_on()

    @precondition(lambda self: any(worker.in_flight for worker in self.workers))
    @rule(data=st.data())
    def worker_commits(self, data: Any) -> None:
        worker = data.draw(st.sampled_from([other for other in self.workers if other.in_flight]))
        self.commit(worker, next(iter(worker.in_flight)))

    def commit(self, worker: FakeWorker, receipt: bytes) -> None:
        delivery = self.scheduler.hand_out.settle(receipt, self.now)
        assert delivery
        self.scheduler.pace.ended(1, self.now)
        self.scheduler.hand_out.offer(worker)
        self.scheduler.ended([delivery.job])
        self.done.append(delivery.job.id)
        self.go_on()

    @rule(seconds=st.sampled_from([0.01, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.scheduler.tick(self.conditions)
        self.go_on()

    # --------------------------------------------------------------- what holds

    @invariant()
    def no_worker_has_more_than_it_takes(self) -> None:
        assert all(len(worker.in_flight) <= worker.prefetch for worker in self.workers)

    @invariant()
    def no_worker_is_idle_while_jobs_are_staged_for_it(self) -> None:
        assert not len(self.scheduler.staging) or not any(worker.free for worker in self.workers)

    @invariant()
    def what_is_staged_or_at_a_worker_is_reserved_and_no_job_is_in_two_places(self) -> None:
        at_workers = [delivery.job.id for worker in self.workers for delivery in worker.in_flight.values()]
        places = [*at_workers, *self.done, *(job.id for job in self.ready)]
        assert len(places) == len(set(places))
        assert set(at_workers) <= {job.id for job in self.scheduler.reservations}
        assert len(self.scheduler.reservations) == len(at_workers) + len(self.scheduler.staging)

    def teardown(self) -> None:
        """Every job is done once, when a worker is there for long enough."""
        self.worker_comes(3)
        for _ in range(20 * len(self.pushed) + 20):
            while self.pushes:
                self.durable(0)
            while self.claims:
                self.claim_is_answered()
            for worker in self.workers:
                for receipt in list(worker.in_flight):
                    self.commit(worker, receipt)
            self.time_passes(1.0)
        assert sorted(self.done) == sorted(self.pushed)


TestScheduler = Queue.TestCase
