"""Time of the hub for readers that choose messages: at once for light readers, a quarter for heavy ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from time import monotonic, thread_time
from typing import Any, Final

import gevent
from gevent.event import Event

from sluicemq_devices.hub import NEXT_TURN, let_others_run

#: Seconds of the hub for choosing, at most, before other greenlets have their turn.
TURN: Final = 0.004
#: Seconds of CPU that a light reader has used of late, at most.
_LIGHT: Final = 0.005


class Usage:
    """The seconds of CPU that one reader, or one connection with many, has used of late for choosing."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = self._at = 0.0

    def of_late(self, now: float) -> float:
        """Return the seconds as of now."""
        self._seconds = max(0.0, self._seconds - 0.02 * (now - self._at))
        self._at = now
        return self._seconds

    def add(self, seconds: float) -> None:
        """Add used seconds."""
        self._seconds += seconds


class Choosing:
    """Turns for all readers of a broker's streams.

    Light readers choose as soon as their turn of the hub has time left. Heavy readers have one turn at a
    time, after which the hub is free for three times as long. The reader that has used least is the next, so
    a flood of readers holds back another one for fifty times its own used seconds at most.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        """``now``: monotonic seconds."""
        self._now = now
        self._spent = 0.0  # in this turn of the hub
        self._next_turn: Any = None
        self._heavy: list[tuple[float, int, Event]] = []
        self._count = itertools.count()
        self._deals = False
        self._rests_until = 0.0

    def may_choose(self, usage: Usage) -> bool:
        """True if this reader need not :meth:`wait`."""
        return self._spent < TURN and usage.of_late(self._now()) < _LIGHT

    @contextmanager
    def counted(self, usage: Usage) -> Iterator[None]:
        """Count the CPU time that a reader uses in the body."""
        began, at = thread_time(), self._now()
        heavy = usage.of_late(at) >= _LIGHT
        try:
            yield
        finally:
            took = thread_time() - began
            usage.add(took)
            self._spend(took)
            if heavy:  # by the clock: on a busy machine this process has to leave more to the jobs
                now = self._now()
                # After a turn of a heavy reader no heavy reader has one for three times its length.
                self._rests_until = now + 3.0 * (now - at)

    def wait(self, usage: Usage) -> None:
        """Block until it is this reader's turn."""
        used = usage.of_late(self._now())
        if used < _LIGHT:
            while self._spent >= TURN:
                let_others_run()
            return
        turn = Event()
        # A heavy reader stands in the line fifty times its used seconds behind a reader that has used none.
        heappush(self._heavy, (self._now() + 50.0 * used, next(self._count), turn))
        if not self._deals:
            self._deals = True
            gevent.spawn(self._deal)
        turn.wait()

    def _spend(self, seconds: float) -> None:
        self._spent += seconds
        if self._next_turn is None:
            self._next_turn = gevent.get_hub().loop.timer(NEXT_TURN)
            self._next_turn.start(self._begin_turn)

    def _begin_turn(self) -> None:
        self._spent = 0.0
        self._next_turn.close()
        self._next_turn = None

    def _deal(self) -> None:
        """Give heavy readers their turns."""
        while self._heavy:
            gevent.sleep(max(NEXT_TURN, self._rests_until - self._now()))
            if self._spent < TURN:
                heappop(self._heavy)[-1].set()
                let_others_run()  # it has its turn meanwhile
        self._deals = False
