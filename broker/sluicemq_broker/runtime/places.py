"""Places for questions to MongoDB, of which there are few: each peer has its share of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Final

from gevent.event import Event

from sluicemq_devices.hub import HEAVY, Line, Standing

#: Seconds in which MongoDB answers what a light peer asks at once.
_LIGHT: Final = 0.010
#: A part of the places is kept from heavy peers, and one peer has no more than that at once.
_PART: Final = 4


class Places:
    """A fixed number of places for questions, over all peers; others wait.

    A light peer is next, and peers that ask without end share the time by what they use
    (:class:`~sluicemq_devices.hub.line.Line`). What counts is the time for which a peer has a place until
    all that it asked is answered. ``now``: monotonic seconds.
    """

    def __init__(self, count: int, now: Callable[[], float] = monotonic) -> None:
        self._free = count
        self._kept = count // _PART
        self._each = max(1, count // _PART)
        self._line = Line()
        self._now = now

    def guest(self) -> Guest:
        """Return what one peer has of the places."""
        return Guest(self)

    @contextmanager
    def place(self, guest: Guest) -> Iterator[None]:
        """Wait for a place, and have it for the body."""
        self._enter(guest)
        began, level = self._now(), guest.standing.level
        try:
            yield
        finally:
            took = self._now() - began
            guest.standing.used(took, more=True)
            self._line.took(took, level)
            self._leave(guest)

    def _enter(self, guest: Guest) -> None:
        admitted = Event()
        if guest.places < self._each:
            guest.places += 1
            self._line.add(admitted.set, guest.standing)
            self._deal()
        else:
            guest.later.append(admitted.set)
        admitted.wait()

    def _leave(self, guest: Guest) -> None:
        self._free += 1
        if guest.later:
            self._line.add(guest.later.popleft(), guest.standing)
        else:
            guest.places -= 1
        self._deal()

    def _deal(self) -> None:
        while self._line and self._free > (self._kept if self._line.next_level == HEAVY else 0):
            self._free -= 1
            self._line.take()()


class Guest:
    """One peer that asks."""

    __slots__ = ("_places", "later", "places", "standing")

    def __init__(self, places: Places) -> None:
        self.standing = Standing(_LIGHT)
        self.places = 0
        """Questions of the peer that have a place, or are in the line for one."""
        self.later: deque[Callable[[], None]] = deque()
        """Other questions of the peer."""
        self._places = places

    def place(self) -> AbstractContextManager[None]:
        """Wait for a place, and have it for the body of ``with``."""
        return self._places.place(self)

    def answered(self) -> None:
        """A question is answered; where it was the last, the next one is looked at anew."""
        if not self.places:
            self.standing.used(0.0, more=False)
