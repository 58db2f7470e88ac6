"""How fast the workers of a queue are, and how many jobs to hold ready for them."""

from __future__ import annotations

from typing import Final

#: The shortest time over which a rate is measured, in seconds.
_WINDOW: Final = 0.02
#: Seconds of work that are held ready for workers whose pace is known.
_AHEAD: Final = 0.25
#: Seconds of work that are held ready beside other brokers, at least: what is held here keeps their workers
#: idle. But it must last until the next claim has brought more, for which some ``_CLAIMS`` times as long as
#: the last one took are enough.
_SHARED: Final = 0.05
_CLAIMS: Final = 2
#: Jobs that are held ready for workers whose pace is not known, alone and beside other brokers; and at most.
UNKNOWN, FEW, LARGEST = 16, 2, 8192


class Pace:
    """The rate at which jobs end at workers, in jobs a second; None while it is not known.

    Only time in which workers have jobs counts. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self.appetite = UNKNOWN
        """How many jobs to hold ready."""
        self._shared = False
        self._claim_took = 0.0
        self._since: float | None = None
        self._worked = 0.0  # seconds, before that
        self._count = 0

    @property
    def working(self) -> bool:
        """True if workers have jobs."""
        return self._since is not None

    def share(self, *, shared: bool) -> None:
        """Follow whether other brokers may have workers for the jobs."""
        if shared is not self._shared:
            self._shared = shared
            self._follow()

    def claim_took(self, seconds: float) -> None:
        """Note how long a claim has taken."""
        self._claim_took = seconds

    def begin(self, now: float) -> None:
        """Start the clock: idle workers get jobs."""
        if self._since is None:
            self._since = now

    def rest(self, now: float) -> None:
        """Stop the clock: the last job at a worker has ended."""
        self._worked = self._time_worked(now)
        self._since = None

    def ended(self, count: int, now: float) -> None:
        """Count jobs that have ended at workers."""
        self._count += count
        if self._time_worked(now) >= _WINDOW:
            self._measure(now)

    def tick(self, now: float, *, working: bool) -> None:
        """Measure, every second or so: workers that have jobs and end none are slow, not unknown."""
        if working:
            self.begin(now)
        else:
            self.rest(now)
        if working or self._count:
            self._measure(now)
        else:
            self.rate, self._worked = None, 0.0
            self._follow()

    def _time_worked(self, now: float) -> float:
        return self._worked + (0.0 if self._since is None else now - self._since)

    def _measure(self, now: float) -> None:
        self.rate = self._count / max(self._time_worked(now), _WINDOW)
        self._follow()
        self._worked, self._count = 0.0, 0
        if self._since is not None:
            self._since = now

    def _follow(self) -> None:
        if self.rate is None:
            self.appetite = FEW if self._shared else UNKNOWN
        else:
            self.appetite = int(min(LARGEST, self.rate * self._ahead))

    @property
    def _ahead(self) -> float:
        return min(_AHEAD, max(_SHARED, self._claim_took * _CLAIMS)) if self._shared else _AHEAD
