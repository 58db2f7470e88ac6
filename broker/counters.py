"""What the broker has counted, and log lines that a flood can't multiply."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from typing import Final

#: Rates are taken over so many steps of so many seconds: a minute.
_STEP: Final = 5.0
_STEPS: Final = 12
_RATED: Final = ("pushed", "delivered", "committed")

log = logging.getLogger("broker")


class Counters:
    """Counts by name; :meth:`notice` also logs, at most one line a second for each name."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self._quiet_until: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count something that happens all the time."""
        self.values[name] += count

    def notice(self, name: str, text: str) -> None:
        """Count something that somebody should hear of."""
        self.values[name] += 1
        now = time.monotonic()
        if now < self._quiet_until.get(name, 0.0):
            self._unsaid[name] += 1
            return
        self._quiet_until[name] = now + 1.0
        unsaid = self._unsaid.pop(name, 0)
        log.warning("%s: %s%s", name, text, f" (and {unsaid} more like it)" if unsaid else "")


class QueueCounters(Counters):
    """What one queue counts is also counted for the whole broker; and how fast it goes here."""

    def __init__(self, broker: Counters, now: float = 0.0) -> None:
        super().__init__()
        self._broker = broker
        self._marks: deque[tuple[float, tuple[int, ...]]] = deque([(now, self._rated())], maxlen=_STEPS + 1)

    def add(self, name: str, count: int = 1) -> None:
        """Count something that happens all the time."""
        self.values[name] += count
        self._broker.add(name, count)

    def notice(self, name: str, text: str) -> None:
        """Count something that somebody should hear of."""
        self.values[name] += 1
        self._broker.notice(name, text)

    def tick(self, now: float) -> None:
        """Every second or so; ``now`` is monotonic."""
        if now - self._marks[-1][0] >= _STEP:
            self._marks.append((now, self._rated()))

    def rates(self, now: float) -> dict[str, float]:
        """Jobs ``pushed``, ``delivered`` and ``committed`` here per second of the last minute."""
        since, before = self._marks[0]
        seconds = max(now - since, 1.0)
        counted = zip(_RATED, before, self._rated(), strict=True)
        return {name: round((count - then) / seconds, 3) for name, then, count in counted}

    def _rated(self) -> tuple[int, ...]:
        return tuple(self.values[name] for name in _RATED)
