"""The order in which staged jobs go out."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import ClassVar, Final, Protocol

from sluicemq_broker.job import Job, RoundRobin

_TENANT: Final = attrgetter("turn")


class Order(Protocol):
    """The staged jobs of one queue, in the order in which they go out.

    Another order is another class with these methods. It must agree with the order in which jobs are
    claimed: ``store/jobs/claim_order.py``.
    """

    by_priority: ClassVar[bool]
    """True if a new job goes before all ready jobs of a lower priority. Else only MongoDB knows."""

    def __len__(self) -> int:
        """Return how many jobs are in it."""

    @property
    def first(self) -> Job:
        """The next job; there must be one."""

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs, in the order in which they were accepted."""

    def take(self, count: int, most_bytes: float) -> list[Job]:
        """Take out the next ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""

    def take_last(self, count: int) -> list[Job]:
        """Take out the ``count`` jobs that would go out last, the last one first."""


def order_of(*, fair: bool, weights: Mapping[str, int] | None = None) -> Order:
    """Return the order of a queue with these settings."""
    return FairOrder(RoundRobin(weights)) if fair else PriorityOrder()


class PriorityOrder:
    """Higher priority first; of one priority, the first to be accepted is the first to go."""

    by_priority: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lines: dict[int, deque[Job]] = {}
        self._order: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> Job:
        """The next job; there must be one."""
        return self._lines[self._order[0]][0]

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs behind those of their priority."""
        count = 0
        for job in jobs:
            line = self._lines.get(job.priority)
            if line is None:
                line = self._open(job.priority)
            line.append(job)
            count += 1
        self._count += count

    def take(self, count: int, most_bytes: float) -> list[Job]:
        """Take out the first ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""
        taken: list[Job] = []
        size = 0
        while self._order and len(taken) < count and size < most_bytes:
            line = self._lines[self._order[0]]
            while line and len(taken) < count and size < most_bytes:
                job = line.popleft()
                size += job.size
                taken.append(job)
            if not line:
                del self._lines[self._order.pop(0)]
        self._count -= len(taken)
        return taken

    def take_first(self) -> Job:
        """Take out the first job; there must be one."""
        line = self._lines[self._order[0]]
        job = line.popleft()
        if not line:
            del self._lines[self._order.pop(0)]
        self._count -= 1
        return job

    def take_last(self, count: int) -> list[Job]:
        """Take out the last ``count`` jobs, the last one first."""
        taken: list[Job] = []
        while self._order and len(taken) < count:
            line = self._lines[self._order[-1]]
            while line and len(taken) < count:
                taken.append(line.pop())
            if not line:
                del self._lines[self._order.pop()]
        self._count -= len(taken)
        return taken

    def _open(self, priority: int) -> deque[Job]:
        line: deque[Job] = deque()
        self._lines[priority] = line
        self._order = sorted(self._lines, reverse=True)
        return line


class FairOrder:
    """Round and round the tenants, as many jobs of each as it weighs; of one tenant, by priority.

    A new tenant is the last of the round.
    """

    by_priority: ClassVar[bool] = False

    def __init__(self, rounds: RoundRobin) -> None:
        self._weight = rounds.weight
        self._lines: dict[str, PriorityOrder] = {}
        self._round: deque[str] = deque()  # the tenants; the first is the one whose turn it is
        self._left = 0  # of its turn
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> Job:
        """The next job; there must be one."""
        return self._lines[self._round[0]].first

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs behind those of their tenant."""
        for tenant, run in groupby(jobs, key=_TENANT):  # a claim brings those of one together
            line = self._lines.get(tenant)
            if line is None:
                line = self._lines[tenant] = PriorityOrder()
                self._round.append(tenant)
            before = len(line)
            line.add(run)
            self._count += len(line) - before

    def take(self, count: int, most_bytes: float) -> list[Job]:
        """Take out the next ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""
        taken: list[Job] = []
        size = 0
        while self._round and len(taken) < count and size < most_bytes:
            tenant = self._round[0]
            line = self._lines[tenant]
            job = line.take_first()
            taken.append(job)
            size += job.size
            self._left = (self._left or self._weight(tenant)) - 1
            if not line:
                self._leave(tenant)
            elif not self._left:
                self._round.rotate(-1)
        self._count -= len(taken)
        return taken

    def take_last(self, count: int) -> list[Job]:
        """Take out those whose tenants have the most rounds before them, the last one first."""
        taken: list[Job] = []
        rounds = [(-len(line) / self._weight(each), each) for each, line in self._lines.items()]
        heapq.heapify(rounds)
        while rounds and len(taken) < count:
            _, tenant = rounds[0]
            line = self._lines[tenant]
            taken += line.take_last(1)
            if line:
                heapq.heapreplace(rounds, (-len(line) / self._weight(tenant), tenant))
            else:
                heapq.heappop(rounds)
                self._leave(tenant)
        self._count -= len(taken)
        return taken

    def _leave(self, tenant: str) -> None:
        if self._round[0] == tenant:
            self._left = 0
        self._round.remove(tenant)
        del self._lines[tenant]
