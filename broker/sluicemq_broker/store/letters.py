"""Which dead letters an order is about, or a page shows."""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicemq_broker.job import State
from sluicemq_broker.store.claims import BY_ID
from sluicemq_broker.store.documents import Document, date
from sluicemq_broker.store.index_models import ENDED_INDEX


def is_a(field: str, *types: str) -> Document:
    """The expression that is true where this field has one of these types."""
    return {"$in": [{"$type": f"${field}"}, list(types)]}


#: Dead letters that are no jobs: their headers could not be read, their payload is kept in part, or they are
#: documents that were set aside.
IN_PART: Final[Document] = {
    "$or": [
        {"raw_headers": {"$exists": True}},
        {"unreadable": {"$exists": True}},
        {
            "$expr": {
                "$gt": ["$size", {"$cond": [is_a("payload", "binData"), {"$binarySize": "$payload"}, 0]}]
            }
        },
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


def chosen(letters: DeadLetters, now: float) -> Document:
    """The filter for these dead letters, but their limit; of what has died by ``now``."""
    when: Document = {"$lte": date(now)}
    if letters.since is not None:
        when["$gte"] = date(letters.since)
    if letters.until is not None:
        when["$lt"] = date(letters.until)
    these: Document = {"state": State.DEAD, "ended_at": when}
    if letters.unasked is not None:
        told = [{"parent.id": {"$exists": False}}, {"parent.told": {"$exists": True}}]
        asked = [{"asked": {"$exists": False}}, {"ended_at": {"$lt": date(letters.unasked)}}]
        these["$and"] = [{"$or": told}, {"$or": asked}]
    if letters.ids is not None:
        these["_id"] = {"$in": list(letters.ids)}
    if letters.reason is not None:  # of the last failure; an expression, so that no character is special
        last = {"$ifNull": [{"$last": "$errors.reason"}, ""]}
        these["$expr"] = {"$gte": [{"$indexOfCP": [last, {"$literal": letters.reason}]}, 0]}
    return these


def index_of(chosen: Document) -> str:
    """The index by which these are found."""
    return BY_ID if "_id" in chosen else ENDED_INDEX
