"""A settling with a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.context.memory import Memory
from sluicemq_broker.context.retry import Retry
from sluicemq_broker.job.backoff import Backoff
from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.endings import Endings
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.settler import _DEFAULT_BACKOFF, Settler
from sluicemq_broker.queue.verdict import Settlement, Verdict
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.store.jobs.outcomes import Completed, RolledBack
from sluicemq_devices.hub.callbacks import nothing
from support.fakes import FakeOwners, FakeStore, FakeWorker, a_context, go_on, no_limits
from support.jobs import some_jobs


class SettleStore(FakeStore):
    """Takes every verdict, unless ``fault`` is set."""

    fault: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.rolled_back: list[RolledBack] = []
        self.before_commit: Callable[[], None] = nothing
        self.finished: list[Completed] = []

    def _end(self, job: Job) -> SluiceError | None:
        if self.fault:
            raise self.fault
        return super()._end(job)

    def commit(self, jobs: Sequence[Job]) -> dict[str, SluiceError]:
        self.before_commit()
        return super().commit(jobs)

    def roll_back(self, entries: Sequence[RolledBack], now: float) -> int:
        self.rolled_back += entries
        return super().roll_back(entries, now)

    def complete(self, completed: Sequence[Completed], now: float) -> dict[str, SluiceError]:
        self.finished += completed
        return super().complete(completed, now)


class WaitersThatFail(ResultWaiters):
    """Fails whenever a job has ended; nobody waits here."""

    def committed(self, job_id: str, _result: bytes) -> None:
        raise ValueError(job_id)

    def failed(self, job_id: str, _error: SluiceError) -> None:
        raise ValueError(job_id)


class SettlingRig:
    """The verdicts of one queue over a store in memory, and a worker that has ``count`` jobs."""

    def __init__(
        self,
        count: int,
        *,
        pops: bool = False,
        attempts: int = 0,
        backoff: Backoff = _DEFAULT_BACKOFF,
        max_attempts: int = 1,
        memory: Memory | None = None,
        **settings: Any,
    ) -> None:
        self.store = SettleStore()
        self.counters = Counters()
        self.retry = Retry(0.001)
        self.owners = FakeOwners()
        self.memory = memory or Memory()
        context = a_context(self.owners, counters=self.counters, retry=self.retry, memory=self.memory)
        store: Any = self.store
        waiters = WaitersThatFail(store, self.retry)
        self.dispatch = Dispatch(store, context, self, no_limits(context))
        nowhere: Any = None
        endings = Endings(store, context, waiters, self.dispatch.groups, nowhere)
        self.settle = Settler("mail", store, context, self.dispatch, waiters, endings, nowhere, backoff)
        self.heard: list[dict[int, SluiceError]] = []
        self.store.ready += some_jobs(count, max_attempts=max_attempts, **settings)
        for job in self.store.ready:
            job.attempts = attempts
        self.worker = FakeWorker(count)
        self.worker.pops = pops

    def pop(self, worker: Worker, deliveries: list[Delivery]) -> None:
        self.settle.pop(worker, deliveries)

    def release(self, jobs: list[Job]) -> None:
        self.settle.release(jobs)

    def claimed(self) -> None:
        """Nobody waits for room."""

    def died(self, ids: Iterable[str]) -> None:
        """Nobody asks."""

    def time_is_over(self, ids: Iterable[str]) -> None:
        """Nothing expires."""

    def hire(self) -> None:
        self.dispatch.attach(self.worker)
        self.dispatch.supply.some_ready()
        self.wait()

    def verdict(
        self,
        kind: str,
        told: Callable[[dict[int, SluiceError]], None] | None = None,
        *,
        detail: bytes = b"",
        delay: float | None = None,
    ) -> None:
        receipts = [each.receipt for each in self.worker.deliveries]
        self.settle.settle(
            [Verdict(each, kind, detail, delay) for each in receipts], Settlement(told or self.heard.append)
        )
        self.wait()

    def wait(self) -> None:
        go_on()
        for batcher in self.settle.batchers:
            assert batcher.drain(5.0)
        go_on()
