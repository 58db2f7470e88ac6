"""Tenants whose jobs are due and may not begin yet: when to look for them again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sluicemq_broker.job import Job
from sluicemq_broker.runtime import Timer

#: Seconds between two looks, at least: what becomes free in that time is claimed together.
_SOONEST: Final = 0.05
#: Seconds to the next look while jobs at other brokers keep them, at most.
_LONGEST: Final = 1.0
#: By so many seconds a timer, or what is told in whole milliseconds, may be early.
_EARLY: Final = 0.001


class HeldBack:
    """The tenants of one queue that have to wait, as its last claim has found them.

    ``look`` is called when one of their jobs may begin: one has ended, time has brought tokens, or one at
    another broker may have ended without a word. So nobody asks all the time, and nobody waits for good.
    """

    def __init__(self, timer: Timer, look: Callable[[], None]) -> None:
        self._timer = timer
        self._look = look
        self._held: Mapping[str, float] = {}
        self._wait = _SOONEST  # for jobs at other brokers
        self._due = self._alarm = math.inf  # when to look, and to see whether that has come

    def __len__(self) -> int:
        return len(self._held)

    def found(self, held: Mapping[str, float], *, some_began: bool) -> None:
        """A claim has found these, and the seconds until one of each may begin; infinity: when one ends."""
        self._held = held
        if not held:
            self._due = math.inf
            return
        self._wait = _SOONEST if some_began else min(self._wait * 2, _LONGEST)
        ends = self._wait * random.uniform(0.75, 1.0)  # noqa: S311 - no secret
        seconds = max(_SOONEST, min(ends if wait == math.inf else wait + _EARLY for wait in held.values()))
        self._due = self._timer.now() + seconds
        self._await()

    def ended(self, jobs: Iterable[Job]) -> None:
        """These are reserved here no more."""
        if self._held and any(job.turn in self._held for job in jobs):
            self._look()

    def ended_elsewhere(self) -> None:
        """Another broker says that jobs of tenants, whichever, are reserved there no more."""
        if math.inf in self._held.values():
            self._look()

    def nobody_asks(self) -> None:
        """There is nobody here who could have their jobs."""
        self._held, self._due = {}, math.inf

    def _await(self) -> None:
        if self._due < self._alarm:
            self._alarm = self._due
            self._timer.after(self._due - self._timer.now(), self._alarmed)

    def _alarmed(self) -> None:
        self._alarm = math.inf
        if self._timer.now() < self._due - _EARLY:
            self._await()  # a claim has found something since
            return
        self._due = math.inf
        self._look()
