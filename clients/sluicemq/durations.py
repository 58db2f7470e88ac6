"""Spans of time as people write them: ``90s``, ``5m``, ``1h30m``, ``2d``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

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
