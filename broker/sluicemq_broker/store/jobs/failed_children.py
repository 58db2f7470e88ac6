"""What becomes of parents whose children are not done: these are dead letters, or somebody has removed them.

A child that becomes a dead letter makes its parent one. That is told after it, by a guarded statement, and
noted in ``told``, so that it may be told twice and is not forgotten: until then the child is not removed.

A child that is removed on somebody's order is gone, and its parent a dead letter, in one transaction. With a
whole queue it goes in three steps: the collection is put aside under another name, then the parents of what
lies there are dead letters, then it is dropped. Killed before the first step, nothing is done; after it, any
broker goes on (:func:`all_put_aside`), and doing a step again is harmless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from secrets import token_hex
from typing import Any, Final, NamedTuple, Protocol

import gevent
from pymongo import UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import OperationFailure

from sluicemq_broker.job import Parent, State
from sluicemq_broker.store.connection import Documents
from sluicemq_broker.store.errors import Refused, translated
from sluicemq_broker.store.jobs.documents import QUEUE_PREFIX, parent_of, queue_of
from sluicemq_broker.store.jobs.groups import GroupStore
from sluicemq_broker.store.jobs.index_models import CHILD_INDEXES, ENDED_INDEX, PARENT_INDEX
from sluicemq_broker.store.jobs.indexes import make_indexes
from sluicemq_broker.store.jobs.outcomes import death, last_reason
from sluicemq_broker.store.jobs.portions import Portions
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import Overtaken, check_statements, transact
from sluicemq_broker.store.values import BY_ID, Document, date, seconds

#: True of jobs with whose removal nobody has to be told: that have no parent, or have told it of their end.
NOT_AWAITED: Final[Document] = {
    "$or": [
        {"parent.id": {"$exists": False}},
        {"parent.told": {"$exists": True}},
        {"state": State.DONE.value},
    ]
}
_AWAITED: Final[Document] = {"$nor": [NOT_AWAITED]}
#: How the collections of queues are called that are being removed.
PUT_ASIDE: Final = "removed."
#: How the empty ones are called that take their place; and seconds after which one was left over.
_EMPTY: Final = "deleted."
_LEFT_OVER: Final = 60.0
#: Children that are read at once.
CHILDREN: Final = 500
#: The server's codes: there is no collection of this name, and there is one.
_NOT_THERE: Final = 26
_EXISTS: Final = 48
#: Its code where an index of the collection is being built, as for the first child in a queue; and how often,
#: and after how many seconds, that is tried again.
_BUILDS_INDEX: Final = 12587
_BUILD_TRIES: Final = 300
_BUILD_WAIT: Final = 0.1

_Jobs = Collection[dict[str, Any]]


class DeadChild(NamedTuple):
    """A dead letter of which its parent has not been told, why it is one, and since when.

    ``parent`` is None where the document names none that can be read: there is nobody to tell.
    """

    id: str
    seq: int | None
    parent: Parent | None
    reason: str
    died_at: float


class FailedParent(NamedTuple):
    """A parent that is a dead letter, as a child of it was removed; the group that it has kept waiting."""

    queue: str
    id: str
    reason: str
    groups: list[str]


class ParentQueues(Protocol):
    """The queues in which the parents of removed jobs are."""

    def store(self, queue: str) -> QueueStore:
        """The queue of this name."""

    def on_parents_failed(self, parents: Sequence[FailedParent]) -> None:
        """Tell whoever waits for these, or behind them."""


def waits_for_children(parent: Parent) -> Document:
    """The filter for this parent, while it waits for these children and no others."""
    by = {"children.by": parent.by} if parent.by else {}
    return {"_id": parent.id, "seq": parent.seq, "state": State.WAITING, **by}


def is_parent(stored: Document, parent: Parent) -> bool:
    """True if this document is the parent, and no later job of its id, with no later children."""
    return stored.get("seq") == parent.seq and parent.by in ("", stored.get("children", {}).get("by"))


# ---------------------------------------------------------------------- dead letters


def dead_children(store: QueueStore, since: float, limit: int, until: float | None = None) -> list[DeadChild]:
    """Children that died from then on, and by ``until``, of which their parents have not been told.

    Those that died first come first.
    """
    when = {"$gte": date(since), **({} if until is None else {"$lte": date(until)})}
    these = {
        "state": State.DEAD,
        "ended_at": when,
        "parent.id": {"$exists": True},
        "parent.told": {"$exists": False},
    }
    wanted = {"parent": 1, "seq": 1, "ended_at": 1, "errors": {"$slice": -1}}
    with translated():
        found = list(store.jobs.find(these, wanted, hint=ENDED_INDEX).sort("ended_at", 1).limit(limit))
    return [
        DeadChild(each["_id"], each.get("seq"), parent_of(each), last_reason(each), seconds(each["ended_at"]))
        for each in found
    ]


def death_after(store: QueueStore, since: float, count: int) -> float | None:
    """When the last of so many dead letters from then on died, by the index alone; None: there are fewer."""
    these = {"state": State.DEAD, "ended_at": {"$gte": date(since)}}
    with translated():
        found = store.jobs.find(these, {"_id": 0, "state": 1, "ended_at": 1}, hint=ENDED_INDEX)
        for each in found.sort("ended_at", 1).skip(count - 1).limit(1):
            return seconds(each["ended_at"])
    return None


def fail_parents(store: QueueStore, reasons: Mapping[Parent, str], now: float) -> dict[Parent, list[str]]:
    """Make parents in one queue dead letters, with one write for all; repeating it is harmless.

    Returns those that are dead for this reason now, each with its group, if it has one: that has waited for
    it. Lost reply, or killed in between: they are dead, and whoever waits for them finds that.
    """
    with translated():
        return _fail(store, reasons, now)


def _fail(
    store: QueueStore, reasons: Mapping[Parent, str], now: float, session: ClientSession | None = None
) -> dict[Parent, list[str]]:
    """Do so, perhaps as a part of a transaction; raises the driver's errors."""
    if not reasons:
        return {}
    deaths = [
        UpdateOne(waits_for_children(parent), death(now, reason, store.defaults), hint=BY_ID)
        for parent, reason in reasons.items()
    ]
    wanted = {"seq": 1, "children.by": 1, "group": 1, "errors": {"$slice": -1}}
    dead = {"_id": {"$in": [each.id for each in reasons]}, "state": State.DEAD}
    store.jobs.bulk_write(deaths, ordered=False, session=session)
    found = {each["_id"]: each for each in store.jobs.find(dead, wanted, hint=BY_ID, session=session)}
    return {
        parent: [each["group"]] if isinstance(each.get("group"), str) else []
        for parent, reason in reasons.items()
        if (each := found.get(parent.id)) and is_parent(each, parent) and last_reason(each) == reason
    }


def mark_parents_notified(store: QueueStore, children: Sequence[DeadChild]) -> None:
    """Their parents have been told: from now on they are kept as long as other dead letters."""
    told: list[Document] = [{"$set": {"parent.told": True}}]
    if (kept := store.defaults.dead_retention) is not None:
        until = {"$max": [{"$add": ["$ended_at", int(kept * 1000)]}, "$dedupe_until"]}
        told.append({"$set": {"remove_at": until}})
    with translated():
        store.jobs.bulk_write(
            [UpdateOne({"_id": each.id, "seq": each.seq, "state": State.DEAD}, told) for each in children],
            ordered=False,
        )


# ------------------------------------------------------------------ removed by order


def remove_children(
    jobs: _Jobs,
    ids: Sequence[str],
    these: Document,
    why: str,
    now: float,
    kin: ParentQueues,
    portions: Portions,
) -> list[str | None]:
    """Remove those children of these ids that match ``these``, and of which their parents have not heard.

    Their parents are dead letters then, since one ``why``. Returns the group, or None, of each child. Crash
    or lost reply: of each portion all is done, or nothing; repeating it finds no children any more.
    """
    removed: list[str | None] = []
    for part, answer in portions.carry_out(ids, lambda part: _remove(jobs, part, these, why, now, kin)):
        if isinstance(answer, Refused):
            raise Refused(f"child {part[0]!r} can't be removed: {answer}") from answer
        removed += answer
    return removed


def _remove(
    jobs: _Jobs, ids: Sequence[str], these: Document, why: str, now: float, kin: ParentQueues
) -> list[str | None]:
    step = _Removal(jobs, {**these, "_id": {"$in": list(ids)}, **_AWAITED}, why, now, kin)
    removed = transact(jobs.database.client, step.look, step.apply, "removals of children")
    kin.on_parents_failed(step.bereaved)
    return removed


class _Removal:
    """One transaction: these children are gone, and their parents dead."""

    def __init__(self, jobs: _Jobs, these: Document, why: str, now: float, kin: ParentQueues) -> None:
        self.bereaved: list[FailedParent] = []
        self._jobs = jobs
        self._these = these
        self._why = why
        self._now = now
        self._kin = kin

    def look(self) -> list[Document]:
        return list(self._jobs.find(self._these, {"parent": 1, "group": 1}, hint=BY_ID))

    def apply(self, children: list[Document], session: ClientSession) -> list[str | None]:
        self.bereaved = []
        if not children:
            return []
        reasons = _reasons(children, queue_of(self._jobs.name), self._why)
        check_statements(2 * len(reasons), len(children), "the parents of removed children")
        self.bereaved = _bereave(reasons, self._now, self._kin, session)
        these = {**self._these, "_id": {"$in": [each["_id"] for each in children]}}
        if self._jobs.delete_many(these, hint=BY_ID, session=session).deleted_count < len(children):
            raise Overtaken
        return [each.get("group") for each in children]


#: By queue: its parents that are to be dead letters, and why.
_Reasons = dict[str, dict[Parent, str]]


def _reasons(children: Iterable[Document], queue: str, why: str) -> _Reasons:
    """The first child of each parent is named."""
    reasons: _Reasons = defaultdict(dict)
    for each in children:
        if parent := parent_of(each):
            reasons[parent.queue].setdefault(parent, f"child {each['_id']} in queue {queue} {why}")
    return reasons


def _bereave(
    reasons: _Reasons, now: float, kin: ParentQueues, session: ClientSession | None = None
) -> list[FailedParent]:
    """Make these parents dead letters; returns those that have waited till now."""
    return [
        FailedParent(queue, parent.id, parents[parent], groups)
        for queue, parents in reasons.items()
        for parent, groups in _fail(kin.store(queue), parents, now, session).items()
    ]


# ------------------------------------------------------------------ with their queue


def put_aside(jobs: _Jobs, now: float, *, leave_empty: bool) -> _Jobs:
    """Call the collection of a queue otherwise, in one step: from then on nobody changes what lies in it.

    So this is where a deletion and all that adds jobs meet: these are in the collection before, and go with
    it, or they make another one after.

    ``leave_empty``: an empty one takes its place, with its indexes. An insert may be faster, and make it
    without: then they are made at once. Killed before: the empty one is removed by :func:`drop_left_over`.
    """
    database, name = jobs.database, jobs.name
    wanted = GroupStore(database, jobs).wanted()
    aside = database[f"{PUT_ASIDE}{queue_of(name)}.{token_hex(4)}"]
    empty = database[f"{_EMPTY}{queue_of(name)}.{int(now * 1000):x}-{token_hex(4)}"]
    if leave_empty:
        empty.create_indexes(wanted)
    _rename(jobs, aside.name, unless={_NOT_THERE})
    if leave_empty and not _rename(empty, name, unless={_EXISTS, _NOT_THERE}):
        empty.drop()
        make_indexes(jobs, _ignore, wanted)
    return aside


def _ignore(_kind: str, _text: str) -> None:
    """The next sweep finds it, and says so."""


def _rename(jobs: _Jobs, name: str, *, unless: set[int]) -> bool:
    """False where the server answers one of these codes; an index that is being built is waited for."""
    for left in reversed(range(_BUILD_TRIES)):
        try:
            jobs.rename(name)
        except OperationFailure as error:
            if error.code == _BUILDS_INDEX and left:
                gevent.sleep(_BUILD_WAIT)
                continue
            if error.code not in unless:
                raise
            return False
        return True
    return False


def dropping_put_aside(aside: _Jobs, now: float, kin: ParentQueues, size: int = CHILDREN) -> Iterator[int]:
    """Make the parents of what lies there dead letters, a page at a time, and remove it.

    Yields how many children were on each page. Crash before the end: doing it again goes on with those that
    are there still.
    """
    queue = queue_of(aside.name).removeprefix(PUT_ASIDE).rpartition(".")[0]
    if GroupStore(aside.database, aside.database[QUEUE_PREFIX + queue]).may_have_children():
        aside.create_indexes(CHILD_INDEXES)  # it has them, but where an insert made it between two statements
        these = {"parent.id": {"$gte": ""}, **_AWAITED}
        children = aside.find(these, {"parent": 1}, hint=PARENT_INDEX, batch_size=size)
        while page := list(islice(children, size)):
            kin.on_parents_failed(_bereave(_reasons(page, queue, "was removed with the queue"), now, kin))
            aside.delete_many({"_id": {"$in": [each["_id"] for each in page]}}, hint=BY_ID)
            yield len(page)
    aside.drop()


def all_put_aside(database: Documents) -> Iterator[_Jobs]:
    """Collections that were put aside, and whose broker may have been killed before it dropped them."""
    yield from _named(database, PUT_ASIDE)


def drop_left_over(database: Documents, now: float) -> None:
    """Remove the empty collections of brokers that were killed before these took the place of a queue's.

    Those of the last minute may be about to do so. What somebody has put into one stays.
    """
    for each in _named(database, _EMPTY):
        made = each.name.rpartition(".")[2].partition("-")[0]
        if now * 1000 - int(made, 16) > _LEFT_OVER * 1000 and each.find_one({}, {"_id": 1}) is None:
            each.drop()


def _named(database: Documents, prefix: str) -> Iterator[_Jobs]:
    begins = {"name": {"$regex": f"^{prefix.replace('.', '[.]')}.*[.][0-9a-f]+(-[0-9a-f]+)?$"}}
    for name in database.list_collection_names(filter=begins):
        yield database[name]
