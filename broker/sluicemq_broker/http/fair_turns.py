"""Turns of which few are had at one time: the peer with the fewest so far is next.

A peer that sends request after request, or reads much, waits behind one that has just come. A flood of valid
requests delays another peer by about one request, not by all of them.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import Unavailable

#: Seconds to wait for a turn; and between two calls of ``meanwhile``.
PATIENCE: Final = 5.0
_LOOK: Final = 0.05
_MOMENT: Final = 1e-9

#: A waiting peer: how many turns it has had, its number in order of arrival, and its alarm.
_Waiting = tuple[int, int, Event]


class FairTurns:
    """``at_once`` turns at one time; ``waiting`` peers may wait, while ``meanwhile()`` is called."""

    def __init__(self, at_once: int, waiting: int, meanwhile: Callable[[], object] = bool) -> None:
        self._free = at_once
        self._most_waiting = waiting
        self._meanwhile = meanwhile
        self._waiting: list[_Waiting] = []
        self._numbers = count()

    @contextmanager
    def turn(self, served: int = 0) -> Iterator[None]:
        """Wait for a turn, and have it for the body. ``served``: how much this peer has had.

        Raises Unavailable where too many wait, or after :data:`PATIENCE`.
        """
        if self._free:
            self._free -= 1
        else:
            self._wait((served, next(self._numbers), Event()))
        try:
            yield
        finally:
            self._give_on()

    def _give_on(self) -> None:
        if self._waiting:
            self._waiting.pop(0)[2].set()
        else:
            self._free += 1

    def _wait(self, entry: _Waiting) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise too_much()
        insort(self._waiting, entry)
        until = time.monotonic() + PATIENCE
        try:
            while not entry[2].wait(_LOOK) and time.monotonic() < until:
                self._meanwhile()
        except BaseException:  # the peer has left
            if entry[2].is_set():
                self._give_on()
            raise
        finally:
            if not entry[2].is_set():
                self._waiting.remove(entry)
        if not entry[2].is_set():
            raise too_much()


class HubPace:
    """One turn in each turn of the hub, so that the other doors are served between any two."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._numbers = count()
        self._paced = False

    def wait(self, served: int) -> None:
        """Return when it is this peer's turn; at once if this turn of the hub is free."""
        if not self._paced:
            self._paced = True
            gevent.spawn(self._go_round)
            return
        entry = served, next(self._numbers), Event()
        insort(self._waiting, entry)
        try:
            entry[2].wait()
        except BaseException:
            if not entry[2].is_set():
                self._waiting.remove(entry)
            raise

    def _go_round(self) -> None:
        gevent.sleep(_MOMENT)
        while self._waiting:
            self._waiting.pop(0)[2].set()
            gevent.sleep(_MOMENT)
        self._paced = False


def too_much() -> Unavailable:
    """Return the error for a request that got no turn, or no memory, in time."""
    return Unavailable("too many requests at this door: try again in a moment")
