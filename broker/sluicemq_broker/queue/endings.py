"""Ends of jobs, said in one place: to counters, events, groups, waiters for results and other brokers.

Jobs that end without a worker end here: their time is over, no attempt is left, or their children ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar, Final
from weakref import WeakSet

from sluicemq.protocol.errors import DeadError, SluiceError
from sluicemq.protocol.rows import EndRow
from sluicemq_broker.bus import BusKind
from sluicemq_broker.job import Job
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.decisions import AwaitChildren, Commit, PassOn, Settled
from sluicemq_broker.queue.groups import Groups
from sluicemq_broker.queue.other_queues import OtherQueues
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.runtime import Batcher, Count, shielded
from sluicemq_broker.store import ExpiredJobs, RolledBack


class Endings:
    """The ends of the jobs of one queue."""

    def __init__(self, core: QueueCore, waiters: ResultWaiters, groups: Groups, others: OtherQueues) -> None:
        self._core = core
        self._waiters = waiters
        self._groups = groups
        self._others = others
        # Jobs whose time is over, in one statement.
        self._over: Batcher[str] = Batcher(self._expire, size=1000)
        self.ends = Ends()
        self._deaths = 0  # at the last call of take_deaths

    @property
    def busy(self) -> bool:
        """Return True if any job is about to be ended."""
        return self._over.busy

    # ----------------------------------------------------------------- by a worker

    def ended(self, count: Count, settled: Sequence[Settled[Any]], now: float) -> None:
        """Workers have ended jobs: they are done, were forwarded, or wait for children, as ``count`` says."""
        self._core.counters.add(count, len(settled))
        self._core.counters.kinds.add(count, [end.delivery.job.kind for end in settled if not _joins(end)])
        if self._core.events.wanted:
            self._core.events.emit(count, now, map(_about, settled))
        if count is Count.FANNED_OUT:
            return  # the job goes on when its children are done
        self.ends.ended(count, settled, now, self._core.timer.now())
        jobs = [end.delivery.job for end in settled]
        self._groups.may_advance(jobs)
        self._notify_if_wanted(jobs)
        for end in settled if self._waiters else ():
            self._tell_waiters(end)

    def not_ended(self, settled: Settled[Any], problem: SluiceError) -> None:
        """A verdict was not written: another broker has the job by now, or nobody knows what became of it."""
        job = settled.delivery.job
        self._core.counters.notice(Count.UNCOMMITTED, str(problem))
        self._groups.may_advance([job])
        if isinstance(settled.decision, Commit):
            shielded(self._waiters.failed, job.id, problem)
        else:
            self._waiters.check([job.id])

    def became_dead(self, entries: Sequence[RolledBack], now: float) -> None:
        """Jobs were rejected, or have failed for the last time."""
        if self._core.events.wanted:
            self._core.events.emit(Count.DEAD, now, map(about_return, entries))
        for entry in entries:
            job_id = entry.job.id
            text = f"job {job_id} is dead after {entry.reason!r}"
            self._core.counters.notice(Count.DEAD, text, about=about_return(entry))
            shielded(self._waiters.failed, job_id, DeadError(f"job {job_id} is dead: {entry.reason}"))
        jobs = [entry.job for entry in entries]
        self._core.counters.kinds.add(Count.DEAD, [job.kind for job in jobs])
        self._notify_if_wanted(jobs)
        self._groups.may_advance(jobs)

    def _notify_if_wanted(self, jobs: Sequence[Job]) -> None:
        if any(self._waiters.wanted_by_others(job) for job in jobs if job.result_wanted):
            self._core.notify_brokers(BusKind.ENDED, 0)

    def _tell_waiters(self, settled: Settled[Any]) -> None:
        job_id, decision = settled.delivery.job.id, settled.decision
        if job_id not in self._waiters:
            return
        if isinstance(decision, Commit):
            shielded(self._waiters.committed, job_id, decision.result)
        elif isinstance(decision, PassOn):
            shielded(self._waiters.follow, job_id, self._others.open(decision.onward.queue).results)

    # ----------------------------------------------------------- without a worker

    def died(self, ids: Iterable[str]) -> None:
        """Jobs became dead letters when they were claimed: they had no attempt left."""
        dead = list(ids)
        self._core.events.emit(Count.DEAD, self._core.clock.now(), ({"job": job} for job in dead))
        self._waiters.check(dead)

    def parent_ended(self, job_id: str, outcome: bytes | SluiceError) -> None:
        """A parent has ended: the last child is done, or one is a dead letter."""
        if isinstance(outcome, bytes):
            self._waiters.committed(job_id, outcome)
            self._core.notify_brokers(BusKind.ENDED, 0)
            return
        self._core.counters.notice(Count.DEAD, f"job {job_id} is dead: {outcome}")
        self._waiters.failed(job_id, outcome)

    def ended_elsewhere(self, job_id: str) -> None:
        """A parent has ended in the transaction of an application: its waiters find the result."""
        self._waiters.check([job_id])
        self._core.notify_brokers(BusKind.ENDED, 0)

    def take_deaths(self) -> bool:
        """Return True if jobs may have become dead letters here since the last call."""
        counted = self._core.counters.values
        before, self._deaths = self._deaths, counted[Count.DEAD] + counted[Count.EXPIRED]
        return self._deaths > before

    def time_is_over(self, ids: Iterable[str]) -> None:
        """The time to live of these jobs is over: end those that are ready."""
        self._over.extend(ids)

    def expire(self, limit: int) -> int:
        """End jobs that were not taken in time, ``limit`` at most; returns how many."""
        with self._waiters.ending():
            expired = self._core.store.expire(self._core.clock.now(), limit)
            self._have_expired(expired)
        return len(expired.ids)

    def _expire(self, ids: list[str]) -> None:
        """``kill -9`` before or between its statements, or no answer: the sweep ends what is left."""
        with self._waiters.ending():
            expired = self._core.retry.run(lambda: self._core.store.expire(self._core.clock.now(), ids=ids))
            self._have_expired(expired)
        if len(expired.ids) < len(ids):  # another broker, or one without an answer, may have ended them
            self._waiters.check(set(ids).difference(expired.ids))

    def _have_expired(self, expired: ExpiredJobs) -> None:
        self._core.counters.add(Count.EXPIRED, len(expired.ids))
        self._core.events.emit(
            Count.EXPIRED, self._core.clock.now(), ({"job": job_id} for job_id in expired.ids)
        )
        self.ends.note(Count.EXPIRED, expired.ids, self._core.clock.now())
        self._waiters.expired(expired.ids)
        self._groups.freed(expired.groups)


def _joins(settled: Settled[Any]) -> bool:
    """Return whether the job is delivered once more, when its children have ended."""
    return isinstance(settled.decision, AwaitChildren) and settled.decision.join


def about_return(entry: RolledBack) -> dict[str, Any]:
    """Return what an event says of a job that is ready again, or dead."""
    due = {} if entry.due is None else {"due_at": entry.due}
    about = {"attempt": entry.job.attempts, "worker": entry.worker, "reason": entry.reason}
    return {"job": entry.job.id, **about, **due}


def _about(settled: Settled[Any]) -> dict[str, Any]:
    """Return what an event says of a job that has ended, or moved on."""
    job, worker, decision = settled.delivery.job, settled.delivery.worker.name, settled.decision
    if isinstance(decision, AwaitChildren):
        return {"job": job.id, "children": len(decision.children)}
    if isinstance(decision, PassOn):
        return {"job": job.id, "worker": worker, "to": decision.onward.queue}
    return {"job": job.id, "attempt": job.attempts, "worker": worker}


#: Ends that are remembered of all queues together, about, and of one at least and at most.
MOST_OF_ALL: Final = 50_000
_LEAST, _MOST = 20, 1000

#: How a job ended, when, at which worker, in which attempt, after how many seconds there, its kind, and the
#: queue to which it went.
End = tuple[str, float, str | None, int | None, float | None, str | None, str | None]


class Ends:
    """The latest ends of one queue by the ids of its jobs: half of its share at least."""

    #: Those of all queues of this process that have any; each has a share of the bound over all.
    _all: ClassVar[WeakSet[Ends]] = WeakSet()

    def __init__(self) -> None:
        self._latest: dict[str, End] = {}
        self._before: dict[str, End] = {}

    def ended(self, how: str, settled: Sequence[Settled[Any]], now: float, at: float) -> None:
        """Note jobs that workers have ended ``now``, in monotonic seconds ``at``; of many the last ones."""
        latest = self._room()
        for end in settled[-_MOST // 2 :]:
            delivery = end.delivery
            job = delivery.job
            worker, seconds = delivery.worker.name, at - delivery.handed_at
            to = end.decision.onward.queue if isinstance(end.decision, PassOn) else None
            latest[job.id] = (how, now, worker, job.attempts, seconds, job.kind, to)

    def note(self, how: str, ids: Sequence[str], now: float) -> None:
        """Note jobs that have ended without a worker; of many the last ones."""
        end = (how, now, None, None, None, None, None)
        self._room().update((job_id, end) for job_id in ids[-_MOST // 2 :])

    def _room(self) -> dict[str, End]:
        """Return where to note some more; the oldest of too many are forgotten."""
        if not self._latest:
            self._all.add(self)
        share = min(_MOST, max(_LEAST, MOST_OF_ALL // max(1, len(self._all))))
        if len(self._latest) >= share // 2:
            self._before, self._latest = self._latest, {}
        return self._latest

    def find(self, job_id: str | None, limit: int) -> list[EndRow]:
        """Return the end of one job, if it is remembered; with None the latest ends, the last first."""
        if job_id is not None:
            end = self._latest.get(job_id) or self._before.get(job_id)
            return [_row(job_id, end)] if end else []
        known = {**self._before, **self._latest}
        return [_row(ended_job, end) for ended_job, end in islice(reversed(known.items()), limit)]


def _row(job_id: str, end: End) -> EndRow:
    how, at, worker, attempt, seconds, kind, to = end
    return EndRow(
        id=job_id,
        end=how,
        at=at,
        worker=worker,
        attempt=attempt,
        seconds=None if seconds is None else round(seconds, 3),
        kind=kind,
        to=to,
    )
