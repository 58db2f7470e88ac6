"""Settings of queues in MongoDB: set at one broker they hold at all, over restarts, before what files say."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from sluicemq import BadFramesError, Client, NotFoundError, Producer
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

FILES = ({"*": {"max_attempts": 7}, "named": {"ttl": 60}}, {"*": {"max_attempts": 7}, "named": {"ttl": 60}})


@pytest.fixture(scope="module")
def brokers(mongo_uri: str) -> Iterator[list[BrokerProcess]]:
    database = f"test_{token_hex(6)}"
    one, other = ({"broker": {"poll": 0.5}, "queues": file} for file in FILES)
    with (
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        BrokerProcess(mongo_uri, database, config=one) as first,
        BrokerProcess(mongo_uri, database, config=other) as second,
    ):
        yield [first, second]
        mongo.drop_database(database)


class Pair:
    """A queue of one test's own, and a client at each broker."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.brokers = brokers
        self.name = f"q{token_hex(4)}"
        self.here, self.elsewhere = (
            Client(timeout=TIMEOUT, endpoint=broker.doors["smq"]) for broker in brokers
        )
        with Producer(endpoint=brokers[0].doors["smq"]) as producer:
            producer.push(self.name, b"x").wait(TIMEOUT)
        self.elsewhere.queues.get(self.name)

    def row(self, key: str, client: Client | None = None, name: str = "") -> dict[str, Any]:
        rows = (client or self.here).settings(name or self.name)["settings"]
        return next(row for row in rows if row["key"] == key)

    def source(self, key: str, client: Client | None = None) -> tuple[Any, str]:
        row = self.row(key, client)
        return row["value"], row["source"]

    def close(self) -> None:
        self.here.close()
        self.elsewhere.close()


@pytest.fixture
def pair(brokers: list[BrokerProcess]) -> Iterator[Pair]:
    pair = Pair(brokers)
    try:
        yield pair
    finally:
        pair.close()


def test_what_is_set_at_one_broker_holds_at_the_other_and_over_restarts(pair: Pair) -> None:
    rows = pair.here.set_settings(pair.name, {"max_attempts": 1, "priority": "7"})
    assert rows == [
        {"key": "max_attempts", "value": 1, "source": "mongodb", "file": 7},
        {"key": "priority", "value": 7, "source": "mongodb", "file": 0},
    ]
    wait_until(lambda: pair.source("priority", pair.elsewhere) == (7, "mongodb"), what="the other to hear")
    with Producer(endpoint=pair.brokers[1].doors["smq"]) as producer:
        job = producer.push(pair.name, b"y")
        job.wait(TIMEOUT)
    assert pair.here.jobs.get(pair.name, job.id).priority == 7
    # When a broker is restarted
    pair.elsewhere.close()
    assert pair.brokers[1].terminate() == 0
    pair.brokers[1].restart()
    pair.elsewhere = Client(timeout=TIMEOUT, endpoint=pair.brokers[1].doors["smq"])
    assert pair.source("max_attempts", pair.elsewhere) == (1, "mongodb")
    # When it is taken back
    [row] = pair.elsewhere.unset_settings(pair.name, ["max_attempts"])
    # Then the file counts
    assert row == {"key": "max_attempts", "value": 7, "source": "file"}
    wait_until(lambda: pair.source("max_attempts") == (7, "file"), what="the first to hear")
    assert pair.source("priority") == (7, "mongodb")


def test_what_is_set_for_all_queues_counts_before_files_and_behind_what_is_set_for_one(pair: Pair) -> None:
    try:
        pair.here.queues.set_settings(pair.name, {"keep_done": 5})
        pair.here.queues.set_settings("*", {"keep_done": 60, "ttl": 30})
        assert pair.source("keep_done") == (5.0, "mongodb")
        assert pair.row("ttl", name="named") == {
            "key": "ttl", "value": 30.0, "source": "mongodb *", "file": 60.0,
        }  # fmt: skip
        wait_until(lambda: pair.source("ttl", pair.elsewhere) == (30.0, "mongodb *"), what="the other")
        assert pair.row("ttl", name="*") == {"key": "ttl", "value": 30.0, "source": "mongodb", "file": None}
    finally:
        pair.here.queues.unset_settings("*", ["keep_done", "ttl"])
    assert pair.source("ttl") == (None, "default")


def test_a_limit_that_is_set_holds_for_jobs_that_wait(pair: Pair) -> None:
    pair.here.queues.set_settings(pair.name, {"max_running": 1})
    wait_until(lambda: pair.source("max_running", pair.elsewhere) == (1, "mongodb"), what="the other to hear")
    with Producer(endpoint=pair.brokers[0].doors["smq"]) as producer:
        producer.push(pair.name, b"y").wait(TIMEOUT)
    with (
        pair.here.jobs.reserve(pair.name, 1, TIMEOUT) as one,
        pair.elsewhere.jobs.reserve(pair.name, 5, 0.5) as other,
    ):
        assert len(one) + len(other) == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "at least one"),
        ({"max_runing": 1}, "did you mean max_running"),
        ({"database": "x"}, "can't change while brokers run"),
        ({"max_attempts": 1, "rate": "fast"}, "rate: expected"),
        ({"tenant_rate": 1}, "limits its tenants: that takes fair = true"),
    ],
)
def test_a_wrong_setting_is_refused_and_none_of_the_order_is_set(
    pair: Pair, settings: dict[str, Any], why: str
) -> None:
    before = pair.here.settings(pair.name)
    with pytest.raises(BadFramesError, match=why):
        pair.here.queues.set_settings(pair.name, settings)
    assert pair.here.settings(pair.name) == before


def test_a_setting_that_others_need_is_taken_back_only_together_with_them(pair: Pair) -> None:
    pair.here.queues.set_settings(pair.name, {"fair": True, "tenant_rate": 1})
    with pytest.raises(BadFramesError, match="limits its tenants: that takes fair = true"):
        pair.here.queues.unset_settings(pair.name, ["fair"])
    assert pair.source("fair") == (True, "mongodb")
    pair.here.queues.unset_settings(pair.name, ["fair", "tenant_rate"])
    assert pair.source("fair") == (False, "default")


def test_a_circle_of_dead_letters_is_refused(pair: Pair) -> None:
    other = f"{pair.name}-dead"
    with Producer(endpoint=pair.brokers[0].doors["smq"]) as producer:
        producer.push(other, b"x").wait(TIMEOUT)
    pair.here.queues.set_settings(pair.name, {"on_dead": other})
    with pytest.raises(BadFramesError, match="dead letters would go round for ever"):
        pair.here.queues.set_settings(other, {"on_dead": pair.name})
    pair.here.queues.set_settings(other, {"on_dead": other})


def test_a_queue_that_is_not_there_has_no_settings_and_a_removed_one_none_any_more(pair: Pair) -> None:
    for ask in (pair.here.settings, lambda name: pair.here.set_settings(name, {"ttl": 1})):
        with pytest.raises(NotFoundError):
            ask(f"{pair.name}-not")
    pair.here.queues.set_settings(pair.name, {"ttl": 1000})
    pair.here.queues.delete(pair.name).result()
    with Producer(endpoint=pair.brokers[0].doors["smq"]) as producer:
        producer.push(pair.name, b"x").wait(TIMEOUT)
    assert pair.source("ttl") == (None, "default")


def test_while_older_brokers_may_be_there_nothing_is_set(mongo_uri: str, database: str) -> None:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        mongo[database]["meta"].insert_one({"_id": "schema", "number": 2})
    with (
        BrokerProcess(mongo_uri, database) as broker,
        Client(timeout=TIMEOUT, endpoint=broker.doors["smq"]) as client,
    ):
        with pytest.raises(BadFramesError, match="sluicemq brokers upgrade"):
            client.queues.set_settings("*", {"ttl": 1000})
        assert client.settings("*")["differs"] == []
