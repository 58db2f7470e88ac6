"""Jobs that are done, as MongoDB hears of it: removed, kept, or counted at the parents that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import RESULT_WANTED_FOR, Job
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.decisions import Commit, Settled
from sluicemq_broker.queue.other_queues import OtherQueues
from sluicemq_broker.queue.pending_writes import by_owner, weigh, write_held, write_in_portions
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.store import Completed, Portions, end_children

#: Commits in one statement, at most.
COMMIT: Final = 1000


class Commits:
    """Writes the commits of one queue."""

    def __init__(self, core: QueueCore, waiters: ResultWaiters, others: OtherQueues) -> None:
        self._core = core
        self._waiters = waiters
        self._others = others
        # Children that end in one transaction, at most.
        self._portions = Portions(1000, core.counters.notice)
        #: Children of one parent that end here in two transactions at once would be in conflict.
        self._one_at_a_time = BoundedSemaphore()

    @staticmethod
    def weigh(settled: Settled[Commit]) -> int:
        """Return how much of a batch of :data:`COMMIT` it takes."""
        size = len(settled.decision.result)
        # Bytes of their results in one statement, about
        return weigh(1, size, COMMIT, 16 * 2**20) if size else 1

    def write(self, batch: Sequence[Settled[Commit]], now: float) -> dict[str, SluiceError]:
        """End the jobs of these; returns the ids of those that were not ended, and why."""
        removed: list[Job] = []
        kept: list[Completed] = []
        children: list[Completed] = []
        began = now - self._core.timer.now()  # the server's time when this process's was 0
        for end in batch:
            delivery = end.delivery
            job = delivery.job
            if job.result_wanted and self._waiters.wanted_by_others(job):
                job.keep_result(RESULT_WANTED_FOR)
            delivery.kept = job.kept_until(now) is not None
            if delivery.kept or job.parent:
                worker, started = delivery.worker.name, began + delivery.handed_at
                done = Completed(job, end.decision.result, worker, started)
                (children if job.parent else kept).append(done)
            else:
                removed.append(job)
        problems = self._remove(removed) | self._complete(kept)
        return problems | self._end_children(children) if children else problems

    def _remove(self, jobs: list[Job]) -> dict[str, SluiceError]:
        problems: dict[str, SluiceError] = {}
        for owner, these in by_owner(jobs).items():
            problems |= write_held(self._core, owner, partial(self._core.store.commit, these))
        return problems

    def _complete(self, completed: list[Completed]) -> dict[str, SluiceError]:
        if not completed:
            return {}
        return self._core.retry.run(lambda: self._core.store.complete(completed, self._core.clock.now()))

    def _end_children(self, completed: list[Completed]) -> dict[str, SluiceError]:
        """End these and count them at their parents, which end with the last, or are ready once more."""
        with self._one_at_a_time:
            return write_in_portions(self._core, self._portions, completed, _parent, self._end)

    def _end(self, completed: Sequence[Completed]) -> dict[str, SluiceError]:
        now = self._core.clock.now()
        problems, parents = end_children(
            self._core.store, completed, now, lambda name: self._others.open(name).store
        )
        for parent in parents:
            self._others.open(parent.queue).parent_ended(parent)
        return problems


def _parent(child: Completed) -> tuple[str, str]:
    """Return the place of a child: those of one parent, and of one queue of parents, end together."""
    return (child.job.parent.queue, child.job.parent.id) if child.job.parent else ("", "")
