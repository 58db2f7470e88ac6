"""Passwords: their argon2 hashes are checked in threads, two at a time; what was right is remembered a while.

A check takes a core for a tenth of a second and 64 MiB. So there is a bound, and a client that reconnects
with a password that was right a moment ago does not wait for another check.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import gevent
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from gevent.event import AsyncResult
from gevent.threadpool import ThreadPool

from sluicemq.protocol.errors import Unavailable

#: Checks at one time; those that wait for their turn, at most; and those of one user, of both.
_AT_ONCE: Final = 2
_MOST_WAITING: Final = 64
_MOST_OF_ONE: Final = 16
#: Seconds for which a right password is remembered, and how many are.
_REMEMBERED: Final = 60.0
_MOST_REMEMBERED: Final = 10_000
_LOWEST: Final = 19  # priority, as of nice
#: Characters of a password, at most: PLAIN has 255 bytes.
LONGEST_PASSWORD: Final = 255
#: Hash of a password that nobody knows, with the costs of a new one: a user who does not exist takes as long.
NOBODYS: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$acGfKbSYuLiGeUBJzoJ4vg$HYcwo5k9ACROIVuIMCqv+nmOgiJhQGl4giOzj6fryPY"
)

_hasher = PasswordHasher()


class Busy(Unavailable):
    """Too many passwords wait to be checked."""


class Passwords:
    """Checks passwords for all doors of a broker."""

    def __init__(self) -> None:
        self._pool = ThreadPool(_AT_ONCE)
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._checks: dict[bytes, AsyncResult[bool]] = {}
        self._against: Counter[str] = Counter()  # checks by hash: guesses for one user leave room for others

    def remembers(self, stored: str, password: str) -> bool:
        """Return whether this password was right for this hash a moment ago; never blocks."""
        until = self._right.get(self._mark(stored, password))
        return until is not None and monotonic() < until

    def check(self, stored: str | None, password: str) -> bool:
        """Return whether a password fits its hash; None: nobody's, which takes as long and never fits.

        Waits for a thread. Checks of one password are one. Raises :class:`Busy` if too many wait, or too many
        of one user.
        """
        against = stored or NOBODYS
        if stored and self.remembers(stored, password):
            return True
        mark = self._mark(against, password)
        check = self._checks.get(mark)
        if check is None:
            if len(self._checks) >= _AT_ONCE + _MOST_WAITING or self._against[against] >= _MOST_OF_ONE:
                raise Busy("too many passwords are checked at the moment; try again")
            check = self._checks[mark] = AsyncResult()
            self._against[against] += 1
            gevent.spawn(self._carry_out, mark, against, password, check)  # the first that waits may leave
        fits = bool(check.get()) and stored is not None
        if fits:
            self._remember(mark)
        return fits

    def hash(self, password: str) -> str:
        """Return the argon2id hash of a new password; waits for a thread."""
        return str(self._pool.apply(_in_the_background, (_hasher.hash, password)))

    def _carry_out(self, mark: bytes, against: str, password: str, check: AsyncResult[bool]) -> None:
        try:
            check.set(bool(self._pool.apply(_in_the_background, (fits_hash, against, password))))
        except BaseException as error:
            check.set_exception(error)
            raise
        finally:
            del self._checks[mark]
            self._against[against] -= 1
            if not self._against[against]:
                del self._against[against]

    def _mark(self, stored: str, password: str) -> bytes:
        """Return what is remembered of a password: a hash under a key that this process alone has."""
        text = f"{stored}\0{password}".encode(errors="surrogatepass")
        return hmac.digest(self._secret, text, hashlib.sha256)

    def _remember(self, mark: bytes) -> None:
        self._right[mark] = monotonic() + _REMEMBERED
        self._right.move_to_end(mark)
        while len(self._right) > _MOST_REMEMBERED:
            self._right.popitem(last=False)


def _in_the_background(work: Callable[..., Any], *arguments: str) -> Any:
    """Do what takes a core in a thread of the lowest priority: a flood of passwords delays no job."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)  # Linux: of this thread alone
    return work(*arguments)


def hash_password(password: str) -> str:
    """Return the argon2id hash of a new password, with the costs that argon2-cffi advises."""
    return _hasher.hash(password)


def fits_hash(stored: str, password: str) -> bool:
    """Return whether a password fits a hash; takes a core for a tenth of a second."""
    try:
        return _hasher.verify(stored, password)
    except (VerificationError, InvalidHashError, UnicodeError):
        return False
