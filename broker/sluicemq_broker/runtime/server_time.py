"""The difference between another machine's clock and ours, measured by questions and slow answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """One measurement: the other clock was ``ahead`` by these seconds, plus or minus ``error``."""

    ahead: float
    error: float
    at: float

    @classmethod
    def of(cls, sent: float, answered: float, theirs: float) -> Measure:
        """Return the measurement by one answer; ``sent`` and ``answered`` are our monotonic times.

        The other clock was read at ``theirs``, somewhere between the two: half the round trip is the error.
        """
        # The answer is in whole milliseconds.
        return cls(theirs - (sent + answered) / 2, (answered - sent) / 2 + 0.001, answered)

    def error_at(self, now: float) -> float:
        """Return the error by now: clocks drift."""
        # Seconds that two machines' clocks drift apart in one second, at most.
        return self.error + 0.0002 * max(0.0, now - self.at)

    def agrees(self, other: Measure) -> bool:
        """True if both can be right; False: the clock was set, or another machine answers now."""
        error = self.error_at(other.at) + other.error_at(self.at)
        return abs(self.ahead - other.ahead) <= error


def better(known: Measure | None, new: Measure) -> Measure:
    """Return the measurement whose error is smaller by now, or the new one if they contradict each other.

    So one slow answer changes nothing, and a clock that was set is followed at once.
    """
    if known is None or not known.agrees(new) or new.error <= known.error_at(new.at):
        return new
    return known
