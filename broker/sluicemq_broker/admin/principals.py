"""Principals: listed, added, removed, given other keys and other permissions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, NotFoundError
from sluicemq.protocol.keys import read_key
from sluicemq.protocol.names import PRINCIPAL_NAME_RULE, is_principal_name
from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.permissions import Permissions
from sluicemq.protocol.readable import is_utf8
from sluicemq.protocol.rows import KeyRow, PrincipalRow
from sluicemq.protocol.rules import LIMITS, Rule, kept, one_of, whole
from sluicemq_broker.runtime import FLAG, IS_TRUE, read_options
from sluicemq_broker.security import (
    LONGEST_PASSWORD,
    Security,
    SharedPrincipals,
    Unchanged,
    password_of,
    public_key_of,
    token_of,
)
from sluicemq_broker.store import MOST_KEYS, KeyKind, PrincipalKey, PrincipalRecord, PrincipalStore

#: Principals in one list, at most; characters of a password, at least.
MOST_LISTED: Final = 1000
SHORTEST_PASSWORD: Final = 8

#: Makes a changed principal of the stored one, None if there is none; or None: it is removed.
Change = Callable[[PrincipalRecord | None], PrincipalRecord | None]


class KnownPrincipals(NamedTuple):
    """Principals as a broker has them, or the store alone.

    ``record``, ``records(after, most)``: what is known. ``of_file(name)``: whether the configuration file has
    it. ``change(name, change, keep_operator)``: stores it. ``hash(password)``: its argon2 hash.
    ``taken(value)``: the principal of the file with this key, or hash of a token. ``throttled(name)``: times
    that this broker did not read one of its connections for a while.
    """

    record: Callable[[str], PrincipalRecord | None]
    records: Callable[[str, int], list[PrincipalRecord]]
    of_file: Callable[[str], bool]
    change: Callable[[str, Change, bool], PrincipalRecord | None]
    hash: Callable[[str], str]
    taken: Callable[[str], str | None]
    throttled: Callable[[str], int]
    now: Callable[[], float]


class PrincipalAdmin:
    """The principals of all brokers on this database."""

    actions: ClassVar[frozenset[str]]
    """Names of what :meth:`do` can."""

    def __init__(self, known: KnownPrincipals) -> None:
        self._known = known

    def do(self, action: str, about: dict[str, Any]) -> Any:
        """Carry out one action of the verb USERS; waits for MongoDB.

        Raises BadFrames, NotFound, and Forbidden where nobody could change principals any more.
        """
        do = _ACTIONS.get(action)
        if do is None:
            raise BadFramesError(f"USERS can't {action[:32]!r}, only {', '.join(_ACTIONS)}")
        return do(self, read_options(about, _FIELDS, "a principal"))

    def rows(self, read: dict[str, Any]) -> list[PrincipalRow]:
        """Return principals by name: those behind ``after``, ``limit`` of them at most."""
        known = self._known
        return [
            self._row(record)
            for record in known.records(read.get("after", ""), read.get("limit", MOST_LISTED))
        ]

    def show(self, read: dict[str, Any]) -> PrincipalRow:
        """Return one principal."""
        name = _name(read)
        record = self._known.record(name)
        if record is None:
            raise _not_found(name)
        return self._row(record)

    def add(self, read: dict[str, Any]) -> PrincipalRow | Unchanged:
        """Add a principal; returns it, with its token if one was asked for."""
        name = self._changeable(read)
        if "permissions" not in read:
            raise BadFramesError("a new principal needs permissions")
        new = _with_settings(PrincipalRecord(name=name, keys=()), read)
        _refuse_another(self._known.record(name))  # before the password takes a tenth of a second
        keys, token = self._new_keys(read)

        def change(before: PrincipalRecord | None) -> PrincipalRecord:
            _refuse_another(before)
            return replace(new, keys=keys)

        return self._changed(name, change, force=True, token=token)

    def remove(self, read: dict[str, Any]) -> None:
        """Remove a principal; its connections end."""
        name = self._changeable(read)

        def change(before: PrincipalRecord | None) -> None:
            if before is None:
                raise _not_found(name)

        self._store(name, change, force=read.get("force", False))

    def rotate(self, read: dict[str, Any]) -> PrincipalRow | Unchanged:
        """Add a key, password or token; or end one of them. A principal has one password."""
        name, kind, dropped = self._changeable(read), read.get("kind"), read.get("id")
        if (kind is None) == (dropped is None):
            raise BadFramesError("rotate needs the kind of the new key, or the id of a key that ends")
        wanted = {} if kind is None else _wanted(kind, read)
        if self._known.record(name) is None:
            raise _not_found(name)
        keys, token = ((), None) if kind is None else self._new_keys({**read, **wanted})
        ends_others = bool(read.get("drop")) or kind == KeyKind.PASSWORD

        there = {(key.kind, key.value, key.note) for key in keys}

        def stays(key: PrincipalKey) -> bool:
            if (key.kind, key.value, key.note) in there:
                return True
            return key.id != dropped and not (ends_others and key.kind == kind)

        def change(before: PrincipalRecord | None) -> PrincipalRecord:
            if before is None:
                raise _not_found(name)
            if dropped and not any(key.id == dropped for key in before.keys):
                raise NotFoundError(f"principal {name} has no key {dropped}")
            former = tuple(key for key in before.keys if stays(key))
            new = tuple(key for key in keys if key.id not in {one.id for one in former})
            if len(former) + len(new) > MOST_KEYS:
                raise BadFramesError(f"principal {name} has {MOST_KEYS} keys already: end some of them")
            return replace(before, keys=former + new)

        return self._changed(name, change, force=read.get("force", False), token=token)

    def permit(self, read: dict[str, Any]) -> PrincipalRow | Unchanged:
        """Replace what a principal may do: permissions, tenant, limits, as far as they are given."""
        name = self._changeable(read)

        def change(before: PrincipalRecord | None) -> PrincipalRecord:
            if before is None:
                raise _not_found(name)
            return _with_settings(before, read)

        return self._changed(name, change, force=read.get("force", False))

    def _changed(
        self, name: str, change: Change, *, force: bool, token: str | None = None
    ) -> PrincipalRow | Unchanged:
        before: PrincipalRecord | None = None

        def noted(stored: PrincipalRecord | None) -> PrincipalRecord | None:
            nonlocal before
            before = stored
            return change(stored)

        record = self._store(name, noted, force=force)
        if record is None:  # removed at once by another broker
            raise _not_found(name)
        row = self._row(record, token)
        return Unchanged(row) if record == before else row

    def _store(self, name: str, change: Change, *, force: bool) -> PrincipalRecord | None:
        return self._known.change(name, change, not force)

    def _changeable(self, read: dict[str, Any]) -> str:
        """Return the name of a principal; raises BadFrames for one that can't be changed here."""
        name = _name(read)
        if self._known.of_file(name):
            raise BadFramesError(
                f"principal {name} is one of the configuration file: change it there, then SIGHUP"
            )
        return name

    def _new_keys(self, read: Mapping[str, Any]) -> tuple[tuple[PrincipalKey, ...], str | None]:
        """Return the keys that were given, and the token that was asked for, which nobody sees again."""
        now, note = self._known.now(), read.get("note", "")
        keys, token = [], None
        if "key" in read:
            keys.append(public_key_of(read["key"], now, note))
        if "password" in read:
            keys.append(password_of(self._known.hash(read["password"]), now, note))
        if read.get("token"):
            token = secrets.token_urlsafe(32)
            keys.append(token_of(token, now, note))
        for key in keys:
            if other := self._known.taken(key.value):
                raise BadFramesError(f"principal {other} of the configuration file has this key")
        return tuple(keys), token

    def _row(self, record: PrincipalRecord, token: str | None = None) -> PrincipalRow:
        limits = {"max_rate": record.max_rate, "max_bytes_rate": record.max_bytes_rate}
        return PrincipalRow(
            name=record.name,
            keys=tuple(_key_row(key) for key in record.keys),
            permissions={action: tuple(patterns) for action, patterns in record.permissions.plain().items()},
            tenant=record.tenant,
            limits={key: value for key, value in limits.items() if value is not None},
            throttled=self._known.throttled(record.name),
            changed_at=record.changed_at,
            from_configuration=self._known.of_file(record.name),
            token=token,
        )


def at_broker(security: Security, shared: SharedPrincipals, now: Callable[[], float]) -> PrincipalAdmin:
    """Return the administration of principals at a running broker."""
    known = security.principals

    def change(name: str, change: Change, keep_operator: bool) -> PrincipalRecord | None:  # noqa: FBT001
        must_keep = keep_operator and not (security.strangers_operate or known.file_operates)
        return shared.change(name, change, _stored(now), keep_operator=must_keep)

    return PrincipalAdmin(
        KnownPrincipals(
            record=known.record,
            records=known.records,
            of_file=known.is_of_file,
            change=change,
            hash=security.passwords.hash,
            taken=known.holder_in_file,
            throttled=known.throttled,
            now=lambda: _stored(now),
        )
    )


def at_store(store: PrincipalStore, hash_password: Callable[[str], str]) -> PrincipalAdmin:
    """Return the administration of principals without a broker, which knows none of a file."""

    def records(after: str, most: int) -> list[PrincipalRecord]:
        there = sorted(
            (record for record in store.read() if not record.removed), key=lambda record: record.name
        )
        return [record for record in there if record.name > after][:most]

    def change(name: str, change: Change, keep_operator: bool) -> PrincipalRecord | None:  # noqa: FBT001
        return store.change(name, change, _stored(time.time), keep_operator=keep_operator)

    return PrincipalAdmin(
        KnownPrincipals(
            record=store.one,
            records=records,
            of_file=lambda _name: False,
            change=change,
            hash=hash_password,
            taken=lambda _value: None,
            throttled=lambda _name: 0,
            now=lambda: _stored(time.time),
        )
    )


def _stored(now: Callable[[], float]) -> float:
    """Return the time as MongoDB keeps it, in milliseconds."""
    return round(now(), 3)


def _with_settings(record: PrincipalRecord, read: Mapping[str, Any]) -> PrincipalRecord:
    given = {key: read[key] for key in ("permissions", "tenant") if key in read}
    if read.get("tenant") == "":
        given["tenant"] = None
    if "limits" in read:
        limits = read_options(read["limits"], LIMITS, "limits")
        given |= {key: limits.get(key) for key in LIMITS}
    return replace(record, **given)


def _wanted(kind: str, read: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a new key of this kind needs; raises BadFrames if it is not given."""
    if kind == KeyKind.TOKEN:
        return {"token": True}
    need = "key" if kind == KeyKind.CURVE else "password"
    if need not in read:
        raise BadFramesError(f"a new {need} is missing")
    return {}


def _name(read: Mapping[str, Any]) -> str:
    if "name" not in read:
        raise BadFramesError("the name of a principal is missing")
    return str(read["name"])


def _refuse_another(before: PrincipalRecord | None) -> None:
    if before:
        raise BadFramesError(
            f"there is a principal {before.name} already: rotate changes its keys, permit the rest"
        )


def _not_found(name: str) -> NotFoundError:
    return NotFoundError(f"there is no principal {name!r}")


def _key_row(key: PrincipalKey) -> KeyRow:
    public = key.value if key.kind == KeyKind.CURVE else None
    return KeyRow(id=key.id, kind=str(key.kind), public=public, added_at=key.added_at, note=key.note or None)


def _is_key(value: Any) -> bool:
    try:
        read_key(value)
    except ValueError:
        return False
    return True


def _text(expected: str, least: int, most: int) -> Rule:
    return kept(
        expected, lambda value: isinstance(value, str) and least <= len(value) <= most and is_utf8(value)
    )


def _hidden(rule: Rule) -> Rule:
    """Return the rule whose refusal does not repeat the value, which may be a secret."""

    def read(value: Any) -> Any:
        if not rule.holds(value):
            raise BadFramesError(f"expected {rule.expected}")
        return rule(value)

    return rule._replace(read=read)


_FIELDS: Final = {
    "name": kept(f"a principal's name: {PRINCIPAL_NAME_RULE}", is_principal_name),
    "key": _hidden(kept("a public key of 40 characters in Z85", _is_key)),
    "password": _hidden(
        _text(
            f"a password of {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters",
            SHORTEST_PASSWORD,
            LONGEST_PASSWORD,
        )
    ),
    "token": IS_TRUE,
    "permissions": Rule("permissions", Permissions.read),
    "tenant": Rule(
        OPTIONS["tenant"].rule.expected, lambda value: value if value == "" else OPTIONS["tenant"].rule(value)
    ),
    "limits": kept("a map of max_rate and max_bytes_rate", lambda value: isinstance(value, dict)),
    "note": _text("a note of up to 200 characters", 0, 200),
    "kind": one_of(*KeyKind),
    "id": _text("the id of a key", 1, 64),
    "drop": FLAG,
    "force": FLAG,
    "after": _text("a name", 0, 128),
    "limit": whole(1, MOST_LISTED),
}
_ACTIONS: Final[dict[str, Callable[[PrincipalAdmin, dict[str, Any]], Any]]] = {
    wire.LIST: PrincipalAdmin.rows,
    wire.ONE: PrincipalAdmin.show,
    wire.ADD: PrincipalAdmin.add,
    wire.REMOVE: PrincipalAdmin.remove,
    wire.ROTATE: PrincipalAdmin.rotate,
    wire.PERMIT: PrincipalAdmin.permit,
}
PrincipalAdmin.actions = frozenset(_ACTIONS)
