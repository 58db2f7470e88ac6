"""Whether this process stood still: stopped by a signal, or its machine suspended.

Clocks went on meanwhile, and what others sent lies unread: nobody else was silent, nor died, for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Pulse:
    """Told by :meth:`beat` again and again that the process runs; ``most`` seconds between two are normal."""

    def __init__(self, most: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._last = now()
        self._excused_until = float("-inf")

    def beat(self) -> None:
        """The process runs; what lies unread after a pause is read until the next one."""
        if self._late:
            self._excused_until = self._now() + self._most
        self._last = self._now()

    @property
    def stood_still(self) -> bool:
        """True if it did, and has not had the time yet to hear what the others said."""
        return self._late or self._now() < self._excused_until

    @property
    def _late(self) -> bool:
        return self._now() - self._last > self._most
