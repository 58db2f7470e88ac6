"""When delayed jobs of one queue become due: so many are ready then, as far as this broker knows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from sluicemq_broker.context import Context

#: Jobs that become due within so many seconds of each other are told of together.
_TICK: Final = 0.05
#: What lies further ahead, in seconds, is found by the poll: so the number of timers is bounded.
_HORIZON: Final = 60.0


class DueTimes:
    """The times at which delayed jobs of one queue become due.

    ``ready`` is told how many have, a moment after that.
    """

    def __init__(self, context: Context, ready: Callable[[int], None]) -> None:
        self._clock = context.clock
        self._timer = context.timer
        self._ready = ready
        self._ticks: Counter[int] = Counter()  # how many jobs become due at each

    def watch(self, times: Iterable[float]) -> None:
        """Jobs become due at these times of the server's clock."""
        now = self._clock.now()
        for when in times:
            if when - now < _HORIZON:
                tick = math.ceil(when / _TICK)
                if tick not in self._ticks:
                    self._timer.after(max(0.0, tick * _TICK - now), self._due, tick)
                self._ticks[tick] += 1

    def _due(self, tick: int) -> None:
        self._ready(self._ticks.pop(tick))
