"""Values that callers hand over: checked, or made sendable, in the caller's own thread.

A value that MessagePack can't hold must not reach the I/O thread of a connection, which others share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import wraps
from typing import Any, Final, TypeVar

from sluicemq.durations import in_seconds

#: No span of time is longer than ten years: dates beyond the year 9999 can't be stored.
TEN_YEARS: Final = 10 * 366 * 86400.0
#: Numbers up to here are exact in every language.
FARTHEST: Final = 2**53
#: Characters of an exception's text that are kept as a reason.
MOST_REASON: Final = 1000

_MOST_SHOWN: Final = 100  # characters of a value that can't be used

_C = TypeVar("_C")


def checked(*, skip: Collection[str] = ()) -> Callable[[type[_C]], type[_C]]:
    """Check the arguments of a class's public methods, and of its making, against their annotations.

    ``skip`` are methods that are called too often for that, and check by themselves. Raises TypeError or
    ValueError, which name the argument.
    """

    def check_all(owner: type[_C]) -> type[_C]:
        for name, function in list(vars(owner).items()):
            public = name == "__init__" or not name.startswith("_")
            if public and name not in skip and inspect.isfunction(function):
                setattr(owner, name, _checking(function))
        return owner

    return check_all


def text(name: str, value: object) -> None:
    """Check a text that goes over the wire as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    if not is_utf8(value):
        raise ValueError(
            f"{name} is {brief(value)}: a lone surrogate is no text, give one that UTF-8 can hold"
        )


def whole(name: str, value: object) -> None:
    """Check a whole number of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is {brief(value)}: give a whole number of at most 64 bits")


def number(name: str, value: object) -> None:
    """Check a finite number that every language holds."""
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    if not abs(value) <= FARTHEST:
        raise ValueError(f"{name} is {brief(value)}: give a finite number, up to 2**53")


def span(name: str, value: object) -> None:
    """Check a span of time: seconds, a ``timedelta``, or a text such as 1h30m."""
    if not isinstance(value, int | float | timedelta | str):
        raise TypeError(f"{name} is a number of seconds or a timedelta, not {type(value).__name__}")
    try:
        seconds = in_seconds(value)
    except ValueError as error:
        raise ValueError(f"{name} is {brief(value)}: expected {error}") from None
    if not abs(seconds) <= TEN_YEARS:
        raise ValueError(f"{name} is {brief(value)}: give seconds, at most ten years of them")


def binary(name: str, value: object) -> None:
    """Check that a value holds bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{name} is bytes, not {type(value).__name__}: encode it first")


def texts(name: str, value: object) -> None:
    """Check several texts."""
    if isinstance(value, str | bytes):
        raise TypeError(f"{name} are several: write [{brief(value)}]")
    if not hasattr(value, "__iter__"):
        raise TypeError(f"{name} are several str, not {type(value).__name__}")


def delay_of(name: str, value: float | timedelta | str | None) -> float | None:
    """Return a wait in seconds; a moment that has just passed is a wait of none."""
    if value is None:
        return None
    span(name, value)
    return max(0.0, in_seconds(value))


def is_utf8(value: str) -> bool:
    """Return False for a text with lone surrogates, which UTF-8 can't hold."""
    try:
        return str.isascii(value) or str.encode(value) is not None
    except UnicodeEncodeError:
        return False


def plain_text(value: str) -> str:
    """Return a text as ``str`` itself, whatever a subclass does when it is compared or hashed."""
    return value if type(value) is str else str.__str__(value)


def plain_bytes(value: bytes | bytearray | memoryview) -> bytes:
    """Return the bytes that a value holds, whatever a subclass does when it is measured or converted."""
    return memoryview(value).tobytes()


def escaped(value: str, most: int = MOST_REASON) -> str:
    """Return the first ``most`` characters of a text for people, as UTF-8 can hold it."""
    start = str.__getitem__(value, slice(most))
    if is_utf8(start):
        return start
    return str.encode(start, "utf-8", "backslashreplace").decode()[:most]


def words(name: str, value: object, most: int = MOST_REASON) -> str:
    """Check a text for people, and return its beginning, escaped."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    return escaped(value, most)


def said(error: BaseException, *, named: bool = False) -> str:
    """Return what an exception says, ``named`` behind its type's name, whatever its own methods do."""
    try:
        reason = escaped(str(error))
    except BaseException as raised:  # noqa: BLE001 - also what is no Exception: it is not ours to go on with
        reason, named = f"its __str__ raises {_name_of(raised)}", True
    return f"{_name_of(error)}: {reason}"[:MOST_REASON] if named else reason


def brief(value: object) -> str:
    """Return how a value that can't be used is shown."""
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - that of a stranger, or of a number with thousands of digits
        shown = f"a {_name_of(value)}"
    return escaped(shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…")


def _name_of(value: object) -> str:
    try:
        return escaped(type(value).__name__)
    except BaseException:  # noqa: BLE001 - a metaclass can do anything
        return "object"


#: How a value is checked that has this annotation, or this or None.
_RULES: Final[dict[str, Callable[[str, object], None]]] = {
    "str": text,
    "int": whole,
    "float": number,
    "Seconds": span,
    "bytes": binary,
    "Sequence[str]": texts,
    "Iterable[str | bytes]": texts,
}
_OR_NONE: Final = " | None"


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its arguments checked; itself if there is none to check."""
    annotations = function.__annotations__
    rules = {
        name: (rule, str(annotation).endswith(_OR_NONE))
        for name, annotation in annotations.items()
        if name != "return" and (rule := _RULES.get(str(annotation).removesuffix(_OR_NONE)))
    }
    if not rules:
        return function
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    positional = [(at, name, *rules[name]) for at, name in enumerate(names) if name in rules]

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        count = len(args)
        for at, name, rule, optional in positional:
            if at < count and not (optional and args[at] is None):
                rule(name, args[at])
        for name, value in keywords.items():
            if name in rules:
                rule, optional = rules[name]
                if not (optional and value is None):
                    rule(name, value)
        return function(*args, **keywords)

    checking: Any = call
    checking.__kwdefaults__ = function.__kwdefaults__  # for who looks at them; the function has its own
    return call
