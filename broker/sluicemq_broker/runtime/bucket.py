"""A token bucket: how often something may happen each second, and how often at once after a rest."""

from __future__ import annotations


class Bucket:
    """Tokens, ``rate`` more each second up to ``most``; full at first. ``now`` is monotonic seconds."""

    def __init__(self, rate: float, most: float) -> None:
        self._rate = rate
        self._most = self._left = most
        self._last = float("-inf")

    def take(self, now: float) -> bool:
        """Take one token; False: there is none."""
        if self.left(now) < 1:
            return False
        self._left -= 1
        return True

    def left(self, now: float) -> float:
        """Return how many tokens there are now."""
        self._left = min(self._most, self._left + self._rate * (now - self._last))
        self._last = now
        return self._left
