"""Passwords are checked in threads, a bounded number of them; a right one is remembered for a while."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from argon2 import PasswordHasher
from gevent.event import Event
from gevent.threadpool import ThreadPool

from sluicemq_broker.security import Busy, Passwords, hash_password, passwords

HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASH, OTHER = HASHER.hash("right"), HASHER.hash("too")


def test_a_password_fits_its_hash_or_not(checked: Passwords) -> None:
    """A wrong one, nobody's, and a hash that is none fit nothing."""
    assert checked.check("anna", HASH, "right")
    assert not checked.check("anna", HASH, "wrong")
    assert not checked.check("nobody", None, "right")
    assert not checked.check("anna", "no hash", "right")
    assert not checked.check("anna", HASH, "ri\ud800ght")


def test_a_new_hash_has_the_advised_costs_and_nobodys_has_them_too() -> None:
    """A user who does not exist takes as long as one who does."""
    assert hash_password("right").startswith("$argon2id$")
    assert not PasswordHasher().check_needs_rehash(passwords.NOBODYS)


def test_nobodys_password_is_checked_in_full(checked: Passwords, checks: list[str]) -> None:
    """Time does not say whether a user exists."""
    checked.check("nobody", None, "x")
    checked.check("anna", HASH, "x")
    assert checks == [passwords.NOBODYS, HASH]


def test_a_right_password_is_checked_once_a_wrong_one_ever(checked: Passwords, checks: list[str]) -> None:
    """A client that reconnects does not wait again; another password, or another hash, is checked."""
    other = HASHER.hash("right")
    assert [checked.check("anna", HASH, "right") for _ in range(3)] == [True] * 3
    assert checked.remembers(HASH, "right")
    assert checks == [HASH]
    assert not checked.remembers(HASH, "wrong")
    assert not checked.remembers(other, "right")
    checked.check("anna", HASH, "wrong")
    checked.check("anna", HASH, "wrong")
    checked.check("anna", other, "right")
    assert checks == [HASH, HASH, HASH, other]


def test_what_is_remembered_is_forgotten_after_a_minute(threads: Threads) -> None:
    now = 1000.0
    checked = Passwords(threads, lambda: now)
    checked.check("anna", HASH, "right")
    now += 59
    assert checked.remembers(HASH, "right")
    now += 2
    assert not checked.remembers(HASH, "right")
    checked.check("anna", HASH, "right")
    assert threads.checked == [HASH, HASH]


def test_only_the_last_passwords_are_remembered() -> None:
    checked = Passwords(NoThreads(1))
    for number in range(passwords.MOST_REMEMBERED + 1):
        checked.check("anna", "a hash", str(number))
    assert not checked.remembers("a hash", "0")
    assert checked.remembers("a hash", "1")


def test_clients_that_come_together_with_one_password_wait_for_one_check(
    checked: Passwords, checks: list[str], slow: Callable[[], None]
) -> None:
    """A storm after a restart costs one check of each password, however many clients there are."""
    waiting = [gevent.spawn(checked.check, "anna", HASH, "right") for _ in range(500)]
    gevent.idle()
    slow()
    gevent.joinall(waiting, timeout=30, raise_error=True)
    assert [job.value for job in waiting] == [True] * 500
    assert checks == [HASH]


def test_more_passwords_than_can_wait_are_refused(checked: Passwords, slow: Callable[[], None]) -> None:
    """Passwords that nobody can know cost no more than a bound, and others are refused meanwhile."""
    waiting = guess(checked, "anna", "a hash", "10.0.0.1", 64 + 10)
    gevent.idle()
    slow()
    gevent.joinall(waiting, timeout=30)
    assert sum(isinstance(future.exception, Busy) for future in waiting) == 10
    assert checked.check("anna", HASH, "right")


def guess(
    checked: Passwords, user: str, stored: str | None, address: str, count: int
) -> list[gevent.Greenlet[..., bool]]:
    return [gevent.spawn(checked.check, user, stored, f"guess {n}", address) for n in range(count)]


def test_guesses_count_against_their_address_and_not_against_the_user(
    checked: Passwords, threads: Threads, slow: Callable[[], None]
) -> None:
    # Given more guesses for a user than can wait, from one address
    guesses = guess(checked, "anna", HASH, "10.0.0.1", 200)
    gevent.idle()
    # When the user comes from another one
    honest = gevent.spawn(checked.check, "anna", HASH, "right", "10.0.0.2")
    gevent.idle()
    slow()
    gevent.joinall([*guesses, honest], timeout=60)
    # Then it has its turn behind those under way and one more
    assert honest.value
    assert threads.taken[:4].index("right") == 3
    assert sum(isinstance(future.exception, Busy) for future in guesses) == 200 - 64


def test_a_password_that_was_right_before_is_looked_at_next_wherever_the_guesses_come_from(
    threads: Threads, slow: Callable[[], None]
) -> None:
    # Given a client that has got in an hour ago, and guesses for its user from its own address
    now = 1000.0
    checked = Passwords(threads, lambda: now)
    threads.go_on.set()
    assert checked.check("anna", HASH, "right", "10.0.0.1")
    now += 3600
    threads.go_on.clear()
    guesses = guess(checked, "anna", HASH, "10.0.0.1", 200)
    gevent.idle()
    # When it comes again
    honest = gevent.spawn(checked.check, "anna", HASH, "right", "10.0.0.1")
    gevent.idle()
    slow()
    gevent.joinall([*guesses, honest], timeout=60)
    assert honest.value
    assert threads.taken.index("right", 1) == 3


def test_a_user_from_a_known_address_has_every_other_turn(threads: Threads, slow: Callable[[], None]) -> None:
    checked = Passwords(threads)
    threads.go_on.set()
    assert checked.check("anna", HASH, "right", "10.0.0.1")
    threads.go_on.clear()
    strangers = [gevent.spawn(checked.check, "anna", HASH, f"guess {n}", f"10.0.1.{n}") for n in range(66)]
    gevent.idle()
    # When the user comes with a new password
    mine = gevent.spawn(checked.check, "anna", OTHER, "too", "10.0.0.1")
    gevent.idle()
    slow()
    gevent.joinall([*strangers, mine], timeout=60)

    assert mine.value
    assert checked.knows("anna", "10.0.0.1")
    assert not checked.knows("anna", "10.0.1.1")
    assert threads.taken.index("too") <= 4


@pytest.mark.parametrize("stored", [HASH, None], ids=["one who exists", "one who does not"])
def test_a_flood_of_guesses_does_not_say_which_users_exist(
    checked: Passwords, checks: list[str], slow: Callable[[], None], stored: str | None
) -> None:
    # Given guesses for users that do not exist
    others = [gevent.spawn(checked.check, f"nobody {n}", None, "guess", "10.0.0.1") for n in range(40)]
    gevent.idle()
    # When somebody guesses the password of another user, who exists or not
    asked = gevent.spawn(checked.check, "asked", stored, "guess", "10.0.0.1")
    gevent.idle()
    slow()
    gevent.joinall([*others, asked], timeout=60)
    # Then it is one check more, behind the others
    assert not asked.value
    assert len(checks) == 41
    assert checks[-1] == (stored or passwords.NOBODYS)


def test_a_client_that_leaves_spoils_no_other_check(checked: Passwords, slow: Callable[[], None]) -> None:
    """Whoever came first may be gone before the end."""
    first, second = (gevent.spawn(checked.check, "anna", HASH, "right") for _ in range(2))
    gevent.idle()
    first.kill()
    slow()
    assert second.get(timeout=30)


@pytest.mark.parametrize(("passwords_", "begun"), [(("right", "too"), 3), (("wrong", "either"), 2)])
def test_threads_rest_after_wrong_ones(threads: Threads, passwords_: tuple[str, str], begun: int) -> None:
    # Given a clock by which each check uses hours of the CPU
    hours = itertools.count(step=10_000)
    checked = Passwords(threads, cpu=lambda: float(next(hours)))
    # When each of the two threads has checked a password
    for stored, password in zip((HASH, OTHER), passwords_, strict=True):
        checked.check("anna", stored, password)
    # Then another one is checked at once, unless these were guesses
    last = gevent.spawn(checked.check, "berta", HASH, "another")
    gevent.joinall([last], timeout=30 if begun == 3 else 0.1)
    assert len(threads.checked) == begun


class NoThreads(ThreadPool):  # type: ignore[misc]
    """Threads for so many passwords that argon2 would take a minute for them: each of them fits."""

    def apply(self, *_work: object) -> tuple[bool, float]:
        return True, 0.0


class Threads(ThreadPool):  # type: ignore[misc]
    """Threads that wait until ``go_on`` is set.

    They note against which hashes passwords were ``checked``, and the passwords that they have ``taken``.
    What would be checked against :data:`passwords.NOBODYS`, with real costs, is checked against a cheap hash.
    """

    def __init__(self) -> None:
        super().__init__(2)
        self.checked: list[str] = []
        self.taken: list[str] = []
        self.go_on = Event()
        self.go_on.set()

    def apply(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.go_on.wait()
        stored, password, *rest = args
        self.checked.append(stored)
        self.taken.append(password)
        cheap = OTHER if stored == passwords.NOBODYS else stored
        return super().apply(func, (cheap, password, *rest))


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def checked(threads: Threads) -> Passwords:
    return Passwords(threads)


@pytest.fixture
def checks(threads: Threads) -> list[str]:
    """All hashes against which a password was checked."""
    return threads.checked


@pytest.fixture
def slow(threads: Threads) -> Callable[[], None]:
    """Checks wait for their threads until this is called."""
    threads.go_on.clear()
    return threads.go_on.set  # type: ignore[no-any-return]


def test_hashes_of_new_passwords_are_made_one_at_a_time() -> None:
    """Each takes 64 MiB: a flood of orders with a password took that ten times."""
    at_once, most = 0, 0
    makes = threading.Lock()

    def hash_slowly(password: str) -> str:
        nonlocal at_once, most
        with makes:
            at_once += 1
            most = max(most, at_once)
        HASHER.hash(password)
        with makes:
            at_once -= 1
        return password

    made = Passwords(make=hash_slowly)

    hashes = [gevent.spawn(made.hash, str(number)) for number in range(20)]
    gevent.joinall(hashes, timeout=60, raise_error=True)

    assert [stored.value for stored in hashes] == [str(number) for number in range(20)]
    assert most == 1
