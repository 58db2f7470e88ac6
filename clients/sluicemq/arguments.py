"""Checks of the values that callers hand over, made in the caller's own thread.

A value that MessagePack can't hold must not reach the I/O thread of a connection, which others share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin

from sluicemq.protocol.readable import MOST_REASON, brief, escaped, is_utf8
from sluicemq.protocol.rules import FARTHEST

_C = TypeVar("_C")

#: Checks an argument's value, by its name; raises TypeError or ValueError.
Check: TypeAlias = Callable[[str, object], None]


def checked(*, skip: Collection[str] = ()) -> Callable[[type[_C]], type[_C]]:
    """Check the arguments of a class's public methods and ``__init__`` by their types.

    A type has its check in :data:`_CHECKS`, or declares it: ``Annotated[str, queue_name]`` names a function
    of an argument's name and value. A parameter of a plain type that has no check is an error, at import.
    ``skip`` names methods that are called too often for that, and check by themselves. The checks raise
    TypeError or ValueError, which name the argument.
    """

    def check_all(owner: type[_C]) -> type[_C]:
        for name, function in list(vars(owner).items()):
            public = name == "__init__" or not name.startswith("_")
            if public and name not in skip and inspect.isfunction(function):
                setattr(owner, name, _checking(function))
        return owner

    return check_all


def elsewhere(_name: str, _value: object) -> None:
    """Declare that a value is checked where it is used."""


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


def binary(name: str, value: object) -> None:
    """Check that a value holds bytes."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{name} is bytes, not {type(value).__name__}: encode it first")


def texts(name: str, value: object) -> None:
    """Check several texts."""
    if isinstance(value, str | bytes):
        raise TypeError(f"{name} is a list: write [{brief(value)}]")
    if not hasattr(value, "__iter__"):
        raise TypeError(f"{name} is a list of str, not {type(value).__name__}")


def plain_text(value: str) -> str:
    """Return a text as ``str`` itself; a subclass may compare or hash in its own way."""
    return value if type(value) is str else str.__str__(value)


def plain_bytes(value: bytes | bytearray | memoryview) -> bytes:
    """Return the bytes that a value holds; a subclass may measure or convert in its own way."""
    return memoryview(value).tobytes()


def words(name: str, value: object, most: int = MOST_REASON) -> str:
    """Check a text for people, and return its beginning, escaped."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    return escaped(value, most)


#: The check of each type, with or without ``| None``.
_CHECKS: Final[dict[Any, Check]] = {
    str: text,
    int: whole,
    float: number,
    bytes: binary,
    Sequence[str]: texts,
    Iterable[str | bytes]: texts,
}


def check_of(annotation: Any) -> tuple[Check, bool] | None:
    """Return the check of a type, and whether None passes; None for a type whose values are not checked.

    Raises TypeError for a plain type, or one of several, that needs a check and has none.
    """
    if (found := _CHECKS.get(annotation)) is not None:
        return found, False
    if get_origin(annotation) is Annotated:
        return next(item for item in annotation.__metadata__ if callable(item)), False
    if get_origin(annotation) in (Union, UnionType):
        others = [kind for kind in get_args(annotation) if kind is not NoneType]
        if len(others) == 1:
            inner = check_of(others[0])
            return None if inner is None else (inner[0], True)
        if any(kind in _CHECKS for kind in others):
            raise TypeError(f"values of {annotation} need a check: declare it, as Annotated[..., check]")
    return None


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its arguments checked; itself if there is none to check."""
    places = inspect.signature(function).parameters
    found = {name: _check_of_parameter(function, parameter) for name, parameter in places.items()}
    checks = {name: check for name, check in found.items() if check is not None}
    if not checks:
        return function
    positional = [(at, name, *checks[name]) for at, name in enumerate(places) if name in checks]

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        count = len(args)
        for at, name, check, optional in positional:
            if at < count and not (optional and args[at] is None):
                check(name, args[at])
        for name, value in keywords.items():
            if name in checks:
                check, optional = checks[name]
                if not (optional and value is None):
                    check(name, value)
        return function(*args, **keywords)

    checking: Any = call
    checking.__kwdefaults__ = function.__kwdefaults__  # for readers; the function has its own
    return call


def _check_of_parameter(function: Callable[..., Any], param: inspect.Parameter) -> tuple[Check, bool] | None:
    """Return the check of one parameter, whose type is evaluated where the function stands."""
    if param.annotation is param.empty or param.kind in (param.VAR_POSITIONAL, param.VAR_KEYWORD):
        return None
    if not isinstance(param.annotation, str):
        return check_of(param.annotation)
    return check_of(eval(param.annotation, function.__globals__))  # noqa: S307 - our own text
