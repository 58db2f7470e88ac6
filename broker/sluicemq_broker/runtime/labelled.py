"""Figures that a label splits, such as the name of a queue or of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple


class Subjects(NamedTuple):
    """All things of one kind that count, such as ``queue``; ``counters()``: each name with its counters.

    ``database(name)``: the database with the history of one; raises for a name that none can have.
    """

    kind: str
    counters: Callable[[], Iterable[tuple[str, Mapping[str, int]]]]
    database: Callable[[str], str]


_UNITS: Final = ((86_400.0, "day"), (3_600.0, "hour"), (1.0, "second"))


def of_time(seconds: float) -> str:
    """Return a bound of time in words: ``90 days``."""
    unit, name = next((row for row in _UNITS if seconds >= row[0]), _UNITS[-1])
    number = f"{seconds / unit:g}"
    return f"{number} {name}" if number == "1" else f"{number} {name}s"


class Kept(NamedTuple):
    """One thing that a broker keeps, such as the dead letters of a queue, and its bound in words.

    ``number``, ``bytes`` and ``oldest`` (Unix seconds) are None where they are not known. ``used``: the share
    of the bound that is used; at 1.0 something is removed, or nothing more is taken. None: it is bounded by
    time, so it is always used up.
    """

    kind: str
    name: str
    bound: str
    number: int | None = None
    bytes: int | None = None
    oldest: float | None = None
    used: float | None = None


#: The name of a row for all things of its kind.
ALL: Final = "*"
#: The kind of the rows that have a queue's name.
DEAD_LETTERS: Final = "dead letters"
#: The share of a bound from which on that is an incident, and an alarm.
NEARLY_USED: Final = 0.9


class LabelledGauge(NamedTuple):
    """A gauge with one value for each row of labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Sequence[tuple[tuple[str, ...], float]]
