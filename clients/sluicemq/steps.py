"""Steps: what a verb of a client does, apart from who waits for it: a thread, or an event loop."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

Answer = TypeVar("Answer")


class Ask(NamedTuple):
    """A step: a request, which is sent again after a lost connection if it changes nothing twice."""

    verb: bytes
    fields: tuple[Any, ...] = ()
    repeat: bool = True
    timeout: float | None = None
    more: float = 0.0


class Pause(NamedTuple):
    """A step: some seconds in which nothing is asked."""

    seconds: float


class Found(NamedTuple):
    """A step: something that an iteration yields."""

    value: Any


#: Steps that return something, and steps that find one thing after the other.
Steps: TypeAlias = Generator[Ask | Pause, Any, Answer]
Finds: TypeAlias = Generator[Ask | Pause | Found, Any, None]
