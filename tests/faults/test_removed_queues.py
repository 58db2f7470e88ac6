"""Queues and dead letters are removed while others use, count or look at them."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from faults.proxied import ProxiedBroker, RawClient, SharedQueue
from faults.replica_set import ReplicaSet
from faults.turns import LONGEST, slowness
from sluicemq import BadQueueError, Client, DuplicateError, NotFoundError, Producer
from sluicemq.protocol import wire
from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.store import collection, survey_queues
from sluicemq_broker.store.admin.counting import small_counts
from sluicemq_broker.store.jobs.index_models import DEDUPE_INDEX, INDEXES, READY_INDEX
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until


class OwnBroker:
    """A broker behind a proxy, all alone on its database."""

    def __init__(self, proxy: CuttingProxy, broker: BrokerProcess) -> None:
        self.proxy = proxy
        self.endpoint = broker.doors["smq"]
        self.queue = f"q{token_hex(4)}"
        self.collection = f"queue.{self.queue}"

    def push(self) -> None:
        with Producer(endpoint=self.endpoint) as producer:
            producer.push(self.queue, b"x").wait(60.0)

    def on(self, statement: str) -> Any:
        def chosen(command: Command) -> bool:
            return command.name == statement and command.collection == self.collection

        return chosen

    def removal(self, command: Command) -> bool:
        """Choose the statement by which the queue is gone."""
        return command.name == "renameCollection" and command.collection.endswith(f".{self.collection}")


@pytest.fixture(scope="module")
def proxied(mongo_uri: str) -> Iterator[tuple[CuttingProxy, BrokerProcess]]:
    database = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        with (
            CuttingProxy(mongo_uri) as proxy,
            BrokerProcess(proxy.uri, database, config={"broker": {"poll": 0.5}}) as broker,
        ):
            yield proxy, broker
        mongo.drop_database(database)


@pytest.fixture
def own(proxied: tuple[CuttingProxy, BrokerProcess]) -> OwnBroker:
    return OwnBroker(*proxied)


@pytest.fixture
def client(own: OwnBroker) -> Iterator[Client]:
    with Client(timeout=60.0, endpoint=own.endpoint) as client:
        yield client


def names(client: Client) -> set[str]:
    return {row["name"] for row in wait_until(client.queues, what="the list of queues")}


def test_looking_at_a_queue_while_it_is_removed_makes_no_other(own: OwnBroker, client: Client) -> None:
    # Given a queue that is counted and listed when MongoDB has dropped it, and the broker has not heard of it
    own.push()
    with Client(timeout=60.0, endpoint=own.endpoint) as other:
        looked = own.proxy.after(own.removal, lambda: (other.queue(own.queue), other.peek(own.queue)))
        assert client.queues.delete(own.queue).result() == 1
    looked.wait()
    assert own.queue not in names(client)
    with pytest.raises(NotFoundError):
        client.queues.get(own.queue)


def test_a_queue_removed_beside_a_verdict_is_gone_once_that_ends(own: OwnBroker, client: Client) -> None:
    # Given a commit that the broker has no answer to, of a worker that has left
    own.push()
    with RawClient(own.endpoint, own.queue) as worker:
        worker.ready(1)
        [job] = worker.take()
        held = own.proxy.hold(own.on("delete"))
        worker.settle(job, wire.COMMIT)
        [commit] = held.wait()
    wait_until(lambda: client.queues.get(own.queue).workers == 0, what="the worker's leaving")
    client.queues.delete(own.queue).result()
    early = own.queue in names(client)
    commit.release()
    wait_until(lambda: own.queue not in names(client), what="the end of the queue")
    assert early


@pytest.fixture
def queue(shared: SharedQueue) -> SharedQueue:
    push(shared, shared.a, b"made")
    for broker in (shared.a, shared.b):
        with Client(endpoint=broker.endpoint) as client:
            client.queues.get(shared.name)
    return shared


def push(queue: SharedQueue, broker: ProxiedBroker, payload: bytes = b"x", **options: Any) -> str:
    with Producer(endpoint=broker.endpoint) as producer:
        receipt = producer.push(queue.name, payload, **options)
        receipt.wait(TIMEOUT)
    return receipt.id


def names_at_both(broker: ProxiedBroker) -> set[str]:
    with Client(timeout=TIMEOUT, endpoint=broker.endpoint) as client:
        return {row.name for row in client.queues.list()}


def record(queue: SharedQueue) -> dict[str, Any]:
    return queue.database["queues"].find_one({"_id": queue.name}) or {}


def indexes(queue: SharedQueue) -> set[str]:
    return set(queue.jobs.index_information())


@pytest.mark.full
def test_a_queue_that_is_removed_at_one_broker_is_gone_at_the_other(queue: SharedQueue) -> None:
    with Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client:
        assert client.queues.delete(queue.name).result() == 1
    wait_until(
        lambda: queue.name not in names_at_both(queue.a) | names_at_both(queue.b), what="the end of the queue"
    )
    assert queue.jobs.name not in queue.database.list_collection_names()
    with Client(timeout=TIMEOUT, endpoint=queue.b.endpoint) as client, pytest.raises(NotFoundError):
        client.queues.get(queue.name)
    # When it is pushed to at the other one it is there anew, with its indexes from the first job on
    push(queue, queue.b, dedupe_id="1")
    with pytest.raises(DuplicateError):
        push(queue, queue.b, dedupe_id="1")
    assert {READY_INDEX, DEDUPE_INDEX} <= indexes(queue)


@pytest.mark.full
def test_workers_at_another_broker_refuse_a_removal(queue: SharedQueue) -> None:
    with Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client:
        with queue.working(queue.b) as handled:
            wait_until(lambda: handled[b"made"], what="the first job")
            with pytest.raises(BadQueueError, match="1 workers at other brokers: stop them first"):
                client.queues.delete(queue.name).result()
            # Then it goes on
            push(queue, queue.a, b"next")
            wait_until(lambda: handled[b"next"], what="the next job")
        assert "removing" not in record(queue)
        wait_until(lambda: not workers(queue), what="the worker's leaving")
        client.queues.delete(queue.name).result()


@pytest.mark.full
def test_a_client_that_waits_at_the_other_broker_hears_of_the_removal(queue: SharedQueue) -> None:
    with (
        Producer(endpoint=queue.b.endpoint) as producer,
        Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client,
    ):
        reply = producer.submit(queue.name, b"question")
        wait_until(lambda: queue.stored() == 2, what="the question")
        client.queues.delete(queue.name).result()
        with pytest.raises(NotFoundError):
            reply.result(TIMEOUT)


@pytest.mark.full
def test_jobs_pushed_at_the_other_broker_meanwhile_are_kept_or_go_with_it(queue: SharedQueue) -> None:
    """Whatever was confirmed after the removal was answered is there; none is there twice."""
    with (
        Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client,
        Producer(endpoint=queue.b.endpoint) as producer,
    ):
        before = [producer.push(queue.name, b"before") for _ in range(200)]
        ordered = client.queues.delete(queue.name).result()
        after = [producer.push(queue.name, b"after", dedupe_id=str(number)) for number in range(50)]
        for receipt in (*before, *after):
            receipt.wait(TIMEOUT)
    there = {job["_id"] for job in queue.jobs.find({}, {"_id": 1})}
    assert {receipt.id for receipt in after} <= there
    assert ordered + len(there) >= 1 + 200 + 50
    wait_until(lambda: {READY_INDEX, DEDUPE_INDEX} <= indexes(queue), what="its indexes")


@pytest.mark.full
def test_a_frozen_broker_does_not_hold_up_a_removal_and_hears_of_it_later(queue: SharedQueue) -> None:
    with (
        Producer(endpoint=queue.b.endpoint) as producer,
        Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client,
    ):
        reply = producer.submit(queue.name, b"question")
        wait_until(lambda: queue.stored() == 2, what="the question")
        queue.b.process.send_signal(signal.SIGSTOP)
        try:
            assert client.queues.delete(queue.name).result() == 2
        finally:
            queue.b.process.send_signal(signal.SIGCONT)
        with pytest.raises(NotFoundError):
            reply.result(TIMEOUT)


def workers(queue: SharedQueue) -> int:
    with Client(timeout=TIMEOUT, endpoint=queue.b.endpoint) as client:
        return int(client.queues.get(queue.name).workers)


QUEUES = [f"q{number}" for number in range(12)]
#: mongod 6.0.5 ended at one of the first ten removals.
REMOVALS = 25


def survey(database: Any, queues: list[str], _now: float) -> object:
    return survey_queues(database, queues)


@pytest.mark.full
@pytest.mark.parametrize("ask", [small_counts, survey])
def test_mongodb_outlives_questions_to_queues_that_are_removed(ask: Callable[..., Any]) -> None:
    # A MongoDB of its own: others would go down with it.
    with ReplicaSet() as mongod, MongoClient[dict[str, Any]](mongod.uri) as mongo:
        database, over = mongo["counted"], threading.Event()
        for name in QUEUES:
            database[collection(name)].create_indexes(INDEXES)
            database[collection(name)].insert_many([{"state": "ready", "seq": seq} for seq in range(20)])
        began = mongo.admin.command("serverStatus")["pid"]
        asking = [threading.Thread(target=ask_again, args=(ask, database, over)) for _ in range(3)]
        for thread in asking:
            thread.start()
        try:
            for _ in range(REMOVALS):
                remove_and_make(database, collection(QUEUES[-1]))
        finally:
            over.set()
            for thread in asking:
                thread.join()
        assert mongo.admin.command("serverStatus")["pid"] == began


def ask_again(ask: Callable[..., Any], database: Any, over: threading.Event) -> None:
    while not over.is_set():
        try:
            ask(database, QUEUES, time.time())
        except (UnavailableError, OperationFailure):
            if over.wait(0.01):
                return


def remove_and_make(database: Any, name: str) -> None:
    """Put a new collection in the place of a queue's, as the removal of a queue does."""
    token = token_hex(4)
    database[f"deleted.{token}"].create_indexes(INDEXES)
    database[name].rename(f"removed.{token}")
    database[f"deleted.{token}"].rename(name)
    database[f"removed.{token}"].drop()


OLD, YOUNG = 50_000, 1_000
AT_ONCE = 10_000


@pytest.mark.full
def test_very_many_old_dead_letters_go_in_turns_and_on_after_a_kill(mongo_uri: str, database: str) -> None:
    documents = MongoClient[dict[str, Any]](mongo_uri)[database]
    queue, now = documents["queue.mail"], datetime.now(UTC)
    queue.create_indexes(INDEXES)
    deaths = [(OLD, now - timedelta(days=100)), (YOUNG, now)]
    for count, died in deaths:
        letter = {
            "state": "dead",
            "priority": 0,
            "seq": 1,
            "created_at": died,
            "ended_at": died,
            "payload": b"x",
        }
        for first in range(0, count, AT_ONCE):
            ids = range(first, min(count, first + AT_ONCE))
            queue.insert_many([{"_id": f"{count}-{job_id}", **letter} for job_id in ids], ordered=False)

    def left() -> int:
        return queue.estimated_document_count()

    with BrokerProcess(mongo_uri, database, config={"devices": [], "broker": {"lease": 1.0}}) as broker:
        # When it is killed in the middle
        wait_until(lambda: left() < OLD * 0.9, what="the first pages")
        broker.kill()
        assert left() > OLD * 0.1
        broker.restart()
        with (
            Client(endpoint=broker.doors["smq"]) as client,
            Producer(endpoint=broker.doors["smq"]) as producer,
        ):
            # Then jobs go on beside it
            client.counters()  # the start itself does not count
            while left() > YOUNG + 10:
                producer.push("other", b"x").wait(10)
            # And no turn was long
            told = client.counters()
            wait_until(lambda: queue.count_documents({}) == YOUNG, what="the last page")
            assert client.counters().counters["dead_removed"] > OLD * 0.1
    assert told["broker"]["longest_turn_cpu"] < LONGEST * slowness()
    assert queue.count_documents({"state": "dead"}) == YOUNG
