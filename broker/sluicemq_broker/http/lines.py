"""Lines before what few can have at once: those first who have had least.

A peer that asks again and again, or reads much, waits behind one that has just come. So a flood of honest
looking questions delays others by about one of them, not by all.
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

#: Seconds that anybody waits for a turn, and between two looks at what is done meanwhile.
PATIENCE: Final = 5.0
_LOOK: Final = 0.05
_MOMENT: Final = 1e-9

#: Who waits: what it has had, a number, and what is set when its turn comes.
_Waiting = tuple[int, int, Event]


class Line:
    """``at_once`` have a turn, ``waiting`` more wait for theirs; ``meanwhile`` is called while any does."""

    def __init__(self, at_once: int, waiting: int, meanwhile: Callable[[], object] = bool) -> None:
        self._free = at_once
        self._most_waiting = waiting
        self._meanwhile = meanwhile
        self._waiting: list[_Waiting] = []
        self._numbers = count()

    @contextmanager
    def turn(self, had: int = 0) -> Iterator[None]:
        """Wait for a turn, and have it inside; raises Unavailable where too many wait, or for too long.

        ``had``: how much this peer has had already.
        """
        if self._free:
            self._free -= 1
        else:
            self._wait((had, next(self._numbers), Event()))
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
        except BaseException:  # its peer has gone
            if entry[2].is_set():
                self._give_on()
            raise
        finally:
            if not entry[2].is_set():
                self._waiting.remove(entry)
        if not entry[2].is_set():
            raise too_much()


class Pace:
    """One turn for each turn of the hub, so that the other doors have theirs between any two of this one."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._numbers = count()
        self._paced = False

    def wait(self, had: int) -> None:
        """Return when it is this peer's turn; at once if nobody has had this one."""
        if not self._paced:
            self._paced = True
            gevent.spawn(self._go_round)
            return
        entry = had, next(self._numbers), Event()
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
    """Answer that there was no turn, or no room, in time."""
    return Unavailable("too much is asked at this door: ask again in a moment")
