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
    """The rate at which jobs end at workers, in jobs a second; None while it is not known."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self.appetite = UNKNOWN
        self._began = time.monotonic()
        self._count = 0

    def begin(self) -> None:
        """Idle workers get jobs: what follows tells how fast they are."""
        if self.rate is None:
            self._began, self._count = time.monotonic(), 0

    def ended(self, count: int) -> None:
        """So many jobs have ended at workers."""
        self._count += count
        now = time.monotonic()
        if now - self._began >= _WINDOW:
            self._measure(now)

    def tick(self, *, working: bool) -> None:
        """Every second or so: workers that have jobs and end none are slow, not unknown."""
        if self._count or working:
            self._measure(time.monotonic())
        else:
            self.rate, self.appetite = None, UNKNOWN

    def _measure(self, now: float) -> None:
        self.rate = self._count / max(now - self._began, _WINDOW)
        self.appetite = int(min(LARGEST, self.rate * _AHEAD))
        self._began, self._count = now, 0
