"""What a value in the configuration may be: each rule checks one, or says what was expected.

A rule takes a value as TOML, the environment (a string) or a flag gave it, and returns it in the
type that the broker uses. It raises ValueError, whatever is wrong, with the words that follow
"expected".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sluicemq.wire import QUEUE_NAME_RULE, is_queue_name
from sluicemq_devices.doors import Endpoint, parse_endpoint

Rule = Callable[[Any], Any]

_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def whole(least: int = 0, most: int | None = None) -> Rule:
    """A whole number within bounds."""
    expected = f"a whole number of at least {least}" if most is None else f"a whole number, {least} to {most}"

    def check(value: Any) -> int:
        number = _number(value, int, expected)
        if number < least or (most is not None and number > most):
            raise ValueError(expected)
        return int(number)

    return check


#: No time is longer than ten years: dates beyond the year 9999 can't be stored.
LONGEST = 10 * 366 * 86400.0


def seconds(*, above: float | None = None) -> Rule:
    """A time in seconds: at least 0, or above a bound; at most ten years."""
    least = "at least 0" if above is None else f"more than {above:g}"
    expected = f"seconds, {least}, at most ten years"

    def check(value: Any) -> float:
        number = _number(value, float, expected)
        if not 0 <= number <= LONGEST or (above is not None and number <= above):
            raise ValueError(expected)
        return float(number)

    return check


def number(least: float, most: float) -> Rule:
    """A number within bounds."""
    expected = f"a number, {least:g} to {most:g}"

    def check(value: Any) -> float:
        given = _number(value, float, expected)
        if not least <= given <= most:
            raise ValueError(expected)
        return float(given)

    return check


def one_of(*words: str) -> Rule:
    """One of a few words."""
    expected = "one of " + ", ".join(f'"{word}"' for word in words)

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(expected + _hint(value, words))
        return str(value)

    return check


def optional(rule: Rule) -> Rule:
    """The same rule, where nothing at all is a value too."""
    return lambda value: None if value is None else rule(value)


def flag(value: Any) -> bool:
    """True or false."""
    if isinstance(value, str):
        value = _WORDS.get(value.strip().lower())
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004
    return value


def text(value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a string")
    return value


def database_name(value: Any) -> str:
    """A name that MongoDB takes for a database."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", value):
        raise ValueError("the name of a database: 1 to 63 of A-Z a-z 0-9 _ -")
    return value


def queue_name(value: Any) -> str:
    """A queue's name."""
    if not is_queue_name(value):
        raise ValueError(f"a queue's name: {QUEUE_NAME_RULE}")
    return str(value)


def folder(value: Any) -> Path:
    """A folder; ``~`` is the user's home."""
    return Path(text(value) if isinstance(value, str) else value).expanduser().absolute()


def mongodb_uri(value: Any) -> str:
    """Where MongoDB is; what follows the scheme is the driver's to judge."""
    if not isinstance(value, str) or not value.startswith(("mongodb://", "mongodb+srv://")):
        raise ValueError("a URI that begins with mongodb:// or mongodb+srv://")
    return value


def host(value: Any) -> str:
    """A host name or address, without a port; ``*`` is every interface."""
    if not isinstance(value, str) or not re.fullmatch(r"\*|[A-Za-z0-9._-]+|[0-9A-Fa-f:]+", value):
        raise ValueError('a host name or an address without a port, as in "0.0.0.0"')
    return value


def bound_endpoint(value: Any) -> Endpoint:
    """An endpoint that the broker binds."""
    endpoint = _endpoint(value)
    if not endpoint.bind:
        raise ValueError("an endpoint that binds, not one that connects (>)")
    return endpoint


def endpoints(value: Any) -> tuple[Endpoint, ...]:
    """One endpoint or a list of them."""
    return tuple(_endpoint(each) for each in (value if isinstance(value, list | tuple) else [value]))


def unknown(key: str, known: Iterable[str]) -> str:
    """The sentence on a key that does not exist, with the one that was probably meant."""
    names = sorted(known)
    return f"unknown key{_hint(key, names) or '; known are ' + ', '.join(names)}"


def _endpoint(value: Any) -> Endpoint:
    if isinstance(value, Endpoint):
        return value
    if not isinstance(value, str):
        raise ValueError("an endpoint such as tcp://127.0.0.1:5551")  # noqa: TRY004
    try:
        return parse_endpoint(value)
    except ValueError as error:
        raise ValueError(f"an endpoint: {error}") from error


def _number(value: Any, kind: type[int | float], expected: str) -> float:
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(expected) from None
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise ValueError(expected)  # noqa: TRY004
    return value


def _hint(word: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
