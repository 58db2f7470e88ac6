"""Users of MongoDB that are dropped and made again, and a password that changes, while a broker runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from sluicemq import Client, Producer
from sluicemq_broker.config import MongoUri
from support.broker_process import BrokerProcess
from support.tls_mongodb import TlsMongoDB, tls_mongodb
from support.waiting import wait_until

DATABASE: Final = "logins"
USER: Final = "broker"
SECONDS: Final = 60.0


@pytest.fixture(scope="module")
def mongo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsMongoDB]:
    with tls_mongodb(tmp_path_factory.mktemp("mongo"), DATABASE) as made:
        yield made


@pytest.fixture
def users(mongo: TlsMongoDB) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo.with_password) as client:
        make(client.admin, "first")
        yield client.admin
        client.admin.command("dropUser", USER)


def make(users: Database[dict[str, Any]], password: str) -> None:
    roles = [{"role": "readWrite", "db": DATABASE}, {"role": "clusterMonitor", "db": "admin"}]
    users.command("createUser", USER, pwd=password, roles=roles)


@pytest.mark.full
def test_a_user_that_is_dropped_and_made_again_is_logged_in_again_and_a_new_password_is_read_by_sighup(
    mongo: TlsMongoDB, users: Database[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "uri"
    file.touch(0o600)
    file.write_text(mongo.uri(mongo.tls, user=f"{USER}:first@"))
    config = {"broker": {"mongodb_uri_file": str(file), "database": DATABASE, "lease": 5.0}}
    with BrokerProcess(config=config) as broker, Producer(endpoint=broker.doors["smq"]) as producer:
        with Client(endpoint=broker.doors["smq"]) as client:
            producer.push("mail", b"before").wait(SECONDS)
            users.command("dropUser", USER)
            wait_until(lambda: client.health()["store"] != "ok", SECONDS, "no login")
            make(users, "first")
            producer.push("mail", b"made again").wait(SECONDS)
            wait_until(lambda: client.health()["store"] == "ok", SECONDS, "the login")
            users.command("dropUser", USER)
            wait_until(lambda: client.health()["store"] != "ok", SECONDS, "no login")
            make(users, "second")
            file.write_text(mongo.uri(mongo.tls, user=f"{USER}:second@"))
            broker.send_signal(signal.SIGHUP)
            broker.wait_log("SIGHUP: now [broker] mongodb_uri: another one")
            producer.push("mail", b"with another password").wait(SECONDS)
            wait_until(lambda: client.health()["store"] == "ok", SECONDS, "the login")
            assert len(client.peek("mail")) == 3
        assert "second" not in broker.log_text()


@pytest.mark.parametrize(
    ("before", "after", "is_only_login"),
    [
        ("mongodb://a:b@h/", "mongodb://a:c@h/", True),
        ("mongodb://a:b@h/?authSource=x", "mongodb://z:b@h/?authSource=y", True),
        ("mongodb://a:b@h/", "mongodb://a:b@h,i/", False),
        ("mongodb://a:b@h/", "mongodb://h/", False),
        ("mongodb://a:b@h/?tls=true", "mongodb://a:b@h/", False),
    ],
)
def test_a_running_broker_takes_another_login_and_nothing_else_of_a_uri(
    before: str, after: str, *, is_only_login: bool
) -> None:
    assert MongoUri.read(before).differs_in_login_only(MongoUri.read(after)) is is_only_login
