"""``kill -9`` of a broker around each statement of a forward, and replies that are lost: one job, always."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pymongo import MongoClient

from faults.mongo_messages import Command
from faults.proxied import Delivered, RawClient, SharedQueue, shared_queue
from faults.replica_set import ReplicaSet
from sluicemq import Client, Producer, SluiceError
from sluicemq.protocol import wire
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

NEXT = "next"
#: A transaction that a killed broker has left open keeps its jobs for so long.
SECONDS = 2


@pytest.fixture(scope="module")
def running() -> Iterator[SharedQueue]:
    """A broker on a MongoDB of this file's own: transactions of other tests may take longer."""
    with ReplicaSet() as mongod, MongoClient[dict[str, Any]](mongod.uri) as mongo:
        mongo.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=SECONDS)
        with shared_queue(mongod.uri, 1, "first", lease=1.0) as it:
            yield it


@pytest.fixture
def shared(running: SharedQueue) -> Iterator[SharedQueue]:
    yield running
    running.close()
    running.jobs.delete_many({})
    running.database[f"queue.{NEXT}"].delete_many({})


def on(name: str, queue: str) -> Any:
    return lambda command: command.name == name and command.collection == f"queue.{queue}"


def commit_on(queue: str) -> Any:
    """The commit of a transaction that has changed the queue's jobs: the broker makes others all the time."""
    begun: set[tuple[bytes | None, int | None]] = set()

    def chosen(command: Command) -> bool:
        transaction = (command.session, command.txn_number)
        if command.name in ("insert", "update", "delete") and command.collection == f"queue.{queue}":
            begun.add(transaction)
        return command.name == "commitTransaction" and transaction in begun

    return chosen


STATEMENTS = {
    "read": on("find", "first"),
    "leave": on("delete", "first"),
    "arrive": on("insert", NEXT),
    "commit": commit_on("first"),
}


def there(shared: SharedQueue) -> list[tuple[str, str, bytes]]:
    """Every job there is, in whatever queue."""
    return [
        (name, each["state"], each["payload"])
        for name in ("first", NEXT)
        for each in shared.database[f"queue.{name}"].find()
    ]


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("applied", [False, True])
def test_a_broker_killed_around_a_statement_leaves_the_job_in_one_queue(
    shared: SharedQueue, statement: str, *, applied: bool
) -> None:
    # Given a worker whose job is to go on
    proxy, broker = shared.a.proxy, shared.a.process
    with Producer(shared.a.endpoint) as producer:
        producer.push("first", b"job", id="a").wait(60)
    worker, job = a_worker(shared)
    # When the broker is killed where that statement is not carried out, or has no answer yet
    chosen = STATEMENTS[statement]
    reached = proxy.hold(chosen) if applied else proxy.delay(chosen)
    worker.send(wire.SETTLE, [[job.receipt, wire.FORWARD, None, None, [NEXT, b"on", None]]])
    reached.wait()
    broker.kill()
    proxy.pass_all()
    broker.restart()
    # Then it is in one place, and can be worked on there: a transaction that is not committed is no more
    gone_on = statement == "commit" and applied
    expected = (NEXT, "ready", b"on") if gone_on else ("first", "ready", b"job")
    wait_until(lambda: there(shared) == [expected], what=f"{expected}, but {there(shared)}")
    with Client(shared.a.endpoint) as client, client.reserve(expected[0], 1, 60) as claim:
        assert [job.id for job in claim] == ["a"]
        claim.commit()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_reply_that_is_lost_costs_nothing_and_the_worker_hears_that_it_is_done(
    shared: SharedQueue, statement: str
) -> None:
    with Producer(shared.a.endpoint) as producer:
        producer.push("first", b"job", id="a").wait(60)
    worker, job = a_worker(shared)
    cut = shared.a.proxy.cut(STATEMENTS[statement])
    answer = worker.ask(wire.SETTLE, [[job.receipt, wire.FORWARD, None, None, [NEXT, b"on", None]]])
    cut.wait()
    assert answer == []
    assert there(shared) == [(NEXT, "ready", b"on")]


@pytest.mark.parametrize("applied", [False, True])
def test_a_broker_killed_at_the_end_of_a_child_leaves_its_parent_with_the_right_count(
    shared: SharedQueue, *, applied: bool
) -> None:
    # Given a parent with two children, of which one is to be committed
    proxy, broker = shared.a.proxy, shared.a.process
    with Producer(shared.a.endpoint) as producer:
        producer.push("first", b"job", id="a").wait(60)
    worker, job = a_worker(shared)
    pages = [[NEXT, b"1", None], [NEXT, b"2", None]]
    assert worker.ask(wire.SETTLE, [[job.receipt, wire.FAN_OUT, None, None, pages]]) == []
    worker.ask(wire.READY, NEXT, 1)
    (child,) = worker.take()
    # When the broker is killed where that is not carried out, or has no answer yet
    commit = STATEMENTS["commit"]
    reached = proxy.hold(commit) if applied else proxy.delay(commit)
    worker.settle(child, wire.COMMIT)
    reached.wait()
    broker.kill()
    proxy.pass_all()
    broker.restart()
    # Then what is left is what is there, and the parent ends with it
    left = 1 if applied else 2
    wait_until(lambda: ready(shared) == left, what=f"{left} children")
    assert (shared.jobs.find_one({"_id": "a"}) or {})["children"]["left"] == left
    with Client(shared.a.endpoint) as client, client.reserve(NEXT, left, 60) as claim:
        assert len(claim) == left
        claim.commit()
    assert there(shared) == []


#: Orders for the queue of the children, and the statements of each.
ORDERS: dict[tuple[str, str], Any] = {
    ("cancel", "delete"): on("delete", NEXT),
    ("cancel", "commit"): commit_on(NEXT),
    ("purge", "commit"): commit_on(NEXT),
    ("delete", "rename"): lambda command: command.name == "renameCollection",
    ("delete", "parents"): lambda command: (
        command.name == "update" and any(each["q"].get("_id") == "a" for each in command.statements)
    ),
    ("delete", "children"): lambda command: command.name == "delete" and "removed." in command.collection,
    ("delete", "drop"): lambda command: command.name == "drop" and "removed." in command.collection,
}


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("applied", [False, True])
def test_a_broker_killed_while_it_removes_children_leaves_no_parent_waiting_for_what_is_gone(
    shared: SharedQueue, order: tuple[str, str], *, applied: bool
) -> None:
    # Given a parent that waits for two children
    proxy, broker = shared.a.proxy, shared.a.process
    with Producer(shared.a.endpoint) as producer:
        producer.push("first", b"job", id="a").wait(60)
    worker, job = a_worker(shared)
    pages = [[NEXT, b"1", None], [NEXT, b"2", None]]
    assert worker.ask(wire.SETTLE, [[job.receipt, wire.FAN_OUT, None, None, pages]]) == []
    # When the broker is killed around a statement of an order for them
    reached = proxy.hold(ORDERS[order]) if applied else proxy.delay(ORDERS[order])
    giving = threading.Thread(target=ordered, args=(shared.a.endpoint, order[0]))
    giving.start()
    reached.wait()
    broker.kill()
    proxy.pass_all()
    broker.restart()
    giving.join(60)
    # Then the parent is dead, or all of its children are there and it ends with them
    wait_until(lambda: removed_queues(shared) == [], what="the remains of the queue are gone")
    begun = order[1] in ("parents", "children", "drop") or (applied and order[1] != "delete")
    expected = [("first", "dead", b"job")] if begun else [("first", "waiting", b"job")]
    left = {"cancel": 1, "purge": 0, "delete": 0}[order[0]] if begun else 2
    wait_until(lambda: parents(shared) == expected, what=f"{expected}, but {there(shared)}")
    assert ready(shared) == left


def ordered(endpoint: str, order: str) -> None:
    """The broker dies of it."""
    with suppress(SluiceError, TimeoutError), Client(endpoint, timeout=5, patient=False) as client:
        if order == "cancel":
            client.cancel(NEXT, "a.1")
        else:
            getattr(client, order)(NEXT)


def parents(shared: SharedQueue) -> list[tuple[str, str, bytes]]:
    return [each for each in there(shared) if each[0] == "first"]


def removed_queues(shared: SharedQueue) -> list[str]:
    """Return queues that are put aside, and those whose removal has begun and not ended."""
    aside = [each for each in shared.database.list_collection_names() if each.startswith("removed.")]
    return [
        *aside,
        *(each["_id"] for each in shared.database["queues"].find({"removing": {"$exists": True}})),
    ]


def ready(shared: SharedQueue) -> int:
    return int(shared.database[f"queue.{NEXT}"].count_documents({"state": "ready"}))


def a_worker(shared: SharedQueue) -> tuple[RawClient, Delivered]:
    """A worker that has the first job."""
    worker = shared.client(shared.a)
    worker.ready(1)
    (job,) = worker.take()
    return worker, job
