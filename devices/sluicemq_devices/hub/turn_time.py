"""The time that all connections share in a turn of the hub: however many have sent, it ends soon."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from gevent import get_hub

from sluicemq_devices.hub.callbacks import shielded

#: Seconds of a turn, after which connections that have not been read wait for the next.
_MOST: Final = 0.008
_MOMENT: Final = 1e-9  # seconds


class TurnTime:
    """Turns for those that have to wait because a turn has been long, in the order of coming.

    Each connection is read in short pieces, but of a thousand at once the last would find that the first of
    them, and clocks, have waited for all. It has a timer only while somebody waits.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: Any = None

    @property
    def is_over(self) -> bool:
        """True if this turn has been long enough, or others wait already: :meth:`wait` then."""
        return bool(self._waiting) or time.time() - get_hub().loop.now() > _MOST

    def wait(self, turn: Callable[[], None]) -> None:
        """Call ``turn``, once, when it is its turn."""
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._next_turn()

    def _next_turn(self) -> None:
        if self._timer:
            self._timer.close()
        self._timer = get_hub().loop.timer(_MOMENT)
        self._timer.start(self._give)

    def _give(self) -> None:
        until = perf_counter() + _MOST
        for _ in range(len(self._waiting)):
            turn = self._waiting[0]
            shielded(turn)
            self._waiting.popleft()  # only now, so that those that come meanwhile are behind
            if perf_counter() > until:
                break
        if self._waiting:
            self._next_turn()
