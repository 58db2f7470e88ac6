"""Figures that a label splits, such as the name of a queue or of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Subjects(NamedTuple):
    """All things of one kind that count, such as ``queue``; ``counters()``: each name with its counters.

    ``database(name)``: the database with the history of one; raises for a name that none can have.
    """

    kind: str
    counters: Callable[[], Iterable[tuple[str, Mapping[str, int]]]]
    database: Callable[[str], str]


class LabelledGauge(NamedTuple):
    """A gauge with one value for each row of labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Sequence[tuple[tuple[str, ...], float]]
