"""Search for parents that wait for children which are in no queue any more.

No statement of a broker leaves such a parent behind. It comes of somebody who removes a collection or
documents by hand, so ``sluicemq doctor`` looks for it, and no broker does. All collections are read as they
are at one moment, so a child that moves from one queue into another meanwhile is seen once. Children are
inserted together with their parent's wait, never later: a child that is missing at one moment is missing for
ever.

The moment is that of a transaction, which writes nothing. MongoDB keeps it for as long as the transaction
lasts. A moment of a session (``snapshot=True``) is kept for ``minSnapshotHistoryWindowInSeconds``, which is
zero at the broker's own MongoDB: any write in the middle of a search would end it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from sluicemq.protocol.errors import DifferentStoreError
from sluicemq_broker.job import Parent, State
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.errors import ServerCode, translated
from sluicemq_broker.store.jobs.documents import (
    FOR_CHILDREN,
    PUT_ASIDE,
    QUEUE_PREFIX,
    collection,
    parent_of,
    queue_of,
)
from sluicemq_broker.store.jobs.index_models import IN_LINE, LINE_INDEX
from sluicemq_broker.store.jobs.indexes import has_lines
from sluicemq_broker.store.jobs.parents import is_parent
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import transact
from sluicemq_broker.store.values import BY_ID, Document, Jobs
from sluicemq_devices.hub import in_parts

Result = TypeVar("Result")

#: Parents that are looked at together, and children for which one statement looks, at most.
_PARENTS: Final = 100
_CHILDREN: Final = 2000


class WaitingParent(NamedTuple):
    """A parent that waits for ``left`` of ``total`` children, which were inserted into ``queues``."""

    parent: Parent
    left: int
    total: int
    queues: tuple[str, ...]

    def ids(self) -> Iterator[str]:
        """Yield the ids of its children."""
        return (f"{self.parent.id}.{number}" for number in range(1, self.total + 1))


class WaitingParents(NamedTuple):
    """Some of the parents in one queue; ``after``: the place behind which the others are, None: no others."""

    parents: list[WaitingParent]
    after: int | None


def waiting_parents(store: QueueStore, after: int) -> WaitingParents:
    """Return the first parents that wait in a queue behind this place, by its index of lines."""
    with translated():
        if not has_lines(store.jobs):
            return WaitingParents([], None)
        behind = {"wait.group": FOR_CHILDREN, "wait.place": {"$gt": after}}
        fields = {"seq": 1, "children": 1, "wait.place": 1}
        found = store.jobs.find(behind, fields, hint=LINE_INDEX).sort(IN_LINE)
        parents: list[WaitingParent] = []
        room, place = _CHILDREN, after
        for document in found.limit(_PARENTS):
            parent = _waiting_parent(document, store.queue)
            if parent is not None:
                if parents and parent.total > room:
                    break
                room -= parent.total
                parents.append(parent)
            place = document["wait"]["place"]
        else:
            return WaitingParents(parents, place if len(parents) == _PARENTS else None)
    return WaitingParents(parents, place)


def count_missing_children(
    store: QueueStore, parents: Sequence[WaitingParent], databases: Iterable[Documents]
) -> dict[Parent, int]:
    """Return the parents with children that are in no queue, and how many these are.

    It looks into the queues that got the children, then into all others of ``databases``, then into those of
    other databases of this MongoDB. Empty on a MongoDB without transactions. Raises as :func:`transact`; a
    repetition is harmless.
    """
    return _missing(store.jobs, parents, list(databases), State.WAITING)


def with_all_children(jobs: Jobs, ids: Sequence[str]) -> list[str]:
    """Return the dead parents among these jobs whose children, as far as they are left, can all be worked on.

    None of these is a dead letter, or in no queue any more. Raises as :func:`count_missing_children`.
    """
    dead = {"_id": {"$in": list(ids)}, "state": State.DEAD, "children.left": {"$gt": 0}}
    with translated():
        found = list(jobs.find(dead, {"seq": 1, "children": 1}, hint=BY_ID))
    parents = [parent for document in found if (parent := _waiting_parent(document, queue_of(jobs.name)))]
    whole: list[str] = []
    for part in _parts(parents):
        missing = _missing(jobs, part, [jobs.database], State.DEAD)
        whole += [waiting.parent.id for waiting in part if waiting.parent not in missing]
    return whole


def _parts(parents: Sequence[WaitingParent]) -> Iterator[list[WaitingParent]]:
    """Yield parents for one search each, by the number of their children."""
    part: list[WaitingParent] = []
    for parent in parents:
        if part and sum(some.total for some in part) + parent.total > _CHILDREN:
            yield part
            part = []
        part.append(parent)
    if part:
        yield part


def _missing(
    jobs: Jobs, parents: Sequence[WaitingParent], known: list[Documents], state: State
) -> dict[Parent, int]:
    client = jobs.database.client

    def missing(parents: Sequence[WaitingParent], session: ClientSession) -> dict[Parent, int]:
        search = _Search(_still(jobs, parents, state, session), session)
        for queue_jobs in _collections(client, known, search.likely()):
            if not search.missing:
                break
            search.search_in(queue_jobs)
        return dict(search.missing)

    try:
        # failpoint missing_children
        return transact(client, lambda: parents, missing, "parents that may have lost children")
    except DifferentStoreError:
        return {}


class _Search:
    """Looks for the children of some parents; ``missing``: how many of each are not found yet."""

    def __init__(self, parents: Sequence[WaitingParent], session: ClientSession) -> None:
        self._session = session
        self._waiting = {parent.parent: parent for parent in parents}
        self._parents = {parent.id: parent for parent in self._waiting}
        self.missing = Counter({parent.parent: parent.left for parent in parents})

    def likely(self) -> set[str]:
        """Return the collections that got the children."""
        return {collection(name) for parent in self._waiting.values() for name in parent.queues}

    def search_in(self, jobs: Jobs) -> None:
        """Look into one collection for the children that are missing still."""
        ids = [job_id for parent in self.missing for job_id in self._waiting[parent].ids()]
        for some in in_parts(ids, _CHILDREN):
            children = {"_id": {"$in": some}, "parent.id": {"$exists": True}}
            fields = {"parent": 1, "state": 1}
            for child in jobs.find(children, fields, hint=BY_ID, session=self._session):
                self._note_found(child)

    def _note_found(self, child: Document) -> None:
        said = parent_of(child)
        parent = self._parents.get(said.id) if said else None
        if said is None or parent is None or parent not in self.missing or "told" in child["parent"]:
            return
        if said.queue == parent.queue and said.seq == parent.seq and said.by in ("", parent.by):
            self.missing[parent] -= child.get("state") != State.DONE
            if self.missing[parent] <= 0:
                del self.missing[parent]


def _still(
    jobs: Jobs, parents: Sequence[WaitingParent], state: State, session: ClientSession
) -> list[WaitingParent]:
    """Read the parents again, as of the moment that this session shows from now on."""
    these = {"_id": {"$in": [parent.parent.id for parent in parents]}, "state": state}
    fields = {"seq": 1, "children": 1}
    found = {document["_id"]: document for document in jobs.find(these, fields, hint=BY_ID, session=session)}
    return [
        again
        for parent in parents
        if (stored := found.get(parent.parent.id)) and is_parent(stored, parent.parent)
        if (again := _waiting_parent(stored, parent.parent.queue))
    ]


def _waiting_parent(stored: Document, queue: str) -> WaitingParent | None:
    """Return None where this version has not written the document."""
    children, seq = stored.get("children"), stored.get("seq")
    if not isinstance(children, dict) or not isinstance(seq, int) or not isinstance(stored["_id"], str):
        return None
    parent = Parent(queue, stored["_id"], seq, str(children.get("by", "")))
    queues = tuple(children.get("queues", ()))
    return WaitingParent(parent, children.get("left", 0), children.get("total", 0), queues)


def _collections(client: MongoClient[Document], known: list[Documents], likely: set[str]) -> Iterator[Jobs]:
    """Yield all collections with jobs: the likely ones first, those of unknown databases last.

    All names are read before the first of the others is: a list of names may wait for a lock that the search
    has.
    """
    for database in known:
        yield from (database[name] for name in likely)
    others = [jobs for database in known for jobs in _jobs_of(database) if jobs.name not in likely]
    there = {collection.name for collection in known} | {"admin", "config", "local"}
    # A user who may not list databases has no other ones.
    for other in _unless_forbidden(client.list_database_names):
        if other not in there:
            others += _unless_forbidden(partial(_jobs_of, client[other]))
    yield from others


def _jobs_of(database: Documents) -> list[Jobs]:
    return [database[name] for name in _names(database)]


def _unless_forbidden(read: Callable[[], list[Result]]) -> list[Result]:
    try:
        return read()
    except OperationFailure as error:
        if error.code not in {ServerCode.UNAUTHORIZED, ServerCode.OF_ATLAS}:
            raise
        return []


def _names(database: Documents) -> list[str]:
    begins = {"name": {"$regex": f"^({QUEUE_PREFIX}|{PUT_ASIDE})".replace(".", "[.]")}}
    # Milliseconds for a list of collections. The list may wait for the removal of a collection, and the
    # removal for the transaction of this search
    return list(database.list_collection_names(filter=begins, maxTimeMS=3000))
