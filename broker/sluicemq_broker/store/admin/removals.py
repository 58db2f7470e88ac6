"""What people order to be removed: one job, those of a state, dead letters, a queue.

Each removes what it names by guarded statements on single documents, so that a job which a worker has is
never touched; children for whose end their parents wait go together with these
(:mod:`~sluicemq_broker.store.jobs.failed_children`). A lost reply raises
:class:`~sluicemq_broker.store.errors.Unclear`; what repeating the order then does is said at each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import State
from sluicemq_broker.store.admin.batches import READ_AT_ONCE, BatchSize, batches
from sluicemq_broker.store.admin.changes import WAITS, Jobs, Orders, missing
from sluicemq_broker.store.admin.dead_letters import DeadLetters, Looked, look_through
from sluicemq_broker.store.admin.job_view import selects, stored_state
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import collection
from sluicemq_broker.store.jobs.failed_children import (
    CHILDREN,
    NOT_AWAITED,
    FailedParent,
    ParentQueues,
    all_put_aside,
    drop_left_over,
    dropping_put_aside,
    put_aside,
    remove_children,
)
from sluicemq_broker.store.jobs.indexes import Notice, may_have
from sluicemq_broker.store.jobs.portions import Portions
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.values import BY_ID, Document, date

#: Pages of children of removed queues in one round, of each such queue.
_PAGES_IN_A_ROUND: Final = 40
#: Seconds by which one broker's measure of the server's time may be ahead of another's.
_CLOCKS_DIFFER: Final = 1.0


class Removals(Orders):
    """Orders after which jobs are there no more. ``kin``: where their parents are; None: in this database."""

    def __init__(
        self, database: Documents, kin: ParentQueues | None = None, notice: Notice | None = None
    ) -> None:
        super().__init__(database, notice)
        self._kin = kin or _OfThisDatabase(database)
        self._portions = Portions(READ_AT_ONCE, notice)

    def cancel(self, queue: str, job_id: str, now: float) -> str | None:
        """Remove one job that waits; raises :class:`NotFound` if there is none or a worker has it.

        Returns its group, whose next one may go; None: it had none.

        Lost reply: it is there or gone; repeating it says NOT_FOUND of one that is gone. ``now`` spares
        another job of this id, accepted later, should the statement land late.
        """
        waits = {"_id": job_id, "state": {"$in": WAITS}, **_accepted_by(now)}
        with translated():
            jobs = self._jobs(queue)
            cancelled = jobs.find_one_and_delete({**waits, **NOT_AWAITED}, {"group": 1})
            if cancelled is not None:
                return cancelled.get("group")
            child = self._remove_children(jobs, [job_id], waits, "was cancelled", now)
            if not child:
                raise missing(jobs, queue, job_id, "cancelled")
        return child[0]

    def remove_ended(self, queue: str, job_id: str, now: float) -> bool:
        """Remove a job that is done, or a dead letter; False if there is none.

        Lost reply: it is there or gone; repeating it is harmless. ``now`` spares what has ended later.
        """
        ended = {"_id": job_id, "state": {"$in": [State.DONE, State.DEAD]}, "ended_at": {"$lte": date(now)}}
        with translated():
            if self._jobs(queue).delete_one({**ended, **NOT_AWAITED}).deleted_count:
                return True
            return bool(self._remove_children(self._jobs(queue), [job_id], ended, "was removed", now))

    def purging(self, queue: str, state: str, now: float, size: BatchSize) -> Iterator[int]:
        """Remove all jobs of a state, but never those that are reserved; yields how many, after each page.

        Lost reply: some are gone; repeating it removes the rest. What is accepted later than ``now`` stays,
        also where a statement lands late.
        """
        jobs, by_now = self._jobs(queue), _accepted_by(now)
        with translated():
            while may_have(jobs, state):
                # One read for all pages: another would pass over the removed ones in the index once more.
                found = jobs.find({**selects(state, now), **by_now}, {"_id": 1}, batch_size=READ_AT_ONCE)
                empty = True
                for ids in batches([((each["_id"], 0) for each in found)], size):
                    if not ids:
                        break
                    empty = False
                    these = {"_id": {"$in": ids}, "state": stored_state(state), **by_now}
                    yield self._remove(jobs, these, now)
                if empty:
                    return

    def discarding(
        self,
        queue: str,
        letters: DeadLetters,
        now: float,
        size: BatchSize,
        looked: Looked = lambda _count: None,
    ) -> Iterator[int]:
        """Remove dead letters, the oldest first, at most ``letters.limit``; yields how many, after each page.

        Lost reply: some are gone; repeating it removes the rest. What has died later than ``now`` stays.
        """
        jobs = self._jobs(queue)
        room = sys.maxsize if letters.limit is None else letters.limit
        with translated():
            for window in look_through(jobs, letters, now, size, looked):
                ids = [each.id for each in window[:room]]
                room -= len(ids)
                dead = {"_id": {"$in": ids}, "state": State.DEAD, "ended_at": {"$lte": date(now)}}
                yield self._remove(jobs, dead, now) if ids else 0
                if not room:
                    return

    def _remove(self, jobs: Jobs, these: Document, now: float) -> int:
        """One page: those of which no parent must hear, then the others; each half whole or in part."""
        removed = jobs.delete_many({**these, **NOT_AWAITED}, hint=BY_ID).deleted_count
        if removed < len(these["_id"]["$in"]):
            removed += len(self._remove_children(jobs, these["_id"]["$in"], these, "was removed", now))
        return removed

    def _remove_children(
        self, jobs: Jobs, ids: Sequence[str], these: Document, why: str, now: float
    ) -> list[str | None]:
        return remove_children(jobs, ids, these, why, now, self._kin, self._portions)

    def dropping(
        self, queue: str, now: float, *, shared: bool = False, size: int = CHILDREN
    ) -> Iterator[int]:
        """Remove a queue with all it holds; yields about how many jobs that were, and then zeros, for pages.

        ``shared``: other brokers may be pushing to it. Their next insert would make the collection
        again, without the index that keeps a ``dedupe_id`` single; so an empty one that has its indexes
        takes its place, and stays. Lost reply: repeating it is harmless.

        The collection is put aside first, so that whatever comes in at this moment is in it, or is not
        removed: then the queue is gone. Jobs that wait for children which lay here are dead letters after
        that, page by page. Where this broker is killed, or goes on no further, any broker's next round does.
        """
        with translated():
            jobs = self._jobs(queue)
            count: int = jobs.estimated_document_count()
            aside = put_aside(jobs, now, leave_empty=shared)
        yield count
        with suppress(SluiceError), translated():
            for _ in dropping_put_aside(aside, now, self._kin, size):
                yield 0

    def resume_drops(self, now: float, size: int = CHILDREN, most: int = _PAGES_IN_A_ROUND) -> None:
        """Go on with queues whose removal a broker has begun and not ended; harmless beside a live one.

        Of each it does ``most`` pages, so it holds up nothing else for long.
        """
        with translated():
            for each in all_put_aside(self._database):
                for _ in islice(dropping_put_aside(each, now, self._kin, size), most):
                    pass
            drop_left_over(self._database, now)


class _OfThisDatabase:
    """The queues of one database, while nobody waits at this broker for any job."""

    def __init__(self, database: Documents) -> None:
        self._database = database

    def store(self, queue: str) -> QueueStore:
        return QueueStore(self._database, collection(queue))

    def on_parents_failed(self, parents: Sequence[FailedParent]) -> None:
        """There is nobody to be told."""


def _accepted_by(now: float) -> Document:
    """The filter for jobs that had been accepted by then, at brokers whose clocks differ a little."""
    return {"created_at": {"$lte": date(now + _CLOCKS_DIFFER)}}
