"""Parents of failed children: a parent dies when a child of it becomes a dead letter, or is removed.

The parent of a dead child dies in a later statement, which is guarded, so that it may be repeated. ``told``
in the child then says that it is done; until then the child is not removed, so no parent is forgotten.

A child that an operator removes dies together with its parent, in one transaction. With a whole queue that
takes steps: :mod:`~sluicemq_broker.store.jobs.removed_queues`.

A parent that allows failures counts such a child as it does those that are done, in one transaction with the
end of the child: a dead letter has no parent any more, so a redrive makes an ordinary job of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from pymongo import UpdateOne
from pymongo.client_session import ClientSession

from sluicemq_broker.job import ChildEnd, Parent, State
from sluicemq_broker.store.errors import Refused, translated
from sluicemq_broker.store.jobs.documents import parent_of, queue_of
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX
from sluicemq_broker.store.jobs.outcomes import death, last_reason
from sluicemq_broker.store.jobs.parents import EndedParent, count_down, is_parent
from sluicemq_broker.store.jobs.portions import Portions
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import check_statements, require_all, transact
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date, seconds

#: Filter for jobs that can be removed alone: they have no parent, or need not wait until it is notified.
NOT_AWAITED: Final[Document] = {
    "$or": [
        {"parent.id": {"$exists": False}},
        {"parent.told": {"$exists": True}},
        {"state": State.DONE.value},
    ]
}
AWAITED: Final[Document] = {"$nor": [NOT_AWAITED]}

Reasons = dict[str, dict[Parent, str]]
"""By queue: the parents that are to die, each with the reason."""


class DeadChild(NamedTuple):
    """A dead letter whose parent is not notified yet; ``parent`` is None where the document names none."""

    id: str
    seq: int | None
    parent: Parent | None
    reason: str
    died_at: float


class FailedParent(NamedTuple):
    """A parent that has died as a child of it was removed; ``groups``: the group that it kept waiting."""

    queue: str
    id: str
    reason: str
    groups: list[str]


class RemovedJob(NamedTuple):
    """A job that was removed: its number, which no later job of its id has, and its group, if it has one."""

    seq: int | None
    group: str | None


class ParentQueues(Protocol):
    """The queues in which the parents of removed jobs are."""

    def store(self, queue: str) -> QueueStore:
        """Return the queue of this name."""

    def on_parents_failed(self, parents: Sequence[FailedParent]) -> None:
        """Called with parents that have died: their waiters get an error, their groups go on."""

    def on_parents_ended(self, parents: Sequence[EndedParent]) -> None:
        """Called with parents that allow failures, and whose last child has failed."""


def waits_for_children(parent: Parent) -> Document:
    """Return the filter for a parent while it waits for these children, and no later ones."""
    by = {"children.by": parent.by} if parent.by else {}
    return {"_id": parent.id, "seq": parent.seq, "state": State.WAITING, **by}


# ---------------------------------------------------------------------- dead letters


def dead_children(store: QueueStore, since: float, limit: int, until: float | None = None) -> list[DeadChild]:
    """Return children that died from ``since`` on, whose parents are not notified yet, the oldest first.

    With ``until`` only those that died by then.
    """
    when = {"$gte": date(since), **({} if until is None else {"$lte": date(until)})}
    untold = {
        "state": State.DEAD,
        "ended_at": when,
        "parent.id": {"$exists": True},
        "parent.told": {"$exists": False},
    }
    fields = {"parent": 1, "seq": 1, "ended_at": 1, "errors": {"$slice": -1}}
    with translated():
        found = list(store.jobs.find(untold, fields, hint=ENDED_INDEX).sort("ended_at", 1).limit(limit))
    return [
        DeadChild(
            document["_id"],
            document.get("seq"),
            parent_of(document),
            last_reason(document),
            seconds(document["ended_at"]),
        )
        for document in found
    ]


def death_after(store: QueueStore, since: float, count: int) -> float | None:
    """Return when the ``count``-th dead letter from ``since`` on died; None: there are fewer."""
    dead = {"state": State.DEAD, "ended_at": {"$gte": date(since)}}
    with translated():
        found = store.jobs.find(dead, {"_id": 0, "state": 1, "ended_at": 1}, hint=ENDED_INDEX)
        last = found.sort("ended_at", 1).skip(count - 1).limit(1)
        return next((seconds(document["ended_at"]) for document in last), None)


def fail_parents(store: QueueStore, reasons: Mapping[Parent, str], now: float) -> dict[Parent, list[str]]:
    """Make parents in one queue dead letters, with one write for all; repeating it is harmless.

    Return those that are dead for this reason now, each with the group that waited for it, if it has one.
    Reply lost, or killed in between: they are dead, and clients that wait for them find that.
    """
    with translated():
        # failpoint children.fail_parents
        return _fail(store, reasons, now)


def _fail(
    store: QueueStore, reasons: Mapping[Parent, str], now: float, session: ClientSession | None = None
) -> dict[Parent, list[str]]:
    """Make parents dead letters, perhaps as a part of a transaction; raise the driver's errors."""
    if not reasons:
        return {}
    deaths = [
        UpdateOne(waits_for_children(parent), death(now, reason), hint=BY_ID)
        for parent, reason in reasons.items()
    ]
    fields = {"seq": 1, "children.by": 1, "group": 1, "errors": {"$slice": -1}}
    dead = {"_id": {"$in": [reason.id for reason in reasons]}, "state": State.DEAD}
    # failpoint *
    store.jobs.bulk_write(deaths, ordered=False, session=session)
    found = {
        document["_id"]: document for document in store.jobs.find(dead, fields, hint=BY_ID, session=session)
    }
    return {
        parent: [document["group"]] if isinstance(document.get("group"), str) else []
        for parent, reason in reasons.items()
        if (document := found.get(parent.id))
        and is_parent(document, parent)
        and last_reason(document) == reason
    }


def mark_parents_notified(store: QueueStore, children: Sequence[DeadChild]) -> None:
    """Note in dead children that their parents were notified: retention may remove them from now on."""
    notified: Document = {"$set": {"parent.told": True}}
    updates = [
        UpdateOne({"_id": child.id, "seq": child.seq, "state": State.DEAD}, notified) for child in children
    ]
    with translated():
        # failpoint children.mark_notified
        store.jobs.bulk_write(updates, ordered=False)


def count_failed_children(
    store: QueueStore, children: Sequence[DeadChild], now: float, parents: ParentQueues, portions: Portions
) -> None:
    """Count dead children as ended at their parents, which allow failures, and let them have no parent.

    Killed, or reply lost: of each portion all is done, or nothing; a repetition finds no parents any more.
    """
    for part, answer in portions.carry_out(children, lambda part: _count_failed(store, part, now, parents)):
        if isinstance(answer, Refused):
            raise Refused(f"the parent of child {part[0].id!r} can't be notified: {answer}") from answer
        parents.on_parents_ended(answer)


def _count_failed(
    store: QueueStore, children: Sequence[DeadChild], now: float, parents: ParentQueues
) -> list[EndedParent]:
    dead = {"state": State.DEAD, "parent.may_fail": True}
    numbers = {child.id: child.seq for child in children}

    def read() -> list[DeadChild]:
        these = {**dead, "_id": {"$in": list(numbers)}}
        found = {job["_id"]: job.get("seq") for job in store.jobs.find(these, {"seq": 1}, hint=BY_ID)}
        return [child for child in children if child.id in found and found[child.id] == child.seq]

    def apply(left: list[DeadChild], session: ClientSession) -> list[EndedParent]:
        if not left:
            return []
        ends: dict[Parent, list[ChildEnd]] = defaultdict(list)
        for child in left:
            if child.parent:
                ends[child.parent].append(ChildEnd(child.id, error=child.reason or "it is dead"))
        ended = count_down(ends, now, parents.store, session, len(left))
        these = {**dead, "_id": {"$in": [child.id for child in left]}}
        # failpoint failures.forget
        forgotten = store.jobs.update_many(these, {"$unset": {"parent": ""}}, hint=BY_ID, session=session)
        require_all(forgotten.modified_count, len(left))
        return ended

    # failpoint failures
    return transact(store.jobs.database.client, read, apply, "failed children")


# ------------------------------------------------------------------ removed by an operator


def remove_children(
    jobs: Jobs,
    ids: Sequence[str],
    which: Document,
    why: str,
    now: float,
    parents: ParentQueues,
    portions: Portions,
    queue: str = "",
) -> list[RemovedJob]:
    """Remove the children among ``ids`` that match ``which`` and are awaited; their parents die, or go on.

    ``queue``: the name of their queue, which that of a collection put aside does not say.

    Return the removed ones. Killed, or reply lost: of each portion all is done, or
    nothing; a repetition finds no children any more.
    """
    removed: list[RemovedJob] = []
    queue = queue or queue_of(jobs.name)
    remove = partial(_remove, jobs, which=which, why=why, now=now, parents=parents, queue=queue)
    for part, answer in portions.carry_out(ids, remove):
        if isinstance(answer, Refused):
            raise Refused(f"child {part[0]!r} can't be removed: {answer}") from answer
        removed += answer
    return removed


def _remove(
    jobs: Jobs,
    ids: Sequence[str],
    *,
    which: Document,
    why: str,
    now: float,
    parents: ParentQueues,
    queue: str,
) -> list[RemovedJob]:
    """Remove children and let their parents die, or count them, in one transaction."""
    awaited = {**which, "_id": {"$in": list(ids)}, **AWAITED}

    def read() -> list[Document]:
        return list(jobs.find(awaited, {"parent": 1, "seq": 1, "group": 1}, hint=BY_ID))

    def apply(
        children: list[Document], session: ClientSession
    ) -> tuple[list[FailedParent], list[EndedParent]]:
        removed[:] = [RemovedJob(child.get("seq"), child.get("group")) for child in children]
        if not children:
            return [], []
        reasons = reasons_of(children, queue, why)
        check_statements(2 * len(reasons), len(children), "the parents of removed children")
        # failpoint removals.fail_parents
        failed = fail_all(reasons, now, parents, session)
        ended = count_down(_failures(children, why), now, parents.store, session, len(children))
        found = {**awaited, "_id": {"$in": [child["_id"] for child in children]}}
        # failpoint removals.remove
        require_all(jobs.delete_many(found, hint=BY_ID, session=session).deleted_count, len(children))
        return failed, ended

    removed: list[RemovedJob] = []
    # failpoint removals
    failed, ended = transact(jobs.database.client, read, apply, "removals of children")
    parents.on_parents_failed(failed)
    parents.on_parents_ended(ended)
    return removed


def _failures(children: Iterable[Document], why: str) -> dict[Parent, list[ChildEnd]]:
    """Return the ends of the children whose parents allow failures."""
    ends: dict[Parent, list[ChildEnd]] = defaultdict(list)
    for child in children:
        if (parent := parent_of(child)) and parent.may_fail:
            ends[parent].append(ChildEnd(child["_id"], error=f"it {why}"))
    return ends


def reasons_of(children: Iterable[Document], queue: str, why: str) -> Reasons:
    """Return why the parents of these children die; of several children of one parent the first is named."""
    reasons: Reasons = defaultdict(dict)
    for child in children:
        if (parent := parent_of(child)) and not parent.may_fail:
            reasons[parent.queue].setdefault(parent, f"child {child['_id']} in queue {queue} {why}")
    return reasons


def fail_all(
    reasons: Reasons, now: float, parents: ParentQueues, session: ClientSession | None = None
) -> list[FailedParent]:
    """Make parents dead letters; return those that have waited until now. Raises the driver's errors."""
    return [
        FailedParent(queue, parent.id, some[parent], groups)
        for queue, some in reasons.items()
        for parent, groups in _fail(parents.store(queue), some, now, session).items()
    ]
