"""Time that passes when a test says so, for greenlets that wait: each run of a test takes one course."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from sluicemq_broker.runtime import Timer


class VirtualTime(Timer):
    """A timer whose seconds pass with :meth:`passes`; a wait with a time limit is over at once."""

    def __init__(self) -> None:
        self.value = 1000.0
        self._alarms: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self.value

    def sleep(self, seconds: float) -> None:
        rung = Event()
        self.alarm(seconds, rung.set)
        rung.wait()

    def after(self, seconds: float, step: Callable[..., object], *arguments: Any) -> None:
        self.alarm(seconds, lambda: gevent.spawn(step, *arguments))

    def wait(self, event: Event, seconds: float) -> bool:
        return bool(event.is_set())

    def alarm(self, seconds: float, ring: Callable[[], object]) -> None:
        """Call ``ring`` when ``seconds`` have passed."""
        heapq.heappush(self._alarms, (self.value + seconds, next(self._numbers), ring))

    @property
    def pending(self) -> int:
        """How many alarms are set."""
        return len(self._alarms)

    def passes_inside(self, seconds: float) -> None:
        """Let time pass while a greenlet is busy: the others go on for a while, and none rests."""
        self._pass(seconds, _let_others_run)

    def passes(self, seconds: float) -> None:
        """Go on to each alarm in turn, and let everybody come to rest there."""
        self._pass(seconds, come_to_rest)

    def _pass(self, seconds: float, rest: Callable[[], None]) -> None:
        end = self.value + seconds
        while self._alarms and self._alarms[0][0] <= end:
            self.value, _, ring = heapq.heappop(self._alarms)
            ring()
            rest()
        self.value = max(end, self.value)
        rest()


def _let_others_run() -> None:
    for _ in range(50):
        gevent.sleep(0)


def come_to_rest() -> None:
    """Let every greenlet run until all of them wait: for time to pass, or for somebody to act."""
    loop = gevent.get_hub().loop
    for _ in range(10_000):
        gevent.sleep(0)
        if not loop._callbacks:
            return
    raise AssertionError("the greenlets never come to rest")
