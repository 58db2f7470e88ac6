"""Events of a queue at their times: jobs become due, expire, or may be claimed for a tenant again.

Nothing here has a clock: the time is an argument.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from sluicemq_broker.job import Job
from sluicemq_broker.runtime import Budget

#: Jobs that become due or expire within this many seconds of each other are handled together.
TICK: Final = 0.05
#: Jobs with a longer time to live, in seconds, are left to the sweep, unless somebody waits for the result.
SOON: Final = 60.0

#: Seconds between two claims for tenants that were held back, at least: slots that become free meanwhile are
#: claimed together.
_SOONEST: Final = 0.05
#: Seconds to the next such claim while jobs at other brokers take the tenants' slots, at most.
_LONGEST: Final = 1.0
#: A timer, or a time that was said in whole milliseconds, may be early by this many seconds.
_EARLY: Final = 0.001


class DueTimes:
    """How many delayed jobs of a queue become due at which time of the server's clock."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # by tick
        self._ticks: list[int] = []  # a heap of those

    def add(self, times: Iterable[float], now: float) -> None:
        """Jobs become due at these times."""
        for when in times:
            # Jobs that become due later than this many seconds from now are found by the poll.
            if when - now < 60.0:
                tick = _tick(when)
                if tick not in self._counts:
                    heappush(self._ticks, tick)
                self._counts[tick] += 1

    def take(self, now: float) -> int:
        """Return how many have become due since the last call."""
        due = 0
        while self._ticks and self._ticks[0] * TICK <= now:
            due += self._counts.pop(heappop(self._ticks))
        return due

    @property
    def next(self) -> float:
        """When the next jobs become due."""
        return self._ticks[0] * TICK if self._ticks else math.inf


class Expiries:
    """The jobs of a queue that wait, by the time of the server's clock at which they expire.

    A job is in here from when this broker knows that it waits (stored, staged, given back) until it is at a
    worker, where it does not expire. A crash forgets them. ``budget`` is how many all queues together may
    keep: the sweep ends jobs beyond that, jobs that came over another broker, and jobs from before a restart.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._ids: dict[int, set[str]] = {}  # by tick
        self._ticks: list[int] = []  # a heap of those, and of some that are over

    def __bool__(self) -> bool:
        """True if any job is in here."""
        return bool(self._ids)

    def watch(self, jobs: Iterable[Job], now: float) -> None:
        """Note jobs that wait."""
        for job in jobs:
            expires_at = job.expires_at
            if expires_at is not None and (job.result_wanted or expires_at < now + SOON):
                self.watch_one(job.id, expires_at)

    def watch_one(self, job_id: str, expires_at: float) -> None:
        """Note a job that waits, whatever its time to live: somebody waits for its result."""
        if self._budget.full:
            return
        tick = _tick(expires_at)
        ids = self._ids.get(tick)
        if ids is None:
            ids = self._ids[tick] = set()
            heappush(self._ticks, tick)
        if job_id not in ids:
            ids.add(job_id)
            self._budget.take(1)

    def forget(self, jobs: Iterable[Job]) -> None:
        """Forget jobs that are at workers now."""
        for job in jobs:
            if job.expires_at is not None and (ids := self._ids.get(tick := _tick(job.expires_at))):
                if job.id in ids:
                    ids.remove(job.id)
                    self._budget.take(-1)
                if not ids:
                    del self._ids[tick]
        # Ticks in the heap of which all jobs went to workers, before the heap is rebuilt.
        if len(self._ticks) > 2 * len(self._ids) + 1000:
            self._ticks = list(self._ids)
            heapify(self._ticks)

    def take(self, now: float) -> list[str]:
        """Take out the ids of the jobs that have expired."""
        expired: list[str] = []
        if self.next > now:
            return expired
        while self._ticks and self._ticks[0] * TICK <= now:
            expired.extend(self._ids.pop(heappop(self._ticks), ()))
        self._budget.take(-len(expired))
        return expired

    @property
    def next(self) -> float:
        """When the next jobs expire; perhaps there are none left then."""
        return self._ticks[0] * TICK if self._ticks else math.inf


class HeldBack:
    """Tenants whose jobs are due and may not begin yet, as the last claim has found them.

    Jobs of theirs may begin when one of theirs has ended, when time has brought tokens, or when one at
    another broker has ended unnoticed. So nobody asks all the time, and nobody waits for good. Times are
    monotonic seconds.
    """

    def __init__(self) -> None:
        self._held: Mapping[str, float] = {}
        self._wait = _SOONEST  # for jobs at other brokers
        self.next = math.inf
        """When to claim again."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, tenant: object) -> bool:
        return tenant in self._held

    def found(self, held: Mapping[str, float], now: float, *, some_began: bool) -> None:
        """Note the tenants that a claim has held back, and the seconds until one job of each may begin.

        Infinity: when one of theirs has ended.
        """
        self._held = held
        if not held:
            self.next = math.inf
            return
        self._wait = _SOONEST if some_began else min(self._wait * 2, _LONGEST)
        ends = self._wait * random.uniform(0.75, 1.0)  # noqa: S311 - no secret
        seconds = min(ends if wait == math.inf else wait + _EARLY for wait in held.values())
        self.next = now + max(_SOONEST, seconds)

    def freed_by(self, jobs: Iterable[Job]) -> bool:
        """Return True if the end of these jobs lets others begin."""
        return bool(self._held) and any(job.turn in self._held for job in jobs)

    @property
    def wait_for_others(self) -> bool:
        """True if the end of a job at another broker may let others begin."""
        return math.inf in self._held.values()

    def take(self, now: float) -> bool:
        """Return True, once, if it is time to claim again."""
        if now < self.next - _EARLY:
            return False
        self.next = math.inf
        return True

    def clear(self) -> None:
        """Forget them: no worker here could have their jobs."""
        self._held, self.next = {}, math.inf


def _tick(when: float) -> int:
    return math.ceil(when / TICK)
