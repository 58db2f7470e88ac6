"""A token bucket: how often something may happen each second, and how often at once after a rest."""

from __future__ import annotations

from sluicemq_devices.hub import Latest


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

    def spend(self, tokens: float, now: float) -> None:
        """Take tokens, also those that are not there yet."""
        self.left(now)
        self._left -= tokens

    def wait(self, now: float) -> float:
        """Return the seconds until all that was spent is there."""
        return max(0.0, -self.left(now) / self._rate)

    def give_back(self) -> None:
        """Put back a token that was taken for nothing."""
        self._left = min(self._most, self._left + 1)

    def left(self, now: float) -> float:
        """Return how many tokens there are now."""
        self._left = min(self._most, self._left + self._rate * (now - self._last))
        self._last = now
        return self._left


class Buckets:
    """A bucket for each key, such as an address, and one for all keys together.

    ``per_key``, ``every``: rate and most of those. The ``known`` keys used last have a bucket; another one
    has a full bucket, so that strangers with many addresses are bounded by the one for all.
    """

    def __init__(self, per_key: tuple[float, float], every: tuple[float, float], known: int = 1000) -> None:
        self._per_key = per_key
        self._every = Bucket(*every)
        self._buckets: Latest[str, Bucket] = Latest(known)

    def take(self, key: str, now: float) -> bool:
        """Take a token of this key, and one of all; False: one of both is missing."""
        bucket = self._bucket(key)
        if bucket.left(now) < 1 or not self._every.take(now):
            return False
        return bucket.take(now)

    def give_back(self, key: str) -> None:
        """Put back what :meth:`take` took for nothing."""
        self._bucket(key).give_back()
        self._every.give_back()

    def _bucket(self, key: str) -> Bucket:
        bucket = self._buckets[key] = self._buckets.get(key) or Bucket(*self._per_key)
        return bucket
