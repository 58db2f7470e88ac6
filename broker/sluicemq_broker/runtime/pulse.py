"""A check whether this process stood still: stopped by a signal, or its machine suspended.

Clocks went on meanwhile, and messages lie unread. Peers must not be taken for silent or dead because of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Pulse:
    """Measures the time between two calls of :meth:`beat`; up to ``most`` seconds are normal."""

    def __init__(self, most: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._last = now()
        self._excused_until = float("-inf")

    def beat(self) -> None:
        """Note that the process runs; messages left unread by a pause are read until the next beat."""
        if self._late:
            self._excused_until = self._now() + self._most
        self._last = self._now()

    @property
    def was_frozen(self) -> bool:
        """True if the process stood still and has not had time since to read what peers sent."""
        return self._late or self._now() < self._excused_until

    @property
    def _late(self) -> bool:
        return self._now() - self._last > self._most
