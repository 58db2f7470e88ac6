"""Histograms of durations, cheap enough for every batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

#: Seconds, each bound 2 to 3 times the one before, from a round trip at home to a day's backlog.
BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0),
)


class Histogram:
    """Durations by :data:`BOUNDS`; ``sum``: all durations added up, in seconds.

    ``counts[n]``: durations up to ``BOUNDS[n]`` and above the bound before; the last: above all bounds.
    """

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Record that ``count`` things took ``seconds`` each."""
        self.counts[bisect_left(BOUNDS, seconds)] += count
        self.sum += seconds * count

    def observe_all(self, durations: Sequence[float]) -> None:
        """Record the durations of one batch; one look-up is enough if all lie within one bound."""
        self.sum += sum(durations)
        low = bisect_left(BOUNDS, min(durations))
        if max(durations) <= (BOUNDS[low] if low < len(BOUNDS) else float("inf")):
            self.counts[low] += len(durations)
            return
        for duration in durations:
            self.counts[bisect_left(BOUNDS, duration)] += 1


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the duration that this share of the counted ones does not exceed; None: nothing was counted.

    ``counts``: as in :class:`Histogram`, or empty. Durations are taken as spread evenly between two bounds.
    """
    left = share * sum(counts)
    low = 0.0
    for bound, count in zip((*BOUNDS, BOUNDS[-1]), counts, strict=False):
        if count and left <= count:
            return low + (bound - low) * left / count
        left -= count
        low = bound
    return None
