"""Old names of the public face: each works for one minor version, and warns with what to write instead.

:data:`OLD_NAMES` has all of them, once ``import sluicemq`` has run; ``docs/deprecations.md`` is made from it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from operator import attrgetter
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: What to write in place of each old name.
OLD_NAMES: Final[dict[str, str]] = {}

_LIBRARY: Final = __name__.partition(".")[0]


def register(old: str, new: str) -> None:
    """Note what to write in place of an old name."""
    OLD_NAMES[old] = new


def warn(old: str) -> None:
    """Warn of an old name, at the line outside the library that uses it."""
    depth, frame = 2, sys._getframe(1)  # noqa: SLF001 - Python 3.11 has no skip_file_prefixes
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == _LIBRARY:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(f"{old} is now {OLD_NAMES[old]}", DeprecationWarning, stacklevel=depth)


def module_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module some of whose names are now others of that module."""
    for old, new in renamed.items():
        register(old, new)

    def get(name: str) -> Any:
        new = renamed.get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(name)
        return attrgetter(new)(sys.modules[module])

    return get


class Moved:
    """An old attribute or method, which is now at ``path``, as in ``purge = Moved("queues.purge")``.

    ``write``: what to write instead, if that is not the class with the path. ``adapt`` makes of the new
    attribute what the old one was. The warning comes when it is looked up.
    """

    def __init__(self, path: str, write: str = "", adapt: Callable[[Any], Any] = lambda found: found) -> None:
        self._get = attrgetter(path)
        self._path = path
        self._write = write
        self._adapt = adapt

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = f"{owner.__name__}.{name}"
        register(self._old, self._write or f"{owner.__name__}.{self._path}")

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        warn(self._old)
        return self._adapt(self._get(instance))


class Keyword(NamedTuple):
    """What an old keyword argument is now: the argument ``new``, with the old value converted.

    ``write``: what to write instead, if that is not the new name.
    """

    new: str
    write: str = ""
    convert: Callable[[Any], Any] = lambda value: value


def renamed_keywords(of: str, **old: Keyword) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Let a function, or a class's ``__init__``, take old keyword arguments; ``of`` is its name in warnings.

    Raises TypeError where both the old and the new argument are given.
    """
    for name, keyword in old.items():
        register(f"{of}({name}=)", keyword.write or f"{of}({keyword.new}=)")

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def call(*args: _P.args, **given: _P.kwargs) -> _T:
            for name in old.keys() & given.keys():
                warn(f"{of}({name}=)")
                new, _, convert = old[name]
                if new in given:
                    raise TypeError(f"{of} got {new!r}, and {name!r}, which is its old name: leave that out")
                given[new] = convert(given.pop(name))
            return function(*args, **given)

        return call

    return decorate
