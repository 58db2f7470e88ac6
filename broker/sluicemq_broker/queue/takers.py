"""The order in which workers get jobs."""

from __future__ import annotations

from collections import deque

from sluicemq_broker.queue.worker import Worker


class Takers:
    """The line of workers that can take more: those that have answered before come first, in turn."""

    def __init__(self) -> None:
        self._proven: deque[Worker] = deque()
        self._new: deque[Worker] = deque()
        self._lines = (self._proven, self._new)

    def __len__(self) -> int:
        return len(self._proven) + len(self._new)

    def add(self, worker: Worker) -> None:
        """Put a worker at the end, unless it stands in the line."""
        if not worker.waiting:
            worker.waiting = True
            (self._proven if worker.proven else self._new).append(worker)

    def remove(self, worker: Worker) -> None:
        """Take a worker out of the line."""
        if worker.waiting:  # in either line: it may have been proven since
            for line in self._lines:
                if worker in line:
                    line.remove(worker)
            worker.waiting = False

    def next(self) -> Worker | None:
        """Take out the first."""
        for line in self._lines:
            if line:
                worker = line.popleft()
                worker.waiting = False
                return worker
        return None

    def next_idle(self) -> Worker | None:
        """Take out the first that is free and has nothing in flight."""
        for line in self._lines:
            for worker in line:
                if worker.free and not worker.in_flight:
                    line.remove(worker)
                    worker.waiting = False
                    return worker
        return None
