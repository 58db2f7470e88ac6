"""Logins to the dashboard: behind a balancer any broker may get the next request, and knows them all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pymongo import MongoClient

from sluicemq_broker.command import users
from sluicemq_broker.http import BASE
from support.broker_process import BrokerProcess
from support.http_reader import Answer, Web
from support.own_queue import TOKEN
from support.waiting import wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

ME, LOGIN, LOGOUT = (f"{BASE}/{name}" for name in ("me", "login", "logout"))


@pytest.fixture
def brokers(mongo_uri: str, database: str) -> Iterator[list[BrokerProcess]]:
    settings = {"http": "127.0.0.1:0", "http_token": TOKEN, "poll": 0.5}
    config = {
        "broker": settings, "security": {"anonymous": {}}, "devices": [], "queues": {"mail": {}}
    }  # fmt: skip
    with ExitStack() as stack:
        yield [stack.enter_context(BrokerProcess(mongo_uri, database, config=config)) for _ in range(2)]


@pytest.fixture
def webs(brokers: list[BrokerProcess]) -> list[Web]:
    return [Web(broker.http) for broker in brokers]


def logged_in(web: Web, token: str = TOKEN) -> str:
    return cookie_of(web.post(LOGIN, {"token": token}))


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


def knows(web: Web, cookie: str) -> bool:
    return web.get(ME, Cookie=cookie).status == 200


def test_a_login_at_one_broker_is_one_at_all_and_so_is_a_logout(webs: list[Web]) -> None:
    one, other = webs
    cookie, staying = logged_in(one), logged_in(other)
    assert knows(one, cookie)
    assert knows(other, cookie)
    assert one.post(f"{BASE}/queues/mail/pause", Cookie=staying).status == 200
    assert other.post(LOGOUT, Cookie=cookie).status == 200
    assert not knows(other, cookie)
    wait_until(lambda: not knows(one, cookie), what="the logout at the other broker")
    assert knows(one, staying)


def test_a_removed_principal_is_logged_in_nowhere(webs: list[Web], mongo_uri: str, database: str) -> None:
    added = users.act(mongo_uri, database, "add", {"name": "reader", "permissions": "read", "token": True})
    wait_until(lambda: webs[0].post(LOGIN, {"token": added["token"]}).status == 200, what="the principal")
    cookie = logged_in(webs[0], added["token"])
    wait_until(lambda: knows(webs[1], cookie), what="the principal at the other broker")
    users.act(mongo_uri, database, "remove", {"name": "reader", "force": True})
    wait_until(lambda: not any(knows(web, cookie) for web in webs), what="the end of the login")


def test_a_login_outlives_its_broker(brokers: list[BrokerProcess], webs: list[Web]) -> None:
    cookie, ended = logged_in(webs[0]), logged_in(webs[0])
    assert webs[0].post(LOGOUT, Cookie=ended).status == 200
    brokers[0].kill()
    brokers[0].restart()
    again = Web(brokers[0].http)
    assert knows(again, cookie)
    assert not knows(again, ended)


def test_a_damaged_document_of_logins_ends_nobody_elses(
    brokers: list[BrokerProcess], webs: list[Web], mongo_uri: str, database: str
) -> None:
    cookie = logged_in(webs[0])
    damaged: dict[str, Any] = {"_id": 7, "revision": 10**6, "principal": None}
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        mongo[database]["logins"].insert_one(damaged)
    assert webs[0].post(LOGOUT, Cookie=logged_in(webs[0])).status == 200
    brokers[1].kill()
    brokers[1].restart()
    assert knows(Web(brokers[1].http), cookie)
