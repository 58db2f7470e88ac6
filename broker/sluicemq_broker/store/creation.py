"""The making of collections: a few at a time, so that MongoDB, and connections to it, are left to jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gevent.lock import BoundedSemaphore

#: A collection with its indexes takes MongoDB some 30 ms, in which it holds locks that others wait for.
_AT_ONCE: Final = 2
#: Seconds that one waits for its turn, at most: where MongoDB does not answer, each hears that itself.
_PATIENCE: Final = 5.0

_turns = BoundedSemaphore(_AT_ONCE)


@contextmanager
def one_of_few() -> Iterator[None]:
    """Wait for a turn, but not for long."""
    has_turn = _turns.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if has_turn:
            _turns.release()
