"""Logins at the HTTP doors of a database's brokers: the secrets that sign them, and those that were ended.

::

    logins: {_id: "secrets", revision, name, secrets: [{secret, made_at}]}
            {_id: id of a login, revision, principal, removed_at}

A login itself is stored nowhere: its cookie says who it is. Brokers follow these documents by
:mod:`revisions`. The secrets are made by the first broker and renewed each day; no backup has them, for who
knows one can sign. A login that was ended stays for a day: none lasts longer.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pymongo.client_session import ClientSession

from sluicemq_broker.store.admin.revisions import Put, Revisions
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.values import Document, date, seconds

log = logging.getLogger("broker.security")

#: Seconds after which a new secret is made.
RENEWED: Final = timedelta(days=1).total_seconds()
#: Secrets that are kept: the last one signed nothing for as long as the newest one is old.
_KEPT: Final = 2
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
        self._revisions = Revisions(durable(database)["logins"])

    def prepare(self) -> None:
        """Make the indexes; repeating it is harmless."""
        self._revisions.prepare()

    def read(self, after: int | None = None) -> Iterator[LoginRecord]:
        """Yield what was changed after a revision, in that order; None: all. What is damaged is left out."""
        for each in self._revisions.newer(after):
            try:
                yield _read(each)
            except (KeyError, TypeError, ValueError, AttributeError):
                log.warning("a damaged document of logins in MongoDB is ignored: %.200r", each["_id"])

    def renew(self, now: float) -> None:
        """Make a new secret, unless there is one that is not a day old; repeating it is harmless."""

        def apply(stored: Document | None, put: Put, _session: ClientSession | None) -> None:
            before = _secrets_of(stored)
            if before and now - before[-1].made_at < RENEWED:
                return
            made = [*before, SigningSecret(secrets.token_bytes(_BYTES), now)][-_KEPT:]
            put(
                {
                    "name": (stored or {}).get("name") or secrets.token_hex(4),
                    "secrets": [{"secret": each.secret, "made_at": date(each.made_at)} for each in made],
                }
            )

        self._revisions.change(_SECRETS, apply)

    def end(self, login: str, principal: str, now: float) -> None:
        """Note that a login has ended; repeating it is harmless."""
        fields = {"principal": principal, "removed_at": date(now)}
        self._revisions.change(login, lambda stored, put, _session: None if stored else put(fields))


def _secrets_of(stored: Document | None) -> tuple[SigningSecret, ...]:
    """Return the secrets; where somebody has damaged them there are none, so new ones are made."""
    try:
        return _read(stored).secrets if stored else ()
    except (KeyError, TypeError, ValueError, AttributeError):
        return ()


def _read(stored: Document) -> LoginRecord:
    revision = int(stored.get("revision", 0))
    if stored["_id"] == _SECRETS:
        found = tuple(_read_secret(each) for each in stored["secrets"])
        return LoginRecord(id=_SECRETS, revision=revision, cookie=str(stored["name"]), secrets=found)
    return LoginRecord(
        id=str(stored["_id"]),
        revision=revision,
        principal=str(stored["principal"]),
        ended_at=seconds(stored["removed_at"]),
    )


def _read_secret(stored: Any) -> SigningSecret:
    secret = bytes(stored["secret"])
    if len(secret) < _BYTES:
        raise ValueError("a secret is too short")
    return SigningSecret(secret, seconds(stored["made_at"]))
