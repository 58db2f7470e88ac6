"""Logins at the HTTP doors of a database's brokers: the secrets that sign them, and those that were ended.

::

    logins: {_id: "secrets", revision, name, secrets: [{secret, made_at}]}
            {_id: id of a login, revision, principal, removed_at}

A login itself is stored nowhere: its cookie says who it is. Brokers follow these documents by
:mod:`revisions`. The secrets are made by the first broker and renewed each day; no backup has them, for who
knows one can sign. A login that was ended stays for a day: none lasts longer.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pymongo.client_session import ClientSession

from sluicemq_broker.store.admin.revisions import Put, Revisions
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.set_aside import (
    COUNT,
    DATE,
    LIST,
    TEXT,
    Unreadable,
    field,
    read_or_damaged,
    readable,
)
from sluicemq_broker.store.values import Document, date

#: Seconds after which a new secret is made.
RENEWED: Final = timedelta(days=1).total_seconds()
_BYTES: Final = 32
_SECRETS: Final = "secrets"


@dataclass(frozen=True, slots=True)
class SigningSecret:
    """A secret that signs logins, made at this server time."""

    secret: bytes
    made_at: float

    def __repr__(self) -> str:
        return f"SigningSecret(made_at={self.made_at})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRecord:
    """The secrets (oldest first) with the name of the cookie, or a login of a principal that was ended."""

    id: str
    revision: int
    principal: str = ""
    ended_at: float = 0.0
    cookie: str = ""
    secrets: tuple[SigningSecret, ...] = ()


class LoginStore:
    """The logins of one database."""

    def __init__(self, database: Documents) -> None:
        self._logins = durable(database)["logins"]
        self._revisions = Revisions(self._logins)

    def prepare(self) -> None:
        """Make the indexes; repeating it is harmless."""
        self._revisions.prepare()

    def read(self, after: int | None = None) -> Iterator[LoginRecord]:
        """Yield what was changed after a revision, in that order; None: all. Damaged ones are left out."""
        yield from readable(self._logins, self._revisions.newer(after), read_login)

    def renew(self, now: float) -> None:
        """Make a new secret, unless there is one that is not a day old; repeating it is harmless."""

        def apply(stored: Document | None, put: Put, _session: ClientSession | None) -> None:
            before = self._secrets_of(stored)
            if before and now - before[-1].made_at < RENEWED:
                return
            # The last one signed nothing for as long as the newest one is old.
            made = [*before, SigningSecret(secrets.token_bytes(_BYTES), now)][-2:]
            put(
                {
                    "name": (stored or {}).get("name") or secrets.token_hex(4),
                    "secrets": [
                        {"secret": secret.secret, "made_at": date(secret.made_at)} for secret in made
                    ],
                }
            )

        self._revisions.change(_SECRETS, apply)

    def end(self, login: str, principal: str, now: float) -> None:
        """Note that a login has ended; repeating it is harmless."""
        fields = {"principal": principal, "removed_at": date(now)}
        self._revisions.change(login, lambda stored, put, _session: None if stored else put(fields))

    def _secrets_of(self, stored: Document | None) -> tuple[SigningSecret, ...]:
        """Return the secrets; where somebody has damaged them there are none, so new ones are made."""
        read = None if stored is None else read_or_damaged(self._logins, stored, read_login)
        return read.secrets if isinstance(read, LoginRecord) else ()


def read_login(stored: Document) -> LoginRecord:
    """Read the secrets, or a login that was ended. Raises errors that repeat no secret."""
    revision = field(stored, "revision", COUNT, 0)
    if stored["_id"] == _SECRETS:
        found = tuple(map(_read_secret, field(stored, "secrets", LIST)))
        return LoginRecord(id=_SECRETS, revision=revision, cookie=field(stored, "name", TEXT), secrets=found)
    return LoginRecord(
        id=field(stored, "_id", TEXT),
        revision=revision,
        principal=field(stored, "principal", TEXT),
        ended_at=field(stored, "removed_at", DATE),
    )


def _read_secret(stored: Any) -> SigningSecret:
    secret = stored["secret"]
    if not isinstance(secret, bytes) or len(secret) < _BYTES:
        raise Unreadable(f"a secret is none, or shorter than {_BYTES} bytes")
    return SigningSecret(secret, field(stored, "made_at", DATE))
