"""Room for answers: how many may be made at once, and how many bytes may lie unread before another is made.

An answer that may be large is made only inside :meth:`Room.for_large`, any other one after
:meth:`Room.for_any`. Large ones leave room for the others, so that a peer that reads nothing delays neither
the dashboard nor a scrape.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import gevent
from gevent.lock import BoundedSemaphore

from sluicemq.errors import Unavailable
from sluicemq_broker.http.places import Places

#: Bytes that may lie unread when an answer is begun: one that may be large, and any other.
_MOST_OF_LARGE: Final = 24 << 20
_MOST: Final = 64 << 20
#: Large answers that are made at once, and that wait for it: few, so that others have places, too.
_LARGE_AT_ONCE: Final = 2
_LARGE_WAITING: Final = 10
#: Seconds that an answer waits for its room, and between two looks at who reads nothing.
_PATIENCE: Final = 5.0
_LOOK: Final = 0.05


class Line:
    """``at_once`` have a turn, ``waiting`` more wait for theirs, each for some seconds."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._turn = BoundedSemaphore(at_once)
        self._most_waiting = waiting
        self._waiting = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and have it inside; raises Unavailable where too many wait, or for too long."""
        if self._waiting >= self._most_waiting:
            raise _no_room()
        self._waiting += 1
        try:
            came = self._turn.acquire(timeout=_PATIENCE)
        finally:
            self._waiting -= 1
        if not came:
            raise _no_room()
        try:
            yield
        finally:
            self._turn.release()


class Room:
    """The memory that all answers of the door share."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._large = Line(_LARGE_AT_ONCE, _LARGE_WAITING)

    def for_any(self) -> None:
        """Wait for room; raises Unavailable if there is none in time."""
        self._wait(_MOST)

    @contextmanager
    def for_large(self) -> Iterator[None]:
        """Wait for room for a large answer, to be made inside; raises Unavailable without it."""
        with self._large.turn():
            self._wait(_MOST_OF_LARGE)
            yield

    def _wait(self, most: int) -> None:
        until = time.monotonic() + _PATIENCE
        while self._places.unread >= most:
            now = time.monotonic()
            if self._places.end_stalled(now):
                continue
            if now >= until:
                raise _no_room()
            gevent.sleep(_LOOK)


def _no_room() -> Unavailable:
    return Unavailable("too much is asked at this door: ask again in a moment")
