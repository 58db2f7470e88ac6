"""One alarm for everything that happens at a time in one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from sluicemq_broker.runtime.timer import Timer
from sluicemq_devices.hub import NEXT_TURN

#: Times that lie closer together than this, in seconds, share one alarm.
_CLOSE: Final = 0.001


class Alarm:
    """Calls ``ring``, in a greenlet of its own, when the earliest time it was set to has come.

    Then it has to be set again. Times are monotonic seconds.
    """

    def __init__(self, timer: Timer, ring: Callable[[], None]) -> None:
        self._timer = timer
        self._ring = ring
        self._at = math.inf
        self._timers: list[float] = []  # times of timers under way, the earliest last

    def set(self, at: float) -> None:
        """Ring at this time at the latest; a time that has passed means the next turn of the hub."""
        if at < self._at - _CLOSE:
            self._at = at
            self._start()

    def _start(self) -> None:
        """Start a timer, unless one that is under way ends in time: none can be cancelled."""
        at = self._at
        if not self._timers or at < self._timers[-1] - _CLOSE:
            self._timers.append(at)
            self._timer.after(max(NEXT_TURN, at - self._timer.now()), self._rang, at)

    def _rang(self, at: float) -> None:
        self._timers.remove(at)
        if self._at <= at + _CLOSE:
            self._at = math.inf
            self._ring()
        elif self._at < math.inf:
            self._start()
