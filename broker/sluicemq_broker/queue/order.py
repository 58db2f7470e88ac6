"""Which job is next, of those that are staged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from sluicemq_broker.job import Job


class Order(Protocol):
    """A rule for which of the staged jobs is next; one object for each queue.

    Another rule (order per key, fairness, limits) is another class with these methods, which must agree
    with the order in which jobs are claimed: ``ORDER`` in ``store/documents.py``.
    """

    def __len__(self) -> int:
        """Jobs in it."""

    def add(self, jobs: Iterable[Job]) -> None:
        """These come, in the order of acceptance."""

    def take(self, count: int, most_bytes: float) -> list[Job]:
        """Take out the next ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""

    def take_last(self, count: int) -> list[Job]:
        """Take out those that would be the last."""


class PriorityOrder:
    """Higher priority first; of one priority, the first to be accepted is the first to go."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[Job]] = {}
        self._order: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

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
