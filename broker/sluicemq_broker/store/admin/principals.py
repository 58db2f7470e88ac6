"""Principals: who may do what, one document each, in the broker's own database; no secret but as a hash.

::

    principals: {_id: name, revision, keys: [{id, kind, public | hash, added_at, note?}],
                 permissions: {action: [pattern]}, tenant?, limits?: {max_rate?, max_bytes_rate?},
                 changed_at, removed_at?}

``public``: a public key in Z85; ``hash``: of a password by argon2, or of a token, ``sha256:`` and its digits.
Brokers follow them by :mod:`revisions`. A removed principal stays for a day without keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from dataclasses import field as of_dataclass
from enum import StrEnum
from typing import Any, Final

from pymongo import IndexModel
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError

from sluicemq.protocol.errors import BadFramesError, ForbiddenError, QueueFullError
from sluicemq.protocol.names import is_principal_name
from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.permissions import EVERY, Action, Permissions
from sluicemq.protocol.rules import LIMITS, kept
from sluicemq_broker.store.admin.revisions import LAST, Put, Revisions
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.set_aside import ASIDE, COUNT, DATE, LIST, MAP, TEXT, field, read_or_damaged
from sluicemq_broker.store.values import Document, date

#: Principals of one database, and keys of one principal, at most.
MOST_PRINCIPALS: Final = 100_000
MOST_KEYS: Final = 100


def _is_name(value: object) -> bool:
    return isinstance(value, str) and is_principal_name(value)


_NAME: Final = kept("a name of a principal", _is_name)


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
    value: str = of_dataclass(repr=False)
    added_at: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalRecord:
    """A principal as the file or MongoDB has it."""

    name: str
    keys: tuple[PrincipalKey, ...] = ()
    permissions: Permissions = of_dataclass(default_factory=Permissions)
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
        self._revisions = Revisions(durable(database)["principals"])
        self._principals = self._revisions.documents

    def prepare(self) -> None:
        """Make the indexes; repeating it is harmless."""
        self._revisions.prepare(IndexModel([("keys.id", 1)], name="key", unique=True, sparse=True))

    def read(self, after: int | None = None) -> Iterator[PrincipalRecord]:
        """Yield the principals that were changed or removed after a revision, in that order; None: all."""
        yield from map(self._read, self._revisions.newer(after))

    def one(self, name: str) -> PrincipalRecord | None:
        """Return a principal as it is stored now; None: there is none."""
        with translated():
            return self._present(self._revisions.find(name))

    def change(
        self, name: str, change: Change, now: float, *, keep_operator: bool = False
    ) -> PrincipalRecord | None:
        """Replace a principal by what ``change`` makes of it; returns that, None if it is removed now.

        Where that changes nothing, nothing is written.
        ``keep_operator``: raises Forbidden if nobody could change principals after it. Raises BadFrames for a
        key of another principal, what ``change`` raises, and the errors of :meth:`Revisions.change`.
        """

        def apply(stored: Document | None, put: Put, session: ClientSession | None) -> PrincipalRecord | None:
            before = self._present(stored)
            after = change(before)
            if keep_operator and before and before.operates and not (after and after.operates):
                self._require_another_operator(name, session)
            if after == before:
                return before
            try:
                revision = put({**_document(after, now), "changed_at": date(now)})
            except DuplicateKeyError:
                taken = "another principal has this key: one key stands for one principal"
                raise BadFramesError(taken) from None
            return after and replace(after, revision=revision, changed_at=now)

        if self._principals.estimated_document_count() > MOST_PRINCIPALS:
            raise QueueFullError(f"there are {MOST_PRINCIPALS} principals already: remove some")
        return self._revisions.change(name, apply)

    def _present(self, stored: Document | None) -> PrincipalRecord | None:
        return None if stored is None or "removed_at" in stored else self._read(stored)

    def _read(self, stored: Document) -> PrincipalRecord:
        """Return a principal; one that somebody has damaged by hand may do nothing, and nobody is it."""
        found = read_or_damaged(self._principals, stored, read_principal)
        if isinstance(found, PrincipalRecord):
            return found
        ASIDE.note(found)
        name, revision = stored["_id"], stored.get("revision")
        revision = COUNT(revision) if COUNT.holds(revision) else 0
        if not _is_name(name):
            return PrincipalRecord(name=LAST, revision=revision, removed=True)
        return PrincipalRecord(name=name, revision=revision)

    def _require_another_operator(self, name: str, session: ClientSession | None) -> None:
        operators = {"permissions.operate": EVERY, "keys.0": {"$exists": True}, "_id": {"$ne": name}}
        if not self._principals.find_one(operators, {"_id": 1}, session=session):
            raise ForbiddenError(
                f"{name} is the last principal that may operate: nobody could change principals after this; "
                "give another one operate first, or force it"
            )


def _document(principal: PrincipalRecord | None, now: float) -> Document:
    """Return the fields of a principal that somebody has chosen; those without a value are left out."""
    if principal is None:
        return {"keys": [], "permissions": {}, "removed_at": date(now)}
    fields: Document = {
        "keys": [_key_document(key) for key in principal.keys],
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


def read_principal(stored: Document) -> PrincipalRecord:
    """Read a principal, also one that was removed."""
    name, revision = field(stored, "_id", _NAME), field(stored, "revision", COUNT, 0)
    if "removed_at" in stored:
        return PrincipalRecord(name=name, revision=revision, removed=True)
    given, tenant = field(stored, "limits", MAP, {}), stored.get("tenant")
    limits = {key: rule(given[key]) for key, rule in LIMITS.items() if given.get(key) is not None}
    return PrincipalRecord(
        name=name,
        keys=tuple(_read_key(key) for key in field(stored, "keys", LIST)),
        permissions=Permissions.read(field(stored, "permissions", MAP)),
        tenant=None if tenant is None else OPTIONS["tenant"].rule(tenant),
        **limits,
        changed_at=field(stored, "changed_at", DATE),
        revision=revision,
    )


def _read_key(stored: Any) -> PrincipalKey:
    kind = KeyKind(field(stored, "kind", TEXT))
    return PrincipalKey(
        id=field(stored, "id", TEXT),
        kind=kind,
        value=field(stored, _place_of(kind), TEXT),
        added_at=field(stored, "added_at", DATE, None),
        note=field(stored, "note", TEXT, ""),
    )
