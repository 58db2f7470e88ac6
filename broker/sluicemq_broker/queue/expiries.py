"""When jobs expire: those that somebody waits for, and those that have less than a minute, to the twentieth.

All others are found by the sweep, once in a lease.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from sluicemq_broker.context import Context
from sluicemq_broker.job import Job

#: Jobs that expire within so many seconds of each other end in one statement.
TICK: Final = 0.05
#: Who has a longer time to live can wait for the sweep, unless somebody waits for the result.
SOON: Final = 60.0
#: An alarm is set so many seconds ahead at most: the server's clock may have been set meanwhile.
_LONGEST: Final = 1.0
#: Ticks in the heap that nobody waits for any more, before it is made anew.
_MOST_STALE: Final = 1000


class Expiries:
    """The jobs of one queue that wait, by the time at which they expire; in memory, so a crash forgets them.

    A job is in here from when this broker knows that it waits (stored, staged, given back) until it is at a
    worker, where it does not expire. ``over`` is told which ids have come to their time; who has ended or is
    reserved by then, MongoDB says. Over all queues so many are kept as ``Memory.expiries`` allows: what is
    beyond it the sweep ends, as it does what came over another broker, or was here before a restart.
    """

    def __init__(self, context: Context, over: Callable[[list[str]], None]) -> None:
        self._clock = context.clock
        self._timer = context.timer
        self._memory = context.memory
        self._over = over
        self._ids: dict[int, set[str]] = {}  # by tick of the server's clock
        self._ticks: list[int] = []  # a heap of those, and of some that are over
        self._alarm = math.inf  # the tick for which the earliest alarm is set

    def __bool__(self) -> bool:
        """True if any job is in here."""
        return bool(self._ids)

    def watch(self, jobs: Iterable[Job]) -> None:
        """These wait; what is over already ends at once."""
        mortal = [job for job in jobs if job.expires_at is not None]
        if not mortal:
            return
        now = self._clock.now()
        for job in mortal:
            expires_at = job.expires_at or 0.0
            if job.result_wanted or expires_at < now + SOON:
                self._add(job.id, expires_at)
        self._go_on()

    def watch_one(self, job_id: str, expires_at: float) -> None:
        """Somebody waits for the result of this one."""
        self._add(job_id, expires_at)
        self._go_on()

    def forget(self, jobs: Iterable[Job]) -> None:
        """These are at workers now."""
        for job in jobs:
            if job.expires_at is not None and (ids := self._ids.get(tick := _tick(job.expires_at))):
                if job.id in ids:
                    ids.remove(job.id)
                    self._memory.watch(-1)
                if not ids:
                    del self._ids[tick]
        if len(self._ticks) > 2 * len(self._ids) + _MOST_STALE:
            self._ticks = list(self._ids)
            heapify(self._ticks)

    def _add(self, job_id: str, expires_at: float) -> None:
        if self._memory.watches_no_more:
            return
        tick = _tick(expires_at)
        ids = self._ids.get(tick)
        if ids is None:
            ids = self._ids[tick] = set()
            heappush(self._ticks, tick)
        if job_id not in ids:
            ids.add(job_id)
            self._memory.watch(1)

    def _go_on(self) -> None:
        """Tell of those whose time has come, in one go, and set an alarm for the next."""
        now = self._clock.now()
        due: list[str] = []
        while self._ticks and self._ticks[0] * TICK <= now:
            due.extend(self._ids.pop(heappop(self._ticks), ()))
        self._memory.watch(-len(due))
        if self._ticks and self._ticks[0] < self._alarm:
            self._alarm = self._ticks[0]
            self._timer.after(min(self._alarm * TICK - now, _LONGEST), self._ring, self._alarm)
        if due:
            self._over(due)

    def _ring(self, alarm: float) -> None:
        if alarm == self._alarm:
            self._alarm = math.inf
        self._go_on()


def _tick(when: float) -> int:
    return math.ceil(when / TICK)
