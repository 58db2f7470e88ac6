"""Choice of dead letters: those that an operation works on, or that a page shows."""

from __future__ import annotations

import re
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


#: Stands for an error or a place that no worker has said.
UNKNOWN: Final = "?"
#: The type at the beginning of a reason, as in ``KeyError: 'name'``.
_TYPE: Final = re.compile(r"([A-Za-z_][\w.]{0,99}): ")
_NUMBER: Final = re.compile(r"\d+", re.ASCII)
#: Characters of a reason that stand for the type of an error.
_SHORT: Final = 80


def type_of(reason: str) -> str:
    """Return what stands for the type of an error whose worker has said only a reason."""
    found = _TYPE.match(reason)
    return found[1] if found else _NUMBER.sub("#", reason)[:_SHORT]


def _reasons_of(error: str) -> str:
    """Return the regular expression of all reasons of which :func:`type_of` makes this error."""
    if error in ("", UNKNOWN):
        return rf"^\{UNKNOWN}?\z"
    numbers_apart = [re.escape(part).replace("\0", "\\x00") for part in error.split("#")]
    alike = r"(?:\d++|#)".join(numbers_apart) + ("" if len(error) >= _SHORT else r"\z")
    typed = f"{numbers_apart[0]}: |" if _TYPE.fullmatch(f"{error}: ") else ""
    return f"^(?:{typed}{alike})"


class DeadLetters(NamedTuple):
    """A choice of dead letters, the oldest first: all, or of these ids, or with a text in their last reason.

    ``error`` and ``place``: what was raised last, and in which function (:data:`UNKNOWN`: not said).

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
    error: str | None = None
    place: str | None = None
    kind: str | None = None
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
    if choice.kind is not None:
        conditions.append({"$eq": ["$kind", {"$literal": choice.kind}]})
    if choice.error is not None or choice.place is not None:
        conditions.append({"$let": {"vars": {"last": LAST}, "in": {"$and": _raised(choice)}}})
    return conditions


#: The last entry of a history, of documents whose history is no array, too.
LAST: Final = {"$cond": [{"$isArray": "$errors"}, {"$last": "$errors"}, None]}


def _raised(choice: DeadLetters) -> list[Document]:
    """Return the conditions for the last failure: what was raised, and in which function."""
    conditions: list[Document] = []
    if choice.error is not None:
        reason = {"$cond": [is_a("$last.reason", "string"), "$$last.reason", ""]}
        named = {"$not": [{"$in": [{"$ifNull": ["$$last.type", ""]}, [""]]}]}
        typed = {"$eq": ["$$last.type", {"$literal": choice.error}]}
        alike = {"$regexMatch": {"input": reason, "regex": _reasons_of(choice.error)}}
        conditions.append({"$cond": [named, typed, alike]})
    if choice.place is not None:
        place = "" if choice.place == UNKNOWN else choice.place
        conditions.append({"$eq": [{"$ifNull": ["$$last.place", ""]}, {"$literal": place}]})
    return conditions
