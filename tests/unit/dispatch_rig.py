"""A dispatcher with fakes around it."""

from __future__ import annotations

from typing import Any

from sluicemq_broker.job.job import Job
from sluicemq_broker.queue import pace as pace_module
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.runtime.timer import Timer
from support.fakes import Clock, FakeOutlet, FakeOwners, FakeStore, FakeWorker, a_context, go_on, no_limits
from support.jobs import NOW, a_job

SMALLEST = pace_module.UNKNOWN


class DispatchRig(FakeOutlet):
    """A dispatcher with the fakes around it; what is released is ready again at once."""

    def __init__(self, timer: Timer | None = None, *, slow: bool = False) -> None:
        """``slow``: what is released stays on its way."""
        super().__init__()
        self.store = FakeStore()
        self.owners = FakeOwners()
        self.clock = Clock()
        self.counters = Counters()
        context = a_context(self.owners, clock=self.clock, counters=self.counters, timer=timer)
        self.outgoing = context.memory.outgoing
        self.dispatch = Dispatch(self.store, context, self, no_limits(context))  # type: ignore[arg-type]
        self._slow = slow

    def release(self, jobs: list[Job]) -> None:
        super().release(jobs)
        if self._slow:
            self.dispatch.supply.returning(len(jobs))
        else:
            self.dispatch.forget(jobs)
            self.store.ready.extend(jobs)

    def ready(self, *jobs: Job) -> list[Job]:
        """Put ready jobs into the store, and let the dispatcher know."""
        self.store.ready.extend(jobs)
        self.dispatch.supply.some_ready(max(job.priority for job in jobs))
        go_on()
        return list(jobs)

    def worker(self, prefetch: int = 1, name: str = "worker") -> FakeWorker:
        worker = FakeWorker(prefetch, name)
        self.dispatch.attach(worker)
        go_on()
        return worker

    def commit(self, worker: FakeWorker, *receipts: bytes) -> None:
        """The worker settles these, or all it has."""
        for receipt in receipts or list(worker.in_flight):
            delivery = self.dispatch.settle(receipt)
            assert delivery
            self.dispatch.forget([delivery.job])
        self.dispatch.offer(worker)
        go_on()

    def born(self, *jobs: Job) -> list[str]:
        """Return which of a push's jobs are inserted reserved."""
        self.dispatch.supply.expect(jobs, NOW)
        return [job.id for job in jobs if job.owner]


def isolated(job_id: str, **settings: Any) -> Job:
    job = a_job(job_id, **settings)
    job.isolated = True
    return job
