"""The exception behind a failed attempt, as its worker describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from sluicemq.protocol.readable import MOST_NAMED, MOST_TRACEBACK, cut_in_middle, start_of

#: Tracebacks of a job that are kept, the last ones.
TRACEBACKS_KEPT: Final = 3


class Failure(NamedTuple):
    """An exception: its type, the function that raised it, its traceback, and how long the handler ran."""

    type: str = ""
    place: str = ""
    traceback: str = ""
    seconds: float | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Read what a worker says; values of other types are left out, long ones are cut."""
        kind, place, trace = (given.get(name) for name in ("type", "place", "traceback"))
        seconds = given.get("seconds")
        return cls(
            kind[:MOST_NAMED] if isinstance(kind, str) else "",
            place[:MOST_NAMED] if isinstance(place, str) else "",
            cut_in_middle(start_of(trace, 4 * MOST_TRACEBACK), MOST_TRACEBACK)
            if isinstance(trace, bytes)
            else "",
            seconds if isinstance(seconds, float) and 0 <= seconds < 1e9 else None,
        )


#: Of an attempt whose worker has not described its failure.
NOT_DESCRIBED: Final = Failure()
