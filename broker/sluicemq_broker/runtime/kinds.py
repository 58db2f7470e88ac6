"""Counters of jobs by their kind, for each queue; bounded for each, and over all of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakSet

from sluicemq.protocol.rows import KindRatesRow, KindRow, from_document
from sluicemq_broker.runtime.counts import Count
from sluicemq_broker.runtime.histogram import Histogram, percentile

#: Kinds with counters of their own: of one queue, and of all. Further ones share :data:`OTHERS`.
MOST_OF_QUEUE: Final = 1000
MOST_OF_ALL: Final = 2000
#: The name under which all that have no figures of their own are counted.
OTHERS: Final = "*"


class Rates:
    """How fast counters rise: over the last minute, in twelve steps of five seconds."""

    __slots__ = ("_marks", "_names", "_values")

    def __init__(self, values: Mapping[str, int], names: Sequence[Count], now: float) -> None:
        self._values = values
        self._names = names
        self._marks: deque[tuple[float, tuple[int, ...]]] = deque([(now, self._counted())], maxlen=13)

    def tick(self, now: float) -> None:
        """Remember the counts; called every second or so. ``now`` is monotonic."""
        if now - self._marks[-1][0] >= 5.0:
            self._marks.append((now, self._counted()))

    def of(self, now: float) -> dict[str, float]:
        """Return by how much each counter rose per second of the last minute."""
        since, before = self._marks[0]
        seconds = max(now - since, 1.0)
        counted = zip(self._names, before, self._counted(), strict=True)
        return {name: round((count - then) / seconds, 3) for name, then, count in counted}

    def _counted(self) -> tuple[int, ...]:
        return tuple(self._values.get(name, 0) for name in self._names)


class KindCounters:
    """The counters of one kind of a queue, how long its jobs were at workers, and its rates."""

    __slots__ = ("__weakref__", "rates", "values", "worked")

    def __init__(self, now: float) -> None:
        self.values: Counter[str] = Counter()
        self.worked = Histogram()
        self.rates = Rates(self.values, (Count.PUSHED, Count.COMMITTED, Count.ROLLED_BACK), now)

    def listed(self, queue: str, kind: str, now: float) -> KindRow:
        """Describe it; ``now`` is monotonic."""
        values, timed = self.values, self.values[Count.DELIVERED]
        self.rates.tick(now)
        p50, p95, p99 = (percentile(self.worked.counts, share) for share in (0.5, 0.95, 0.99))
        return KindRow(
            queue=queue,
            kind=kind,
            pushed=values[Count.PUSHED],
            committed=values[Count.COMMITTED] + values[Count.FORWARDED] + values[Count.FANNED_OUT],
            rolled_back=values[Count.ROLLED_BACK],
            rejected=values[Count.REJECTED],
            dead=values[Count.DEAD],
            waited=values[Count.WAITED] / 1000 / timed if timed else None,
            worked=values[Count.WORKED] / 1000 / timed if timed else None,
            p50=p50,
            p95=p95,
            p99=p99,
            rates=from_document(KindRatesRow, self.rates.of(now)),
        )


class CountedKind(NamedTuple):
    """A kind of a queue, with what was counted; ``now`` is monotonic."""

    queue: str
    kind: str
    counters: KindCounters
    now: float

    @property
    def trouble(self) -> tuple[float, int, int]:
        """How many of its jobs fail in a second, how many are dead, how many came."""
        values = self.counters.values
        fails = self.counters.rates.of(self.now)[Count.ROLLED_BACK] if values[Count.ROLLED_BACK] else 0.0
        return fails, values[Count.DEAD], values[Count.PUSHED]

    def row(self) -> KindRow:
        """Describe it."""
        return self.counters.listed(self.queue, self.kind, self.now)


class Kinds:
    """The kinds of one queue; ``all_kinds``: those of all queues of the broker."""

    def __init__(self, all_kinds: WeakSet[KindCounters]) -> None:
        self._all = all_kinds
        self._now = 0.0
        self._known: dict[str, KindCounters] = {}

    def of(self, kind: str) -> KindCounters:
        """Return the counters of a kind: its own, or those of all further ones."""
        found = self._known.get(kind)
        if found is None:
            if len(self._known) >= MOST_OF_QUEUE or len(self._all) >= MOST_OF_ALL:
                kind = OTHERS
            found = self._known.get(kind) or self._known.setdefault(kind, KindCounters(self._now))
            self._all.add(found)
        return found

    def add(self, count: Count, kinds: Iterable[str | None]) -> None:
        """Count once for each; None is no kind."""
        for kind, number in Counter(kinds).items() if any(kinds := list(kinds)) else ():
            if kind:
                self.of(kind).values[count] += number

    def took(self, kind: str, waited: float, worked: Sequence[float]) -> None:
        """Record how long jobs of a kind have waited, all together, and how long each was at its worker."""
        found = self.of(kind)
        found.worked.observe_all(worked)
        found.values[Count.DELIVERED] += len(worked)
        found.values[Count.WAITED] += max(0, int(waited * 1000))
        found.values[Count.WORKED] += int(sum(worked) * 1000)

    def tick(self, now: float) -> None:
        """Remember the counts for the rates; called every second or so. ``now`` is monotonic."""
        self._now = now
        for kind in self._known.values():
            kind.rates.tick(now)

    def items(self) -> list[tuple[str, KindCounters]]:
        """Return each kind with its counters, by names."""
        return sorted(self._known.items())
