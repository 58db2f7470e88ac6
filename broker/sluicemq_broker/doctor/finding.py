"""A finding of the doctor: what is right or wrong, how bad it is, what shows it, and what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad a finding is, from good to bad; ``info`` also says what could not be looked at."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def exit_code(self) -> int:
        """Exit code of ``sluicemq doctor`` where this is the worst level."""
        return {Level.WARNING: 1, Level.ERROR: 2}.get(self, 0)


class Finding(NamedTuple):
    """One finding; ``what`` is a sentence, ``evidence`` the figures and names behind it."""

    level: Level
    what: str
    evidence: str = ""
    to_do: str = ""


def ok(what: str, evidence: str = "") -> Finding:
    """Return that something is as it should be."""
    return Finding(Level.OK, what, evidence)


def info(what: str, evidence: str = "", to_do: str = "") -> Finding:
    """Return something to know that is not wrong, or that can't be looked at."""
    return Finding(Level.INFO, what, evidence, to_do)


def warning(what: str, evidence: str = "", to_do: str = "") -> Finding:
    """Return something that will go wrong, or costs something now."""
    return Finding(Level.WARNING, what, evidence, to_do)


def error(what: str, evidence: str = "", to_do: str = "") -> Finding:
    """Return something that keeps jobs from being taken, kept or worked."""
    return Finding(Level.ERROR, what, evidence, to_do)


def worst(levels: list[Level]) -> Level:
    """Return the worst of these levels."""
    order = list(Level)
    return max(levels, key=order.index, default=Level.OK)
