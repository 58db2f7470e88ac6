"""The broker's counters and durations, and log lines that a flood can't multiply."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakSet

from sluicemq.protocol.errors import ForbiddenError, SluiceError
from sluicemq_broker.runtime.counts import Count, Timing
from sluicemq_broker.runtime.histogram import Histogram
from sluicemq_broker.runtime.kinds import OTHERS, KindCounters, Kinds, Rates
from sluicemq_devices.hub import About, Notices

#: Queues that have histograms of their own: each takes about a kilobyte.
MOST_TIMED: Final = 1000
_OF_JOBS: Final = (Timing.TIME_IN_QUEUE, Timing.TIME_AT_WORKER, Timing.PUSH_CONFIRMATION)
#: Durations whose sum is a counter of the queue.
_SUMMED: Final = {Timing.TIME_IN_QUEUE: Count.WAITED, Timing.TIME_AT_WORKER: Count.WORKED}

log = logging.getLogger("broker")


class Counters(Notices):
    """Counters by name and durations by kind; :meth:`notice` also logs, one line a second for each name."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(log, now)
        self.timings: dict[Timing, Histogram] = {
            timing: Histogram() for timing in Timing if not timing.labels
        }
        #: By queue, for the first :data:`MOST_TIMED` with a duration; all others share :data:`OTHERS`.
        self.timings_by_queue: dict[str, dict[Timing, Histogram]] = {}
        #: By MongoDB's name of the command.
        self.statements: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.all_kinds: WeakSet[KindCounters] = WeakSet()
        self.kinds = Kinds(self.all_kinds)

    def refused(self, error: SluiceError, text: str, about: About | None = None) -> None:
        """Count and log what was refused with this error; a FORBIDDEN is counted and logged already."""
        if not isinstance(error, ForbiddenError):
            self.notice(Count.of(error), text, about=about)

    def took(self, timing: Timing, durations: Sequence[float]) -> None:
        """Record the durations of one batch, in seconds."""
        if durations:
            histograms = self.timings_of(OTHERS) if timing in _OF_JOBS else self.timings
            histograms[timing].observe_all(durations)

    def timings_of(self, queue: str) -> dict[Timing, Histogram]:
        """Return the histograms of a queue's jobs: its own, or those that many queues share."""
        found = self.timings_by_queue.get(queue)
        if found is None:
            name = queue if len(self.timings_by_queue) < MOST_TIMED else OTHERS
            found = self.timings_by_queue.setdefault(name, {timing: Histogram() for timing in _OF_JOBS})
        return found

    def answered(self, command: str, seconds: float) -> None:
        """Record how long MongoDB took to answer a command."""
        self.statements[command].observe(seconds)


class PartCounters(Counters):
    """Counters of one part of the broker, such as a stream; each count is added to the broker's, too."""

    def __init__(self, broker: Counters, about: About | None = None) -> None:
        super().__init__()
        self._about = about or {}
        self._broker = broker

    def add(self, name: str, count: int = 1) -> None:
        """Count without a line in the log."""
        self.values[name] += count
        self._broker.add(name, count)

    def notice(
        self, name: str, text: str, error: BaseException | None = None, about: About | None = None
    ) -> None:
        """Count and log; the line in the log names the part."""
        self.values[name] += 1
        self._broker.notice(name, text, error, {**self._about, **(about or {})})


class QueueCounters(PartCounters):
    """Counters of a queue, its durations, and its rates at this broker."""

    def __init__(self, broker: Counters, now: float = 0.0, queue: str = "") -> None:
        super().__init__(broker, {"queue": queue} if queue else None)
        self._queue = queue or OTHERS
        self._timings: dict[Timing, Histogram] | None = None  # until something has taken any time
        self._rates = Rates(self.values, (Count.PUSHED, Count.DELIVERED, Count.COMMITTED), now)
        self.kinds = Kinds(broker.all_kinds)

    def took(self, timing: Timing, durations: Sequence[float]) -> None:
        """Record the durations of one batch, in seconds; a negative one counts as 0."""
        known = (
            [duration if duration > 0 else 0.0 for duration in durations]
            if min(durations, default=0) < 0
            else durations
        )
        if known:
            if self._timings is None:
                self._timings = self._broker.timings_of(self._queue)
            self._timings[timing].observe_all(known)
        if timing in _SUMMED:
            self.add(_SUMMED[timing], int(sum(known) * 1000))

    def tick(self, now: float) -> None:
        """Remember the counts for :meth:`rates`; called every second or so. ``now`` is monotonic."""
        self._rates.tick(now)
        self.kinds.tick(now)

    def rates(self, now: float) -> dict[str, float]:
        """Return jobs ``pushed``, ``delivered`` and ``committed`` here per second of the last minute."""
        return self._rates.of(now)
