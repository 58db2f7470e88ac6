"""Forks of the process: what belongs to which process, and callbacks in the child.

A fork copies memory and open files, but only the thread that forks. In the child nobody runs the library's
connections, bytes written to their pipes and sockets reach the parent, and a lock may be held for ever by a
thread that is not there. For this reason everything that has a connection gets a callback in the child,
before anything else runs there. It starts again or refuses. Receipts and replies know their process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sluicemq.protocol.errors import ForkedError

#: Forks between the program's first process and this one; a child has another number than its parent.
generation = 0

T = TypeVar("T")

_callbacks: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def on_fork(part: T, forked: Callable[[T], None]) -> None:
    """Have ``forked(part)`` called in the child of every fork, for as long as the part lives.

    It runs between the fork and the program's next statement, under gevent before its hub is there. It must
    not wait, start a thread, or use a lock of the parent.
    """
    _callbacks[part] = forked


def refuse(what: str, made_in: int, do: str) -> None:
    """Raise :class:`~sluicemq.ForkedError` for what was made in another ``generation``."""
    if made_in != generation:
        raise ForkedError(f"{what} belongs to the process that this one was forked from: {do}")


def _in_child() -> None:
    global generation  # noqa: PLW0603 - each process has its own
    generation += 1
    for part, forked in list(_callbacks.items()):
        forked(part)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
