"""Sessions of browsers that have logged in; each broker on the database knows those of all others.

A session ends when it was not used for the idle time, after twelve hours, by logout, and with its principal
or the key that it was opened with. Its cookie says when it was last used, and is renewed as time goes by; a
restart of brokers ends none.
"""

from __future__ import annotations

from collections.abc import Callable

from sluicemq_broker.security import Caller, Login, Logins
from sluicemq_devices.hub import Latest


class Session:
    """One login, and the caller who it is."""

    __slots__ = ("caller", "login")

    def __init__(self, login: Login, caller: Caller) -> None:
        self.login = login
        self.caller = caller


class Sessions:
    """All sessions of the door; ``idle``: seconds without use after which one ends.

    ``caller(name)``: the principal of this name as a caller without a key; None: there is none.
    """

    def __init__(self, idle: float, logins: Logins, caller: Callable[[str], Caller | None]) -> None:
        self.idle = idle
        self._logins = logins
        self._caller = caller
        self._used: Latest[str, float] = Latest(1000)  # of others only their cookies say when they were used

    def begin(self, caller: Caller, *, tls: bool) -> str:
        """Begin a session; returns the cookie, which is kept nowhere."""
        return self._logins.sign(self._logins.begin(caller.name, tls=tls), caller.key)

    def find(self, cookie: str, *, used: bool) -> Session | None:
        """Return the session of a cookie, unless it has ended; ``used``: the idle time begins again."""
        found = self._logins.read(cookie, self._keys_of)
        caller = self._caller(found[0].principal) if found else None
        if found is None or caller is None:
            return None
        session = Session(found[0], caller.by(found[1]))
        if not self.is_valid(session):
            return None
        if used:
            self._used[session.login.id] = self._logins.now()
        return session

    def is_valid(self, session: Session) -> bool:
        """Return whether a session has not ended."""
        used = max(session.login.used, self._used.get(session.login.id, 0.0))
        is_used = self._logins.now() - used < self.idle
        return is_used and self._logins.is_valid(session.login) and session.caller.is_known

    def renewed(self, session: Session) -> str | None:
        """Return the cookie that says when a session was last used.

        None: the one it has is not older than a tenth of the idle time, or a minute.
        """
        login = session.login
        used = self._used.get(login.id, login.used)
        if used - login.used < min(60.0, self.idle / 10) or not self.is_valid(session):
            return None
        return self._logins.sign(login._replace(used=used), session.caller.key)

    def end(self, session: Session) -> None:
        """End a session, at all brokers; raises Unavailable if the others can't know yet."""
        self._used.pop(session.login.id, None)
        self._logins.end(session.login)

    def _keys_of(self, name: str) -> frozenset[str]:
        caller = self._caller(name)
        return caller.principal.keys if caller else frozenset()
