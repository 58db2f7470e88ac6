"""Children of jobs: a parent is ``waiting`` until all its children are done, and is done with the last one.

::

    parent: {..., state: "waiting", children: {total: 3, left: 2, by, queues}, wait: {group: 0, place},
             result?}
    child:  {..., parent: {queue, id, seq, by, told?}}

A fan-out is one transaction: it inserts the children and lets the parent wait, under the reservation of its
worker's delivery. The end of a child is one transaction, too: the child leaves its queue (or is ``done``) and
``left`` of its parent falls by one. The last child ends the parent, which may be a child itself, and so on
upwards. So ``left`` is right whenever a broker is killed. Parents of failed children:
:mod:`~sluicemq_broker.store.jobs.failed_children`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from bson.int64 import Int64
from pymongo import DeleteOne, UpdateMany, UpdateOne
from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.job import RESULT_WANTED_FOR, Job, Parent, State
from sluicemq_broker.store.jobs import documents
from sluicemq_broker.store.jobs.documents import FOR_CHILDREN, HANDED_OUT
from sluicemq_broker.store.jobs.failed_children import is_parent
from sluicemq_broker.store.jobs.outcomes import (
    RESERVATION,
    Completed,
    all_reserved_as,
    already_there,
    done_alike,
    reserved_as,
)
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import Move, check_statements, require_all
from sluicemq_broker.store.values import BY_ID, Document, date


class Child(NamedTuple):
    """A job that a parent makes in queue ``to``; ``inherits``: it gets the payload of its parent."""

    to: QueueStore
    job: Job
    inherits: bool


class FanOutEntry(NamedTuple):
    """A job that waits for its children from now on, and has this result once they are done."""

    job: Job
    children: tuple[Child, ...]
    result: bytes


class Ended(NamedTuple):
    """A parent whose last child is done; ``group``: the group that it kept waiting."""

    queue: str
    id: str
    result: bytes
    group: str | None


def fan_out(source: QueueStore, fans: Sequence[FanOutEntry], now: float) -> dict[str, SluiceError]:
    """Insert the children of jobs of one owner and let the jobs wait; return the ids of the others, and why.

    :class:`Duplicate`: there is a job with a child's id. Otherwise as ``forward``.
    """
    for store in {child.to for each in fans for child in each.children}:
        store.prepare(again=True)
        store.groups.prepare_for_children()
    source.groups.prepare()  # the parents wait
    # failpoint fan_outs
    return _FanOut(source, fans, now).run()


def end_children(
    source: QueueStore, completed: Sequence[Completed], now: float, queue: Callable[[str], QueueStore]
) -> tuple[dict[str, SluiceError], list[Ended]]:
    """Commit children of one owner and count them at their parents; ``queue`` opens a parent's queue by name.

    Return the ids of children that are not committed, and why; and the parents that ended.
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
            (store.name, each) for store, some in ids.items() for each in store.which_exist(some)
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
        parents = [each.job for each in verdicts if any(child.inherits for child in each.children)]
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
        self.ended: list[Ended] = []
        self._queue = queue

    def is_done(self, verdict: Completed, stored: Mapping[str, Any]) -> bool:
        return (stored.get("done_by"), stored.get("hold")) == verdict.job.reservation

    def apply(self, verdicts: Sequence[Completed], session: ClientSession) -> None:
        """Count the parents down first: that is where a conflict with another broker shows."""
        self.ended = []
        self._count_down(Counter(verdict.job.parent for verdict in verdicts if verdict.job.parent), session)
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

    def _count_down(self, done: Counter[Parent], session: ClientSession) -> None:
        """Subtract the children that are done from ``left`` of their parents, level by level upwards."""
        queues = 0
        while done:
            above: Counter[Parent] = Counter()
            for name, parents in _by_queue(done).items():
                queues += 1
                check_statements(3 * queues, len(self._verdicts), "the parents of children")
                above.update(self._count_down_in(name, parents, session))
            done = above

    def _count_down_in(
        self, name: str, parents: Mapping[Parent, int], session: ClientSession
    ) -> Iterator[Parent]:
        """Count down the parents in one queue by one read and one write; yield the parents of those that end.

        The write needs no guard but the id: a document that has changed since the read is a conflict.
        """
        store = self._queue(name)
        found = {document["_id"]: document for document in self._waiting(store, parents, session)}
        left: dict[int, list[str]] = defaultdict(list)
        writes: list[UpdateMany | UpdateOne | DeleteOne] = []
        for parent, count in parents.items():
            stored = found.get(parent.id)
            if stored is None or not is_parent(stored, parent):
                continue
            if stored["children"]["left"] > count:
                left[count].append(parent.id)
                continue
            writes.append(self._ending(store, stored))
            self.ended.append(Ended(name, parent.id, stored.get("result", b""), stored.get("group")))
            if above := documents.parent_of(stored):
                yield above
        for count, ids in left.items():
            lower = {"$inc": {"children.left": -count}}
            writes.append(UpdateMany({"_id": {"$in": ids}}, lower, hint=BY_ID))
        if writes:
            # failpoint children.count_down
            store.jobs.bulk_write(writes, ordered=False, session=session)

    def _waiting(
        self, store: QueueStore, parents: Mapping[Parent, int], session: ClientSession
    ) -> Iterable[Document]:
        """Read the parents that wait, with the results of those that may end now.

        Dead ones are counted down, too: a redrive goes on with what is left, and when a failed child is done
        at last, so is its parent.
        """
        waits = {
            "_id": {"$in": [parent.id for parent in parents]},
            "state": {"$in": [State.WAITING, State.DEAD]},
            "children.left": {"$gt": 0},
        }
        ends = {"$lte": ["$children.left", max(parents.values())]}
        result = {"result": {"$cond": [ends, "$result", "$$REMOVE"]}}
        return store.jobs.find(
            waits, {**_COUNTED, **result}, hint=BY_ID, session=session, batch_size=len(parents) + 1
        )

    def _ending(self, store: QueueStore, stored: Document) -> UpdateOne | DeleteOne:
        job = documents.job(stored, store.defaults)
        if job.result_wanted:  # a waiter at another broker looks for the result
            job.keep_result(RESULT_WANTED_FOR)
        until, this = job.kept_until(self._now), {"_id": job.id, "seq": job.seq}
        if until is None:
            return DeleteOne(this, hint=BY_ID)
        ended = {"state": State.DONE, "ended_at": date(self._now), "remove_at": date(until)}
        ended["children.left"] = 0
        unset = dict.fromkeys(("head", "wait", "size", *(() if job.keep_done else ("payload",))), "")
        return UpdateOne(this, {"$set": ended, "$unset": unset}, hint=BY_ID)


#: Fields of a parent that its end needs: neither its payload nor, most times, its result.
_COUNTED: Final = {**{key: 1 for key in HANDED_OUT if key != "payload"}, "children": 1}


def _children(fans: Iterable[FanOutEntry]) -> Iterator[Child]:
    return (child for each in fans for child in each.children)


def _by_queue(parents: Mapping[Parent, int]) -> dict[str, dict[Parent, int]]:
    queues: dict[str, dict[Parent, int]] = defaultdict(dict)
    for parent, count in parents.items():
        queues[parent.queue][parent] = count
    return queues


def _waits(fan: FanOutEntry) -> Mapping[str, Any]:
    """Return the update that makes a parent wait."""
    count, queues = len(fan.children), {child.to.queue for child in fan.children}
    waits: Document = {
        "state": State.WAITING,
        "children": {"total": count, "left": count, "by": fan.job.under, "queues": sorted(queues)},
        "wait": {"group": FOR_CHILDREN, "place": Int64(fan.job.seq)},
        "result": fan.result,
    }
    return {"$set": waits, "$unset": {**RESERVATION, "expires_at": ""}}
