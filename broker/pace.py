"""How fast the workers of a queue are, and so how many jobs to hold ready for them."""

from __future__ import annotations

import time
from typing import Final

#: The shortest time over which a rate is measured, in seconds.
_WINDOW: Final = 0.02
#: So many seconds of work are held ready, up to a bound; this much for workers not known yet.
_AHEAD: Final = 0.25
UNKNOWN, LARGEST = 16, 8192


class Pace:
    """The rate at which jobs end at workers that have some, in jobs a second; None while not known."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self.appetite = UNKNOWN
        self.working = False
        self._began = self._rested = time.monotonic()
        self._count = 0

    def begin(self) -> None:
        """Idle workers get jobs; the time that they had none is not counted, whoever kept them waiting."""
        now = time.monotonic()
        self._began = now if self.rate is None else self._began + now - self._rested
        self._rested = now
        self.working = True

    def rest(self) -> None:
        """The last job at a worker has ended."""
        self._rested = time.monotonic()
        self.working = False

    def ended(self, count: int) -> None:
        """So many jobs have ended at workers."""
        self._count += count
        now = time.monotonic()
        if now - self._began >= _WINDOW:
            self._measure(now)

    def tick(self, *, working: bool) -> None:
        """Every second or so: workers that have jobs and end none are slow, not unknown."""
        self.working = working
        if working or self._count:
            self._measure(time.monotonic() if working else self._rested)
        else:
            self.rate, self.appetite = None, UNKNOWN

    def _measure(self, now: float) -> None:
        self.rate = self._count / max(now - self._began, _WINDOW)
        self.appetite = int(min(LARGEST, self.rate * _AHEAD))
        self._began, self._count = now, 0
