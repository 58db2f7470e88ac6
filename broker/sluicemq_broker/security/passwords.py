"""Passwords: their argon2 hashes are checked in threads, two at a time; what was right is remembered a while.

A check takes a core for a tenth of a second and 64 MiB, and so does the hash of a new password. So there is a
bound, and a client that reconnects with a password that was right a moment ago does not wait for another
check.

Guesses count against the address that they come from, never against the user that is guessed: addresses take
turns, and one that has too many loses some. A user that does not exist goes the way of one that does.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Final

import gevent
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from gevent.event import AsyncResult
from gevent.threadpool import ThreadPool

from sluicemq.protocol.errors import UnavailableError
from sluicemq_devices.hub import Latest
from sluicemq_devices.sockets import owner_of

#: Checks at one time.
_AT_ONCE: Final = 2
#: Right passwords that are remembered.
MOST_REMEMBERED: Final = 10_000
#: After a wrong password its thread rests for this many times the CPU time of the check: a flood of guesses
#: uses a third of what it could. Not for its duration, which has no end on an overloaded machine.
_REST: Final = 2.0
#: Characters of a password, at most: PLAIN has 255 bytes.
LONGEST_PASSWORD: Final = 255
#: Hash of a password that nobody knows, with the costs of a new one: a user who does not exist takes as long.
NOBODYS: Final = (
    "$argon2id$v=19$m=65536,t=3,p=4$acGfKbSYuLiGeUBJzoJ4vg$HYcwo5k9ACROIVuIMCqv+nmOgiJhQGl4giOzj6fryPY"
)

_hasher = PasswordHasher()


class Busy(UnavailableError):
    """Too many passwords wait to be checked."""


class Passwords:
    """Checks passwords for all doors of a broker.

    ``now``: monotonic seconds; ``cpu``: those of the CPU that the calling thread has used; ``make``:
    makes the hash of a new password.
    """

    def __init__(
        self,
        pool: ThreadPool | None = None,
        now: Callable[[], float] = monotonic,
        cpu: Callable[[], float] = thread_time,
        make: Callable[[str], str] | None = None,
    ) -> None:
        self._pool = ThreadPool(_AT_ONCE) if pool is None else pool
        self._new = ThreadPool(1)
        self._make = make or hash_password
        self._now = now
        self._cpu = cpu
        self._secret = secrets.token_bytes(32)
        self._right: Latest[bytes, float] = Latest(MOST_REMEMBERED)
        self._checks: dict[tuple[str, bytes], _Check] = {}  # waiting, and under way
        self._known: Latest[tuple[str, str], None] = Latest(10_000)
        self._of_right, self._of_known, self._of_others = _Line(), _Line(), _Line()
        self._under_way = 0
        self._turn_of_known = False

    def remembers(self, stored: str, password: str) -> bool:
        """Return whether this password was right for this hash a moment ago; never blocks."""
        until = self._right.get(self._mark(stored, password))
        return until is not None and self._now() < until

    def knows(self, user: str, address: str) -> bool:
        """Return whether this user has shown a right password from this address before."""
        return (owner_of(address), user) in self._known

    def check(self, user: str, stored: str | None, password: str, address: str = "") -> bool:
        """Return whether a password fits its hash; None: nobody's, which takes as long and never fits.

        Waits for a thread, in the line of its address: guesses from there make others wait no longer.
        Checks of one password of one user are one. Raises :class:`Busy` if too many wait.
        """
        if stored and self.remembers(stored, password):
            return True
        mark = self._mark(stored or NOBODYS, password)
        check = self._checks.get((user, mark))
        if check is None:
            check = _Check((user, mark), stored or NOBODYS, password, owner_of(address))
            self._begin(check, self._line(user, mark, address))
        fits = bool(check.result.get()) and stored is not None
        if fits:
            self._remember(mark)
            self._known[owner_of(address), user] = None
        return fits

    def hash(self, password: str) -> str:
        """Return the argon2id hash of a new password; one at a time is made, which waits for no check."""
        return str(self._new.apply(_hash_in_the_background, (password, self._make)))

    def _line(self, user: str, mark: bytes, address: str) -> _Line:
        """Return where a check waits: no guess gets into the line of passwords that were right before."""
        if mark in self._right:
            return self._of_right
        return self._of_known if self.knows(user, address) else self._of_others

    def _begin(self, check: _Check, line: _Line) -> None:
        """Let a check wait for a thread; where too many wait one of the address with the most is refused."""
        self._checks[check.key] = check
        if (refused := line.add(check)) is not None:
            del self._checks[refused.key]
            refused.result.set_exception(_busy())
        if self._under_way < _AT_ONCE:
            self._under_way += 1
            gevent.spawn(self._work)  # the first client may leave

    def _work(self) -> None:
        try:
            while (check := self._next()) is not None:
                self._carry_out(check)
        finally:
            self._under_way -= 1

    def _next(self) -> _Check | None:
        """Return the check that is next.

        A password that was right before goes first. Of the others every other turn is kept for users from
        addresses that are known.
        """
        if (right := self._of_right.take()) is not None:
            return right
        self._turn_of_known = not self._turn_of_known
        first, then = self._of_known, self._of_others
        if not self._turn_of_known:
            first, then = then, first
        return first.take() or then.take()

    def _carry_out(self, check: _Check) -> None:
        used, work = 0.0, (check.against, check.password, self._cpu)
        try:
            fits, used = self._pool.apply(_in_the_background, work)
            check.result.set(fits)
        except BaseException as error:
            check.result.set_exception(error)
            raise
        finally:
            del self._checks[check.key]
        if not fits:
            gevent.sleep(_REST * used)

    def _mark(self, stored: str, password: str) -> bytes:
        """Return what is remembered of a password: a hash under a key that this process alone has."""
        text = f"{stored}\0{password}".encode(errors="surrogatepass")
        return hmac.digest(self._secret, text, hashlib.sha256)

    def _remember(self, mark: bytes) -> None:
        self._right[mark] = self._now() + 60.0


class _Check:
    """One password that is checked. ``key``: its user and mark; ``owner``: whose address it comes from."""

    __slots__ = ("against", "key", "owner", "password", "result")

    def __init__(self, key: tuple[str, bytes], against: str, password: str, owner: str) -> None:
        self.key = key
        self.against = against
        self.password = password
        self.owner = owner
        self.result: AsyncResult[bool] = AsyncResult()


class _Line:
    """Checks that wait for a thread: addresses take turns, and those of one are in order."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, list[_Check]] = OrderedDict()
        self._count = 0

    def add(self, check: _Check) -> _Check | None:
        """Let it wait; return one that may not, by chance, of an address with the most, if too many wait."""
        self._waiting.setdefault(check.owner, []).append(check)
        self._count += 1
        if self._count <= 64:
            return None
        most = max(map(len, self._waiting.values()))
        of = secrets.choice([line for line in self._waiting.values() if len(line) == most])
        return self._removed(secrets.choice(of))

    def take(self) -> _Check | None:
        """Return the next one, which waits no longer; None: there is none."""
        if not self._waiting:
            return None
        owner = next(iter(self._waiting))
        self._waiting.move_to_end(owner)
        return self._removed(self._waiting[owner][0])

    def _removed(self, check: _Check) -> _Check:
        of = self._waiting[check.owner]
        of.remove(check)
        if not of:
            del self._waiting[check.owner]
        self._count -= 1
        return check


def _busy() -> Busy:
    return Busy("too many passwords are checked at the moment; try again")


def _in_the_background(stored: str, password: str, cpu: Callable[[], float]) -> tuple[bool, float]:
    """Check a password in a thread of low priority: a flood delays no job. Return its CPU time, too."""
    _lower_priority()
    began = cpu()
    fits = fits_hash(stored, password)
    return fits, cpu() - began


def _hash_in_the_background(password: str, make: Callable[[str], str]) -> str:
    _lower_priority()
    return make(password)


def _lower_priority() -> None:
    # Priority of these threads, as of nice: a tenth of a process that works. A lower one would let nobody in
    # while the machine is overloaded
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # Linux: of this thread alone


def hash_password(password: str) -> str:
    """Return the argon2id hash of a new password, with the costs that argon2-cffi advises."""
    return _hasher.hash(password)


def fits_hash(stored: str, password: str) -> bool:
    """Return whether a password fits a hash; takes a core for a tenth of a second."""
    try:
        return _hasher.verify(stored, password)
    except (VerificationError, InvalidHashError, UnicodeError):
        return False
