"""Logins of browsers: signed with a secret that all brokers on a database share, so each of them knows one.

A login is what its cookie says: an id, the principal, when it began and was last used. The signature also
covers the key, password or token that was shown: it is right only while the principal has that. A logout is
remembered until the login would have ended by itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from sluicemq_broker.store import LoginRecord, SigningSecret

#: Seconds after which a login ends, however much it is used.
LONGEST: Final = 12 * 3600.0
#: Logouts of one principal that are remembered, at most: then it has to wait with its next login.
MOST_ENDED: Final = 1000


class Login(NamedTuple):
    """A login of a principal; ``since``, ``used``: server time; ``tls``: its cookie is sent over TLS only."""

    id: str
    principal: str
    since: float
    used: float
    tls: bool


class Logins:
    """The logins of one broker; ``now``: the server's time.

    Until :meth:`use` has brought the secrets of the database this broker signs with one of its own.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self.cookie = secrets.token_hex(4)
        """The name of the cookie: browsers share cookies between the ports of a host."""
        self._secrets: tuple[SigningSecret, ...] = (SigningSecret(secrets.token_bytes(32), 0.0),)
        self._ended: dict[str, tuple[str, float]] = {}  # principal and time, in the order of their ends
        self._of_principal: Counter[str] = Counter()
        self.on_end: Callable[[Login], None] = lambda _login: None
        """Lets other brokers know that a login was ended; raises Unavailable."""

    @property
    def newest(self) -> float:
        """When the newest secret was made; 0 before any was read."""
        return self._secrets[-1].made_at

    def may_begin(self, principal: str) -> bool:
        """Return False if too many logins of this principal were ended of late: each is remembered."""
        self._forget()
        return self._of_principal[principal] < MOST_ENDED

    def begin(self, principal: str, *, tls: bool) -> Login:
        """Return a new login."""
        now = self.now()
        return Login(secrets.token_urlsafe(16), principal, now, now, tls)

    def sign(self, login: Login, key: str) -> str:
        """Return the cookie of a login; ``key``: id of what the principal has shown."""
        # Seconds for which a new secret signs nothing yet, so that all brokers have read it by then
        spread = [secret for secret in self._secrets if self.now() - secret.made_at >= 60.0]
        text = base64.urlsafe_b64encode(json.dumps(login).encode()).decode().rstrip("=")
        return f"{text}.{_signature((spread or self._secrets)[-1], text, key)}"

    def read(self, cookie: str, keys_of: Callable[[str], Iterable[str]]) -> tuple[Login, str] | None:
        """Return the login of a cookie, and the key by which it began; None: it was not signed, or has ended.

        ``keys_of``: ids of all keys that a principal has now.
        """
        # Characters of a cookie that are looked at
        text, _, signature = cookie[:2048].partition(".")
        login = _login_of(text)
        if login is None or not self.is_valid(login):
            return None
        given = signature.encode(errors="replace")
        for key in keys_of(login.principal):
            for secret in self._secrets:
                if hmac.compare_digest(_signature(secret, text, key).encode(), given):
                    return login, key
        return None

    def is_valid(self, login: Login) -> bool:
        """Return whether a login was not ended, and is not too old."""
        return login.id not in self._ended and self.now() - login.since < LONGEST

    def end(self, login: Login) -> None:
        """End a login, here at once and at the other brokers; raises Unavailable if they can't know yet."""
        self._note(login.id, login.principal, self.now())
        self.on_end(login)

    def use(self, records: Iterable[LoginRecord]) -> bool:
        """Take over what other brokers have stored; True if there is any."""
        found = list(records)
        for secret in found:
            if secret.secrets:
                self._secrets, self.cookie = secret.secrets, secret.cookie
            elif secret.principal:
                self._note(secret.id, secret.principal, secret.ended_at)
        return bool(found)

    def _note(self, login: str, principal: str, at: float) -> None:
        if login not in self._ended:
            self._ended[login] = principal, at
            self._of_principal[principal] += 1

    def _forget(self) -> None:
        """Forget logins that would have ended by themselves."""
        over = self.now() - LONGEST
        while self._ended and (first := next(iter(self._ended.items())))[1][1] < over:
            del self._ended[first[0]]
            self._of_principal -= Counter([first[1][0]])


def _login_of(text: str) -> Login | None:
    """Return what a cookie says; None if it says nothing."""
    try:
        name, principal, since, used, tls = json.loads(base64.urlsafe_b64decode(text.encode() + b"=="))
        return Login(str(name), str(principal), float(since), float(used), bool(tls))
    except (ValueError, TypeError, RecursionError):
        return None


def _signature(secret: SigningSecret, text: str, key: str) -> str:
    return hmac.new(secret.secret, f"{text}\n{key}".encode(), hashlib.sha256).hexdigest()
