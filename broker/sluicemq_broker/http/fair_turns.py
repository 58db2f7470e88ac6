"""Turns of which few are had at one time: the peer with the fewest so far is next.

A peer that sends request after request, or reads much, waits behind one that has just come. A flood of valid
requests delays another peer by about one request, not by all of them.
"""

from __future__ import annotations

import sys
import time
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import UnavailableError
from sluicemq_devices.hub import NEXT_TURN

#: Seconds to wait for a turn; and between two looks for peers that read nothing.
PATIENCE: Final = 5.0
LOOK: Final = 0.05

#: A waiting peer: how much it has had, its number in order of arrival, and its alarm.
_Waiting = tuple[int, int, Event]


class FairTurns:
    """``at_once`` turns at one time; ``waiting`` peers may wait, while ``meanwhile()`` is called.

    A peer waits for ``patience`` seconds; None: as long as it takes. ``now``: monotonic seconds.
    """

    def __init__(
        self,
        at_once: int,
        waiting: int,
        meanwhile: Callable[[], object] = bool,
        patience: float | None = PATIENCE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = at_once
        self._most_waiting = waiting
        self._meanwhile = meanwhile
        self._patience = patience
        self._now = now
        self._waiting: list[_Waiting] = []
        self._numbers = count()

    @contextmanager
    def turn(self, served: int) -> Iterator[None]:
        """Wait for a turn, and have it for the body; raises as :meth:`take`."""
        self.take(served)
        try:
            yield
        finally:
            self.give_on()

    def take(self, served: int) -> None:
        """Wait for a turn, to be given on later. ``served``: how much this peer has had.

        Raises Unavailable where too many wait, or when the patience is over.
        """
        if self._free:
            self._free -= 1
        else:
            self._wait((served, next(self._numbers), Event()))

    def give_on(self) -> None:
        """End a turn."""
        if self._waiting:
            self._waiting.pop(0)[2].set()
        else:
            self._free += 1

    def _wait(self, entry: _Waiting) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise too_much()
        insort(self._waiting, entry)
        alarm = entry[2]
        try:
            self._wait_for(alarm)
        except BaseException:  # the peer has left
            if alarm.is_set():
                self.give_on()
            raise
        finally:
            if not alarm.is_set():
                self._waiting.remove(entry)
        if not alarm.is_set():
            raise too_much()

    def _wait_for(self, alarm: Event) -> None:
        if self._patience is None:
            alarm.wait()
            return
        until = self._now() + self._patience
        while not alarm.wait(LOOK) and self._now() < until:
            self._meanwhile()


class HubPace:
    """One turn in each turn of the hub, so that the other doors are served between any two."""

    def __init__(self) -> None:
        self._turns = FairTurns(1, sys.maxsize, patience=None)

    def wait(self, served: int) -> None:
        """Return when it is this peer's turn; at once if this turn of the hub is free."""
        self._turns.take(served)
        gevent.spawn_later(NEXT_TURN, self._turns.give_on)


def too_much() -> UnavailableError:
    """Return the error for a request that got no turn, or no memory, in time."""
    return UnavailableError("too many requests at this door: try again in a moment")
