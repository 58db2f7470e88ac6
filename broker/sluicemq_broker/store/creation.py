"""Creation of collections: a few at a time, as it takes locks and connections from jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gevent.lock import BoundedSemaphore

#: A collection with its indexes takes MongoDB some 30 ms, with locks that others wait for.
_AT_ONCE: Final = 2
#: Seconds to wait for a turn, at most: where MongoDB does not answer, each caller finds that itself.
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
