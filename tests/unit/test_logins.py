"""Logins that brokers share: secrets are renewed, logouts wait for MongoDB, what is damaged ends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.bus import BusEvent, BusKind, Channel
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import LONGEST_LOGIN, Logins, SharedLogins
from sluicemq_broker.store import SECRET_RENEWED, LoginRecord, LoginStore, SigningSecret

KEY = "the id of a key"


class Store:
    """The logins of a MongoDB that may be away."""

    def __init__(self) -> None:
        self.records: list[LoginRecord] = []
        self.secrets: tuple[SigningSecret, ...] = ()
        self.away = False

    def prepare(self) -> None:
        pass

    def read(self, after: int | None = None) -> Iterator[LoginRecord]:
        self._ask()
        yield from [record for record in self.records if record.revision > (after or 0)]

    def renew(self, now: float) -> None:
        self._ask()
        if not self.secrets or now - self.secrets[-1].made_at >= SECRET_RENEWED:
            made = SigningSecret(bytes([len(self.records)]) * 32, now)
            self.secrets = (*self.secrets, made)[-2:]
            self._put(LoginRecord(id="secrets", revision=0, cookie="name", secrets=self.secrets))

    def end(self, login: str, principal: str, now: float) -> None:
        self._ask()
        self._put(LoginRecord(id=login, revision=0, principal=principal, ended_at=now))

    def _put(self, record: LoginRecord) -> None:
        self.records.append(replace(record, revision=len(self.records) + 1))

    def _ask(self) -> None:
        if self.away:
            raise UnavailableError("no MongoDB primary")


class Brokers:
    """Two brokers on one store, at one time; ``told``: events that they sent."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.store, self.told = Store(), list[BusEvent]()
        channel = type("Told", (), {"announce": lambda _self, event: self.told.append(event)})()
        self.logins = [Logins(lambda: self.now) for _ in range(2)]
        self.shared = [
            SharedLogins(
                cast("LoginStore", self.store),
                login,
                lambda: cast("Channel", channel),
                Counters(),
                lambda: self.now,
            )
            for login in self.logins
        ]
        for shared in self.shared:
            shared.prepare()

    def follow(self) -> None:
        for worker in self.shared:
            worker.follow()

    def new_cookie(self, principal: str = "ops") -> str:
        one = self.logins[0]
        return one.sign(one.begin(principal, tls=False), KEY)

    def known(self, cookie: str, key: str = KEY) -> list[bool]:
        return [login.read(cookie, lambda _name: [key]) is not None for login in self.logins]


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_brokers_know_the_logins_of_each_other_while_the_principal_has_its_key(brokers: Brokers) -> None:
    cookie = brokers.new_cookie()
    assert brokers.logins[0].cookie == brokers.logins[1].cookie
    assert brokers.known(cookie) == [True, True]
    assert brokers.known(cookie, "another key") == [False, False]


def test_a_logout_holds_at_all_brokers_and_they_hear_of_it(brokers: Brokers) -> None:
    cookie = brokers.new_cookie()
    found = brokers.logins[1].read(cookie, lambda _name: [KEY])
    assert found
    brokers.logins[1].end(found[0])
    assert brokers.known(cookie) == [True, False]
    assert brokers.told[-1] == BusEvent(BusKind.LOGINS)
    brokers.follow()
    assert brokers.known(cookie) == [False, False]


def test_a_logout_without_mongodb_holds_here_and_is_stored_later(brokers: Brokers) -> None:
    cookie = brokers.new_cookie()
    found = brokers.logins[0].read(cookie, lambda _name: [KEY])
    assert found
    brokers.store.away = True
    with pytest.raises(UnavailableError):
        brokers.logins[0].end(found[0])
    assert brokers.known(cookie) == [False, True]
    brokers.store.away = False
    brokers.follow()
    assert brokers.known(cookie) == [False, False]


def test_secrets_are_renewed_each_day_and_no_login_is_lost_by_that(brokers: Brokers) -> None:
    brokers.now += SECRET_RENEWED - 60
    cookie = brokers.new_cookie()
    brokers.now += 120
    brokers.shared[0].follow()  # the other broker has not read the new secret yet
    during = brokers.new_cookie()
    assert brokers.known(cookie) == brokers.known(during) == [True, True]
    brokers.follow()
    brokers.now += LONGEST_LOGIN / 2
    assert brokers.known(cookie) == [True, True]
    assert len(brokers.store.secrets) == 2


def test_a_login_is_known_without_mongodb(brokers: Brokers) -> None:
    brokers.store.away = True
    assert brokers.known(brokers.new_cookie()) == [True, True]
