"""All principals of a broker: of its configuration file, and of MongoDB. They are found by what they show."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sluicemq.protocol.keys import encode, key_id, read_key
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.config import PrincipalSettings
from sluicemq_broker.security.authorize import Caller, Principal
from sluicemq_broker.security.rates import Limits
from sluicemq_broker.store import KeyKind, PrincipalKey, PrincipalRecord
from sluicemq_devices.hub import in_pieces

log = logging.getLogger("broker.security")


class Shown(NamedTuple):
    """A principal, and the id of the key, password or token that was shown for it."""

    principal: Principal
    key: str


class Login(NamedTuple):
    """A principal that has a password: the hash, and its id."""

    principal: Principal
    hash: str
    key: str


class _Known(NamedTuple):
    """A principal as it holds now, and the record that says so."""

    record: PrincipalRecord
    principal: Principal


class Principals:
    """The principals; a name in both places means that of the file, and so does a key."""

    def __init__(self) -> None:
        self._of_file: dict[str, PrincipalRecord] = {}
        self._keys_of_file: frozenset[str] = frozenset()
        self._stored: dict[str, PrincipalRecord] = {}
        self._known: dict[str, _Known] = {}
        self._holders: dict[str, str] = {}  # names by public key in Z85, and by hash of a token
        self._with_login: set[str] = set()
        self._warned: set[str] = set()

    def by_public_key(self, public: bytes) -> Shown | None:
        """Return the principal with this key of CURVE."""
        return self._holder(encode(public), key_id(public))

    def by_token(self, token: str) -> Shown | None:
        """Return the principal with this token."""
        value = hash_of_token(token)
        return self._holder(value, id_of(value))

    def login(self, user: str) -> Login | None:
        """Return the principal of this name, if it has a password."""
        known = self._known.get(user)
        keys = known.record.keys if known else ()
        hashes = (key for key in keys if key.kind == KeyKind.PASSWORD)
        return next((Login(known.principal, key.value, key.id) for key in hashes if known), None)

    def named(self, name: str) -> Principal | None:
        """Return the principal of this name."""
        known = self._known.get(name)
        return known.principal if known else None

    def caller_of(self, name: str) -> Caller:
        """Return the caller for a principal that is not connected, with the permissions that it has now."""
        known = self._known.get(name)
        return Caller(known.principal if known else Principal(name, Permissions()))

    def record(self, name: str) -> PrincipalRecord | None:
        """Return a principal's record: of the file, else of MongoDB."""
        return self._of_file.get(name) or self._stored.get(name)

    def records(self, after: str = "", most: int | None = None) -> list[PrincipalRecord]:
        """Return principals by name: those behind ``after``, ``most`` of them at most."""
        names = sorted(name for name in self._known if name > after)
        return [self._known[name].record for name in names[:most]]

    def read_all(self) -> None:
        """Read all connections, whatever their principals have sent: the broker stops."""
        for known in self._known.values():
            if known.principal.rates:
                known.principal.rates.open()

    def throttled(self, name: str) -> int:
        """Return how often connections of a principal were not read for a while, as it sent too much."""
        known = self._known.get(name)
        return known.principal.rates.held if known and known.principal.rates else 0

    def is_of_file(self, name: str) -> bool:
        """Return whether the configuration file has this principal."""
        return name in self._of_file

    def holder_in_file(self, value: str) -> str | None:
        """Return the principal of the file that has this key, or hash of a token."""
        return self._holders.get(value) if value in self._keys_of_file else None

    @property
    def file_operates(self) -> bool:
        """True if a principal of the file may change others."""
        return any(principal.operates for principal in self._of_file.values())

    @property
    def has_logins(self) -> bool:
        """True if any principal has a password or a token."""
        return bool(self._with_login)

    def use_file(self, principals: Mapping[str, PrincipalSettings]) -> None:
        """Take over the principals of the configuration file, in place of those before."""
        before = self._of_file
        self._of_file = {name: record_of(name, principal) for name, principal in principals.items()}
        self._keys_of_file = frozenset(
            key.value
            for principal in self._of_file.values()
            for key in principal.keys
            if key.kind != KeyKind.PASSWORD
        )
        # All of them: a key may have come from a stored principal, or have gone back to it.
        self._follow({*before, *self._of_file, *self._stored})

    def use_stored(self, records: Iterable[PrincipalRecord], *, complete: bool = False) -> bool:
        """Take over principals of MongoDB that were changed or removed; True if there is any.

        ``complete``: these are all, so others are removed.
        """
        found = {record.name: record for record in records}
        changed = {*found, *self._stored} if complete else {*found}
        for name in changed:
            record = found.get(name)
            if record is None or record.removed:
                self._stored.pop(name, None)
            else:
                self._stored[name] = record
        self._follow(changed)
        return bool(changed)

    def _holder(self, value: str, key: str) -> Shown | None:
        name = self._holders.get(value)
        known = None if name is None else self._known.get(name)
        return Shown(known.principal, key) if known else None

    def _follow(self, names: Iterable[str]) -> None:
        """Let principals be as their records say, in turns of the hub: there may be ten thousand."""
        for name in in_pieces(names):
            self._follow_one(name)

    def _follow_one(self, name: str) -> None:
        record, former = self.record(name), self._known.pop(name, None)
        for key in former.record.keys if former else ():
            if self._holders.get(key.value) == name:
                del self._holders[key.value]
        self._with_login.discard(name)
        if record is None:
            if former:
                former.principal.exists = False
            return
        principal = former.principal if former else Principal(name, Permissions())
        own = [key for key in record.keys if self._is_own(record.name, key)]
        for key in own:
            if key.kind != KeyKind.PASSWORD:
                self._holders[key.value] = name
            if key.kind != KeyKind.CURVE:
                self._with_login.add(name)
        principal.change(
            record.permissions,
            tenant=record.tenant,
            keys=frozenset(key.id for key in own),
            limits=Limits(record.max_rate, record.max_bytes_rate),
        )
        self._known[name] = _Known(record, principal)
        if name in self._of_file and name in self._stored:
            self._warn(f"principal {name} is in the file and in MongoDB: that of the file holds")

    def _is_own(self, name: str, key: PrincipalKey) -> bool:
        if name in self._of_file or key.value not in self._keys_of_file:
            return True
        self._warn(f"key {key.id} of principal {name} stands for a principal of the file, which has it, too")
        return False

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)


def record_of(name: str, settings: PrincipalSettings) -> PrincipalRecord:
    """Return a principal of the file."""
    keys = [public_key_of(key) for key in settings.keys]
    if settings.password:
        keys.append(password_of(settings.password.text))
    keys += [PrincipalKey(id=id_of(token), kind=KeyKind.TOKEN, value=token) for token in settings.tokens]
    return PrincipalRecord(
        name=name,
        keys=tuple(keys),
        permissions=settings.permissions,
        tenant=settings.tenant,
        max_rate=settings.max_rate,
        max_bytes_rate=settings.max_bytes_rate,
    )


def public_key_of(text: str, added_at: float | None = None, note: str = "") -> PrincipalKey:
    """Return a public key in Z85 as a key of a principal."""
    return PrincipalKey(
        id=key_id(read_key(text)), kind=KeyKind.CURVE, value=text, added_at=added_at, note=note
    )


def password_of(hashed: str, added_at: float | None = None, note: str = "") -> PrincipalKey:
    """Return the hash of a password as a key of a principal."""
    return PrincipalKey(id=id_of(hashed), kind=KeyKind.PASSWORD, value=hashed, added_at=added_at, note=note)


def token_of(token: str, added_at: float | None = None, note: str = "") -> PrincipalKey:
    """Return a token as a key of a principal, which has its hash alone."""
    value = hash_of_token(token)
    return PrincipalKey(id=id_of(value), kind=KeyKind.TOKEN, value=value, added_at=added_at, note=note)


def hash_of_token(token: str) -> str:
    """Return what is stored of a token, which is long enough that nobody can find it by its hash."""
    return "sha256:" + hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def id_of(value: str) -> str:
    """Return the short name of a stored hash, for logs and lists: 12 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(value.encode()).hexdigest()[:12]
