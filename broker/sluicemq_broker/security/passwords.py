"""Passwords: their argon2 hashes are checked in threads, two at a time; what was right is remembered a while.

A check takes a core for a tenth of a second and 64 MiB, and so does the hash of a new password. So there is a
bound, and a client that reconnects with a password that was right a moment ago does not wait for another
check.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, thread_time
from typing import Final

import gevent
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore
from gevent.threadpool import ThreadPool

from sluicemq.protocol.errors import Unavailable

#: Checks at one time; those that wait for their turn, at most; and those of one user, of both.
_AT_ONCE: Final = 2
_MOST_WAITING: Final = 64
_MOST_OF_ONE: Final = 16
#: Seconds for which a right password is remembered, and how many are.
_REMEMBERED: Final = 60.0
MOST_REMEMBERED: Final = 10_000
#: After a wrong password its thread rests for this many times the CPU time of the check: a flood of guesses
#: uses a third of what it could. Not for its duration, which has no end on an overloaded machine.
_REST: Final = 2.0
#: Priority of these threads, as of nice: a tenth of a process that works. A lower one would let nobody in
#: while the machine is overloaded.
_LOW: Final = 10
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
    """Checks passwords for all doors of a broker.

    ``now``: monotonic seconds; ``cpu``: those of the CPU that the calling thread has used.
    """

    def __init__(
        self,
        pool: ThreadPool | None = None,
        now: Callable[[], float] = monotonic,
        cpu: Callable[[], float] = thread_time,
    ) -> None:
        self._pool = ThreadPool(_AT_ONCE) if pool is None else pool
        self._new = ThreadPool(1)
        self._turns = BoundedSemaphore(_AT_ONCE)
        self._now = now
        self._cpu = cpu
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._checks: dict[bytes, AsyncResult[bool]] = {}
        self._guesses: dict[str, Counter[bytes]] = {}  # by user: one that is guessed leaves room for others
        self._of_nobody: dict[bytes, AsyncResult[bool]] = {}  # checks for users that do not exist

    def remembers(self, stored: str, password: str) -> bool:
        """Return whether this password was right for this hash a moment ago; never blocks."""
        until = self._right.get(self._mark(stored, password))
        return until is not None and self._now() < until

    def check(self, user: str, stored: str | None, password: str) -> bool:
        """Return whether a password fits its hash; None: nobody's, which takes as long and never fits.

        Waits for a thread. Checks of one password are one. Raises :class:`Busy` if too many wait, or too many
        of one user, whether that user exists or not.
        """
        if stored and self.remembers(stored, password):
            return True
        mark = self._mark(stored or NOBODYS, password)
        with self._guess(user, mark):
            check = self._checks.get(mark) or self._begin(mark, stored, password)
            fits = bool(check.get()) and stored is not None
        if fits:
            self._remember(mark)
        return fits

    def hash(self, password: str) -> str:
        """Return the argon2id hash of a new password; one at a time is made, which waits for no check."""
        return str(self._new.apply(_hash_in_the_background, (password,)))

    @contextmanager
    def _guess(self, user: str, mark: bytes) -> Iterator[None]:
        """Count a password of a user while it is checked."""
        guesses = self._guesses.setdefault(user, Counter())
        if mark not in guesses and len(guesses) >= _MOST_OF_ONE:
            raise _busy()
        guesses[mark] += 1
        try:
            yield
        finally:
            guesses[mark] -= 1
            if not guesses[mark]:
                del guesses[mark]
            if not guesses:
                del self._guesses[user]

    def _begin(self, mark: bytes, stored: str | None, password: str) -> AsyncResult[bool]:
        """Begin a check.

        Users that do not exist share a few, for a user that exists is not refused for the guesses of others.
        """
        if len(self._checks) >= _AT_ONCE + _MOST_WAITING:
            raise _busy()
        if not stored and len(self._of_nobody) >= _MOST_OF_ONE:
            return next(reversed(self._of_nobody.values()))
        check: AsyncResult[bool] = AsyncResult()
        self._checks[mark] = check
        if not stored:
            self._of_nobody[mark] = check
        gevent.spawn(self._carry_out, mark, stored or NOBODYS, password, check)  # the first may leave
        return check

    def _carry_out(self, mark: bytes, against: str, password: str, check: AsyncResult[bool]) -> None:
        with self._turns:
            used = 0.0
            try:
                fits, used = self._pool.apply(_in_the_background, (against, password, self._cpu))
                check.set(fits)
            except BaseException as error:
                check.set_exception(error)
                raise
            finally:
                del self._checks[mark]
                self._of_nobody.pop(mark, None)
            if not check.get():
                gevent.sleep(_REST * used)

    def _mark(self, stored: str, password: str) -> bytes:
        """Return what is remembered of a password: a hash under a key that this process alone has."""
        text = f"{stored}\0{password}".encode(errors="surrogatepass")
        return hmac.digest(self._secret, text, hashlib.sha256)

    def _remember(self, mark: bytes) -> None:
        self._right[mark] = self._now() + _REMEMBERED
        self._right.move_to_end(mark)
        while len(self._right) > MOST_REMEMBERED:
            self._right.popitem(last=False)


def _busy() -> Busy:
    return Busy("too many passwords are checked at the moment; try again")


def _in_the_background(stored: str, password: str, cpu: Callable[[], float]) -> tuple[bool, float]:
    """Check a password in a thread of low priority: a flood delays no job. Return its CPU time, too."""
    _lower_priority()
    began = cpu()
    fits = fits_hash(stored, password)
    return fits, cpu() - began


def _hash_in_the_background(password: str) -> str:
    _lower_priority()
    return hash_password(password)


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW)  # Linux: of this thread alone


def hash_password(password: str) -> str:
    """Return the argon2id hash of a new password, with the costs that argon2-cffi advises."""
    return _hasher.hash(password)


def fits_hash(stored: str, password: str) -> bool:
    """Return whether a password fits a hash; takes a core for a tenth of a second."""
    try:
        return _hasher.verify(stored, password)
    except (VerificationError, InvalidHashError, UnicodeError):
        return False
