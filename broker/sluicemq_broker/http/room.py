"""Room for answers: how many bytes may lie unread before another answer is made.

An answer that may be large is made only inside :meth:`Room.for_large`, any other one after
:meth:`Room.for_any`. Large ones leave room for the others, so that a peer that reads nothing delays neither
the dashboard nor a scrape; and they wait where the other doors have sent much that is not read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import gevent

from sluicemq.protocol.errors import Unavailable
from sluicemq_broker.http.lines import PATIENCE, Line, too_much
from sluicemq_broker.http.places import Place, Places
from sluicemq_devices.sockets import Outgoing

#: Bytes that may lie unread when an answer is begun: one that may be large, and any other.
_MOST_OF_LARGE: Final = 24 << 20
_MOST: Final = 64 << 20
#: Large answers that are made at once, and that wait for it: few, so that others have places, too.
_LARGE_AT_ONCE: Final = 2
_LARGE_WAITING: Final = 10
_LOOK: Final = 0.05  # seconds between two looks at who reads nothing


class Room:
    """The memory that all answers of the door share; ``outgoing``: what all doors of the process share."""

    def __init__(self, places: Places, outgoing: Outgoing) -> None:
        self._places = places
        self._outgoing = outgoing
        self._all = outgoing.ration(None)
        self._large = Line(_LARGE_AT_ONCE, _LARGE_WAITING)

    def for_any(self) -> None:
        """Wait for room; raises Unavailable if there is none in time."""
        self._wait(_MOST)

    @contextmanager
    def for_large(self, size: int, place: Place) -> Iterator[None]:
        """Wait for room for a large answer, to be made inside; raises Unavailable without it."""
        with self._large.turn(place.had):
            self._wait(_MOST_OF_LARGE)
            if place.gone():
                raise Unavailable("nothing is read for a peer that has left")
            if not self._all.reserve(size, PATIENCE):
                raise too_much()
            try:
                yield
            finally:
                self._all.release(size)

    def _wait(self, most: int) -> None:
        until = time.monotonic() + PATIENCE
        while self._places.unread >= most:
            now = time.monotonic()
            if self._places.end_stalled(now):
                continue
            if now >= until:
                raise too_much()
            gevent.sleep(_LOOK)
