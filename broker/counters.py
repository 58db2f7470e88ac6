"""What the broker has counted, and log lines that a flood can't multiply."""

from __future__ import annotations

import logging
import time
from collections import Counter

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
