"""Parents count their children down, and end, or go on, with the last one.

::

    parent: {..., state: "waiting", children: {total: 3, left: 2, by, queues, room?}, wait: {group: 0, place},
             result?, joined?: [{id, result} or {id, error}, ...]}

A parent with ``children.room`` is to be joined. It notes how each child has ended, as far as ``room`` goes,
in bytes. With the last child it is ``ready`` once more, and its worker gets ``joined``. All others are done
with the last child, and each may be a child itself. All of this is a part of the transaction that ends the
children, so it happens exactly once. A parent has what it noted until it is removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pymongo import DeleteOne, UpdateMany, UpdateOne
from pymongo.client_session import ClientSession

from sluicemq_broker.job import FIRST, RESULT_WANTED_FOR, ChildEnd, Job, Parent, State
from sluicemq_broker.store.jobs import documents
from sluicemq_broker.store.jobs.documents import HANDED_OUT
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import check_statements
from sluicemq_broker.store.values import BY_ID, Document, date

#: Children by the parents that count them.
EndsOf = Mapping[Parent, Sequence[ChildEnd]]


class EndedParent(NamedTuple):
    """A parent whose last child has ended; ``group``: the group that may go on.

    ``joins``: it is ready once more, with this ``priority``. Otherwise it is done, with this ``result``.
    """

    queue: str
    id: str
    result: bytes
    group: str | None
    joins: bool = False
    priority: int = 0


def is_parent(stored: Document, parent: Parent) -> bool:
    """Return True if the document is this parent: no later job of its id, nor one with later children."""
    return stored.get("seq") == parent.seq and parent.by in ("", stored.get("children", {}).get("by"))


def count_down(
    ends: EndsOf, now: float, queue: Callable[[str], QueueStore], session: ClientSession, verdicts: int
) -> list[EndedParent]:
    """Subtract children that have ended from ``left`` of their parents, level by level upwards.

    Return the parents that end, or are ready once more. ``queue`` opens a parent's queue by name;
    ``verdicts`` are all in the transaction. Raises Aborted where the parents are in too many queues for it.
    """
    ended: list[EndedParent] = []
    queues = 0
    while ends:
        above: dict[Parent, list[ChildEnd]] = defaultdict(list)
        for name, parents in _by_queue(ends).items():
            queues += 1
            check_statements(3 * queues, verdicts, "the parents of children")
            for parent, end in _Level(queue(name), now, ended).count_down(parents, session):
                above[parent].append(end)
        ends = above
    return ended


class _Level:
    """Parents in one queue, counted down by one read, and one write of each kind.

    Those that end are added to ``ended``.
    """

    def __init__(self, store: QueueStore, now: float, ended: list[EndedParent]) -> None:
        self._store = store
        self._now = now
        self._ended = ended

    def count_down(self, parents: EndsOf, session: ClientSession) -> Iterator[tuple[Parent, ChildEnd]]:
        """Count the parents down; yield the ends of those that are children, and the parents of these.

        The writes need no guard but the id: a document that has changed since the read is a conflict.
        """
        found = {document["_id"]: document for document in self._read(parents, session)}
        left: dict[int, list[str]] = defaultdict(list)
        writes: list[UpdateMany | UpdateOne | DeleteOne] = []
        noting: list[UpdateOne] = []
        for parent, ends in parents.items():
            stored = found.get(parent.id)
            if stored is None or not is_parent(stored, parent):
                continue
            if "room" in stored["children"]:
                noting.append(UpdateOne({"_id": stored["_id"]}, self.noted(stored, ends), hint=BY_ID))
            elif stored["children"]["left"] > len(ends):
                left[len(ends)].append(parent.id)
            else:
                result = stored.get("result", b"")
                writes.append(self._ending(stored))
                self._ended.append(EndedParent(self._store.queue, parent.id, result, stored.get("group")))
                if above := documents.parent_of(stored):
                    yield above, ChildEnd(parent.id, result)
        for count, ids in left.items():
            lower = {"$inc": {"children.left": -count}}
            writes.append(UpdateMany({"_id": {"$in": ids}}, lower, hint=BY_ID))
        if writes:
            # failpoint children.count_down
            self._store.jobs.bulk_write(writes, ordered=False, session=session)
        if noting:
            # failpoint children.note
            self._store.jobs.bulk_write(noting, ordered=False, session=session)

    def _read(self, parents: EndsOf, session: ClientSession) -> Iterable[Document]:
        """Read the parents that wait, with the results of those that may end now.

        Dead ones are counted down, too: a redrive goes on with what is left, and when a failed child is done
        at last, the parent ends, or goes on.
        """
        waits = {"_id": {"$in": [parent.id for parent in parents]}, **_COUNTS}
        ends = {"$lte": ["$children.left", max(map(len, parents.values()))]}
        result = {"result": {"$cond": [ends, "$result", "$$REMOVE"]}}
        return self._store.jobs.find(
            waits, {**_COUNTED, **result}, hint=BY_ID, session=session, batch_size=len(parents) + 1
        )

    def noted(self, stored: Document, ends: Sequence[ChildEnd]) -> Document:
        """Return the update that notes ends of children, and makes the parent ready behind the last one."""
        room = most = stored["children"]["room"]
        notes = []
        for end in ends:
            note, size = end.within(room)
            notes.append(documents.stored_end(note))
            room -= size
        noted: Document = {
            "$inc": {"children.left": -len(ends), "children.room": room - most},
            "$push": {"joined": {"$each": notes}},
        }
        if stored["children"]["left"] <= len(ends):
            noted |= self._rejoining(stored)
        return noted

    def _rejoining(self, stored: Document) -> Document:
        """Return what makes a parent ready once more: its attempts begin again, and its place is kept.

        A dead one has lost the turn of its group, so it waits at the front of the line.
        """
        group, dead = stored.get("group"), stored["state"] == State.DEAD
        ready: Document = {"state": State.READY, "attempts": 0}
        if dead and isinstance(group, str):
            ready = {**ready, "state": State.WAITING, "wait": {"group": group, "place": FIRST}}
        place = stored["priority"] if isinstance(stored.get("priority"), int) else 0
        freed = group if dead else None
        self._ended.append(
            EndedParent(self._store.queue, stored["_id"], b"", freed, joins=True, priority=place)
        )
        return {"$set": ready, "$unset": dict.fromkeys(_OF_WAITING - ready.keys(), "")}

    def _ending(self, stored: Document) -> UpdateOne | DeleteOne:
        job = documents.job(stored, self._store.defaults)
        if job.result_wanted:  # a waiter at another broker looks for the result
            job.keep_result(RESULT_WANTED_FOR)
        until, this = job.kept_until(self._now), {"_id": job.id, "seq": job.seq}
        if until is None:
            return DeleteOne(this, hint=BY_ID)
        return UpdateOne(this, _done(job, self._now, until), hint=BY_ID)


class CountingDown(NamedTuple):
    """A statement that counts a child at its parent, which must be as it was read; ``ended``: what follows.

    ``result_at``: the keys to the place in the update for the child's result, if it goes there.
    """

    store: QueueStore
    filter: Document
    update: Document
    ended: Sequence[EndedParent]
    result_at: Sequence[str | int] = ()


def counting_down(
    child: Job, size: int, now: float, later: float, queue: Callable[[str], QueueStore]
) -> Iterator[CountingDown]:
    """Yield the statements that count a child with a result of ``size`` bytes, as :func:`count_down` does.

    Its parents are read now. One that ends is kept ``later`` seconds longer, with its result.
    """
    parent, end = child.parent, ChildEnd(child.id, bytes(size))
    while parent is not None:
        store, ended = queue(parent.queue), list[EndedParent]()
        this = {"_id": parent.id, "seq": parent.seq}
        stored = store.jobs.find_one({**this, **_COUNTS}, {**_COUNTED, "result": 1}, hint=BY_ID)
        if stored is None or not is_parent(stored, parent):
            return
        children = stored["children"]
        as_read = {f"children.{key}": children.get(key) for key in ("left", "by", "room")}
        this = {**this, "state": stored["state"], **as_read}
        if "room" in children:
            update = _Level(store, now, ended).noted(stored, [end])
            note = update["$push"]["joined"]["$each"][0]
            place: Sequence[str | int] = ()
            if end.id == child.id and "result" in note:
                note["result"], place = b"", ("$push", "joined", "$each", 0, "result")
            yield CountingDown(store, this, update, ended, place)
            return
        if children["left"] > 1:
            yield CountingDown(store, this, {"$inc": {"children.left": -1}}, ended)
            return
        job = documents.job(stored, store.defaults)
        ended.append(EndedParent(store.queue, parent.id, b"", stored.get("group")))
        yield CountingDown(store, this, _done(job, now, (job.kept_until(now) or now) + later), ended)
        end = ChildEnd(parent.id, stored.get("result", b""))
        parent = documents.parent_of(stored)


def _done(job: Job, now: float, until: float) -> Document:
    """Return the update that ends a parent with its last child; it is kept ``until`` then."""
    ended = {"state": State.DONE, "ended_at": date(now), "remove_at": date(until), "children.left": 0}
    unset = dict.fromkeys(("head", "wait", "size", *(() if job.keep_done else ("payload",))), "")
    return {"$set": ended, "$unset": unset}


#: True of a parent that counts: dead ones do, too, as a redrive goes on with what is left.
_COUNTS: Final[Document] = {
    "state": {"$in": [State.WAITING, State.DEAD]},
    "children.left": {"$gt": 0},
}


#: Fields of a parent that its end needs: neither its payload, nor what it has noted, nor, most times, its
#: result.
_COUNTED: Final[Document] = {
    **{key: 1 for key in HANDED_OUT if key not in ("payload", "joined")},
    "children": 1,
    "state": 1,
}

#: Fields that a parent loses when it is ready once more: those of its wait, its death and its first delivery.
_OF_WAITING: Final = frozenset(
    {"wait", "losses", "unanswered", "suspect", "progress", "ended_at", "remove_at", "size"}
)


def _by_queue(ends: EndsOf) -> dict[str, dict[Parent, Sequence[ChildEnd]]]:
    queues: dict[str, dict[Parent, Sequence[ChildEnd]]] = defaultdict(dict)
    for parent, some in ends.items():
        queues[parent.queue][parent] = some
    return queues
