"""How far another machine's clock is ahead of ours, from questions whose answers take their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Seconds that two machines' clocks drift apart in one second, at most.
DRIFT: Final = 0.0002
#: The answer is told in whole milliseconds.
_GRAIN: Final = 0.001


@dataclass(frozen=True, slots=True)
class Measure:
    """One question and its answer: the other clock was ``ahead`` by so much, give or take ``error``."""

    ahead: float
    error: float
    at: float

    @classmethod
    def of(cls, sent: float, answered: float, told: float) -> Measure:
        """``told`` is the other clock's time; ``sent`` and ``answered`` are ours (monotonic).

        The other clock was read somewhere between the two: half the round trip is the error.
        """
        return cls(told - (sent + answered) / 2, (answered - sent) / 2 + _GRAIN, answered)

    def error_at(self, now: float) -> float:
        """The error by now: clocks drift."""
        return self.error + DRIFT * max(0.0, now - self.at)

    def agrees(self, other: Measure) -> bool:
        """True if both can be right; else the other clock was set, or it is another machine's now."""
        error = self.error_at(other.at) + other.error_at(self.at)
        return abs(self.ahead - other.ahead) <= error


def better(known: Measure | None, new: Measure) -> Measure:
    """Which of two measures to go by: the one whose error is smaller by now.

    One slow answer so says nothing, however slow it was; a clock that was set is followed at once.
    """
    if known is None or not known.agrees(new) or new.error <= known.error_at(new.at):
        return new
    return known
