"""A queue over a store in memory."""

from typing import Any
from unittest.mock import MagicMock

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.context import Memory
from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.queue import Delivery, Queue
from sluicemq_broker.queue import pace as pace_module
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.ledger import Arrival
from sluicemq_broker.queue.plans import Conditions
from sluicemq_broker.queue.scheduler import Scheduler
from sluicemq_broker.runtime import Counters, Timer
from sluicemq_broker.store import ServerClock
from support.fakes import Clock, FakeOwners, FakeStore, FakeWorker, Held, a_context, go_on
from support.jobs import NOW, a_job

SMALLEST = pace_module.UNKNOWN


class DispatchRig:
    """A queue, and what a test says to it: of pushes, of workers, of what lies ready.

    ``queue`` is a real one; only its store, its clocks and its owners are fakes. After each method here all
    greenlets have done what they can.
    """

    def __init__(
        self,
        timer: Timer | None = None,
        *,
        slow: bool = False,
        clock: ServerClock | None = None,
        others: int = 0,
        store: FakeStore | None = None,
        memory: Memory | None = None,
        settings: QueueSettings | None = None,
        **context: Any,
    ) -> None:
        """``slow``: what is released stays on its way, until :meth:`let_go`."""
        self.store = store or FakeStore()
        self.owners = FakeOwners()
        self.owners.others = others
        self.clock: Any = clock or Clock()
        self.memory = memory or Memory()
        given = a_context(self.owners, clock=self.clock, memory=self.memory, timer=timer, **context)
        self.other_queues: Any = MagicMock()
        fake: Any = self.store
        self.queue = Queue("mail", settings or QueueSettings(), MagicMock(), given, self.other_queues, fake)
        self.counters: Counters = self.queue.counters
        self.outgoing = self.memory.outgoing
        self.now = given.timer.now
        self.events = given.events
        self._core = QueueCore("mail", fake, given, self.queue.scheduler, self.queue)
        self._slow = Held()
        if slow:
            self.store.before_release = self._slow

    @property
    def scheduler(self) -> Scheduler:
        return self.queue.scheduler

    @property
    def conditions(self) -> Conditions:
        """How things stand."""
        return self._core.conditions()

    def set_clock(self, now: float) -> None:
        """The server's clock shows another time."""
        self.clock.time = now

    @property
    def granting(self) -> bool:
        """True if jobs may be handed out, and a worker is there."""
        return self.scheduler.granting(self.conditions)

    # ---------------------------------------------------------------- jobs

    def ready(self, *jobs: Job) -> list[Job]:
        """Put ready jobs into the store, and let the queue know."""
        self.store.ready.extend(jobs)
        self.queue.jobs_ready(priority=max(job.priority for job in jobs))
        go_on()
        return list(jobs)

    def admit(self, *jobs: Job) -> Arrival:
        """A push that is about to be written."""
        number = self.owners.new_reservation()
        return self.scheduler.admit(jobs, number, NOW, self.conditions)

    def admitted(self, *jobs: Job) -> list[str]:
        """Return which of a push's jobs are inserted reserved."""
        self.admit(*jobs)
        return [job.id for job in jobs if job.owner]

    def only_ready(self, priority: int) -> None:
        """Jobs of this priority may lie ready, and none of a higher one; -1: none do."""
        self.scheduler.ledger.catch_up(NOW, self.now())
        if priority >= 0:
            self.scheduler.ledger.some_ready(priority, 0)

    def arrived(self, arrival: Arrival, durable: list[Job]) -> None:
        """It was written."""
        self.scheduler.arrived(arrival, durable)
        self.queue.dispatch()
        go_on()

    @property
    def held(self) -> list[str]:
        """The ids of all jobs that are reserved here."""
        return [job.id for job in self.scheduler.reservations]

    @property
    def room(self) -> int:
        return self.scheduler.room

    def stage(self, *jobs: Job) -> None:
        """Jobs that are reserved here, and durable."""
        arrival = self.scheduler.ledger.expect(jobs, list(jobs), 0, NOW, self.now())
        for job in jobs:
            job.reserve(Reservation(self.owners.current, 0))
        self.arrived(arrival, list(jobs))

    @property
    def released(self) -> list[Job]:
        """What has been given back, or is about to be."""
        return self.store.released

    def let_go(self) -> None:
        """What is being released is ready again."""
        self._slow.set()
        go_on()

    def tick(self) -> None:
        self.queue.tick()
        go_on()

    def look_twice(self) -> None:
        """Let deliveries end whose time is over: each does at the second look."""
        self.tick()
        self.tick()

    # ------------------------------------------------------------- workers

    def worker(self, prefetch: int = 1, name: str = "worker") -> FakeWorker:
        return self.attach(FakeWorker(prefetch, name))

    def attach(self, worker: FakeWorker) -> FakeWorker:
        self.queue.attach(worker)
        go_on()
        return worker

    def resize(self, worker: FakeWorker, prefetch: int) -> None:
        worker.prefetch = prefetch
        self.queue.offer(worker)
        go_on()

    def leave(self, worker: FakeWorker) -> list[Delivery]:
        """The worker has gone; returns what it leaves, and nothing becomes of that."""
        left = self.scheduler.hand_out.leave(worker)
        self.queue.dispatch()
        go_on()
        return left

    def commit(self, worker: FakeWorker, *receipts: bytes) -> None:
        """The worker settles these, or all it has; MongoDB has it at once."""
        for receipt in receipts or list(worker.in_flight):
            delivery = self.settle(receipt)
            assert delivery
            self.scheduler.ended([delivery.job])
        self.queue.offer(worker)
        go_on()

    def settle(self, receipt: bytes) -> Delivery | None:
        delivery = self.scheduler.hand_out.settle(receipt, self.now())
        if delivery is None:  # the worker of a late verdict takes more
            self.queue.dispatch()
        return delivery

    def time_out(self) -> list[Delivery]:
        """End the deliveries whose time is up; nothing becomes of their jobs."""
        now = self.now()
        late = self.scheduler.hand_out.time_out(now, now)
        self.queue.dispatch()
        go_on()
        return late

    def pause(self, *, paused: bool) -> None:
        self.queue.pause(frozenset({"delivery"} if paused else ()))
        go_on()


def isolated(job_id: str, **settings: Any) -> Job:
    job = a_job(job_id, **settings)
    job.isolated = True
    return job
