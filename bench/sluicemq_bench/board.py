"""Counts that all processes of a bench run see: a small file, mapped into each.

Cell 0 is the number of jobs that ends the run; then one cell for each process of workers, then one for each
producer: what it has done so far. Each cell has one writer, so nothing is locked.
"""

from __future__ import annotations

import mmap
from pathlib import Path

_CELL = 8


class Board:
    """The cells. ``slot`` is the one that this process writes to; None in the process that watches."""

    def __init__(self, file: Path, workers: int, slot: int | None = None) -> None:
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), 0)
        self.cells = memoryview(self._map).cast("q")
        self.slot = slot or 0
        self._worked = self.cells[1 : 1 + workers]
        self._produced = self.cells[1 + workers :]

    @classmethod
    def make(cls, file: Path, workers: int, producers: int) -> Board:
        """A new one, all zero."""
        file.write_bytes(bytes(_CELL * (1 + workers + producers)))
        return cls(file, workers)

    @property
    def target(self) -> int:
        """How many jobs end the run."""
        return self.cells[0]

    @target.setter
    def target(self, jobs: int) -> None:
        self.cells[0] = jobs

    def worked(self) -> int:
        """Jobs that all workers have done so far."""
        return sum(self._worked)

    def produced(self) -> int:
        """Jobs that all producers have got confirmed, or sent where nobody confirms."""
        return sum(self._produced)

    def set(self, done: int) -> None:
        """What this process has done so far."""
        self.cells[self.slot] = done

    def is_over(self) -> bool:
        """True if the workers have done all there is to do."""
        return sum(self._worked) >= self.cells[0]
