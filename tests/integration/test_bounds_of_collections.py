"""Everything that brokers keep has a bound, which its registry names and the dashboard shows."""

import os
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from sluicemq import Client, Producer, Publisher, QueueFullError, Reject, Subscription, Worker
from sluicemq_broker.store import (
    COLLECTIONS,
    HistoryStore,
    HistorySubject,
    Incident,
    IncidentStore,
    LimitStore,
    MinuteCounts,
    QueueStore,
    Removals,
    disk_of,
    measure,
)
from sluicemq_broker.store.admin.collections import LEFT, PREFIXES
from sluicemq_broker.store.jobs.groups import GroupStore
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.jobs import NOW, some_jobs
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

DAY = 86_400.0
PEBIBYTE = 2**50


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    """A broker that looks at what is kept every second, and whose disk has too little room for it."""
    config = {
        "broker": {"http": "127.0.0.1:0", "history": True, "lease": 1.0, "disk_reserve": PEBIBYTE},
        "queues": {"limited": {"max_running": 2}, "fairly": {"fair": True, "tenant_rate": 5}},
        "streams": {"bounded": {"max_messages": 1000}},
        "schedules": {"often": {"queue": "mail", "every": 60}},
    }
    with BrokerProcess(mongo_uri, f"kept_{os.getpid()}", config=config) as broker:
        yield broker


@pytest.fixture
def web(broker: BrokerProcess) -> Web:
    return Web(broker.http)


def use_everything(broker: BrokerProcess) -> None:
    """Have the broker make every collection that it can."""
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for queue in ("mail", "limited"):
            producer.push(queue, b"x").wait(10)
        producer.push("grouped", b"x", group="g").wait(10)
        producer.push("fairly", b"x", tenant="acme").wait(10)
        producer.push("gone", b"x").wait(10)
    for queue in ("limited", "fairly"):
        done = Event()
        with Worker(queue, lambda _job, done=done: done.set(), endpoint=broker.doors["smq"]):  # type: ignore[misc]
            assert done.wait(TIMEOUT)
    with Publisher(endpoint=broker.doors["smq"]) as publisher:
        publisher.publish("bounded", "a", b"x").wait(10)
    Subscription("bounded", "reader", lambda _batch: None, follow=False, endpoint=broker.doors["smq"]).run()
    with Client(endpoint=broker.doors["smq"]) as client:
        client.queues.pause("mail")
        client.queues.delete("gone").result()


def test_no_collection_lacks_a_bound(broker: BrokerProcess, mongo: MongoClient[dict[str, Any]]) -> None:
    """One who adds a collection says in the registry what bounds it."""
    use_everything(broker)
    documents = mongo[f"kept_{os.getpid()}"]
    wait_until(lambda: {"history", "incidents"} <= set(documents.list_collection_names()), what="figures")
    there = {name for name in documents.list_collection_names() if not name.startswith("system.")}
    own = {name for name in there if not name.startswith(PREFIXES)}
    assert own - COLLECTIONS.keys() == set()
    assert COLLECTIONS.keys() - own - {LEFT} <= {"bus", "history_months"}, "it was not made by this test"


def test_what_is_kept_is_shown_with_its_bound_and_measured(broker: BrokerProcess, web: Web) -> None:
    def rows() -> dict[tuple[str, str], dict[str, Any]]:
        return {(row["kind"], row["name"]): row for row in web.get("/api/v1/kept").json["kept"]}

    with Publisher(endpoint=broker.doors["smq"]) as publisher:
        publisher.publish("bounded", "a", b"x").wait(10)
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("shown", b"x").wait(10)
    with Worker("shown", _reject, endpoint=broker.doors["smq"]):
        # When, Then
        row = wait_until(lambda: rows().get(("dead letters", "shown")), what="the dead letter")
    assert (row["number"], row["bound"]) == (1, "90 days, 1,000,000")
    assert 0 < row["used"] < 0.001
    stream = wait_until(lambda: rows().get(("stream", "bounded")), what="the stream")
    assert (stream["bound"], stream["used"]) == ("1,000 messages", None)
    found = rows()
    assert {name for kind, name in found if kind == "collection"} <= COLLECTIONS.keys()
    assert found["collection", "owners"]["bound"] == "1 day"
    assert found["collection", "audit"]["number"] >= 1
    assert found["database", f"kept_{os.getpid()}"]["used"] > 1
    # And Prometheus has them
    metrics = web.get("/metrics").body.decode()
    assert 'sluicemq_kept_items{kind="dead letters",name="shown"} 1' in metrics
    assert 'sluicemq_kept_used_ratio{kind="database"' in metrics


def _reject(_job: Any) -> None:
    raise Reject("bad")


def test_what_is_almost_full_is_an_incident(broker: BrokerProcess, web: Web) -> None:
    def said() -> str:
        found = web.get("/api/v1/incidents?span=hour").json["incidents"]
        return "".join(row["figures"]["said"] for row in found if row["kind"] == "bound_near")

    text = wait_until(said, what="the incident")
    assert f"database of kept_{os.getpid()}" in text


def test_without_a_bound_a_full_disk_stops_a_stream_and_with_one_it_does_not(broker: BrokerProcess) -> None:
    with Publisher(endpoint=broker.doors["smq"]) as publisher:
        publisher.publish("bounded", "a", b"x").wait(10)
        publisher.publish("endless", "a", b"x")

        def refused() -> bool:
            try:
                publisher.publish("endless", "a", b"x").wait(10)
            except QueueFullError as error:
                return "disk_reserve" in str(error)
            return False

        wait_until(refused, what="the refusal")
        publisher.publish("bounded", "a", b"x").wait(10)


def test_of_too_many_incidents_and_days_the_newest_stay(documents: Database[dict[str, Any]]) -> None:
    incidents, history = IncidentStore(documents), HistoryStore(documents)
    incidents.prepare()
    history.prepare()
    incidents.write("me", (Incident("flood", "mail", "b", NOW + at, NOW + at, {}) for at in range(1200)))
    for number in range(15):
        minute = int((NOW + number * DAY) // 60)
        history.add(
            "me", number, [MinuteCounts(HistorySubject("queue", f"q{number}"), minute, {"pushed": 1}, {})]
        )
    removed = incidents.trim(10), history.trim(10)
    assert removed == (1190, 5)
    assert [incident.at for incident in incidents.between(0, NOW + 9999, 99)] == [
        NOW + 1199 - at for at in range(10)
    ]
    assert {document["name"] for document in documents["history"].find()} == {
        f"q{number}" for number in range(5, 15)
    }


def beside(documents: Database[dict[str, Any]]) -> int:
    return documents["places"].count_documents({}) + documents["limits"].count_documents({})


@pytest.fixture
def removals(documents: Database[dict[str, Any]], store: QueueStore) -> Removals:
    """Of a queue with a job, a place of a group and a limit."""
    store.push(some_jobs(1), NOW)
    GroupStore(store.jobs).places(5)
    LimitStore(documents, "mail").permit("me", 1, 5, 1)
    assert beside(documents) == 2
    return Removals(documents)


def test_what_a_removed_queue_had_goes_later(documents: Database[dict[str, Any]], removals: Removals) -> None:
    list(removals.dropping("mail", NOW))
    removals.resume_drops(NOW + DAY - 1)
    assert beside(documents) == 2
    removals.resume_drops(NOW + DAY + 1)
    assert beside(documents) == 0


COMES_BACK: dict[str, Callable[[QueueStore], object]] = {
    "with its first job": lambda store: store.push(some_jobs(1), NOW),
    "empty": lambda store: store.prepare(again=True),
}


@pytest.mark.parametrize("how", COMES_BACK)
def test_what_lies_beside_a_queue_that_has_come_back_stays(
    documents: Database[dict[str, Any]], removals: Removals, store: QueueStore, how: str
) -> None:
    list(removals.dropping("mail", NOW))
    store.dropped()
    COMES_BACK[how](store)
    removals.resume_drops(NOW + DAY + 1)
    removals.resume_drops(NOW + 9 * DAY)
    assert beside(documents) == 2
    assert GroupStore(store.jobs).places(1) == 6


def test_collections_of_somebody_else_are_measured_too(documents: Database[dict[str, Any]]) -> None:
    documents["mine"].insert_many([{} for _ in range(7)])
    documents["stream.prices"].insert_one({})
    documents["removed.mail.0a"].insert_one({})
    found = {collection.name: collection for collection in measure(documents)}
    assert {"mine", LEFT} <= found.keys()
    assert not any(name.startswith(PREFIXES) for name in found)
    assert (found["mine"].documents, found[LEFT].documents) == (7, 1)
    disk = disk_of(documents)
    assert 0 < disk.free < disk.total
