"""Curves for charts: the history of the last hour, day or month, as columns of numbers.

A point for each minute, five minutes or hour, so that a chart moves what it shows and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.rows import RecentRow, SeriesRow
from sluicemq_broker.history.history import BROKER, KIND, LATENCIES, QUEUE, History, latency_counts
from sluicemq_broker.job import State
from sluicemq_broker.runtime import Count, Timing, percentile
from sluicemq_broker.store import HistorySubject, day_of, seconds

#: The curves: sums of each step; of ``ready`` the highest value.
CURVES: Final = (
    *(Count.PUSHED, Count.DELIVERED, Count.COMMITTED, Count.ROLLED_BACK, Count.REJECTED, Count.DEAD),
    *(Count.FORWARDED, Count.EXPIRED, Count.WAITED, Count.WORKED, State.READY),
)
#: The percentiles of durations, by the ends of their curves' names.
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_KINDS: Final = (QUEUE, KIND, BROKER)
#: Queues whose small curves are returned at once.
MOST_SMALL: Final = 100


class Span(NamedTuple):
    """A span of time: ``steps`` of ``step`` seconds."""

    steps: int
    step: int


SPANS: Final = {"hour": Span(60, 60), "day": Span(288, 300), "month": Span(720, 3600)}


class Series:
    """Curves of a queue, or of a broker, over a span of time."""

    def __init__(self, history: History) -> None:
        self._history = history

    def of(self, kind: str, name: str, span: str, now: float) -> SeriesRow:
        """Return the curves of one subject; raises BadFrames."""
        if kind not in _KINDS or span not in SPANS:
            raise BadFramesError(f"a series is of a {' or '.join(_KINDS)}, over an {', a '.join(SPANS)}")
        steps, step = SPANS[span]
        since = (int(now) // step - steps + 1) * step
        store, subject = self._history.where(kind, name), HistorySubject(kind, name)
        if span == "month":
            counted = store.hours(subject, day_of(since), day_of(now))
        else:
            counted = store.minutes_of([subject], day_of(since), since, now).get(name, {})
        curves = {str(name): tuple(_curve(name, counted, since, steps, step)) for name in CURVES}
        latency = {
            f"{timing}_{name}": curve
            for timing in LATENCIES
            for name, curve in _percentiles(timing, counted, since, steps, step).items()
        }
        return SeriesRow(since=since, step=step, curves=curves, latency=latency)

    def recent(self, names: Sequence[str], now: float) -> RecentRow:
        """Return the small curves of these queues, over the last hour."""
        if len(names) > MOST_SMALL:
            raise BadFramesError(f"at most {MOST_SMALL} queues at once")
        since = (int(now) // 60 - 60 + 1) * 60
        found: dict[str, Mapping[datetime, Mapping[str, int]]] = {}
        for store, subjects in self._history.stores_of(names):
            found |= store.minutes_of(subjects, day_of(since), since, now)
        curves = {
            name: {
                str(resolution): tuple(_curve(resolution, counted, since, 60, 60))
                for resolution in (Count.PUSHED, Count.COMMITTED)
            }
            for name, counted in found.items()
        }
        return RecentRow(since=since, step=60, queues=curves)


def _curve(
    name: str, counted: Mapping[datetime, Mapping[str, int]], since: int, steps: int, step: int
) -> list[int]:
    points = [0] * steps
    for at, count in _values(name, counted):
        place = (at - since) // step
        if 0 <= place < steps:
            points[place] = max(points[place], count) if name == State.READY else points[place] + count
    return points


def _percentiles(
    timing: Timing, counted: Mapping[datetime, Mapping[str, int]], since: int, steps: int, step: int
) -> dict[str, tuple[float | None, ...]]:
    """Return the curves of one histogram: seconds, None where nothing was counted."""
    sums: list[list[int] | None] = [None] * steps
    for at, counts in counted.items():
        place, found = (int(seconds(at)) - since) // step, latency_counts(timing, counts)
        if 0 <= place < steps and any(found):
            before = sums[place]
            sums[place] = found if before is None else [a + b for a, b in zip(before, found, strict=True)]
    return {
        name: tuple(_rounded(percentile(total or (), share)) for total in sums)
        for name, share in PERCENTILES.items()
    }


def _rounded(duration: float | None) -> float | None:
    return None if duration is None else round(duration, 6)


def _values(name: str, counted: Mapping[datetime, Mapping[str, int]]) -> Iterable[tuple[int, int]]:
    return ((int(seconds(at)), counts[name]) for at, counts in counted.items() if name in counts)
