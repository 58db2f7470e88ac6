"""Counts that all processes of a run share: a small file, mapped into each.

Cell 0 is the number of jobs that ends the run. Then there is one cell for each process of workers, and one
for each producer: the jobs that it has done. Each cell has one writer, so nothing is locked.
"""

from __future__ import annotations

import mmap
from pathlib import Path

_CELL = 8


class SharedCounts:
    """The counts of all processes. ``slot``: the count of this process; None in the one that watches."""

    def __init__(self, file: Path, workers: int, slot: int | None = None) -> None:
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)
        self.cells = memoryview(self._map).cast("q")
        self.slot = slot or 0
        self._worked = self.cells[1 : 1 + workers]
        self._produced = self.cells[1 + workers :]

    @classmethod
    def make(cls, file: Path, workers: int, producers: int) -> SharedCounts:
        """Make new counts, all zero."""
        file.write_bytes(bytes(_CELL * (1 + workers + producers)))
        return cls(file, workers)

    @property
    def target(self) -> int:
        """Return how many jobs end the run."""
        return self.cells[0]

    @target.setter
    def target(self, jobs: int) -> None:
        self.cells[0] = jobs

    def worked(self) -> int:
        """Return how many jobs all workers have done so far."""
        return sum(self._worked)

    def produced(self) -> int:
        """Return how many jobs of all producers are confirmed, or sent if nobody confirms."""
        return sum(self._produced)

    def set(self, done: int) -> None:
        """Set the number of jobs that this process has done."""
        self.cells[self.slot] = done

    def is_over(self) -> bool:
        """Return whether the workers have done all jobs."""
        return sum(self._worked) >= self.cells[0]
