"""How often something may happen: so many times a second, and so many at once after a rest."""

from __future__ import annotations


class Bucket:
    """A token bucket: it fills by ``rate`` a second up to ``most``, and is full at first."""

    def __init__(self, rate: float, most: float) -> None:
        self._rate = rate
        self._most = self._left = most
        self._last = float("-inf")

    def take(self, now: float) -> bool:
        """Take one; False: there is none. ``now`` is monotonic."""
        if self.left(now) < 1:
            return False
        self._left -= 1
        return True

    def left(self, now: float) -> float:
        """How many there are at this moment."""
        self._left = min(self._most, self._left + self._rate * (now - self._last))
        self._last = now
        return self._left
