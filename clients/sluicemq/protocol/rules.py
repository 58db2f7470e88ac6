"""Rules for values: options of jobs, settings of a broker, options of commands.

A rule reads a value. It returns the value as it is used, or raises ValueError with the words that follow
"expected". Values that have types (headers, TOML, keywords) are read directly. The environment and a command
line have texts only: :meth:`Rule.of_text` converts them first. A span of time may be a text with units
everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from sluicemq.protocol.durations import EXAMPLES, TEN_YEARS, seconds_of
from sluicemq.protocol.names import KIND_RULE, is_kind
from sluicemq.protocol.readable import is_utf8

#: Numbers up to here are exact in every language.
FARTHEST: Final = 2**53
LONGEST_ID: Final = 128  # bytes

BACKOFF_KINDS: Final = ("exponential", "linear", "fixed", "none")
#: Least and most of each number of a back-off; ``base`` and ``cap`` are seconds.
BACKOFF_BOUNDS: Final = {
    "base": (0.0, TEN_YEARS),
    "factor": (1.0, 100.0),
    "cap": (0.0, TEN_YEARS),
    "jitter": (0.0, 1.0),
}

_DEEPEST = 20
#: Values in a user's own map of headers.
MOST_VALUES: Final = 1000
#: A number of seconds, in the environment and on a command line.
_SECONDS = re.compile(r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
_LAST_DATE = datetime(9999, 1, 1).timestamp()  # noqa: DTZ001 - a bound, to the day


class Rule(NamedTuple):
    """One rule: its words, how a value is read, its unit and bounds, and how a text becomes a value."""

    expected: str
    read: Callable[[Any], Any]
    unit: str = ""
    bounds: tuple[Any, Any] = (None, None)
    spelt: Callable[[str], Any] = str

    def __call__(self, value: Any) -> Any:
        """Return the value as it is used; raises ValueError."""
        return self.read(value)

    def of_text(self, text: str) -> Any:
        """Return the value of a text of the environment or a command line; raises ValueError."""
        try:
            value = self.spelt(text)
        except ValueError:
            raise ValueError(self.expected) from None
        return self.read(value)

    def holds(self, value: Any) -> bool:
        """Return whether a value is allowed."""
        try:
            self.read(value)
        except ValueError:
            return False
        return True


def whole(least: int = 0, most: int | None = None, expected: str = "", unit: str = "") -> Rule:
    """Return the rule of a whole number within bounds."""
    bounds = f" of at least {least}" if most is None else f", {least} to {most}"
    expected = expected or f"a whole number{bounds}"
    largest = FARTHEST if most is None else most

    def read(value: Any) -> int:
        if type(value) is not int:
            value = _plain_number(value, Integral, expected)
        if not least <= value <= largest:
            raise ValueError(expected)
        return int(value)

    return Rule(expected, read, unit, (least, largest), _spelt_whole)


def number(least: float, most: float, expected: str = "", unit: str = "") -> Rule:
    """Return the rule of a number within bounds, neither NaN nor infinite."""
    expected = expected or f"a number, {least:g} to {most:g}"

    def read(value: Any) -> float:
        if type(value) is not float:
            value = _plain_number(value, Real, expected)
        if not least <= value <= most:
            raise ValueError(expected)
        return float(value)

    return Rule(expected, read, unit, (least, most), _spelt_number)


def duration(least: float, most: float, expected: str, *, above: bool = False) -> Rule:
    """Return the rule of a span of time, seconds, ``timedelta`` or text; ``above``: more than the least."""

    def read(value: Any) -> float:
        if type(value) is not float:
            value = _seconds(value, expected)
        if not least <= value <= most or (above and value == least):
            raise ValueError(expected)
        return float(value)

    return Rule(expected, read, "s", (least, most), _spelt_seconds)


def one_of(*words: str) -> Rule:
    """Return the rule of one of a few words."""
    return kept(" or ".join(f"'{word}'" for word in words), lambda value: value in words)


def kept(expected: str, holds: Callable[[Any], bool]) -> Rule:
    """Return the rule of values that are used without a change."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise ValueError(expected)
        return value

    return Rule(expected, read)


def rfc3339(text: str) -> float:
    """Return the Unix seconds of a text such as 2030-01-31T12:00:00Z; raises ValueError without a zone."""
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError
    return when.timestamp()


def _plain_number(value: Any, kind: type[Any], expected: str) -> Any:
    """Return a number of Python for one of this kind, which may be NumPy's."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(expected)  # noqa: TRY004 - reported like every other wrong value
    return int(value) if isinstance(value, Integral) else float(value)


def _seconds(value: Any, expected: str) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return _plain_number(value, Real, expected)
    try:
        return seconds_of(value)
    except ValueError:
        raise ValueError(f"{expected}; or a text such as {EXAMPLES}") from None


def _spelt_whole(text: str) -> Any:
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,400}\s*", text) else text


def _spelt_seconds(text: str) -> Any:
    return float(text) if _SECONDS.fullmatch(text) else text


def _spelt_number(text: str) -> Any:
    return float(text) if text.isascii() and "_" not in text else text


def _is_id(value: Any) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_ID:
        return False
    return value.isascii() or (is_utf8(value) and len(value.encode()) <= LONGEST_ID)


def _moment(value: Any) -> float | str:
    """Return the Unix seconds of a moment; a text, which the broker reads, stays as it is."""
    if isinstance(value, str):
        try:
            _UNIX.read(rfc3339(value))
        except (ValueError, OverflowError):
            raise ValueError(_MOMENT) from None
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("a time zone, as in datetime.now(UTC): with no time zone it is no moment")
        value = value.timestamp()
    return float(_UNIX.read(value))


def _spelt_moment(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _backoff(value: Any) -> Any:
    if isinstance(value, str) and value in BACKOFF_KINDS:
        return value
    if not isinstance(value, dict):
        raise ValueError(_BACKOFF)  # noqa: TRY004 - reported like every other wrong value
    return {name: _of_backoff(name, backoff) for name, backoff in value.items()}


def _of_backoff(name: Any, value: Any) -> Any:
    if name == "kind" and isinstance(value, str) and value in BACKOFF_KINDS:
        return value
    rule = _OF_BACKOFF.get(name) if isinstance(name, str) else None
    if rule is None or not rule.holds(value):
        raise ValueError(_BACKOFF)
    return rule.read(value)


def _is_storable_map(own: Any) -> bool:
    """Return whether MongoDB and msgpack can both hold a map of headers.

    Both can if integers have 64 bits, keys are texts without NUL and without a leading ``$`` (MongoDB returns
    ``{"$ref": ...}`` as another value), and the map is not too deep. It is walked level by level, so that too
    many values are found before all are visited.
    """
    if not isinstance(own, dict):
        return False
    level: list[Any] = [own]
    left = MOST_VALUES
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
    return isinstance(key, str) and key[:1] != "$" and "\0" not in key and is_utf8(key)


def _is_storable(value: Any) -> bool:
    if isinstance(value, str):
        return is_utf8(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, float | bytes)


_MOMENT = "Unix seconds or RFC 3339 text with a time zone, such as 2030-01-31T12:00:00Z, before the year 9999"
_UNIX = number(0, _LAST_DATE, _MOMENT)
_BACKOFF = (
    "'exponential', 'linear', 'fixed' or 'none', or a map of kind (one of these), base and cap "
    "(seconds from 0 to ten years), factor (1 to 100) and jitter (0 to 1)"
)
_OF_BACKOFF = {
    name: (duration if name in ("base", "cap") else number)(*bounds, _BACKOFF)
    for name, bounds in BACKOFF_BOUNDS.items()
}

IDENTIFIER: Final = kept(f"a string of 1 to {LONGEST_ID} bytes", _is_id)
KIND: Final = kept(KIND_RULE, is_kind)
TIME_LIMIT: Final = duration(0.1, 30 * 86400, "seconds from 0.1 to 30 days")
MOMENT: Final = Rule(_MOMENT, _moment, spelt=_spelt_moment)
BACKOFF: Final = Rule(_BACKOFF, _backoff)
OWN_MAP: Final = kept(
    "a map with text keys (not starting with $), 64-bit numbers, "
    f"at most {_DEEPEST} levels and {MOST_VALUES} values",
    _is_storable_map,
)


#: What a principal may send in a second: jobs and messages, and their bytes.
LIMITS: Final = {"max_rate": number(0.001, 1_000_000), "max_bytes_rate": whole(1, unit="bytes")}
