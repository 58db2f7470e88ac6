"""Removals by an operator: one job, all jobs of a state, dead letters, a queue.

Each removes what it names by guarded statements on single documents, so that a job which a worker has is
never touched. Children that are awaited are removed together with their parents' wait
(:mod:`~sluicemq_broker.store.jobs.failed_children`). A lost reply raises
:class:`~sluicemq_broker.store.errors.Unclear`; each method says what repeating it does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from secrets import token_hex

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import State
from sluicemq_broker.store.admin.changes import WAITS, Operations, not_waiting
from sluicemq_broker.store.admin.counting import Counting
from sluicemq_broker.store.admin.dead_letters import DeadLetters, Looked, search_windows
from sluicemq_broker.store.admin.job_view import selects, stored_state
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.halving import READ_AT_ONCE, BatchSize, batches
from sluicemq_broker.store.jobs.documents import collection
from sluicemq_broker.store.jobs.failed_children import (
    NOT_AWAITED,
    FailedParent,
    ParentQueues,
    RemovedJob,
    remove_children,
)
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX
from sluicemq_broker.store.jobs.indexes import Notice, may_have
from sluicemq_broker.store.jobs.parents import EndedParent
from sluicemq_broker.store.jobs.portions import Portions
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.removed_queues import (
    CHILDREN,
    all_put_aside,
    aside_name,
    drop_left_over,
    dropping_put_aside,
    forget_removed,
    put_aside,
    token_of,
)
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date, seconds


class Removals(Operations):
    """Operations that remove jobs; ``parents``: their parents' queues (default: those of this database)."""

    def __init__(
        self, database: Documents, parents: ParentQueues | None = None, notice: Notice | None = None
    ) -> None:
        super().__init__(database, notice)
        self._parents = parents or _OfThisDatabase(database)
        self._portions = Portions(READ_AT_ONCE, notice)

    def cancel(self, queue: str, job_id: str, now: float, *, running: bool = False) -> RemovedJob:
        """Remove one job that waits, or ``running``: one that a worker has, too, or a broker for one.

        Return it: the next job of its group may go. Raises :class:`NotFound` if there is none. The
        verdict of its worker changes nothing any more, as each names the reservation. Lost reply: the job is
        there or removed; a repetition raises NOT_FOUND for a removed one. ``now`` spares a later job of this
        id, should the statement land late.
        """
        states = [*WAITS, State.RESERVED] if running else WAITS
        which = {"_id": job_id, "state": {"$in": states}, **_accepted_by(now)}
        for state in (State.READY, State.RESERVED)[: 1 + running]:
            self._lift(queue, job_id, now, state)
        with translated():
            jobs = self._jobs(queue)
            # failpoint jobs.cancel
            cancelled = jobs.find_one_and_delete({**which, **NOT_AWAITED}, {"seq": 1, "group": 1})
            if cancelled is not None:
                return RemovedJob(cancelled.get("seq"), cancelled.get("group"))
            child = self._remove_children(jobs, [job_id], which, "was cancelled", now)
            if not child:
                raise not_waiting(jobs, queue, job_id, "cancelled", running=running)
        return child[0]

    def children_of(self, queue: str, job_id: str) -> list[tuple[str, str]]:
        """Return the queues and ids of the children for which a job waits."""
        with translated():
            found = self._jobs(queue).find_one({"_id": job_id}, {"children": 1}) or {}
        children = found.get("children")
        if not isinstance(children, dict):
            return []
        queues = children.get("queues") or [queue]
        return [(name, f"{job_id}.{place + 1}") for name in queues for place in range(int(children["total"]))]

    def remove_ended(self, queue: str, job_id: str, now: float) -> bool:
        """Remove a job that is done, or a dead letter; False if there is none.

        Lost reply: it is there or removed; repeating it is harmless. ``now`` spares a job that has ended
        later.
        """
        ended = {"_id": job_id, "state": {"$in": [State.DONE, State.DEAD]}, "ended_at": {"$lte": date(now)}}
        with translated():
            jobs = self._jobs(queue)
            # failpoint jobs.delete
            if jobs.delete_one({**ended, **NOT_AWAITED}).deleted_count:
                return True
            return bool(self._remove_children(jobs, [job_id], ended, "was removed", now))

    def purging(self, queue: str, state: str, now: float, size: BatchSize) -> Iterator[int]:
        """Remove all jobs of a state, but never reserved ones; yield how many, after each batch.

        Lost reply: some are removed; a repetition removes the rest. Jobs that were accepted later than
        ``now`` stay, also where a statement lands late.
        """
        jobs, by_now = self._jobs(queue), _accepted_by(now)
        with translated():
            while may_have(jobs, state):
                # One read for all batches: another would pass over the removed ones in the index once more.
                wanted, packs = {"_id": 1, "left": 1}, set[str]()
                found = jobs.find({**selects(state, now), **by_now}, wanted, batch_size=READ_AT_ONCE)
                empty = True
                for ids in batches([_noted(found, packs)], size):
                    if not ids:
                        break
                    empty = False
                    of_state = {"state": stored_state(state), **by_now}
                    alone = {"_id": {"$in": [job_id for job_id in ids if job_id not in packs]}, **of_state}
                    # failpoint jobs.purge
                    removed = self._remove(jobs, alone, now) if alone["_id"]["$in"] else 0
                    yield removed + sum(
                        _remove_pack(jobs, pack, of_state) for pack in packs.intersection(ids)
                    )
                if empty:
                    return

    def discarding(
        self,
        queue: str,
        choice: DeadLetters,
        now: float,
        size: BatchSize,
        looked: Looked = lambda _count: None,
    ) -> Iterator[int]:
        """Remove dead letters, the oldest first, up to the choice's limit; yield how many, after each batch.

        Lost reply: some are removed; a repetition removes the rest. Those that died later than ``now`` stay.
        """
        jobs = self._jobs(queue)
        room = sys.maxsize if choice.limit is None else choice.limit
        with translated():
            for window in search_windows(jobs, choice, now, size, looked):
                ids = [job.id for job in window[:room]]
                room -= len(ids)
                dead = {"_id": {"$in": ids}, "state": State.DEAD, "ended_at": {"$lte": date(now)}}
                # failpoint jobs.discard
                yield self._remove(jobs, dead, now) if ids else 0
                if not room:
                    return

    def excess(self, queue: str, most: int) -> tuple[int, float]:
        """Return how many dead letters there are beyond the newest ``most``, and when the last of these died.

        Reads one key for each of them: a million take MongoDB half a second.
        """
        died = {"state": State.DEAD, "ended_at": {"$gte": date(0)}}
        with translated():
            jobs = self._jobs(queue)
            count = jobs.count_documents(died, hint=ENDED_INDEX) - most
            if count <= 0:
                return 0, 0.0
            oldest = jobs.find(died, {"_id": 0, "ended_at": 1}, hint=ENDED_INDEX).sort("ended_at", 1)
            found = list(oldest.skip(count - 1).limit(1))
        return (count, seconds(found[0]["ended_at"])) if found else (0, 0.0)

    def _remove(self, jobs: Jobs, which: Document, now: float) -> int:
        """Remove one batch: first the jobs that no parent awaits, then the others."""
        # failpoint *
        removed = jobs.delete_many({**which, **NOT_AWAITED}, hint=BY_ID).deleted_count
        if removed < len(which["_id"]["$in"]):
            removed += len(self._remove_children(jobs, which["_id"]["$in"], which, "was removed", now))
        return removed

    def _remove_children(
        self, jobs: Jobs, ids: Sequence[str], which: Document, why: str, now: float
    ) -> list[RemovedJob]:
        return remove_children(jobs, ids, which, why, now, self._parents, self._portions)

    def dropping(
        self, queue: str, now: float, token: str = "", *, shared: bool = False, size: int = CHILDREN
    ) -> Iterator[int]:
        """Remove a queue with its jobs; yield about how many these were, then a zero per page of children.

        ``token``: names the removal, for :meth:`is_put_aside`. ``shared``: other brokers may push to the
        queue and not know of it. Their next insert would make the collection again,
        without the index that keeps a ``dedupe_id`` unique; so an empty collection with its indexes takes its
        place, and stays. Lost reply: repeating it is harmless.

        The collection is put aside first: a job that comes in at this moment is in it, or is not removed.
        From then on the queue is gone. Parents that wait for jobs in it then die, page by page. If this
        broker is killed, or stops here, the next round of any broker goes on.
        """
        with translated():
            jobs = self._jobs(queue)
            count = Counting(jobs, now).total()
            aside = put_aside(jobs, now, token or token_hex(8), leave_empty=shared)
        yield count
        with suppress(SluiceError), translated():
            # failpoint queues.drop
            for _ in dropping_put_aside(aside, now, self._parents, size):
                yield 0

    def is_put_aside(self, queue: str, token: str) -> bool:
        """Return True if the removal of this token has put the queue aside, and it is still there."""
        with translated():
            return bool(self.database.list_collection_names(filter={"name": aside_name(queue, token)}))

    def resume_drops(
        self,
        now: float,
        size: int = CHILDREN,
        most: int = 40,
        under_way: Callable[[], Container[str]] = tuple,
    ) -> None:
        """Go on with queues whose removal a broker has begun and not ended; harmless if it still works.

        It does ``most`` pages of each, so it holds up nothing else for long. ``under_way()``: the tokens of
        removals that have not ended, asked after the look; :meth:`is_put_aside` must find their collections.
        """
        with translated():
            found = list(all_put_aside(self.database))
            spared = under_way() if found else ()
            for document in (document for document in found if token_of(document) not in spared):
                # failpoint queues.resume_drop
                for _ in islice(dropping_put_aside(document, now, self._parents, size), most):
                    pass
            drop_left_over(self.database, now)
            forget_removed(self.database, now)


def _noted(found: Iterable[Document], packs: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the ids of documents, and note those of packs."""
    for document in found:
        if "left" in document:
            packs.add(document["_id"])
        yield document["_id"], 0


def _remove_pack(jobs: Jobs, pack: str, of_state: Document) -> int:
    """Remove a pack with all jobs that are left in it; return how many."""
    # failpoint packs.purge
    removed = jobs.find_one_and_delete({"_id": pack, **of_state}, {"left": 1}, hint=BY_ID)
    return removed["left"] if removed else 0


class _OfThisDatabase:
    """The queues of one database, at a broker where nobody waits for their jobs."""

    def __init__(self, database: Documents) -> None:
        self.database = database

    def store(self, queue: str) -> QueueStore:
        return QueueStore(self.database, collection(queue))

    def on_parents_failed(self, parents: Sequence[FailedParent]) -> None:
        """Do nothing: no client waits here."""

    def on_parents_ended(self, parents: Sequence[EndedParent]) -> None:
        """Do nothing: no client waits here, and a poll finds those that are ready."""


def _accepted_by(now: float) -> Document:
    """Return the filter for jobs that had been accepted by then, at brokers whose clocks differ a little."""
    # Seconds by which one broker's measure of the server's time may be ahead of another's.
    return {"created_at": {"$lte": date(now + 1.0)}}
