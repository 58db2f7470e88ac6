"""Jobs that this broker holds for the next free worker."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container

from sluicemq_broker.job import Job, StagedOrder
from sluicemq_broker.runtime import Budget


class Staging:
    """Reserved jobs in memory, in the order of the queue; isolated jobs apart.

    ``bytes`` is the sum of their sizes, which counts in the ``budget`` of all queues, too.

    An isolated job is one that a worker died with. It goes out alone, to a worker with nothing else in
    flight, so that a poison job takes no other job with it.
    """

    def __init__(self, budget: Budget, order: StagedOrder) -> None:
        self._budget = budget
        self.order = order
        self.isolated: deque[Job] = deque()
        self.bytes = 0
        self.soonest = math.inf
        """Before this time of the server's clock none of them expires."""

    def __len__(self) -> int:
        """Return how many jobs are staged, without the isolated ones."""
        return len(self.order)

    @property
    def first(self) -> Job:
        """The next job, an isolated job if there is one; there must be one of either."""
        return self.isolated[0] if self.isolated else self.order.first

    def follow(self, order: StagedOrder) -> None:
        """Put the jobs, those to come and those that are staged, in another order."""
        staged = self.order.take(len(self.order), math.inf)
        self.order = order
        self.order.add(staged)

    def add(self, jobs: list[Job]) -> None:
        """Add jobs, in the order in which they were accepted."""
        isolated = [job for job in jobs if job.isolated]
        self.isolated.extend(isolated)
        self.order.add([job for job in jobs if not job.isolated] if isolated else jobs)
        self._grow(sum([job.size for job in jobs]))
        if mortal := [job.expires_at for job in jobs if job.expires_at is not None]:
            self.soonest = min(self.soonest, *mortal)

    def take(self, count: int, most_bytes: float = math.inf) -> list[Job]:
        """Take out the next ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""
        return self._out(self.order.take(count, most_bytes))

    def take_isolated(self) -> Job:
        """Take out the first isolated job."""
        return self._out([self.isolated.popleft()])[0]

    def take_last(self, count: int) -> list[Job]:
        """Take out the last ``count`` jobs, which would go out last."""
        return self._out(self.order.take_last(count))

    def clear(self) -> list[Job]:
        """Take out everything, isolated jobs too."""
        isolated = [self.take_isolated() for _ in range(len(self.isolated))]
        return [*isolated, *self.take(len(self.order))]

    def drop(self, owner: str) -> list[Job]:
        """Take out the jobs reserved under one owner id."""
        return self._sort_out(lambda job: job.owner == owner)

    def remove(self, removed: Container[tuple[str, int | None]]) -> list[Job]:
        """Take out the jobs with these ids and numbers."""
        return self._sort_out(lambda job: (job.id, job.seq) in removed)

    def take_expired(self, now: float) -> list[Job]:
        """Take out the jobs that have expired by then; costs nothing while none can have."""
        if now < self.soonest:
            return []
        return self._sort_out(lambda job: job.expires_at is not None and job.expires_at <= now)

    def _sort_out(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        everything = self.clear()
        self.soonest = math.inf
        out = [job for job in everything if unwanted(job)]
        self.add([job for job in everything if not unwanted(job)] if out else everything)
        return out

    def _out(self, jobs: list[Job]) -> list[Job]:
        self._grow(-sum([job.size for job in jobs]))
        return jobs

    def _grow(self, size: int) -> None:
        self.bytes += size
        self._budget.take(size)
