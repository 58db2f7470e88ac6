"""Records of queues: what somebody has ordered of a queue, for all brokers and over restarts.

One document for each queue of which anything was ordered, beside the queues in their database::

    queues: {_id: queue, revision, paused: ["delivery" | "intake", ...], settings?: {key: JSON},
             removing?: {token, by, at, heard?: {owner: workers}},
             removed?: revision,
             changed_at, removed_at?}

``*`` stands for all queues of the database. ``removing``: the queue is being removed by a broker with this
owner id; ``heard``: the brokers that have read so, and how many workers each has for it. ``removed``: the
revision by which it was removed last; -1: by the one of this record. Brokers follow the records by
:mod:`revisions`; one that says nothing has ``removed_at``, and goes a day later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as of_dataclass
from typing import Final, NamedTuple

from pymongo.client_session import ClientSession

from sluicemq_broker.store.admin.revisions import Put, Revisions
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import (
    ASIDE,
    COUNT,
    DATE,
    MAP,
    NUMBER,
    TEXT,
    TEXTS,
    Unreadable,
    field,
    read_or_damaged,
)
from sluicemq_broker.store.values import Document, date

#: The name of the record for all queues of a database.
ALL_QUEUES: Final = "*"
_BY_THIS_REVISION: Final = -1


class Removing(NamedTuple):
    """A removal under way: its token, the owner id of its broker, since when (Unix seconds).

    ``heard``: how many workers each broker has that knows of it, by owner id.
    """

    token: str
    by: str
    at: float
    heard: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """Orders about a queue that hold; ``settings``: values as JSON by their keys."""

    name: str
    paused: frozenset[str] = frozenset()
    settings: Mapping[str, str] = of_dataclass(default_factory=dict)
    removing: Removing | None = None
    removed: int = 0
    revision: int = 0

    @property
    def orders(self) -> tuple[object, ...]:
        """All that holds of the queue now."""
        return (self.paused, self.settings, self.removing)

    @property
    def says_nothing(self) -> bool:
        """True if nothing was ordered of the queue that still holds."""
        return not any(self.orders)

    def without_orders(self) -> QueueRecord:
        """Return the record of the queue that takes the place of a removed one."""
        return QueueRecord(name=self.name, removed=_BY_THIS_REVISION)


class QueueRecordStore:
    """The records of one database; repeating any of these after a lost reply is harmless."""

    def __init__(self, database: Documents) -> None:
        self._revisions = Revisions(durable(database)["queues"])

    def prepare(self) -> None:
        """Make the indexes; repeating it is harmless."""
        self._revisions.prepare()

    def read(self, after: int | None = None) -> Iterator[QueueRecord]:
        """Yield the records that were changed after a revision, in that order; None: all."""
        yield from map(self._read, self._revisions.newer(after))

    def one(self, name: str) -> QueueRecord:
        """Return the record of a queue as it is stored now."""
        with translated():
            return self._read(self._revisions.find(name) or {"_id": name})

    def change(self, name: str, change: Callable[[QueueRecord], QueueRecord], now: float) -> QueueRecord:
        """Replace a record by what ``change`` makes of it, and return it; raises what ``change`` raises.

        Where that changes nothing, nothing is written. See :meth:`Revisions.change` for what a crash leaves.
        """

        def apply(stored: Document | None, put: Put, _session: ClientSession | None) -> QueueRecord:
            before = self._read(stored or {"_id": name})
            after = change(before)
            if after == before:
                return before
            revision = put(_document(after, now))
            removed = revision if after.removed == _BY_THIS_REVISION else after.removed
            return replace(after, revision=revision, removed=removed)

        return self._revisions.change(name, apply)

    def note_workers(self, name: str, token: str, workers: Mapping[str, int]) -> None:
        """Note that a broker knows of a removal, and its workers by owner id; nothing if it has ended."""
        heard = {f"removing.heard.{owner}": count for owner, count in workers.items()}
        with translated():
            # failpoint queues.note_removal
            self._revisions.documents.update_one({"_id": name, "removing.token": token}, {"$set": heard})

    def _read(self, stored: Document) -> QueueRecord:
        """Return a record; of what somebody has damaged by hand nothing holds but what can be read."""
        found = read_or_damaged(self._revisions.documents, stored, read_record)
        if isinstance(found, QueueRecord):
            return found
        ASIDE.note(found)
        held = {name: value for name, value in stored.items() if _is_sound({"_id": "", name: value})}
        return read_record({**held, "_id": str(stored["_id"])})


def _is_sound(stored: Document) -> bool:
    try:
        read_record(stored)
    except (Unreadable, TypeError, ValueError):
        return False
    return True


def _document(record: QueueRecord, now: float) -> Document:
    document: Document = {"paused": sorted(record.paused), "changed_at": date(now)}
    if record.settings:
        document["settings"] = dict(record.settings)
    if record.removed:
        document["removed"] = record.removed
    if record.removing:
        token, by, at, heard = record.removing
        document["removing"] = {"token": token, "by": by, "at": date(at), "heard": dict(heard)}
    if record.says_nothing:
        document["removed_at"] = date(now)
    return document


def read_record(stored: Document) -> QueueRecord:
    """Read a record of a queue."""
    revision, removed = field(stored, "revision", COUNT, 0), field(stored, "removed", NUMBER, 0)
    settings, removing = field(stored, "settings", MAP, {}), field(stored, "removing", MAP, None)
    for name in settings:
        field(settings, name, TEXT)
    return QueueRecord(
        name=field(stored, "_id", TEXT),
        paused=frozenset(field(stored, "paused", TEXTS, [])),
        settings=settings,
        removing=removing and _removing(removing),
        removed=revision if removed == _BY_THIS_REVISION else int(removed),
        revision=revision,
    )


def _removing(stored: Document) -> Removing:
    heard = field(stored, "heard", MAP, {})
    workers = {owner: field(heard, owner, COUNT) for owner in heard}
    return Removing(
        field(stored, "token", TEXT), field(stored, "by", TEXT), field(stored, "at", DATE), workers
    )
