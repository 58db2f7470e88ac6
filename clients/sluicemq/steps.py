"""Steps: what a verb of a client does, apart from who waits for it: a thread, or an event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
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


class Until(NamedTuple):
    """A step: a wait, of at most some seconds, until something holds that messages of the broker change."""

    holds: Callable[[], bool]
    seconds: float


class Leave(NamedTuple):
    """A step: the end of the connection."""


class Found(NamedTuple):
    """A step: something that an iteration yields."""

    value: Any


Step: TypeAlias = Ask | Pause | Until | Leave

#: Steps that return something, and steps that find one thing after the other.
Steps: TypeAlias = Generator[Step, Any, Answer]
Finds: TypeAlias = Generator[Step | Found, Any, None]


def run(steps: Steps[Answer], do: Callable[[Step], Any]) -> Answer:
    """Do one step after the other, and return what they return; they hear of the error of each."""
    go: Callable[[Any], Step] = steps.send
    outcome: Any = None
    while True:
        try:
            step = go(outcome)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            go, outcome = steps.send, do(step)
        except BaseException as error:  # noqa: BLE001 - the steps raise it
            go, outcome = steps.throw, error
