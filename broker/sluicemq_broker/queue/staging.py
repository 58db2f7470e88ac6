"""Jobs that this broker holds for the next free worker, in the order in which they go out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.memory import Memory


class Staging:
    """Reserved jobs in memory: higher priority first, FIFO inside one; suspects apart.

    ``bytes`` is the sum of their sizes, which counts in the ``memory`` of the broker too.

    A suspect is a job that a worker died with. It goes out alone, to a worker with nothing else in
    flight, so that a poison job takes no other job with it.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.suspects: deque[Job] = deque()
        self._lines: dict[int, deque[Job]] = {}
        self._order: list[int] = []
        self._count = 0
        self.bytes = 0

    def __len__(self) -> int:
        """Jobs that are staged, without the suspects."""
        return self._count

    def add(self, jobs: Iterable[Job]) -> None:
        """Put jobs behind those of their priority."""
        size = 0
        for job in jobs:
            size += job.size
            if job.suspect:
                self.suspects.append(job)
                continue
            line = self._lines.get(job.priority)
            if line is None:
                line = self._open(job.priority)
            line.append(job)
            self._count += 1
        self._grow(size)

    def take(self, count: int, most_bytes: float = math.inf) -> list[Job]:
        """Take out the first ``count`` jobs, fewer if these come to ``most_bytes``, but one at least."""
        taken: list[Job] = []
        size = 0
        while self._order and len(taken) < count and size < most_bytes:
            priority = self._order[0]
            line = self._lines[priority]
            while line and len(taken) < count and size < most_bytes:
                job = line.popleft()
                size += job.size
                taken.append(job)
            if not line:
                del self._lines[priority], self._order[0]
        self._count -= len(taken)
        self._grow(-size)
        return taken

    def take_suspect(self) -> Job:
        """Take out the first suspect."""
        job = self.suspects.popleft()
        self._grow(-job.size)
        return job

    def take_last(self, count: int) -> list[Job]:
        """Take out the last ``count`` jobs, which would go out last."""
        taken: list[Job] = []
        while self._order and len(taken) < count:
            line = self._lines[self._order[-1]]
            while line and len(taken) < count:
                taken.append(line.pop())
            if not line:
                del self._lines[self._order.pop()]
        self._count -= len(taken)
        self._grow(-sum([job.size for job in taken]))
        return taken

    def clear(self) -> list[Job]:
        """Take out everything, suspects too."""
        suspects = [self.take_suspect() for _ in range(len(self.suspects))]
        return [*suspects, *self.take(self._count)]

    def drop(self, owner: str) -> list[Job]:
        """Take out what is held under one owner id."""
        everything = self.clear()
        self.add(job for job in everything if job.owner != owner)
        return [job for job in everything if job.owner == owner]

    def _grow(self, size: int) -> None:
        self.bytes += size
        self._memory.staged += size

    def _open(self, priority: int) -> deque[Job]:
        line: deque[Job] = deque()
        self._lines[priority] = line
        self._order = sorted(self._lines, reverse=True)
        return line
