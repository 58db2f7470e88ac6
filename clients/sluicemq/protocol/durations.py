"""Spans of time as people write them: ``90s``, ``5m``, ``1h30m``, ``2d``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final, TypeAlias

from sluicemq.protocol.readable import brief

#: No span of time is longer than ten years: dates beyond the year 9999 can't be stored.
TEN_YEARS: Final = 10 * 366 * 86400.0
EXAMPLES: Final = "90s, 5m, 1h30m or 2d"

_UNITS: Final = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
#: Each unit once at most, the longest first.
_PARTS: Final = re.compile(r"\s*".join(f"(?:({_NUMBER}){unit}(?!s))?" for unit in _UNITS))


def seconds_of(text: str) -> float:
    """Return the seconds of a text with units; raises ValueError, whose words follow "expected"."""
    stripped = text.strip()
    found = _PARTS.fullmatch(stripped)
    if not stripped or found is None:
        raise ValueError(f"seconds, or a text such as {EXAMPLES}")
    return sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS.values(), strict=True) if part)


def in_seconds(span: float | timedelta | str) -> float:
    """Return a span of time in seconds; raises ValueError for a text that is none."""
    if isinstance(span, str):
        return seconds_of(span)
    return span.total_seconds() if isinstance(span, timedelta) else span


def check_span(name: str, value: object) -> None:
    """Check that ``value`` is a span of time: seconds, a ``timedelta``, or a text such as 1h30m.

    Raises TypeError or ValueError, which name the argument.
    """
    if not isinstance(value, int | float | timedelta | str):
        raise TypeError(f"{name} is a number of seconds or a timedelta, not {type(value).__name__}")
    try:
        seconds = in_seconds(value)
    except ValueError as error:
        raise ValueError(f"{name} is {brief(value)}: expected {error}") from None
    if not abs(seconds) <= TEN_YEARS:
        raise ValueError(f"{name} is {brief(value)}: give seconds, at most ten years of them")


#: A span of time: seconds, a ``timedelta``, or a text such as 90s or 1h30m.
Duration: TypeAlias = Annotated[float | timedelta | str, check_span]


def delay_of(name: str, value: Duration | None) -> float | None:
    """Return a delay in seconds, 0 for a negative one; raises as :func:`check_span` does."""
    if value is None:
        return None
    check_span(name, value)
    return max(0.0, in_seconds(value))
