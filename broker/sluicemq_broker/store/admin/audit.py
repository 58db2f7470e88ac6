"""The audit in MongoDB: administrative acts, logins and refusals, in the broker's own database; no secrets.

::

    audit: {_id: "9f2c…", at, principal, key, peer, door, broker, action, name, about: {...}, outcome,
            code?, kind, until?, count?, first?}

One document for each act. Logins and refusals that are alike within some time are one document, of kind
``counted``: it is written whole each time it goes on. Writing a document twice changes nothing. ``at`` is the
last time, by which they are in order, and ``first`` the first; older versions have the first as ``at``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pymongo import IndexModel, ReplaceOne

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import COUNT, DATE, PLAIN_MAP, TEXT, readable
from sluicemq_broker.store.set_aside import field as of
from sluicemq_broker.store.values import Document, date, seconds

#: By principal and by kind, and all of them, the newest first.
_NEWEST: Final = [("at", -1), ("_id", -1)]
#: Records of each kind that are kept, at most.
MOST_AUDITED: Final = 1_000_000
#: Fields that are texts, and empty where there is nothing to say.
_TEXTS: Final = ("principal", "key", "peer", "door", "broker", "action", "name", "outcome", "code")


class AuditKind(StrEnum):
    """Kinds of records, of which each has its own bound: none pushes out another."""

    OPERATORS = "operators"
    """Acts of brokers, and of callers with ``operate``."""
    OTHERS = "others"
    """Acts of callers without it, who can make any number of them on a queue of their own."""
    COUNTED = "counted"
    """Logins and refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One act; of kind ``counted``: ``count`` acts that are alike, the last at ``until``.

    Times are Unix seconds.
    """

    id: str
    at: float
    principal: str = ""
    key: str = ""
    peer: str = ""
    door: str = ""
    broker: str = ""
    action: str = ""
    name: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = ""
    code: str = ""
    kind: AuditKind = AuditKind.OPERATORS
    until: float = 0.0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditChoice:
    """Choice of records; None: any. ``action`` with its first word alone chooses all that begin with it.

    ``after``: time and id of the last record of the page before.
    """

    principal: str | None = None
    action: str | None = None
    name: str | None = None
    outcome: str | None = None
    since: float | None = None
    until: float | None = None
    after: tuple[float, str] | None = None


class AuditPage(NamedTuple):
    """Records as clients see them. ``last``: the place of the last one, if there may be more."""

    rows: list[dict[str, Any]]
    last: tuple[float, str] | None


class AuditStore:
    """The records of one database."""

    def __init__(self, database: Documents) -> None:
        self._records = durable(database)["audit"]

    def prepare(self) -> None:
        """Make the indexes; repeating it is harmless."""
        with translated():
            # failpoint audit.prepare
            self._records.create_indexes(
                [
                    IndexModel(_NEWEST, name="newest"),
                    IndexModel([("principal", 1), *_NEWEST], name="principal"),
                    IndexModel([("kind", 1), *_NEWEST], name="kind"),
                ],
                **by_majority(self._records),
            )

    def write(self, records: Iterable[AuditRecord]) -> None:
        """Write records as they are now.

        Crash before: they are not there. After: they are. Reply lost: written again, which changes nothing.
        """
        statements = [ReplaceOne({"_id": record.id}, _document(record), upsert=True) for record in records]
        if statements:
            with translated():
                # failpoint audit.write
                self._records.bulk_write(statements, ordered=False)

    def page(self, choice: AuditChoice, most: int) -> AuditPage:
        """Return records as clients see them, the newest first, ``most`` at most."""
        with translated():
            # Documents in one reply: a few milliseconds of the hub.
            found = list(self._records.find(_filter(choice)).sort(_NEWEST).limit(most).batch_size(200))
            rows = list(readable(self._records, found, read_audited))
        at = [
            (seconds(document["at"]), document["_id"])
            for document in found
            if isinstance(document.get("at"), datetime)
        ]
        return AuditPage(rows, at[-1] if at and len(found) == most else None)

    def trim(self, before: float, most: int) -> int:
        """Remove records from before this time, and of each kind the oldest of more than ``most``.

        Returns how many. Crash: a part is removed, and the next trim goes on.
        """
        with translated():
            # failpoint audit.trim
            gone = self._records.delete_many({"at": {"$lt": date(before)}}).deleted_count
            for kind in AuditKind:
                alike = {"kind": str(kind)}
                first = self._records.find(alike, {"at": 1, "_id": 0}).sort(_NEWEST).skip(most).limit(1)
                for document in first:
                    # failpoint audit.trim_kind
                    gone += self._records.delete_many({**alike, "at": {"$lte": document["at"]}}).deleted_count
        return gone


def _document(record: AuditRecord) -> Document:
    texts = {name: text for name in _TEXTS if (text := getattr(record, name)) or name == "principal"}
    last, counts = record.at, {}
    if record.kind == AuditKind.COUNTED:
        last = max(record.at, record.until)
        counts = {"first": date(record.at), "until": date(last), "count": record.count}
    return {
        "at": date(last),
        **texts,
        "about": dict(record.about),
        "kind": str(record.kind),
        **counts,
    }


def _filter(choice: AuditChoice) -> Document:
    chosen = {"principal": choice.principal, "name": choice.name, "outcome": choice.outcome}
    found: Document = {key: value for key, value in chosen.items() if value is not None}
    if choice.action is not None:
        found["action"] = {"$regex": f"^{re.escape(choice.action)}( |$)"}
    conditions: list[Document] = [{"at": {"$gte": date(choice.since)}}] if choice.since is not None else []
    if choice.until is not None:
        until = {"$lte": date(choice.until)}
        conditions.append({"$or": [{"at": until}, {"first": until}]})
    if choice.after:
        at, last = date(choice.after[0]), choice.after[1]
        conditions += [{"at": {"$lte": at}}, {"$or": [{"at": {"$lt": at}}, {"_id": {"$lt": last}}]}]
    return {**found, "$and": conditions} if conditions else found


def read_audited(stored: Document) -> dict[str, Any]:
    """Return a record as clients see it."""
    at = of(stored, "first" if "first" in stored else "at", DATE)
    return {
        "id": of(stored, "_id", TEXT),
        "at": at,
        "until": of(stored, "until", DATE, at),
        "count": of(stored, "count", COUNT, 1),
        **{name: of(stored, name, TEXT, "") for name in _TEXTS},
        "about": of(stored, "about", PLAIN_MAP, {}),
    }
