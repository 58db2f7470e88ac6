"""Jobs whose workers end them within transactions of their own: what MongoDB says of them.

``kill -9`` of the broker, before or after any statement here: a job that its transaction has ended is done,
and any other is given back when the lease has run out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sluicemq.protocol.errors import SluiceError, UncertainError
from sluicemq_broker.job import RESULT_WANTED_FOR, Job
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.decisions import Settled, TakeBack, check_result
from sluicemq_broker.queue.other_queues import OtherQueues
from sluicemq_broker.queue.pending_writes import by_owner, write_held
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.store import Completed, confirm_ends, statements_of_end


class ApplicationCommits:
    """Such jobs of one queue."""

    def __init__(self, core: QueueCore, waiters: ResultWaiters, others: OtherQueues) -> None:
        self._core = core
        self._waiters = waiters
        self._others = others

    def begin(self, delivery: Delivery, size: int) -> bytes:
        """Return the statements that end a job with a result of ``size`` bytes, in BSON.

        From now on only MongoDB knows whether the job has ended. Raises :class:`TooLarge` for its result.
        """
        job = delivery.job
        check_result(size, job)
        if delivery.transaction is None:
            delivery.transaction = []
        delivery.moved = delivery.moved or job.pack is not None
        now = self._core.clock.now()
        started = now - self._core.timer.now() + delivery.handed_at
        completed = Completed(job, b"", delivery.worker.name, started)
        statements, delivery.transaction = self._core.retry.run(
            lambda: statements_of_end(
                self._core.store, completed, size, now, lambda name: self._others.open(name).store
            )
        )
        return statements

    def confirm(self, jobs: Sequence[Job]) -> dict[str, SluiceError]:
        """Return the ids of jobs that were not ended by their transactions, and why; remove those that were.

        A job that is missing has ended so long ago that MongoDB has removed it, if nobody else had it.
        """
        for job in jobs:
            if job.result_wanted and self._waiters.wanted_by_others(job):
                job.keep_result(RESULT_WANTED_FOR)
        problems: dict[str, SluiceError] = {}
        for owner, these in by_owner(jobs).items():
            found = write_held(self._core, owner, partial(self._confirm, these))
            kept: bool = bool(found) and self._core.retry.run(partial(self._core.owners.keeps, owner))
            if kept:
                found = {job_id: why for job_id, why in found.items() if not isinstance(why, UncertainError)}
            problems |= found
        return problems

    def _confirm(self, jobs: Sequence[Job]) -> dict[str, SluiceError]:
        return confirm_ends(self._core.store, jobs, self._core.clock.now())

    def take_back(self, settled: Settled[TakeBack]) -> bytes | SluiceError | None:
        """Give a job back, if its transaction has not ended it, nor does while this waits for it.

        Return None if it is given back; else the result with which it has ended, or why nobody knows.
        """
        entry, now = settled.decision.otherwise.entry, self._core.clock.now()
        if self._core.retry.run(lambda: self._core.store.roll_back([entry], now)):
            return None
        job = entry.job
        result = b""
        if job.id in self._waiters:
            result = self._core.retry.run(lambda: self._core.store.result(job.id)) or b""
        return self.confirm([job]).get(job.id, result)

    def parents_ended(self, settled: Sequence[Settled[Any]]) -> None:
        """Answer clients that wait for parents which have ended with these, and let their groups go on."""
        for end in settled:
            for parent in end.delivery.transaction or ():
                self._others.open(parent.queue).parent_ended(parent, elsewhere=True)
