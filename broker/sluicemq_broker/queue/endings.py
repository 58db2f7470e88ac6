"""Jobs that end without a verdict: their time is over, they have no attempt left, their children ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.bus import BusKind
from sluicemq_broker.context import Context
from sluicemq_broker.queue.groups import Groups
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.runtime import Batcher, Count, QueueCounters
from sluicemq_broker.store import ExpiredJobs, QueueStore

#: Jobs whose time is over, in one statement.
_AT_ONCE: Final = 1000


class Endings:
    """Jobs of one queue that end without a verdict: each is counted, and whoever waits for it hears of it.

    ``counters``: those of the queue, where :meth:`take_deaths` sees whatever has ended there.
    """

    def __init__(
        self,
        store: QueueStore,
        context: Context,
        counters: QueueCounters,
        waiters: ResultWaiters,
        groups: Groups,
    ) -> None:
        self._store = store
        self._clock = context.clock
        self._retry = context.retry
        self._tell = context.notify_brokers
        self._counters = counters
        self._events = context.events
        self._waiters = waiters
        self._groups = groups
        self._over: Batcher[str] = Batcher(self._expire, size=_AT_ONCE)
        self._deaths = 0  # when somebody asked last

    @property
    def busy(self) -> bool:
        """True if any is about to be ended."""
        return self._over.busy

    def died(self, ids: Iterable[str]) -> None:
        """These became dead letters when they were claimed."""
        dead = list(ids)
        self._events.emit(Count.DEAD, self._clock.now(), ({"job": each} for each in dead))
        self._waiters.check(dead)

    def take_deaths(self) -> bool:
        """True if jobs may have become dead letters here since somebody asked last."""
        counted = self._counters.values
        before, self._deaths = self._deaths, counted[Count.DEAD] + counted[Count.EXPIRED]
        return self._deaths > before

    def parent_ended(self, job_id: str, outcome: bytes | SluiceError) -> None:
        """The last of its children is done, and it with them; or one is a dead letter, and it with that."""
        if isinstance(outcome, bytes):
            self._waiters.committed(job_id, outcome)
            self._tell(BusKind.ENDED, 0)
            return
        self._counters.notice(Count.DEAD, f"job {job_id} is dead: {outcome}")
        self._waiters.failed(job_id, outcome)

    def time_is_over(self, ids: Iterable[str]) -> None:
        """The time to live of these is over: end those that lie ready."""
        self._over.extend(ids)

    def sweep(self, limit: int) -> int:
        """End what was not taken in time, ``limit`` jobs at most, and tell who waits; returns how many."""
        with self._waiters.ending():
            expired = self._store.expire(self._clock.now(), limit)
            self._have_expired(expired)
        return len(expired.ids)

    def _expire(self, ids: list[str]) -> None:
        """``kill -9`` before or between its statements, or no answer: the sweep ends what is left."""
        with self._waiters.ending():
            expired = self._retry.run(lambda: self._store.expire(self._clock.now(), ids=ids))
            self._have_expired(expired)
        if len(expired.ids) < len(ids):  # another broker, or one without an answer, may have ended them
            self._waiters.check(set(ids).difference(expired.ids))

    def _have_expired(self, expired: ExpiredJobs) -> None:
        self._counters.add(Count.EXPIRED, len(expired.ids))
        self._events.emit(Count.EXPIRED, self._clock.now(), ({"job": each} for each in expired.ids))
        self._waiters.expired(expired.ids)
        self._groups.freed(expired.groups)
