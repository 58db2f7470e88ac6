"""Parents that wait for children which are in no queue any more.

No statement of a broker leaves such a parent behind: it is what somebody leaves who removes a collection or
documents by hand, or what a former version has left. All collections are read as they are at one moment (a
snapshot), so a child that moves from one queue into another meanwhile is seen once. Nothing makes a child
later than its parent: whatever is missing at one moment is missing for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from sluicemq_broker.job import Parent, State
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import FOR_CHILDREN, QUEUE_PREFIX, parent_of, queue_of
from sluicemq_broker.store.jobs.failed_children import PUT_ASIDE, is_parent
from sluicemq_broker.store.jobs.index_models import LINE_INDEX
from sluicemq_broker.store.jobs.indexes import has_lines
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.values import BY_ID, Document

#: Parents that are looked at together, and children for which a statement looks, at most.
_PARENTS: Final = 100
_CHILDREN: Final = 2000
#: The server's codes: what a snapshot shows is not known any more, or not known yet; and that it has none.
_NO_SNAPSHOT: Final = {20, 72, 239, 246}
_NO_QUEUES: Final = {"admin", "config", "local"}

_Jobs = Collection[dict[str, Any]]


class WaitingParent(NamedTuple):
    """A parent that waits, for how many of how many children, and into which queues these went first."""

    parent: Parent
    left: int
    total: int
    queues: tuple[str, ...]

    def ids(self) -> Iterator[str]:
        """The ids of its children."""
        return (f"{self.parent.id}.{number}" for number in range(1, self.total + 1))


class WaitingParents(NamedTuple):
    """Some of the parents in one queue; ``after``: the place behind which the others are, None: no more."""

    these: list[WaitingParent]
    after: int | None


def waiting_parents(store: QueueStore, after: int) -> WaitingParents:
    """The first parents that wait in a queue behind this place, by its index of lines."""
    with translated():
        if not has_lines(store.jobs):
            return WaitingParents([], None)
        behind = {"wait.group": FOR_CHILDREN, "wait.place": {"$gt": after}}
        wanted = {"seq": 1, "children": 1, "wait.place": 1}
        found = store.jobs.find(behind, wanted, hint=LINE_INDEX).sort([("wait.group", 1), ("wait.place", 1)])
        these: list[WaitingParent] = []
        room, place = _CHILDREN, after
        for each in found.limit(_PARENTS):
            family = _family(each, store)
            if family is not None:
                if these and family.total > room:
                    break
                room -= family.total
                these.append(family)
            place = each["wait"]["place"]
        else:
            return WaitingParents(these, place if these and len(these) == _PARENTS else None)
    return WaitingParents(these, place)


def count_missing_children(
    store: QueueStore, those: Sequence[WaitingParent], databases: Iterable[Documents]
) -> dict[Parent, int]:
    """How many children of each of these parents are in no queue, of those of which some are.

    It looks into the queues where they went first, then into all others of these ``databases``, and then into
    those of other databases that this MongoDB has. Empty where it can't show all at one moment just now.
    """
    client = store.jobs.database.client
    with translated():
        try:
            with client.start_session(snapshot=True) as session:
                search = _Search(_waiting_still(store, those, session), session)
                for jobs in _collections(client, list(databases), search.first()):
                    if not search.missing:
                        break
                    search.look(jobs)
                return dict(search.missing)
        except OperationFailure as error:
            if error.code not in _NO_SNAPSHOT:
                raise
            return {}


class _Search:
    """Looks for the children of some waiting_parents; ``missing``: how many of each it has not found yet."""

    def __init__(self, those: Sequence[WaitingParent], session: ClientSession) -> None:
        self._session = session
        self._those = {each.parent: each for each in those}
        self._parents = {each.id: each for each in self._those}
        self.missing = Counter({each.parent: each.left for each in those})

    def first(self) -> set[str]:
        """The collections into which their children went."""
        return {QUEUE_PREFIX + name for each in self._those.values() for name in each.queues}

    def look(self, jobs: _Jobs) -> None:
        """Look into one collection, for the children of those of which some are missing."""
        ids = [job_id for parent in self.missing for job_id in self._those[parent].ids()]
        for at in range(0, len(ids), _CHILDREN):
            these = {"_id": {"$in": ids[at : at + _CHILDREN]}, "parent.id": {"$exists": True}}
            wanted = {"parent": 1, "state": 1}
            for each in jobs.find(these, wanted, hint=BY_ID, session=self._session):
                self._found(each)

    def _found(self, child: Document) -> None:
        said = parent_of(child)
        parent = self._parents.get(said.id) if said else None
        if said is None or parent is None or parent not in self.missing or "told" in child["parent"]:
            return
        if said.queue == parent.queue and said.seq == parent.seq and said.by in ("", parent.by):
            self.missing[parent] -= child.get("state") != State.DONE
            if self.missing[parent] <= 0:
                del self.missing[parent]


def _waiting_still(
    store: QueueStore, those: Sequence[WaitingParent], session: ClientSession
) -> list[WaitingParent]:
    """Read them as of the moment that this session shows from now on."""
    ids = {"_id": {"$in": [each.parent.id for each in those]}, "state": State.WAITING}
    wanted = {"seq": 1, "children": 1}
    found = {each["_id"]: each for each in store.jobs.find(ids, wanted, hint=BY_ID, session=session)}
    return [
        family
        for each in those
        if (stored := found.get(each.parent.id)) and is_parent(stored, each.parent)
        if (family := _family(stored, store))
    ]


def _family(stored: Document, store: QueueStore) -> WaitingParent | None:
    """None where it is none that this version has written."""
    children, seq = stored.get("children"), stored.get("seq")
    if not isinstance(children, dict) or not isinstance(seq, int) or not isinstance(stored["_id"], str):
        return None
    parent = Parent(queue_of(store.name), stored["_id"], seq, str(children.get("by", "")))
    return WaitingParent(
        parent, children.get("left", 0), children.get("total", 0), tuple(children.get("queues", ()))
    )


def _collections(client: MongoClient[Document], known: list[Documents], first: set[str]) -> Iterator[_Jobs]:
    """All collections with jobs, the likely ones first; those of databases that nobody has named are last."""
    names = [(database, name) for database in known for name in _names(database)]
    for database, name in sorted(names, key=lambda each: each[1] not in first):
        yield database[name]
    there = {each.name for each in known} | _NO_QUEUES
    others: list[str] = []
    with suppress(OperationFailure):  # not allowed to look: those that are known are all
        others = [each for each in client.list_database_names() if each not in there]
    for other in others:
        with suppress(OperationFailure):
            for name in _names(client[other]):
                yield client[other][name]


def _names(database: Documents) -> list[str]:
    begins = {"name": {"$regex": f"^({QUEUE_PREFIX}|{PUT_ASIDE})".replace(".", "[.]")}}
    return list(database.list_collection_names(filter=begins))
