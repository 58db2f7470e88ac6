"""Passwords are checked in threads, a bounded number of them; a right one is remembered for a while."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from argon2 import PasswordHasher
from gevent.event import Event
from gevent.threadpool import ThreadPool

from sluicemq_broker.security import Busy, Passwords, hash_password, passwords

HASH = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("right")


def test_a_password_fits_its_hash_or_not() -> None:
    """A wrong one, nobody's, and a hash that is none fit nothing."""
    checked = Passwords()

    assert checked.check("anna", HASH, "right")
    assert not checked.check("anna", HASH, "wrong")
    assert not checked.check("nobody", None, "right")
    assert not checked.check("anna", "no hash", "right")
    assert not checked.check("anna", HASH, "ri\ud800ght")


def test_a_new_hash_has_the_advised_costs_and_nobodys_has_them_too() -> None:
    """A user who does not exist takes as long as one who does."""
    assert hash_password("right").startswith("$argon2id$")
    assert not PasswordHasher().check_needs_rehash(passwords.NOBODYS)


def test_nobodys_password_is_checked_in_full(checks: list[str]) -> None:
    """Time does not say whether a user exists."""
    Passwords().check("nobody", None, "x")
    Passwords().check("anna", HASH, "x")

    assert checks == [passwords.NOBODYS, HASH]


def test_a_right_password_is_checked_once_a_wrong_one_each_time(checks: list[str]) -> None:
    """A client that reconnects does not wait again; another password, or another hash, is checked."""
    checked = Passwords()
    other = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("right")

    assert [checked.check("anna", HASH, "right") for _ in range(3)] == [True] * 3
    assert checked.remembers(HASH, "right")
    assert checks == [HASH]
    assert not checked.remembers(HASH, "wrong")
    assert not checked.remembers(other, "right")
    checked.check("anna", HASH, "wrong")
    checked.check("anna", HASH, "wrong")
    checked.check("anna", other, "right")
    assert checks == [HASH, HASH, HASH, other]


def test_what_is_remembered_is_forgotten_after_a_while(
    checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last ones are remembered, and for a minute."""
    now = 1000.0
    monkeypatch.setattr(passwords, "monotonic", lambda: now)
    monkeypatch.setattr(passwords, "_MOST_REMEMBERED", 1)
    other = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("other")
    checked = Passwords()

    checked.check("anna", HASH, "right")
    now += 61
    assert not checked.remembers(HASH, "right")
    checked.check("anna", HASH, "right")
    assert checks == [HASH, HASH]
    checked.check("anna", other, "other")
    assert not checked.remembers(HASH, "right")
    assert checked.remembers(other, "other")


def test_clients_that_come_together_with_one_password_wait_for_one_check(
    checks: list[str], slow: Callable[[], None]
) -> None:
    """A storm after a restart costs one check of each password, however many clients there are."""
    checked = Passwords()
    waiting = [gevent.spawn(checked.check, "anna", HASH, "right") for _ in range(500)]
    gevent.idle()

    slow()

    gevent.joinall(waiting, timeout=30, raise_error=True)
    assert [each.value for each in waiting] == [True] * 500
    assert checks == [HASH]


def test_more_passwords_than_can_wait_are_refused(slow: Callable[[], None]) -> None:
    """Passwords that nobody can know cost no more than a bound, and others are refused meanwhile."""
    checked = Passwords()
    waiting = [gevent.spawn(checked.check, f"user {n % 6}", f"hash {n % 6}", f"guess {n}") for n in range(66)]
    gevent.idle()

    with pytest.raises(Busy):
        checked.check("anna", HASH, "one more")

    slow()
    gevent.joinall(waiting, timeout=30, raise_error=True)
    assert checked.check("anna", HASH, "right")


def test_guesses_for_one_user_leave_room_for_others(checks: list[str], slow: Callable[[], None]) -> None:
    checked = Passwords()
    guesses = [gevent.spawn(checked.check, "guessed", "a hash", f"guess {n}") for n in range(40)]
    strangers = [gevent.spawn(checked.check, "nobody", None, f"guess {n}") for n in range(40)]
    gevent.idle()
    honest = gevent.spawn(checked.check, "anna", HASH, "right")
    gevent.idle()

    slow()
    gevent.joinall([*guesses, *strangers, honest], timeout=60)

    assert honest.value
    assert [sum(isinstance(each.exception, Busy) for each in crowd) for crowd in (guesses, strangers)] == [
        24,
        24,
    ]
    assert checked.check("anna", "a hash", "a guess") is False


@pytest.mark.parametrize("stored", [HASH, None], ids=["one who exists", "one who does not"])
def test_a_flood_of_guesses_does_not_say_which_users_exist(
    slow: Callable[[], None], stored: str | None
) -> None:
    # Given as many guesses for users that do not exist as are checked at one time
    checked = Passwords()
    others = [gevent.spawn(checked.check, f"nobody {n}", None, f"guess {n}") for n in range(40)]
    gevent.idle()
    # When somebody guesses the password of another user, who exists or not
    guesses = [gevent.spawn(checked.check, "asked", stored, f"another {n}") for n in range(20)]
    gevent.idle()
    slow()
    gevent.joinall([*others, *guesses], timeout=60)
    # Then
    assert [each.value for each in others] == [False] * 40
    assert [isinstance(each.exception, Busy) for each in guesses] == [False] * 16 + [True] * 4
    assert [each.value for each in guesses[:16]] == [False] * 16


def test_a_client_that_leaves_does_not_spoil_the_check_of_others(slow: Callable[[], None]) -> None:
    """Whoever came first may be gone before the end."""
    checked = Passwords()
    first, second = (gevent.spawn(checked.check, "anna", HASH, "right") for _ in range(2))
    gevent.idle()

    first.kill()
    slow()

    assert second.get(timeout=30)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All hashes against which a password was checked."""
    seen: list[str] = []
    whole = passwords.fits_hash

    def noted(stored: str, password: str) -> bool:
        seen.append(stored)
        return whole(stored, password)

    monkeypatch.setattr(passwords, "fits_hash", noted)
    return seen


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, checks: list[str]) -> Callable[[], None]:
    """Checks wait in their threads until this is called."""
    del checks
    go_on, whole = Event(), ThreadPool.apply

    def waiting(pool: ThreadPool, *what: object) -> object:
        go_on.wait()
        return whole(pool, *what)

    monkeypatch.setattr(ThreadPool, "apply", waiting)
    return go_on.set  # type: ignore[no-any-return]
