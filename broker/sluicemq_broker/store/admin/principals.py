"""Principals: who may do what, one document each, in the broker's own database; no secret but as a hash.

::

    principals: {_id: name, revision, keys: [{id, kind, public | hash, added_at, note?}],
                 permissions: {action: [pattern]}, tenant?, limits?: {max_rate?, max_bytes_rate?},
                 changed_at, removed_at?}
                {_id: "", last}

``public``: a public key in Z85; ``hash``: of a password by argon2, or of a token, ``sha256:`` and its digits.

Each change raises ``last`` and takes it as its ``revision``, in one majority transaction. So revisions become
visible in their order, and brokers find all changes since the last revision that they have read. A removed
principal stays for a day without keys, so that they find its removal, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from pymongo import IndexModel, ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from sluicemq.protocol.errors import BadFrames, Forbidden, QueueFull
from sluicemq.protocol.names import is_principal_name
from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.permissions import EVERY, Action, Permissions
from sluicemq.protocol.rules import LIMITS, kept
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.transactions import transact
from sluicemq_broker.store.values import Document, date, seconds

log = logging.getLogger("broker.security")

#: Principals of one database, and keys of one principal, at most.
MOST_PRINCIPALS: Final = 100_000
MOST_KEYS: Final = 100
#: Seconds for which a removal can be read.
REMOVALS_KEPT: Final = timedelta(days=1).total_seconds()
#: Documents in one reply: a few milliseconds of the hub.
_AT_ONCE: Final = 200
#: The document with the last revision; no principal has an empty name.
_LAST: Final = ""
#: Rules of a principal's tenant, and of texts.
_TENANT: Final = OPTIONS["tenant"].rule
_TEXT: Final = kept("a text", lambda value: isinstance(value, str))


class KeyKind(StrEnum):
    """Kinds of keys by which a principal is known."""

    CURVE = "curve"
    PASSWORD = "password"  # noqa: S105 - a word, no secret
    TOKEN = "token"  # noqa: S105


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalKey:
    """One key of a principal; ``value``: public key, or hash of a password or token, never shown."""

    id: str
    kind: KeyKind
    value: str = field(repr=False)
    added_at: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalRecord:
    """A principal as the file or MongoDB has it."""

    name: str
    keys: tuple[PrincipalKey, ...] = ()
    permissions: Permissions = field(default_factory=Permissions)
    tenant: str | None = None
    max_rate: float | None = None
    max_bytes_rate: int | None = None
    changed_at: float | None = None
    revision: int = 0
    removed: bool = False

    @property
    def operates(self) -> bool:
        """True if somebody can show a key of it, and may change principals then."""
        return bool(self.keys) and self.permissions.allow(Action.OPERATE)


#: Makes the changed principal of the stored one, or None: removed. It is called again after a conflict.
Change = Callable[[PrincipalRecord | None], PrincipalRecord | None]


class PrincipalStore:
    """The principals of one database."""

    def __init__(self, database: Documents) -> None:
        self._client = database.client
        self._principals = durable(database)["principals"]

    def prepare(self) -> None:
        """Make the indexes, and the document with the last revision; repeating it is harmless."""
        with translated():
            self._principals.create_indexes(
                [
                    IndexModel([("revision", 1)], name="changes"),
                    IndexModel([("keys.id", 1)], name="key", unique=True, sparse=True),
                    IndexModel([("removed_at", 1)], name="removed", expireAfterSeconds=int(REMOVALS_KEPT)),
                ]
            )
            self._principals.update_one({"_id": _LAST}, {"$setOnInsert": {"last": 0}}, upsert=True)

    def read(self, after: int = 0) -> Iterator[PrincipalRecord]:
        """Yield the principals that were changed or removed after a revision, in that order.

        Reads by the index of revisions, what a majority has: no change of primary takes a revision back.
        """
        newer = {"revision": {"$gt": after}}
        principals = self._principals.with_options(read_concern=ReadConcern("majority"))
        with translated():
            for each in principals.find(newer).sort("revision", 1).batch_size(_AT_ONCE):
                yield _read(each)

    def one(self, name: str) -> PrincipalRecord | None:
        """Return a principal as it is stored now; None: there is none."""
        with translated():
            return self._find(name, None)

    def change(
        self, name: str, change: Change, now: float, *, keep_operator: bool = False
    ) -> PrincipalRecord | None:
        """Replace a principal by what ``change`` makes of it; returns that, None if it is removed now.

        ``keep_operator``: raises Forbidden if nobody could change principals after it. Raises BadFrames for a
        key of another principal, what ``change`` raises, and the errors of a transaction.

        Crash before: nothing is changed. After: it is, and brokers find it by its revision. Reply lost: the
        driver asks again under the transaction's number; if that is not answered either, the principal shows
        what holds.
        """

        def apply(_items: list[str], session: ClientSession) -> PrincipalRecord | None:
            before = self._find(name, session)
            after = change(before)
            if keep_operator and before and before.operates and not (after and after.operates):
                self._require_another_operator(name, session)
            return self._put(name, before, after, now, session)

        if self._principals.estimated_document_count() > MOST_PRINCIPALS:
            raise QueueFull(f"there are {MOST_PRINCIPALS} principals already: remove some")
        return transact(self._client, lambda: [name], apply, "principals")

    def _put(
        self,
        name: str,
        before: PrincipalRecord | None,
        after: PrincipalRecord | None,
        now: float,
        session: ClientSession,
    ) -> PrincipalRecord | None:
        if after is None and before is None:
            return None
        revision = self._next_revision(session)
        numbered: Document = {"revision": revision, "changed_at": date(now)}
        if after is None:
            document = {**numbered, "keys": [], "permissions": {}, "removed_at": date(now)}
        else:
            document = {**_document(after), **numbered}
        try:
            self._principals.replace_one({"_id": name}, document, upsert=True, session=session)
        except DuplicateKeyError:
            raise BadFrames("another principal has this key: one key stands for one principal") from None
        return after and replace(after, revision=revision, changed_at=now)

    def _next_revision(self, session: ClientSession) -> int:
        last = self._principals.find_one_and_update(
            {"_id": _LAST},
            {"$inc": {"last": 1}},
            upsert=True,
            return_document=ReturnDocument.AFTER,
            session=session,
        )
        return int((last or {})["last"])

    def _find(self, name: str, session: ClientSession | None) -> PrincipalRecord | None:
        found = self._principals.find_one({"_id": name}, session=session) if name != _LAST else None
        return None if found is None or "removed_at" in found else _read(found)

    def _require_another_operator(self, name: str, session: ClientSession) -> None:
        operators = {"permissions.operate": EVERY, "keys.0": {"$exists": True}, "_id": {"$ne": name}}
        if not self._principals.find_one(operators, {"_id": 1}, session=session):
            raise Forbidden(
                f"{name} is the last principal that may operate: nobody could change principals after this; "
                "give another one operate first, or force it"
            )


def _document(principal: PrincipalRecord) -> Document:
    """Return the fields of a principal that somebody has chosen; those without a value are left out."""
    fields: Document = {
        "keys": [_key_document(each) for each in principal.keys],
        "permissions": principal.permissions.plain(),
        "tenant": principal.tenant,
        "limits": _given({"max_rate": principal.max_rate, "max_bytes_rate": principal.max_bytes_rate}),
    }
    return _given(fields)


def _given(fields: Document) -> Document:
    return {key: value for key, value in fields.items() if value not in (None, {}) or key == "permissions"}


def _key_document(key: PrincipalKey) -> Document:
    added = {} if key.added_at is None else {"added_at": date(key.added_at)}
    note = {"note": key.note} if key.note else {}
    return {"id": key.id, "kind": str(key.kind), _place_of(key.kind): key.value, **added, **note}


def _place_of(kind: KeyKind) -> str:
    return "public" if kind == KeyKind.CURVE else "hash"


def _read(stored: Document) -> PrincipalRecord:
    """Return a principal; one that somebody has damaged by hand may do nothing, and nobody is it."""
    name, revision = stored["_id"], stored.get("revision", 0)
    if not (isinstance(name, str) and is_principal_name(name)):
        log.warning("a document of principals in MongoDB is ignored: %.200r is no name of one", name)
        return PrincipalRecord(name=_LAST, revision=revision, removed=True)
    if "removed_at" in stored:
        return PrincipalRecord(name=name, revision=revision, removed=True)
    try:
        given, tenant = stored.get("limits", {}), stored.get("tenant")
        limits = {key: rule(given[key]) for key, rule in LIMITS.items() if given.get(key) is not None}
        return PrincipalRecord(
            name=name,
            keys=tuple(_read_key(each) for each in stored["keys"]),
            permissions=Permissions.read(stored["permissions"]),
            tenant=None if tenant is None else _TENANT(tenant),
            **limits,
            changed_at=seconds(stored["changed_at"]),
            revision=revision,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        log.warning("principal %s in MongoDB can't be read, so nobody gets in by it: remove it", name)
        return PrincipalRecord(name=name, revision=revision)


def _read_key(stored: Any) -> PrincipalKey:
    added, kind = stored.get("added_at"), KeyKind(stored["kind"])
    return PrincipalKey(
        id=_TEXT(stored["id"]),
        kind=kind,
        value=_TEXT(stored[_place_of(kind)]),
        added_at=None if added is None else seconds(added),
        note=_TEXT(stored.get("note", "")),
    )
