"""Handlers of jobs: plain functions, which are done when they return."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from sluicemq.arguments import plain_bytes
from sluicemq.forward import FanOut, Forward
from sluicemq.job import Job

#: Called for each job. Returns the result as bytes, None for an empty one, a Forward to another queue, or a
#: FanOut into children.
Handler = Callable[[Job], bytes | Forward | FanOut | None]

#: Functions whose call does nothing yet: somebody would have to run what it returns.
_BEGIN_ONLY: Final[dict[Callable[[Any], bool], str]] = {
    inspect.iscoroutinefunction: "an async def",
    inspect.isasyncgenfunction: "an async generator function",
    inspect.isgeneratorfunction: "a generator function",
}


def check(handler: Handler) -> None:
    """Raise TypeError for a handler that can't be called, or would do nothing and use up all attempts."""
    if not callable(handler):
        raise TypeError(f"a handler is called with each job; {type(handler).__name__} can't be called")
    function: Any = handler
    if not (inspect.isroutine(handler) or isinstance(handler, functools.partial)):
        function = type(handler).__call__
    what = begins_only(function) or begins_only(handler)  # the second for a mock that declares itself one
    if what:
        raise not_plain(f"is {what}")


def begins_only(function: Any) -> str:
    """Return the kind of a function whose call does nothing yet, as "an async def"; empty for a plain one."""
    return next((what for begins, what in _BEGIN_ONLY.items() if begins(function)), "")


def check_callback(name: str, callback: Any) -> None:
    """Raise TypeError for a callback that would do nothing."""
    if what := begins_only(callback):
        raise TypeError(f"{name} is {what}, which nobody awaits: make it a plain def")


def only_begun(result: object) -> bool:
    """Return whether a handler's result is a coroutine or a generator, which has not run yet."""
    return inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)


def not_plain(what: str) -> TypeError:
    """Return the error for a handler of this kind."""
    return TypeError(
        f"the handler {what}: a worker calls it in a thread and awaits nothing, so it would do nothing. "
        "Make it a plain def that returns bytes or None; sluicemq.aio.Worker awaits an async def"
    )


def as_result(result: Any) -> bytes:
    """Return the bytes of a result of any type that holds bytes; raises TypeError."""
    if isinstance(result, bytes | bytearray | memoryview):
        return plain_bytes(result)
    raise TypeError(f"the handler returned {type(result).__name__}, expected bytes, a Forward or None")
