"""Old names of the public face: each works for one minor version, and warns with what to write instead.

:data:`OLD_NAMES` has all of them, once ``import sluicemq`` has run; ``docs/deprecations.md`` is made from it.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from operator import attrgetter
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from sluicemq.transport.access import Access

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
    depth, frame = 2, sys._getframe(1)
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
    """An old keyword argument, which is now the argument ``new``, with the old value converted.

    ``write``: what to write instead, if that is not the new name. A value that is converted to None is left
    out. ``of``: the type of old values, where only these are old and not the name.
    """

    new: str
    write: str = ""
    convert: Callable[[Any], Any] = lambda value: value
    of: type = object


def renamed_keywords(of: str, **old: Keyword) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Let a function, or a class's ``__init__``, take old keyword arguments; ``of`` is its name in warnings.

    Raises TypeError where both the old and the new argument are given.
    """
    _register_keywords(of, old)

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(function)
        def call(*args: _P.args, **given: _P.kwargs) -> _T:
            _rename(of, old, given)
            return function(*args, **given)

        return call

    return decorate


def _register_keywords(of: str, old: Mapping[str, Keyword]) -> None:
    for name, keyword in old.items():
        register(f"{of}({name}=)", keyword.write or f"{of}({keyword.new}=)")


def _rename(of: str, old: Mapping[str, Keyword], given: dict[str, Any]) -> None:
    for name in old.keys() & given.keys():
        new, _, convert, kind = old[name]
        if not isinstance(given[name], kind):
            continue
        warn(f"{of}({name}=)")
        value = convert(given.pop(name))
        if value is not None:
            if new in given:
                raise TypeError(f"{of} got {new!r}, and {name!r}, which is its old name: leave that out")
            given[new] = value


def endpoint_first(*behind: str, **old: Keyword) -> Callable[[type[_T]], type[_T]]:
    """Let a class take its endpoint as the first argument, and ``behind`` it those of these names.

    To be applied above other decorators. ``old``: keyword arguments of ``__init__`` that have other names
    now. The old form is recognised by its first argument, which is no name, or by too many.
    """

    def decorate(owner: type[_T]) -> type[_T]:
        of, init = owner.__name__, vars(owner)["__init__"]
        count = _positional(init)
        form = f"{of}({', '.join(['endpoint', *behind])})"
        register(form, f"{of}({', '.join([*behind[:count], 'endpoint=endpoint'])})")
        _register_keywords(of, old)

        @wraps(init)
        def call(self: Any, *args: Any, **given: Any) -> None:
            if args and (len(args) > count or _is_endpoint(args[0])):
                warn(form)
                for name, value in zip(("endpoint", *behind), args, strict=False):
                    if name in given:
                        raise TypeError(f"{of} got {name!r} twice: give it as a keyword")
                    given[name] = value
                args = args[len(behind) + 1 :]
            _rename(of, old, given)
            init(self, *args, **given)

        old_or_new: Any = call
        old_or_new.__kwdefaults__ = init.__kwdefaults__  # for readers, as of other checks
        owner.__init__ = old_or_new  # type: ignore[method-assign]
        return owner

    return decorate


def _positional(init: Callable[..., Any]) -> int:
    """Return how many arguments besides ``self`` have a place."""
    places = inspect.signature(init).parameters.values()
    return sum(place.kind is place.POSITIONAL_OR_KEYWORD for place in places) - 1


def _is_endpoint(value: object) -> bool:
    """Return whether a first argument is where brokers are, which no name of a queue or a stream is."""
    if isinstance(value, str):
        return "://" in value
    if isinstance(value, list | tuple | set | frozenset):
        return bool(value) and all(isinstance(endpoint, str) and "://" in endpoint for endpoint in value)
    return value is None or isinstance(value, Access)
