"""The progress of running jobs, as their workers report it: the newest of each job, written once a second.

``kill -9`` before the write, or a lost reply: the last report is missing, and nothing else.
"""

from __future__ import annotations

from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.worker import Worker
from sluicemq_broker.runtime import Batcher
from sluicemq_broker.store import Progressed


class JobsProgress:
    """The progress of the jobs of one queue; workers that report none cost nothing."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._written = 0.0
        self._newest: dict[bytes, Progressed] = {}
        self._batcher: Batcher[bytes] = Batcher(self._write, size=1000, gather=self._gather)

    def report(self, receipt: bytes, worker: Worker, done: float, total: float | None, note: str) -> bool:
        """Note how far the job of a delivery is; False if this worker does not have the job (any more)."""
        delivery = self._core.scheduler.deliveries.at(receipt, worker)
        if delivery is None:
            return False
        if delivery.transaction is not None:
            return True  # a write to its job would wait for the transaction, or end it
        waits = receipt in self._newest
        self._newest[receipt] = Progressed(delivery.job, done, total, note, self._core.clock.now())
        if not waits:
            self._batcher.add(receipt)
        return True

    def _gather(self, _waiting: int) -> None:
        if (early := self._written + 1.0 - self._core.timer.now()) > 0:
            self._core.timer.sleep(early)

    def _write(self, receipts: list[bytes]) -> None:
        self._written = self._core.timer.now()
        newest = [self._newest.pop(receipt) for receipt in receipts]
        if not self._core.retry.over:  # a broker that stops has more important things to write
            self._core.retry.run(lambda: self._core.store.note_progress(newest))
