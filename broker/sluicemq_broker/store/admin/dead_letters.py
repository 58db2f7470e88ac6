"""Which dead letters an order is about, or a page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from pymongo.collection import Collection

from sluicemq_broker.job import State
from sluicemq_broker.store.admin.batches import BatchSize
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX
from sluicemq_broker.store.values import BY_ID, Document, date

Jobs = Collection[dict[str, Any]]
#: Called with the number of dead letters that an order has looked at, chosen or not.
Looked = Callable[[int], None]


def is_a(field: str, *types: str) -> Document:
    """The expression that is true where this field has one of these types."""
    return {"$in": [{"$type": f"${field}"}, list(types)]}


def _is_there(field: str) -> Document:
    return {"$ne": [{"$type": f"${field}"}, "missing"]}


#: True of dead letters that are no jobs: their headers could not be read, their payload is kept in part, or
#: they are documents that were set aside.
_IN_PART: Final[Document] = {
    "$or": [
        _is_there("raw_headers"),
        _is_there("unreadable"),
        {"$gt": ["$size", {"$cond": [is_a("payload", "binData"), {"$binarySize": "$payload"}, 0]}]},
    ]
}


class DeadLetters(NamedTuple):
    """Which dead letters: all, or of these ids, or with this text in their last reason; the oldest first.

    ``since`` and ``until``: that have died from then on, and before then, in Unix seconds. Of those that
    somebody asks for only those that have died before ``unasked``, where that is given, and of children only
    those whose parents have been told.
    """

    ids: tuple[str, ...] | None = None
    reason: str | None = None
    limit: int | None = None
    since: float | None = None
    until: float | None = None
    unasked: float | None = None


class Chosen(NamedTuple):
    """A dead letter that an order is about; ``in_part``: it is no job, so it can't be redriven."""

    id: str
    bytes: int
    in_part: bool


def look_through(
    jobs: Jobs, letters: DeadLetters, now: float, size: BatchSize, looked: Looked
) -> Iterator[list[Chosen]]:
    """Yield these dead letters, whatever their limit, the oldest first, from one window after the other.

    A window has ``size()`` dead letters, chosen or not: a reason is in no index, and a statement that looks
    for a rare one among millions has no end. The list is empty where none is chosen. ``looked`` is called
    with the number of dead letters in each window. Raises the driver's errors.
    """
    these = _indexed(letters, now)
    wanted = {"$and": _conditions(letters)}
    shown = {
        "id": {"$cond": [wanted, "$_id", "$$REMOVE"]},
        "bytes": {"$cond": [wanted, {"$bsonSize": "$$ROOT"}, "$$REMOVE"]},
        "in_part": {"$cond": [{"$and": [wanted, _IN_PART]}, True, "$$REMOVE"]},
    }
    pipeline: list[Document] = [
        {"$match": these},
        {"$sort": {"ended_at": 1}},
        {"$project": {"_id": 0, **shown}},
    ]
    most = size()
    found = jobs.aggregate(pipeline, hint=index_of(these), batchSize=most)
    while rows := found.to_list(most):
        looked(len(rows))
        yield [Chosen(row["id"], row["bytes"], "in_part" in row) for row in rows if "id" in row]
        most = size()
        found.batch_size(most)


def chosen(letters: DeadLetters, now: float) -> Document:
    """The filter for these dead letters, but their limit; of what has died by ``now``."""
    conditions = _conditions(letters)
    return _indexed(letters, now) | ({"$expr": {"$and": conditions}} if conditions else {})


def _indexed(letters: DeadLetters, now: float) -> Document:
    """Return the part of the choice that an index can answer."""
    when: Document = {"$lte": date(now)}
    if letters.since is not None:
        when["$gte"] = date(letters.since)
    if letters.until is not None:
        when["$lt"] = date(letters.until)
    these: Document = {"state": State.DEAD, "ended_at": when}
    if letters.ids is not None:
        these["_id"] = {"$in": list(letters.ids)}
    return these


def _conditions(letters: DeadLetters) -> list[Document]:
    """Return the part of the choice that no index can answer, as expressions of which all must hold."""
    conditions: list[Document] = []
    if letters.unasked is not None:
        told = [{"$not": [_is_there("parent.id")]}, _is_there("parent.told")]
        asked = [{"$not": [_is_there("asked")]}, {"$lt": ["$ended_at", date(letters.unasked)]}]
        conditions += [{"$or": told}, {"$or": asked}]
    if letters.reason is not None:  # of the last failure; an expression, so that no character is special
        last = {"$ifNull": [{"$last": "$errors.reason"}, ""]}
        conditions.append({"$gte": [{"$indexOfCP": [last, {"$literal": letters.reason}]}, 0]})
    return conditions


def index_of(chosen: Document) -> str:
    """The index by which these are found."""
    return BY_ID if "_id" in chosen else ENDED_INDEX
