"""Sessions of browsers that have logged in: random cookies, kept as hashes in memory.

A session ends when it was not used for the idle time, after twelve hours, by logout, and with its principal
or the key that it was opened with. A restart of the broker ends all sessions.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from sluicemq_broker.runtime import Timer
from sluicemq_broker.security import Caller

#: Seconds after which a session ends, however much it is used.
LONGEST: Final = 12 * 3600.0
#: Sessions at one time, and those of one principal; one more ends the one that was used least lately.
MOST: Final = 1000
MOST_OF_ONE: Final = 50
_RANDOM_BYTES: Final = 32


class Session:
    """One login. ``caller``: who logged in, with the key that was shown and the address at that time."""

    __slots__ = ("caller", "name", "since", "used")

    def __init__(self, name: bytes, caller: Caller, now: float) -> None:
        self.name = name
        self.caller = caller
        self.since = self.used = now


class Sessions:
    """All sessions of the door; ``idle``: seconds without use after which one ends."""

    def __init__(self, idle: float, timer: Timer | None = None) -> None:
        self.idle = idle
        self._timer = timer or Timer()
        self._sessions: dict[bytes, Session] = {}  # the one that was used least lately is the first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, caller: Caller) -> str:
        """Begin a session; returns the cookie, which is kept nowhere here."""
        for each in [each for each in self._sessions.values() if not self.goes_on(each)]:
            self.end(each)
        own = [each for each in self._sessions.values() if each.caller.name == caller.name]
        if len(own) >= MOST_OF_ONE:
            self.end(own[0])
        elif len(self._sessions) >= MOST:
            self.end(next(iter(self._sessions.values())))
        cookie = secrets.token_urlsafe(_RANDOM_BYTES)
        name = _name(cookie)
        self._sessions[name] = Session(name, caller, self._timer.now())
        return cookie

    def find(self, cookie: str, *, used: bool) -> Session | None:
        """Return the session of a cookie, unless it has ended; ``used``: the idle time begins again."""
        session = self._sessions.get(_name(cookie))
        if session is None:
            return None
        if not self.goes_on(session):
            self.end(session)
            return None
        if used:
            session.used = self._timer.now()
            self._sessions[session.name] = self._sessions.pop(session.name)
        return session

    def goes_on(self, session: Session) -> bool:
        """Return whether a session has not ended."""
        now = self._timer.now()
        return (
            session.name in self._sessions
            and now - session.used < self.idle
            and now - session.since < LONGEST
            and session.caller.is_known
        )

    def end(self, session: Session) -> None:
        """End a session."""
        self._sessions.pop(session.name, None)


def _name(cookie: str) -> bytes:
    """Return the name of a session: who reads the broker's memory finds no cookie."""
    return hashlib.sha256(cookie.encode(errors="replace")).digest()
