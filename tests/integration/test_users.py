"""USERS and logins at several brokers: what one changes, every one acts on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import zmq
from pymongo import MongoClient

from sluicemq.protocol import wire
from sluicemq.protocol.keys import encode
from sluicemq_broker.command import users
from sluicemq_broker.http import BASE
from support.broker_process import BrokerProcess
from support.http_reader import Answer, Web
from support.own_queue import TOKEN
from support.raw_sockets import Smq
from support.waiting import wait_until


class Operator:
    """A client of a broker's library door that changes principals."""

    def __init__(self, plain: zmq.Socket[bytes]) -> None:
        self._smq = Smq(plain)
        assert self._smq.ask(wire.HELLO, {"client": "operator"}).verb == wire.OK

    def __call__(self, action: str, **fields: Any) -> Any:
        answer = self._smq.ask(wire.USERS, action, fields)
        return answer.fields[0] if answer.verb == wire.OK else tuple(answer.fields)

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self("list")]


@contextmanager
def operating(endpoint: str, **options: Any) -> Iterator[Operator]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        for name, value in options.items():
            setattr(plain, name, value)
        plain.connect(endpoint)
        yield Operator(plain)


@pytest.fixture(params=[{"event_bus": "auto", "poll": 600.0}, {"event_bus": "off", "poll": 0.2}], ids=str)
def pair(
    request: pytest.FixtureRequest, mongo_uri: str, database: str
) -> Iterator[tuple[Operator, Operator]]:
    """Operators of two brokers: these hear of each other over the bus alone, or look themselves."""
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(BrokerProcess(mongo_uri, database, config={"broker": request.param}))
            for _ in "12"
        ]
        one, other = (stack.enter_context(operating(broker.doors["smq"])) for broker in brokers)
        yield one, other


@pytest.fixture
def operator(mongo_uri: str, database: str) -> Iterator[Operator]:
    """An operator of one broker."""
    with BrokerProcess(mongo_uri, database) as broker, operating(broker.doors["smq"]) as operator:
        yield operator


@pytest.mark.one_in(4)
@pytest.mark.one_in(2)
def test_a_change_at_one_broker_is_known_at_the_other(pair: tuple[Operator, Operator]) -> None:
    one, other = pair
    one("add", name="mailer", permissions={"push": ["mail.*"]}, key=encode(bytes(32)), note="laptop")
    wait_until(lambda: other.names == ["mailer"], what="the principal at the other broker")
    row = other("show", name="mailer")
    assert row["permissions"] == {"push": ["mail.*"]}
    assert [(key["kind"], key["public"], key["note"]) for key in row["keys"]] == [
        ("curve", encode(bytes(32)), "laptop")
    ]
    assert not row["from_configuration"]
    other("permit", name="mailer", permissions="work=*", tenant="acme")
    wait_until(lambda: one("show", name="mailer")["tenant"] == "acme", what="the change at the first broker")
    other("remove", name="mailer")
    wait_until(lambda: one.names == [], what="the removal at the first broker")


@pytest.mark.one_in(4)
def test_keys_are_rotated_with_both_in_use_for_a_while(operator: Operator) -> None:
    operator("add", name="mailer", permissions="push", key=encode(bytes(32)), password="correct horse")  # noqa: S106
    first = operator("rotate", name="mailer", kind="token")["token"]
    second = operator("rotate", name="mailer", kind="token")["token"]
    operator("rotate", name="mailer", kind="password", password="battery staple")  # noqa: S106
    row = operator("rotate", name="mailer", kind="curve", key=encode(bytes([7] * 32)), drop=True)
    assert first != second
    assert sorted(key["kind"] for key in row["keys"]) == ["curve", "password", "token", "token"]
    assert [key["public"] for key in row["keys"] if key["kind"] == "curve"] == [encode(bytes([7] * 32))]
    ended = next(key["id"] for key in row["keys"] if key["kind"] == "token")
    assert ended not in str(operator("rotate", name="mailer", id=ended))
    assert operator("rotate", name="mailer", id=ended) == (
        "NOT_FOUND",
        f"principal mailer has no key {ended}",
    )


@pytest.mark.one_in(4)
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("action", "fields", "code"),
    [
        ("fly", {}, "BAD_FRAMES"),
        ("add", {"name": "a"}, "BAD_FRAMES"),
        ("add", {"permissions": "all"}, "BAD_FRAMES"),
        ("add", {"name": "a b", "permissions": "all"}, "BAD_FRAMES"),
        ("add", {"name": "http_token", "permissions": "all"}, "BAD_FRAMES"),
        ("add", {"name": "a", "permissions": "fly"}, "BAD_FRAMES"),
        ("add", {"name": "a", "permissions": "all", "key": "D:)Q[IlAW!ahhC2ac"}, "BAD_FRAMES"),
        ("add", {"name": "a", "permissions": "all", "password": "hunter2"}, "BAD_FRAMES"),
        ("add", {"name": "a", "permissions": "all", "limits": {"max_rate": -1}}, "BAD_FRAMES"),
        ("add", {"name": "a", "permissions": "all", "secret": "hunter2"}, "BAD_FRAMES"),
        ("rotate", {"name": "a"}, "BAD_FRAMES"),
        ("rotate", {"name": "a", "kind": "curve"}, "BAD_FRAMES"),
        ("rotate", {"name": "a", "kind": "token", "id": "x"}, "BAD_FRAMES"),
        ("rotate", {"name": "a", "kind": "token"}, "NOT_FOUND"),
        ("permit", {"name": "a", "permissions": "all"}, "NOT_FOUND"),
        ("remove", {"name": "a"}, "NOT_FOUND"),
        ("show", {"name": "a"}, "NOT_FOUND"),
    ],
)
def test_what_is_wrong_is_refused_and_secrets_are_not_repeated(
    operator: Operator, action: str, fields: dict[str, Any], code: str
) -> None:
    answer = operator(action, **fields)
    assert answer[0] == code
    assert "hunter2" not in answer[1]
    assert "D:)Q" not in answer[1]
    assert operator.names == []


@pytest.mark.one_in(4)
def test_principals_of_the_file_are_shown_and_changed_there_alone(mongo_uri: str, database: str) -> None:
    principals = {"mailer": {"keys": [encode(bytes(32))], "permissions": "push=mail"}}
    with (
        BrokerProcess(mongo_uri, database, config={"security": {"principals": principals}}) as broker,
        operating(broker.doors["smq"]) as operator,
    ):
        assert [(row["name"], row["from_configuration"]) for row in operator("list")] == [("mailer", True)]
        for action in ("remove", "permit"):
            assert operator(action, name="mailer")[0] == "BAD_FRAMES"
        code, text = operator("add", name="thief", permissions="all", key=encode(bytes(32)))
        assert (code, text) == ("BAD_FRAMES", "principal mailer of the configuration file has this key")


@pytest.mark.one_in(4)
def test_a_list_comes_in_pages(operator: Operator) -> None:
    for name in ("c", "a", "b"):
        operator("add", name=name, permissions="none")
    assert [row["name"] for row in operator("list", limit=2)] == ["a", "b"]
    assert [row["name"] for row in operator("list", after="b", limit=2)] == ["c"]


@pytest.mark.one_in(4)
def test_principals_outlast_a_restart_and_offline_changes_are_followed(mongo_uri: str, database: str) -> None:
    config = {"broker": {"poll": 0.2}}
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        with operating(broker.doors["smq"]) as operator:
            operator("add", name="mailer", permissions="push")
        broker.kill()
        broker.start()
        with operating(broker.doors["smq"]) as operator:
            assert operator.names == ["mailer"]
            users.act(mongo_uri, database, "add", {"name": "rescue", "permissions": "operate"})
            wait_until(lambda: operator.names == ["mailer", "rescue"], what="what was added to the store")


@pytest.mark.one_in(4)
@pytest.mark.full
def test_ten_thousand_principals_are_read_at_the_start(mongo_uri: str, database: str) -> None:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        users.act(mongo_uri, database, "add", {"name": "first", "permissions": "operate"})
        stored = mongo[database]["principals"].find_one({"_id": "first"})
        assert stored is not None
        mongo[database]["principals"].insert_many(
            [{**stored, "_id": f"p{n:05}", "revision": n + 2, "keys": []} for n in range(10_000)]
        )
    with (
        BrokerProcess(mongo_uri, database, config={"broker": {"poll": 0.2}}) as broker,
        operating(broker.doors["smq"]) as operator,
    ):
        assert operator("list", after="p09998") == [operator("show", name="p09999")]
        assert len(operator("list", limit=1000)) == 1000


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


@pytest.mark.full
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


@pytest.mark.full
def test_a_removed_principal_is_logged_in_nowhere(webs: list[Web], mongo_uri: str, database: str) -> None:
    added = users.act(mongo_uri, database, "add", {"name": "reader", "permissions": "read", "token": True})
    wait_until(lambda: webs[0].post(LOGIN, {"token": added["token"]}).status == 200, what="the principal")
    cookie = logged_in(webs[0], added["token"])
    wait_until(lambda: knows(webs[1], cookie), what="the principal at the other broker")
    users.act(mongo_uri, database, "remove", {"name": "reader", "force": True})
    wait_until(lambda: not any(knows(web, cookie) for web in webs), what="the end of the login")


@pytest.mark.full
def test_a_login_outlives_its_broker(brokers: list[BrokerProcess], webs: list[Web]) -> None:
    cookie, ended = logged_in(webs[0]), logged_in(webs[0])
    assert webs[0].post(LOGOUT, Cookie=ended).status == 200
    brokers[0].kill()
    brokers[0].restart()
    again = Web(brokers[0].http)
    assert knows(again, cookie)
    assert not knows(again, ended)


@pytest.mark.full
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
