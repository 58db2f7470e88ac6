"""Choice of dead letters: those that an operation works on, or that a page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sluicemq_broker.job import State
from sluicemq_broker.store.halving import BatchSize
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date

#: Called with the number of dead letters that an operation has looked at, chosen or not.
Looked = Callable[[int], None]


def is_a(field: str, *types: str) -> Document:
    """Return the expression that is true where this field has one of these types."""
    return {"$in": [{"$type": f"${field}"}, list(types)]}


def _exists(field: str) -> Document:
    return {"$ne": [{"$type": f"${field}"}, "missing"]}


#: True of dead letters that are no jobs: their headers could not be read, their payload is kept in part, or
#: they are documents that were set aside.
_IN_PART: Final[Document] = {
    "$or": [
        _exists("raw_headers"),
        _exists("unreadable"),
        {"$gt": ["$size", {"$cond": [is_a("payload", "binData"), {"$binarySize": "$payload"}, 0]}]},
    ]
}


class DeadLetters(NamedTuple):
    """A choice of dead letters, the oldest first: all, or of these ids, or with a text in their last reason.

    ``since`` and ``until``: those that died from then on, and before then, in Unix seconds. With ``unasked``,
    dead letters for whose result somebody waits are left out if they died after it, and so are children whose
    parents are not notified yet. With ``free_at``, those are left out, and dead letters whose dedupe window
    is not over then.
    """

    ids: tuple[str, ...] | None = None
    reason: str | None = None
    limit: int | None = None
    since: float | None = None
    until: float | None = None
    unasked: float | None = None
    free_at: float | None = None


class ChosenLetter(NamedTuple):
    """A dead letter of a choice; ``in_part``: it is no job, so it can't be redriven."""

    id: str
    bytes: int
    in_part: bool


def search_windows(
    jobs: Jobs, choice: DeadLetters, now: float, size: BatchSize, looked: Looked
) -> Iterator[list[ChosenLetter]]:
    """Yield the dead letters of a choice, the oldest first, window by window; ignores its limit.

    A window reads ``size()`` dead letters, chosen or not: no index has the reason, and a statement that looks
    for a rare one among millions does not end. The list is empty where none is chosen. ``looked`` is called
    with the number of dead letters in each window. Raises the driver's errors.
    """
    indexed = _indexed(choice, now)
    wanted = {"$and": _conditions(choice)}
    fields = {
        "id": {"$cond": [wanted, "$_id", "$$REMOVE"]},
        "bytes": {"$cond": [wanted, {"$bsonSize": "$$ROOT"}, "$$REMOVE"]},
        "in_part": {"$cond": [{"$and": [wanted, _IN_PART]}, True, "$$REMOVE"]},
    }
    pipeline: list[Document] = [
        {"$match": indexed},
        {"$sort": {"ended_at": 1}},
        {"$project": {"_id": 0, **fields}},
    ]
    most = size()
    found = jobs.aggregate(pipeline, hint=index_of(indexed), batchSize=most)
    while rows := found.to_list(most):
        looked(len(rows))
        yield [ChosenLetter(row["id"], row["bytes"], "in_part" in row) for row in rows if "id" in row]
        most = size()
        found.batch_size(most)


def chosen(choice: DeadLetters, now: float) -> Document:
    """Return the filter for a choice of what has died by ``now``, without its limit."""
    conditions = _conditions(choice)
    return _indexed(choice, now) | ({"$expr": {"$and": conditions}} if conditions else {})


def index_of(chosen: Document) -> str:
    """Return the index by which the dead letters of this filter are found."""
    return BY_ID if "_id" in chosen else ENDED_INDEX


def _indexed(choice: DeadLetters, now: float) -> Document:
    """Return the part of the choice that an index can answer."""
    when: Document = {"$lte": date(now)}
    if choice.since is not None:
        when["$gte"] = date(choice.since)
    if choice.until is not None:
        when["$lt"] = date(choice.until)
    indexed: Document = {"state": State.DEAD, "ended_at": when}
    if choice.ids is not None:
        indexed["_id"] = {"$in": list(choice.ids)}
    return indexed


def _conditions(choice: DeadLetters) -> list[Document]:
    """Return the part of the choice that no index can answer, as expressions of which all must hold."""
    conditions: list[Document] = []
    if choice.unasked is not None or choice.free_at is not None:
        conditions.append({"$or": [{"$not": [_exists("parent.id")]}, _exists("parent.told")]})
    if choice.unasked is not None:
        wanted = [{"$not": [_exists("asked")]}, {"$lt": ["$ended_at", date(choice.unasked)]}]
        conditions.append({"$or": wanted})
    if choice.free_at is not None:  # a missing field is less than any date
        conditions.append({"$lte": ["$dedupe_until", date(choice.free_at)]})
    if choice.reason is not None:  # of the last failure; an expression, so that no character is special
        last = {"$ifNull": [{"$last": "$errors.reason"}, ""]}
        conditions.append({"$gte": [{"$indexOfCP": [last, {"$literal": choice.reason}]}, 0]})
    return conditions
