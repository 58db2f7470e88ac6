"""How many jobs a queue is given in a minute, what is usual there, and when it is a flood."""

from __future__ import annotations

from typing import NamedTuple

#: A minute with so many times what is usual, and so many jobs more, is one of a flood.
TIMES, AT_LEAST = 5, 200
#: Minutes that must have passed before anything is usual; and about how many are remembered.
_WARM, _REMEMBERED = 10, 120


class Flood(NamedTuple):
    """Jobs that have come since the last look, in a minute that has many more than ``usual``."""

    pushed: int
    usual: int


class FloodDetector:
    """What is usual follows slowly: a flood is none any more where it goes on for most of an hour."""

    def __init__(self) -> None:
        self._minute = 0
        self._count = 0
        self._usual = 0.0
        self._seen = 0
        self._told = 0

    def add(self, minute: int, count: int) -> Flood | None:
        """So many more have come in this minute; a flood if they are many."""
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
        """Minutes are over: the first with what was counted, the others with nothing."""
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
