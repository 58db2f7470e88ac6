"""Routes: every message of a stream becomes a job, once and in order, whichever broker dies when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from sluicemq import Client, Publisher
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

ROUTES: list[dict[str, Any]] = [
    {"stream": "orders", "queue": "invoices", "topics": ["orders.*.paid"], "headers": {"priority": 5}},
    {"stream": "orders", "queue": "archive"},
]
LEASE = 3.0


@pytest.fixture(scope="module")
def database(mongo_uri: str) -> Iterator[str]:
    name = f"test_{token_hex(6)}"
    yield name
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        mongo.drop_database(name)


def broker_on(mongo_uri: str, database: str, routes: list[dict[str, Any]]) -> BrokerProcess:
    settings = {"poll": 0.5, "lease": LEASE, "stop_timeout": 3}
    return BrokerProcess(mongo_uri, database, config={"broker": settings, "devices": [], "routes": routes})


@pytest.fixture(scope="module")
def broker(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    with broker_on(mongo_uri, database, ROUTES) as running:
        yield running


def publish(broker: BrokerProcess, *topics: str) -> list[int]:
    with Publisher(endpoint=broker.doors["smq"]) as publisher:
        receipts = [publisher.publish("orders", topic, topic.encode()) for topic in topics]
        return [receipt.wait(TIMEOUT) for receipt in receipts]


def test_each_message_with_one_of_the_topics_becomes_a_job(broker: BrokerProcess, client: Client) -> None:
    _, first, _, second = publish(broker, "orders.1.made", "orders.1.paid", "orders.2.made", "orders.2.paid")
    with client.jobs.reserve("invoices", 2, TIMEOUT) as claim:
        assert [job.id for job in claim] == [f"orders-{first}", f"orders-{second}"]
        assert [job.payload for job in claim] == [b"orders.1.paid", b"orders.2.paid"]
        assert claim.jobs[0].headers == {"stream": "orders", "sequence": first, "topic": "orders.1.paid"}
        assert client.jobs.get("invoices", f"orders-{first}").priority == 5
        claim.commit()
    with client.jobs.reserve("archive", 4, TIMEOUT) as claim:
        assert len(claim) == 4
        claim.commit()


def test_a_route_waits_for_a_stream_that_is_not_there_yet(mongo_uri: str) -> None:
    # Given a database in which nobody has published, and brokers with a route
    name = f"test_{token_hex(6)}"
    with (
        broker_on(mongo_uri, name, ROUTES[1:]) as broker,
        broker_on(mongo_uri, name, ROUTES[1:]) as other,
        Client(endpoint=broker.doors["smq"]) as client,
        Client(endpoint=other.doors["smq"]) as there,
    ):
        try:
            held = wait_until(lambda: client.subscriptions("orders") or there.subscriptions("orders"))
            assert (held[0]["name"], held[0]["behind"]) == ("route.archive", 0)
            # When the first message comes, at either
            publish(other, "orders.1.paid")
            # Then it is routed, and nothing was counted as trouble with MongoDB
            with client.jobs.reserve("archive", 1, TIMEOUT) as claim:
                assert [job.id for job in claim] == ["orders-1"]
                claim.commit()
            for caller in (client, there):
                counted = caller.counters()["counters"]
                assert not counted.get("store_unavailable")
                assert not counted.get("bad_stream")
        finally:
            with MongoClient[dict[str, Any]](mongo_uri) as mongo:
                mongo.drop_database(name)


def test_what_is_done_and_gone_stays_so_after_a_restart(broker: BrokerProcess, client: Client) -> None:
    publish(broker, "orders.3.paid")
    with client.jobs.reserve("invoices", 1, TIMEOUT) as claim:
        claim.commit()
    broker.kill()
    broker.start()
    (number,) = publish(broker, "orders.4.paid")
    with Client(endpoint=broker.doors["smq"]) as anew, anew.jobs.reserve("invoices", 1, TIMEOUT) as claim:
        assert [job.id for job in claim] == [f"orders-{number}"]
        claim.commit()


def test_while_the_intake_of_the_queue_is_paused_so_is_its_route(broker: BrokerProcess) -> None:
    with Client(endpoint=broker.doors["smq"]) as client:
        client.queues.pause("invoices", "intake")
        try:
            (number,) = publish(broker, "orders.5.paid")
            wait_until(lambda: behind(client, "route.archive") == 0)
            wait_until(lambda: behind(client, "route.invoices") == 1)
        finally:
            client.queues.resume("invoices", "intake")
        with client.jobs.reserve("invoices", 1, TIMEOUT) as claim:
            assert [job.id for job in claim] == [f"orders-{number}"]
            claim.commit()


def test_a_new_route_has_not_missed_what_was_removed_before_and_counts_what_it_brings_as_pushed(
    mongo_uri: str, database: str, broker: BrokerProcess
) -> None:
    # Given a stream whose first messages are gone
    with Publisher(endpoint=broker.doors["smq"]) as publisher, Client(endpoint=broker.doors["smq"]) as client:
        receipts = [publisher.publish("trimmed", "a", b"x") for _ in range(5)]
        assert receipts[-1].wait(TIMEOUT) == 5
        client.streams.trim("trimmed", 4)
    route = [{"stream": "trimmed", "queue": "late"}]
    with broker_on(mongo_uri, database, route) as other, Client(endpoint=other.doors["smq"]) as client:
        wait_until(lambda: client.counters().counters.get("routed") == 2)
        counted = client.counters().counters
    assert (counted["pushed"], counted.get("unrouted", 0)) == (2, 0)


def wait_for_more(jobs: Collection[dict[str, Any]], count: int) -> None:
    there = jobs.count_documents({})
    wait_until(lambda: jobs.count_documents({}) > there + count)


def behind(client: Client, subscription: str) -> int:
    found = {found_one.name: found_one.behind for found_one in client.subscriptions.list("orders")}
    return int(found.get(subscription, -1))  # -1: the route has not begun yet


@pytest.mark.full
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.full)])
def test_brokers_killed_while_they_route_make_each_message_one_job(mongo_uri: str, kills: int) -> None:
    # Given two brokers with one route, and somebody who publishes all the while at a third
    name = f"test_{token_hex(6)}"
    route = [{"stream": "orders", "queue": "archive"}]
    stop, published = threading.Event(), list[int]()
    with (
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        broker_on(mongo_uri, name, []) as third,
        broker_on(mongo_uri, name, route) as one,
        broker_on(mongo_uri, name, route) as other,
    ):
        jobs = mongo[name]["queue.archive"]

        def publish_on() -> None:
            with Publisher(endpoint=third.doors["smq"]) as publisher:
                while not stop.is_set():
                    receipts = [publisher.publish("orders", "a", b"x") for _ in range(50)]
                    published.append(receipts[-1].wait(TIMEOUT))

        publishing = threading.Thread(target=publish_on)
        publishing.start()
        try:
            # When one or the other is killed in the midst of it
            for number in range(kills):
                wait_for_more(jobs, 200)
                killed = (one, other)[number % 2]
                killed.kill()
                killed.start()
        finally:
            stop.set()
            publishing.join()
        # Then all are there, each once, in the order of the stream
        wait_until(lambda: jobs.count_documents({}) == published[-1], 2 * TIMEOUT)
        order = jobs.find({}, {"_id": 1}).sort([("priority", -1), ("eligible_at", 1), ("seq", 1)])
        assert [document["_id"] for document in order] == [f"orders-{n}" for n in range(1, published[-1] + 1)]
        mongo.drop_database(name)
