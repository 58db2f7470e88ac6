"""Children of jobs: a parent is ``waiting`` until all its children are done, and is done with the last one.

::

    child:  {..., parent: {queue, id, seq, by, told?}}

A fan-out is one transaction: it inserts the children and lets the parent wait, under the reservation of its
worker's delivery. The end of a child is one transaction, too: the child leaves its queue (or is ``done``) and
``left`` of its parent falls by one (:mod:`~sluicemq_broker.store.jobs.parents`). So ``left`` is right
whenever a broker is killed. Parents of failed children:
:mod:`~sluicemq_broker.store.jobs.failed_children`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from bson.int64 import Int64
from pymongo import UpdateOne
from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import ChildEnd, Job, Parent, State
from sluicemq_broker.store.jobs.documents import FOR_CHILDREN
from sluicemq_broker.store.jobs.outcomes import (
    RESERVATION,
    Completed,
    all_reserved_as,
    already_there,
    done_alike,
    reserved_as,
)
from sluicemq_broker.store.jobs.parents import EndedParent, count_down
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import Move, check_statements, require_all
from sluicemq_broker.store.values import BY_ID, Document


class Child(NamedTuple):
    """A job that a parent makes in queue ``to``; ``inherits``: it gets the payload of its parent."""

    to: QueueStore
    job: Job
    inherits: bool


class FanOutEntry(NamedTuple):
    """A job that waits for its children from now on, and has this result once they are done.

    ``room``: bytes of what all children return, for a job that is to be joined; None: it is not.
    """

    job: Job
    children: tuple[Child, ...]
    result: bytes
    room: int | None = None


def fan_out(source: QueueStore, fans: Sequence[FanOutEntry], now: float) -> dict[str, SluiceError]:
    """Insert the children of jobs of one owner and let the jobs wait; return the ids of the others, and why.

    :class:`Duplicate`: there is a job with a child's id. Otherwise as ``forward``.
    """
    for store in {child.to for fan in fans for child in fan.children}:
        store.prepare(again=True)
        store.groups.prepare_for_children()
    source.groups.prepare()  # the parents wait
    # failpoint fan_outs
    return _FanOut(source, fans, now).run()


def end_children(
    source: QueueStore, completed: Sequence[Completed], now: float, queue: Callable[[str], QueueStore]
) -> tuple[dict[str, SluiceError], list[EndedParent]]:
    """Commit children of one owner and count them at their parents; ``queue`` opens a parent's queue by name.

    Return the ids of children that are not committed, and why; and the parents that ended, or go on.
    """
    move = _EndOfChildren(source, completed, now, queue)
    # failpoint children
    return move.run(), move.ended


class _FanOut(Move[FanOutEntry]):
    """Parents begin to wait, and their children are inserted."""

    who = "fan-outs"
    recognized_by: ClassVar[Document] = {"children": 1}

    def read_targets(self) -> None:
        ids: dict[QueueStore, list[str]] = defaultdict(list)
        for child in _children(self._verdicts):
            ids[child.to].append(child.job.id)
        self._existing = {
            (store.name, child_id) for store, some in ids.items() for child_id in store.which_exist(some)
        }

    def is_done(self, verdict: FanOutEntry, stored: Mapping[str, Any]) -> bool:
        by: str | None = stored.get("children", {}).get("by")
        return by == verdict.job.under

    def obstacle(self, verdict: FanOutEntry) -> SluiceError | None:
        for child in verdict.children:
            if (child.to.name, child.job.id) in self._existing:
                return already_there(child.to.queue, child.job.id)
        return None

    def apply(self, verdicts: Sequence[FanOutEntry], session: ClientSession) -> None:
        inserted: dict[QueueStore, list[Job]] = defaultdict(list)
        for child in _children(verdicts):
            inserted[child.to].append(child.job)
        check_statements(len(inserted), len(verdicts), "children of fan-outs")
        self._inherit_payloads(verdicts, session)
        waits = [UpdateOne(reserved_as(verdict.job), _waits(verdict)) for verdict in verdicts]
        # failpoint fan_outs.wait
        written = self._source.jobs.bulk_write(waits, ordered=False, session=session)
        require_all(written.matched_count, len(verdicts))
        for store, jobs in inserted.items():
            store.insert_within(session, jobs, self._now)

    def _inherit_payloads(self, verdicts: Sequence[FanOutEntry], session: ClientSession) -> None:
        """Give children without a payload that of their parent, which by now only MongoDB has."""
        parents = [verdict.job for verdict in verdicts if any(child.inherits for child in verdict.children)]
        if not parents:
            return
        found = self._source.jobs.find(all_reserved_as(parents), {"payload": 1}, hint=BY_ID, session=session)
        payloads = {document["_id"]: document.get("payload", b"") for document in found}
        for verdict in verdicts:
            for child in verdict.children:
                if child.inherits:
                    child.job.inherit_payload(payloads.get(verdict.job.id, b""))


class _EndOfChildren(Move[Completed]):
    """Children are committed, and counted at their parents."""

    who = "children"
    recognized_by: ClassVar[Document] = {"done_by": 1}

    def __init__(
        self,
        source: QueueStore,
        completed: Sequence[Completed],
        now: float,
        queue: Callable[[str], QueueStore],
    ) -> None:
        super().__init__(source, completed, now)
        self.ended: list[EndedParent] = []
        self._queue = queue

    def is_done(self, verdict: Completed, stored: Mapping[str, Any]) -> bool:
        return (stored.get("done_by"), stored.get("hold")) == verdict.job.reservation

    def apply(self, verdicts: Sequence[Completed], session: ClientSession) -> None:
        """Count the parents down first: that is where a conflict with another broker shows."""
        ends: dict[Parent, list[ChildEnd]] = defaultdict(list)
        for verdict in verdicts:
            if verdict.job.parent:
                ends[verdict.job.parent].append(ChildEnd(verdict.job.id, verdict.result))
        self.ended = count_down(ends, self._now, self._queue, session, len(verdicts))
        jobs = self._source.jobs
        removed = [verdict.job for verdict in verdicts if verdict.job.kept_until(self._now) is None]
        kept = [verdict for verdict in verdicts if verdict.job.kept_until(self._now) is not None]
        if removed:
            # failpoint children.remove
            deleted = jobs.delete_many(all_reserved_as(removed), session=session).deleted_count
            require_all(deleted, len(removed))
        if kept:
            # failpoint children.complete
            written = jobs.bulk_write(done_alike(kept, self._now), ordered=False, session=session)
            require_all(written.matched_count, len(kept))


def _children(fans: Iterable[FanOutEntry]) -> Iterator[Child]:
    return (child for fan in fans for child in fan.children)


def _waits(fan: FanOutEntry) -> Mapping[str, Any]:
    """Return the update that makes a parent wait."""
    count, queues = len(fan.children), {child.to.queue for child in fan.children}
    children: Document = {"total": count, "left": count, "by": fan.job.under, "queues": sorted(queues)}
    waits: Document = {
        "state": State.WAITING,
        "children": children,
        "wait": {"group": FOR_CHILDREN, "place": Int64(fan.job.seq)},
        "result": fan.result,
    }
    unset = {**RESERVATION, "expires_at": ""}
    if fan.room is None:
        unset["joined"] = ""
    else:
        children["room"] = fan.room
        waits["joined"] = []
    return {"$set": waits, "$unset": unset}
