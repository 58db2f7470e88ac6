"""Jobs on their way back to ``ready``, or to the dead letters: rollbacks, rejections, releases.

``kill -9`` before the write: the job is still reserved by this broker, and is delivered again when its
lease has run out, with one loss more. After it: it is where it should be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import Dead
from sluicemq_broker.bus import BusKind
from sluicemq_broker.context import Context
from sluicemq_broker.job import Job
from sluicemq_broker.queue.commits import by_owner
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.verdict import Settlement, not_durable
from sluicemq_broker.runtime import Batcher, Count, shielded
from sluicemq_broker.store import QueueStore, RolledBack

#: Jobs in one statement, at most.
RETURN: Final = 1000


class Return(NamedTuple):
    """A job that goes back, and whose verdict that was. ``awaited``: newer jobs wait for it."""

    entry: RolledBack
    settlement: Settlement
    position: int
    awaited: bool = False


class Returns:
    """What goes back in one queue, merged into one statement each."""

    def __init__(
        self, store: QueueStore, context: Context, dispatch: Dispatch, waiters: ResultWaiters
    ) -> None:
        self._store = store
        self._dispatch = dispatch
        self._supply = dispatch.supply
        self._groups = dispatch.groups
        self._expiries = dispatch.expiries
        self._waiters = waiters
        self._clock = context.clock
        self._retry = context.retry
        self._counters = context.counters
        self._events = context.events
        self._tell = context.notify_brokers
        self._verdicts = context.memory.verdicts
        self._returns: Batcher[Return] = Batcher(self._write_all, size=RETURN, failed=self._failed)
        self._releases: Batcher[Job] = Batcher(self._release_all, size=RETURN, failed=self._release_failed)
        #: What is written, each merged on its own.
        self.batchers: tuple[Batcher[Any], ...] = (self._returns, self._releases)

    def send_back(self, returns: Sequence[Return]) -> None:
        """These jobs failed; each settlement is told when that is durable."""
        if returns:
            self._supply.returning(_awaited(returns))
            self._verdicts.take(self._dispatch, len(returns), _bytes_of(returns))
            self._returns.extend(returns)

    def release(self, jobs: Iterable[Job]) -> None:
        """Give back jobs that no worker has started; the attempt is not counted."""
        going = list(jobs)
        for job in going:
            job.drop_payload()  # it may be long on its way
        if going:
            self._supply.returning(len(going))
            self._verdicts.take(self._dispatch, len(going), 0)
            self._releases.extend(going)

    def await_releases(self, timeout: float) -> None:
        """Block until what is being given back unstarted can be claimed again."""
        self._releases.drain(timeout)

    # ---------------------------------------------------------------- failed

    def _write_all(self, returns: list[Return]) -> None:
        try:
            self._write(returns)
        finally:
            self._verdicts.give(self._dispatch, len(returns), _bytes_of(returns))

    def _write(self, returns: list[Return]) -> None:
        entries = [each.entry for each in returns]
        now = self._clock.now()
        ours = self._retry.run(lambda: self._store.roll_back(entries, now))
        if ours < len(entries):
            self._counters.add(Count.GIVEN_BACK_BY_OTHERS, len(entries) - ours)
        self._dispatch.forget(each.job for each in entries)
        self._supply.returned(_awaited(returns))
        for each in returns:
            each.settlement.settled(each.position)
        self._announce(entries, now)

    def _announce(self, entries: list[RolledBack], now: float) -> None:
        if self._events.wanted:
            for event, dead in ((Count.ROLLED_BACK, False), (Count.DEAD, True)):
                self._events.emit(event, now, [_told(each) for each in entries if each.dead == dead])
        for entry in entries:
            if entry.dead:
                text = f"job {entry.job.id} is dead after {entry.reason!r}"
                self._counters.notice(Count.DEAD, text, about=_told(entry))
                why = Dead(f"job {entry.job.id} is dead: {entry.reason}")
                shielded(self._waiters.failed, entry.job.id, why)
        if any(entry.dead and entry.job.result_wanted for entry in entries):
            self._tell(BusKind.ENDED, 0)
        self._groups.may_go_on([entry.job for entry in entries if entry.dead])
        alive = [entry for entry in entries if not entry.dead]
        at_once = [entry.job.priority for entry in alive if not entry.due or entry.due <= now]
        if at_once:
            self._supply.some_ready(max(at_once), len(at_once))
        later = [entry.due for entry in alive if entry.due and entry.due > now]
        if later:
            self._supply.due_later(later)
        self._expiries.watch([entry.job for entry in alive])

    def _failed(self, returns: list[Return]) -> None:
        """What is forgotten and still reserved is found by the audit, and delivered again."""
        self._dispatch.forget(each.entry.job for each in returns)
        self._supply.returned(_awaited(returns))
        for each in returns:
            each.settlement.settled(each.position, not_durable())

    # ------------------------------------------------------------ not started

    def _release_all(self, jobs: list[Job]) -> None:
        try:
            self._release(jobs)
        finally:
            self._verdicts.give(self._dispatch, len(jobs), 0)

    def _release(self, jobs: list[Job]) -> None:
        for held in by_owner(jobs).values():
            self._release_held(held)
        self._dispatch.forget(jobs)
        self._counters.add(Count.RELEASED, len(jobs))
        self._events.emit(Count.RELEASED, self._clock.now(), ({"job": job.id} for job in jobs))
        self._supply.returned(len(jobs))
        self._supply.some_ready(count=len(jobs))
        self._expiries.watch(jobs)

    def _release_held(self, jobs: list[Job]) -> None:
        self._retry.run(lambda: self._store.release(jobs))

    def _release_failed(self, jobs: list[Job]) -> None:
        self._dispatch.forget(jobs)
        self._supply.returned(len(jobs))


def _told(entry: RolledBack) -> dict[str, Any]:
    due = {} if entry.due is None else {"due_at": entry.due}
    about = {"attempt": entry.job.attempts, "worker": entry.worker, "reason": entry.reason}
    return {"job": entry.job.id, **about, **due}


def _awaited(returns: Iterable[Return]) -> int:
    return sum(each.awaited for each in returns)


def _bytes_of(returns: Sequence[Return]) -> int:
    return sum([len(each.entry.reason) for each in returns])
