"""Documents that are no jobs: written by hand, by another program or by a newer version.

One of them must not keep the others from their workers. So the statement that finds it sets it aside, among
the dead letters, with the reason in its history. The field ``unreadable`` says so, too, and keeps it there
until somebody has corrected it, removed that field and redriven it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from sluicemq_broker.job import Job, State
from sluicemq_broker.store.jobs.documents import QueueDefaults, job
from sluicemq_broker.store.jobs.outcomes import dead, with_entry
from sluicemq_broker.store.set_aside import Unreadable
from sluicemq_broker.store.values import BY_ID, Document, Jobs

#: Reserved without an owner that is a string; $type would read all keys.
_OWNERLESS: Final[Document] = {"state": State.RESERVED, "owner": {"$not": {"$gte": ""}}}


#: Errors of reading a document that is none.
UNREADABLE: Final = (
    *(Unreadable, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError),
)


class Malformed(NamedTuple):
    """A document that is no job: its id, of any type, and the reason."""

    id: Any
    reason: str

    def __str__(self) -> str:
        return f"document {str(self.id)[:128]!r} is no job and is set aside: {self.reason}"


def read(stored: Document, defaults: QueueDefaults) -> Job | Malformed:
    """Read the job in a document, or the reason why it is none."""
    try:
        return job(stored, defaults)
    except Unreadable as error:
        return Malformed(stored["_id"], str(error)[:1000])
    except UNREADABLE as error:
        return Malformed(stored["_id"], f"{type(error).__name__}: {error}"[:1000])


def set_aside(collection: Jobs, malformed: Iterable[Malformed], now: float) -> list[Malformed]:
    """Make dead letters of ``ready`` documents; return those that no other broker has set aside before.

    One statement each, as each has its own reason; there are few. Repeating it changes nothing.
    """
    return [
        document
        for document in malformed
        # failpoint jobs.set_aside
        if collection.update_one(
            {"_id": {"$in": [document.id]}, "state": State.READY}, aside(document.reason, now), hint=BY_ID
        ).modified_count
    ]


def set_ownerless_aside(collection: Jobs, now: float) -> list[Malformed]:
    """Make dead letters of documents that are reserved by nobody: no lease of theirs will ever end."""
    reason = "reserved, and its owner is no string"
    found = collection.find(_OWNERLESS, {"_id": 1}).limit(1000)
    malformed = [Malformed(document["_id"], reason) for document in found]
    these = {"_id": {"$in": [document.id for document in malformed]}, **_OWNERLESS}
    if malformed:
        # failpoint jobs.set_ownerless_aside
        collection.update_many(these, aside(reason, now), hint=BY_ID)
    return malformed


def aside(reason: str, now: float) -> list[Document]:
    """Return an update that can't fail, whatever the document's fields are."""
    ended = {**dead(now), "unreadable": {"$literal": reason}, "errors": with_entry(now, 0, reason)}
    return [{"$set": ended}, {"$unset": ["owner", "reserved_at", "slot", "head", "wait", "left"]}]
