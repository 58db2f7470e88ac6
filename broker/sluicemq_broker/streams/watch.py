"""Notices what other brokers publish: a change stream over all streams of a database, a poll behind it.

It runs while somebody waits, and some seconds longer: a stream that nobody reads costs nothing. What it
tells is a hint: who waits looks for itself, and looks from time to time all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

import gevent
from gevent.event import Event

from sluicemq.errors import SluiceError
from sluicemq_broker.runtime import Count, Counters
from sluicemq_broker.store import StreamChanges

#: Seconds after the last one who waited in which it still runs.
_LINGER: Final = 10.0
#: Seconds between two looks where MongoDB tells no changes: a stand-alone, or no right to ask.
_POLL: Final = 0.05
#: Seconds until it is tried again after an error.
_PAUSE: Final = 0.5


class Watch:
    """One database's. ``told(name, first)``: a stream may have a new segment; ``all_told()``: any may."""

    def __init__(
        self,
        changes: StreamChanges,
        counters: Counters,
        told: Callable[[str, int], None],
        all_told: Callable[[], None],
    ) -> None:
        self._changes = changes
        self._counters = counters
        self._told = told
        self._all_told = all_told
        self._epoch = 0
        self._open = False
        self._running = False
        self._wanted_until = 0.0
        self._over = Event()

    def attend(self) -> int:
        """Somebody waits; returns the number of the watch that is on, from which on all is told, or 0."""
        self._wanted_until = monotonic() + _LINGER
        if not self._running and not self._over.is_set():
            self._running = True
            gevent.spawn(self._run)
        return self._epoch if self._open else 0

    def stop(self) -> None:
        """Look no more; what is under way ends within a second."""
        self._over.set()

    def _run(self) -> None:
        try:
            while not self._over.is_set() and monotonic() < self._wanted_until:
                self._follow()
        finally:
            self._running = False

    def _follow(self) -> None:
        """Until nobody waits, or it fails."""
        try:
            with self._changes.open() as changes:
                self._epoch += 1
                self._open = True
                self._all_told()  # what came while it was not on
                while not self._over.is_set() and monotonic() < self._wanted_until:
                    for name, first in changes.next():
                        self._told(name, first)
        except SluiceError as error:
            self._open = False
            if self._changes.supported:
                self._counters.notice(Count.STORE_UNAVAILABLE, f"changes of streams: {error}")
            self._poll()
        finally:
            self._open = False

    def _poll(self) -> None:
        until = monotonic() + (_PAUSE if self._changes.supported else _LINGER)
        while not self._over.is_set() and monotonic() < min(until, self._wanted_until):
            self._all_told()
            self._over.wait(_POLL)
