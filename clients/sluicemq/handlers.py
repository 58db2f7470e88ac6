"""What may handle a worker's jobs: a plain function that is through when it returns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from sluicemq.arguments import plain_bytes
from sluicemq.forward import FanOut, Forward
from sluicemq.job import Job

#: Called for each job; bytes are its result, None is an empty one, a Forward is where it goes on, a
#: FanOut what it waits for.
Handler = Callable[[Job], bytes | Forward | FanOut | None]

#: What a call only begins: nothing is done until somebody goes on with what it returned.
_BEGIN_ONLY: Final[dict[Callable[[Any], bool], str]] = {
    inspect.iscoroutinefunction: "an async def",
    inspect.isasyncgenfunction: "an async generator function",
    inspect.isgeneratorfunction: "a generator function",
}


def check(handler: Handler) -> None:
    """Raises TypeError for what can't be called, or would only begin: it would use up all attempts."""
    if not callable(handler):
        raise TypeError(f"a handler is called with each job; {type(handler).__name__} can't be called")
    function: Any = handler
    if not (inspect.isroutine(handler) or isinstance(handler, functools.partial)):
        function = type(handler).__call__
    for begins, what in _BEGIN_ONLY.items():
        if begins(function) or begins(handler):  # the second for a mock that says so of itself
            raise not_plain(f"is {what}")


def only_begun(result: object) -> bool:
    """True of what a handler returned that has done nothing yet: a coroutine, a generator."""
    return inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)


def not_plain(what: str) -> TypeError:
    """The error for a handler of this kind."""
    return TypeError(
        f"the handler {what}: a worker calls it in a thread and awaits nothing, so it would do nothing. "
        "Make it a plain def that returns bytes or None; in it, asyncio.run(...) runs a coroutine"
    )


def as_result(result: Any) -> bytes:
    """A result of any type that holds bytes; raises TypeError."""
    if isinstance(result, bytes | bytearray | memoryview):
        return plain_bytes(result)
    raise TypeError(f"the handler returned {type(result).__name__}, expected bytes, a Forward or None")
