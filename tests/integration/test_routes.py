"""Routes: every message of a stream becomes a job, once and in order, whichever broker dies when."""

import threading
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from sluicemq import Client, Publisher
from sluicemq.protocol.errors import LeaseLostError
from sluicemq_broker.job import Job
from sluicemq_broker.store import Holder, QueueStore, RouteStore, Subscription, SubscriptionStore
from support.broker_process import BrokerProcess
from support.jobs import NOW
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


@pytest.fixture
def subscriptions(documents: Database[dict[str, Any]]) -> SubscriptionStore:
    return SubscriptionStore(documents)


@pytest.fixture
def routes(subscriptions: SubscriptionStore, store: QueueStore) -> RouteStore:
    return RouteStore(subscriptions, store)


def hold(subscriptions: SubscriptionStore, token: str) -> Subscription:
    return subscriptions.hold(
        "prices", "route.mail", "route", Holder("b1", token, token), NOW, is_lost=lambda _holder: True
    )


def messages(first: int, last: int) -> list[Job]:
    made = [Job(f"prices-{number}", b"%d" % number, eligible_at=NOW) for number in range(first, last + 1)]
    for number, job in enumerate(made, first):
        job.accept(number, NOW)
    return made


def watermark(subscriptions: SubscriptionStore) -> int:
    (found,) = subscriptions.of("prices")
    return found.watermark


def test_messages_become_ready_jobs_in_their_order_and_the_watermark_is_behind_them(
    routes: RouteStore, subscriptions: SubscriptionStore, store: QueueStore
) -> None:
    held = hold(subscriptions, "a")
    assert len(routes.route(held, 3, messages(1, 3), NOW)) == 3
    assert len(routes.route(held, 9, messages(7, 8), NOW)) == 2
    claim = store.reserve(10, NOW + 1, "worker")
    assert [job.id for job in claim.jobs] == [f"prices-{number}" for number in (1, 2, 3, 7, 8)]
    assert watermark(subscriptions) == 9


def test_of_a_hold_that_has_ended_nothing_is_stored(
    routes: RouteStore, subscriptions: SubscriptionStore, store: QueueStore
) -> None:
    early = hold(subscriptions, "a")
    hold(subscriptions, "b")
    with pytest.raises(LeaseLostError):
        routes.route(early, 3, messages(1, 3), NOW)
    assert store.jobs.count_documents({}) == 0
    assert watermark(subscriptions) == 0


def test_what_is_in_the_queue_already_stays_as_it_is(
    routes: RouteStore, subscriptions: SubscriptionStore, store: QueueStore
) -> None:
    held = hold(subscriptions, "a")
    store.push([Job("prices-2", b"other")], NOW)
    assert [job.id for job in routes.route(held, 3, messages(1, 3), NOW)] == ["prices-1", "prices-3"]
    assert store.jobs.count_documents({"_id": "prices-2", "payload": b"other"}) == 1
    assert watermark(subscriptions) == 3


def test_one_whose_id_comes_up_meanwhile_is_seen(
    routes: RouteStore, subscriptions: SubscriptionStore, store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given another that pushes an id just after the route has looked which are there
    held = hold(subscriptions, "a")
    look = QueueStore.which_exist
    meanwhile = [lambda: store.push([Job("prices-2", b"other")], NOW)]

    def look_then_push(self: QueueStore, ids: list[str]) -> set[str]:
        there = look(self, ids)
        if meanwhile:
            meanwhile.pop()()
        return there

    monkeypatch.setattr(QueueStore, "which_exist", look_then_push)
    # When, then
    assert [job.id for job in routes.route(held, 3, messages(1, 3), NOW)] == ["prices-1", "prices-3"]
    assert store.jobs.count_documents({}) == 3


def test_without_messages_the_watermark_goes_on(routes: RouteStore, subscriptions: SubscriptionStore) -> None:
    assert routes.route(hold(subscriptions, "a"), 12, [], NOW) == []
    assert watermark(subscriptions) == 12
