"""Floods: minutes in which a queue gets many more jobs than usual."""

from __future__ import annotations

from typing import NamedTuple

#: A flood is a minute with more than five times the usual jobs, plus 200.
TIMES, AT_LEAST = 5, 200
#: Minutes before there is a usual number; and about how many make it.
_WARM, _REMEMBERED = 10, 120


class Flood(NamedTuple):
    """Jobs pushed since the last look, in a minute with many more than ``usual``."""

    pushed: int
    usual: int


class FloodDetector:
    """Compares each minute with the usual, which follows slowly: after most of an hour a flood is usual."""

    def __init__(self) -> None:
        self._minute = 0
        self._count = 0
        self._usual = 0.0
        self._seen = 0
        self._told = 0

    def add(self, minute: int, count: int) -> Flood | None:
        """Add jobs pushed in this minute; returns a flood if the minute has too many."""
        if minute > self._minute:
            self._pass(minute)
        self._count += count
        if self._seen < _WARM or self._count < self._most:
            return None
        new, self._told = self._count - self._told, self._count
        return Flood(new, round(self._usual)) if new else None

    @property
    def _most(self) -> float:
        return self._usual * TIMES + AT_LEAST

    def _pass(self, minute: int) -> None:
        """Begin a new minute; the last one had what was counted, those between had nothing."""
        if self._minute:
            self._remember(min(self._count, self._most))
            silent = min(minute - self._minute - 1, _REMEMBERED * 10)
            self._usual *= (1 - 1 / _REMEMBERED) ** silent
            self._seen += silent
        self._minute, self._count, self._told = minute, 0, 0

    def _remember(self, count: float) -> None:
        self._seen += 1
        share = max(1 / _REMEMBERED, 1 / self._seen)
        self._usual += (count - self._usual) * share
