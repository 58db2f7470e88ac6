"""How fast the workers of a queue are, and so how many jobs to hold ready for them."""

from __future__ import annotations

from typing import Final

from sluicemq_broker.runtime import Timer

#: The shortest time over which a rate is measured, in seconds.
_WINDOW: Final = 0.02
#: So many seconds of work are held ready, up to a bound; this much for workers not known yet.
_AHEAD: Final = 0.25
UNKNOWN, LARGEST = 16, 8192


class Pace:
    """The rate at which jobs end at workers that have some, in jobs a second; None while not known.

    Only time in which workers have jobs counts: who kept them waiting, nobody here knows.
    """

    def __init__(self, timer: Timer) -> None:
        self._now = timer.now
        self.rate: float | None = None
        self.appetite = UNKNOWN
        self._since: float | None = None
        self._worked = 0.0  # seconds, before that
        self._count = 0

    @property
    def working(self) -> bool:
        """True if workers have jobs."""
        return self._since is not None

    def begin(self) -> None:
        """Idle workers get jobs."""
        if self._since is None:
            self._since = self._now()

    def rest(self) -> None:
        """The last job at a worker has ended."""
        self._worked = self._time_worked()
        self._since = None

    def ended(self, count: int) -> None:
        """So many jobs have ended at workers."""
        self._count += count
        if self._time_worked() >= _WINDOW:
            self._measure()

    def tick(self, *, working: bool) -> None:
        """Every second or so: workers that have jobs and end none are slow, not unknown."""
        if working:
            self.begin()
        else:
            self.rest()
        if working or self._count:
            self._measure()
        else:
            self.rate, self.appetite, self._worked = None, UNKNOWN, 0.0

    def _time_worked(self) -> float:
        return self._worked + (0.0 if self._since is None else self._now() - self._since)

    def _measure(self) -> None:
        self.rate = self._count / max(self._time_worked(), _WINDOW)
        self.appetite = int(min(LARGEST, self.rate * _AHEAD))
        self._worked, self._count = 0.0, 0
        if self._since is not None:
            self._since = self._now()
