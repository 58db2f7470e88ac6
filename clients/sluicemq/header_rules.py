"""What the value of a job's option may be: each rule checks one, and says what is expected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from sluicemq import arguments, wire

#: No time is longer than this.
TEN_YEARS: Final = arguments.TEN_YEARS
LONGEST_ID: Final = 128  # bytes

BACKOFF_KINDS: Final = ("exponential", "linear", "fixed", "none")
#: The least and the most of each number of a back-off; ``base`` and ``cap`` are seconds.
BACKOFF_BOUNDS: Final = {
    "base": (0.0, TEN_YEARS),
    "factor": (1.0, 100.0),
    "cap": (0.0, TEN_YEARS),
    "jitter": (0.0, 1.0),
}

_DEEPEST = 20
_LAST_DATE = datetime(9999, 1, 1).timestamp()  # noqa: DTZ001 - a bound, to the day


class Rule(NamedTuple):
    """Whether a value may stand in a header, and the words that follow "expected"; bounds of a number."""

    holds: Callable[[Any], bool]
    expected: str
    bounds: tuple[Any, Any] = (None, None)


def whole(low: int, high: int, expected: str) -> Rule:
    """A whole number within bounds."""
    return Rule(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
        expected,
        (low, high),
    )


def number(low: float, high: float, expected: str) -> Rule:
    """A number within bounds."""
    return Rule(
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high,
        expected,
        (low, high),
    )


def one_of(*words: str) -> Rule:
    """One of a few words."""
    return Rule(lambda value: value in words, " or ".join(f"'{word}'" for word in words))


def rfc3339(text: str) -> float:
    """Unix seconds of a text such as 2030-01-31T12:00:00Z; raises ValueError without a time zone."""
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError
    return when.timestamp()


def _is_id(value: Any) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_ID:
        return False
    return value.isascii() or (arguments.is_utf8(value) and len(value.encode()) <= LONGEST_ID)


def _is_moment(value: Any) -> bool:
    if not isinstance(value, str):
        return _UNIX.holds(value)
    try:
        return 0 <= rfc3339(value) <= _LAST_DATE
    except (ValueError, OverflowError):
        return False


def _is_backoff(value: Any) -> bool:
    if isinstance(value, str):
        return value in BACKOFF_KINDS
    return isinstance(value, dict) and all(
        each in BACKOFF_KINDS if name == "kind" else name in _OF_BACKOFF and _OF_BACKOFF[name].holds(each)
        for name, each in value.items()
    )


def _is_storable_map(own: Any) -> bool:
    """True if MongoDB and msgpack can both hold it: 64-bit integers, text keys without NUL, not too deep.

    Nor keys with a leading ``$``: ``{"$ref": ...}`` comes back from MongoDB as something else. Level by
    level, so that too much of it is seen before it is gone through.
    """
    if not isinstance(own, dict):
        return False
    level: list[Any] = [own]
    left = wire.MOST_HEADER_VALUES
    for _ in range(_DEEPEST + 1):
        deeper: list[Any] = []
        for value in level:
            if isinstance(value, dict | list):
                left -= len(value)
                if left < 0 or (isinstance(value, dict) and not all(map(_is_key, value))):
                    return False
                deeper.extend(value.values() if isinstance(value, dict) else value)
            elif not _is_storable(value):
                return False
        if not deeper:
            return True
        level = deeper
    return False


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and key[:1] != "$" and "\0" not in key and arguments.is_utf8(key)


def _is_storable(value: Any) -> bool:
    if isinstance(value, str):
        return arguments.is_utf8(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, float | bytes)


_UNIX = number(0, _LAST_DATE, "Unix seconds")
_OF_BACKOFF = {name: number(*bounds, "a number") for name, bounds in BACKOFF_BOUNDS.items()}

IDENTIFIER: Final = Rule(_is_id, f"a string of 1 to {LONGEST_ID} bytes")
MOMENT: Final = Rule(_is_moment, "Unix seconds or RFC 3339 text with a time zone, before the year 9999")
BACKOFF: Final = Rule(
    _is_backoff,
    "'exponential', 'linear', 'fixed' or 'none', or a map of kind (one of these), base and cap "
    "(seconds from 0 to ten years), factor (1 to 100) and jitter (0 to 1)",
)
OWN_MAP: Final = Rule(
    _is_storable_map,
    "a map with text keys (not starting with $), 64-bit numbers, "
    f"at most {_DEEPEST} levels and {wire.MOST_HEADER_VALUES} values",
)
