"""``kill -9`` of brokers and workers: confirmed jobs are done, transactions hold, histories add up."""

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from faults.fleet import Fleet, Program
from faults.replica_set import ReplicaSet
from sluicemq import Client, Job, Producer, Worker, outbox
from support.broker_process import BrokerProcess
from support.waiting import wait_until

#: Silence is long, so that a connection outlives its broker's being frozen.
SETTINGS = {"poll": 0.5, "silence": 60}
#: A broker's lease ends soon, and others look for it often.
LOSING = {"broker": {**SETTINGS, "lease": 4.0}}


def test_another_broker_takes_over_what_a_killed_one_held(mongo_uri: str, database: str) -> None:
    handler = GatedHandler()
    handler.opened.set()
    with two_brokers(mongo_uri, database) as (first, second), Fleet() as fleet:
        worker = fleet.worker("library", first.doors["smq"], "default", 20, 5)
        everything = push(first, 100, b"hold")
        worker.wait_said("got", 5)
        wait_until(lambda: waiting_and_reserved(second)[1] > 5, what="jobs staged at the first broker")
        first.kill()
        with Worker("default", handler, prefetch=20, endpoint=second.doors["smq"]):
            wait_until(lambda: stored(mongo_uri, database) == 0, what="commit of all jobs")
    assert handler.handled == Counter(everything)
    assert handler.attempts == {1}


def test_jobs_are_taken_over_when_the_lease_is_over_not_at_a_sweep(mongo_uri: str, database: str) -> None:
    handler, rare = GatedHandler(), {"broker": {**SETTINGS, "lease": 600.0}}
    handler.opened.set()
    with (
        BrokerProcess(mongo_uri, database, config=LOSING) as first,
        # Given a broker that has a heartbeat each two minutes, and a sweep each ten
        BrokerProcess(mongo_uri, database, config=rare) as second,
        Fleet() as fleet,
    ):
        worker = fleet.worker("library", first.doors["smq"], "default", 5, 5)
        everything = push(first, 5, b"hold")
        worker.wait_said("got", 5)
        first.kill()
        with Worker("default", handler, prefetch=20, endpoint=second.doors["smq"]):
            wait_until(lambda: set(handler.handled) == everything, what="the take-over")


def test_a_broker_that_wakes_after_a_take_over_changes_nothing(mongo_uri: str, database: str) -> None:
    late, handler = GatedHandler(), GatedHandler()
    with (
        two_brokers(mongo_uri, database) as (first, second),
        Worker("default", late, prefetch=5, concurrency=5, endpoint=first.doors["smq"]),
        Worker("default", handler, prefetch=20, concurrency=20, endpoint=second.doors["smq"]),
    ):
        wait_until(lambda: len(push_one_more(first, late)) == 5, what="the first broker's jobs")
        first.send_signal(signal.SIGSTOP)
        wait_until(lambda: set(handler.running) >= set(late.running), what="the take-over")

        first.send_signal(signal.SIGCONT)
        late.opened.set()
        wait_until(lambda: "declared dead by another" in first.log_text(), what="the first broker's insight")
        wait_until(lambda: refused_verdicts(first) >= 5, what="refusing the late verdicts")

        assert stored(mongo_uri, database) == len(handler.running)
        handler.opened.set()
        wait_until(lambda: stored(mongo_uri, database) == 0, what="commit of all jobs")
        wait_until(lambda: len(push_one_more(first, late)) > 5, what="the first broker's going on")


class GatedHandler:
    """A handler that holds its jobs until it is opened, and notes what it has had."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.running: list[str] = []
        self.handled: Counter[str] = Counter()
        self.attempts: set[int] = set()
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> None:
        with self._lock:
            self.attempts.add(job.attempt)
            self.handled[job.id] += 1
            if not self.opened.is_set():
                self.running.append(job.id)
        self.opened.wait(60)


def push_one_more(broker: BrokerProcess, handler: GatedHandler) -> list[str]:
    """Jobs go to whichever broker asks first; returns those that this handler has had."""
    push(broker, 1)
    return list(handler.handled)


@contextmanager
def two_brokers(
    mongo_uri: str, database: str, config: dict[str, Any] = LOSING
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    with (
        BrokerProcess(mongo_uri, database, config=config) as first,
        BrokerProcess(mongo_uri, database, config=config) as second,
    ):
        yield first, second


def push(broker: BrokerProcess, count: int, payload: bytes = b"") -> set[str]:
    """Push jobs, each confirmed; returns their ids."""
    with Producer(endpoint=broker.doors["smq"]) as producer:
        return {producer.push("default", payload).id for _ in range(count)}


def waiting_and_reserved(broker: BrokerProcess) -> tuple[int, int]:
    with Client(endpoint=broker.doors["smq"]) as client:
        queue = next(row for row in client.queues() if row["name"] == "default")
        return queue["ready"] + queue["scheduled"], queue["reserved"]


def refused_verdicts(broker: BrokerProcess) -> int:
    with Client(endpoint=broker.doors["smq"]) as client:
        counters = client.counters()["counters"]
        return int(counters.get("late_verdicts", 0) + counters.get("uncommitted", 0))


def stored(mongo_uri: str, database: str) -> int:
    with MongoClient[dict[str, object]](mongo_uri) as client:
        return int(client[database]["queue.default"].count_documents({}))


#: Seconds that MongoDB leaves a transaction open; and that a worker may be silent.
OPEN, SILENCE = 2, 3.0
POINTS = ["at-its-begin", "between-its-writes", "before-its-commit", "behind-its-commit"]
ACCOUNTS = ("ann", "bob", "eve")
ORDERS = 12


class Bank:
    """Accounts, their ledger, and the orders that were pushed."""

    def __init__(
        self, books: Database[dict[str, Any]], uri: str, broker: BrokerProcess, fleet: Fleet
    ) -> None:
        self._books, self._fleet = books, fleet
        self._endpoint, self._uri = broker.doors["smq"], uri
        self._expected = Counter(dict.fromkeys(ACCOUNTS, 100_000))
        self.orders: list[str] = []
        books.accounts.insert_many({"_id": name, "cents": cents} for name, cents in self._expected.items())
        books.create_collection("ledger")
        outbox.prepare(books)

    def order(self) -> None:
        """Push orders."""
        chance = random.Random(7)
        with Producer(endpoint=self._endpoint) as producer:
            for number in range(ORDERS):
                source, target = chance.sample(ACCOUNTS, 2)
                cents = chance.randrange(1, 10_000)
                name = f"order-{number}"
                order = {"id": name, "from": source, "to": target, "cents": cents}
                producer.push("orders", json.dumps(order).encode(), id=name)
                self._expected[source] -= cents
                self._expected[target] += cents
                self.orders.append(name)

    def worker(self, point: str = "nowhere") -> Program:
        """Start a worker that halts at a point."""
        return self._fleet.start("bank.py", self._endpoint, self._uri, self._books.name, point)

    def transferred(self) -> Counter[str]:
        """Return how often each order is in the ledger."""
        return Counter(row["order"] for row in self._books.ledger.find())

    def await_all(self) -> None:
        """Wait until each order is in the ledger."""
        wait_until(lambda: self.transferred().keys() >= {*self.orders}, 120, "all transfers")

    def balances(self) -> None:
        """Check the accounts, the ledger and the receipts."""
        with Client(endpoint=self._endpoint) as client:
            wait_until(lambda: not sum(_left(client, "orders").values()), 60, "the end of all orders")
            wait_until(lambda: _left(client, "receipts")["ready"] >= ORDERS, 60, "the receipts")
            receipts = Counter(job.json()["id"] for job in client.jobs.pop("receipts", 1000))
        once = dict.fromkeys(self.orders, 1)
        assert self.transferred() == once
        assert receipts == once
        assert {account["_id"]: account["cents"] for account in self._books.accounts.find()} == dict(
            self._expected
        )


def _left(client: Client, queue: str) -> dict[str, int]:
    row = client.queues.get(queue)
    return {"ready": row.ready, "reserved": row.reserved, "scheduled": row.scheduled, "dead": row.dead}


@pytest.fixture(scope="module")
def mongod() -> Iterator[ReplicaSet]:
    with ReplicaSet() as mongod, MongoClient[dict[str, Any]](mongod.uri) as mongo:
        mongo.admin.command({"setParameter": 1, "transactionLifetimeLimitSeconds": OPEN})
        yield mongod


@pytest.fixture
def bank(mongod: ReplicaSet) -> Iterator[Bank]:
    name = f"bank_{token_hex(4)}"
    config: dict[str, Any] = {
        "broker": {"outboxes": [name], "poll": 0.5, "heartbeat": 0.5, "silence": SILENCE},
        "queues": {"orders": {"backoff": "none", "max_attempts": 0}, "receipts": {}},
        "devices": [],
    }
    with (
        MongoClient[dict[str, Any]](mongod.uri) as mongo,
        BrokerProcess(mongod.uri, f"{name}_jobs", config=config) as broker,
        Fleet() as fleet,
    ):
        yield Bank(mongo[name], mongod.uri, broker, fleet)


@pytest.mark.full
def test_a_bank_balances_whose_worker_is_killed_around_its_transactions(bank: Bank) -> None:
    bank.order()
    for point in POINTS * 2:
        worker = bank.worker(point)
        worker.wait_said("halted")
        worker.end()
    bank.worker()
    bank.await_all()
    bank.balances()


@pytest.mark.full
@pytest.mark.parametrize("point", POINTS)
def test_a_bank_balances_whose_frozen_worker_goes_on_behind_another(bank: Bank, point: str) -> None:
    # Given a worker that stands still, until another one has done its order
    bank.order()
    frozen = bank.worker(point)
    frozen.wait_said("halted")
    frozen.freeze()
    bank.worker()
    bank.await_all()
    # When it goes on, and ends in order
    frozen.go()
    frozen.thaw()
    frozen.process.terminate()
    assert frozen.process.wait(60) == 0
    # Then its own transfer has failed, unless it had committed before
    bank.balances()
    frozen.end()
    assert frozen.said("late") == ([] if point == POINTS[-1] else [["LeaseLostError"]])


BATCH = 200


@pytest.mark.full
def test_the_sums_are_what_happened_but_for_the_last_flush(mongo_uri: str, database: str) -> None:
    config = {"broker": {"history": True, "lease": 3.0, "poll": 0.5}}
    with (
        BrokerProcess(mongo_uri, database, config=config) as killed,
        BrokerProcess(mongo_uri, database, config=config) as other,
        Client(endpoint=other.doors["smq"]) as client,
    ):

        def sums() -> dict[str, int]:
            return dict(client.history("mail")["total"])

        # Given: each has counted what was pushed to it, and written it
        for broker in (killed, other):
            _push(broker, BATCH)
        wait_until(lambda: sums().get("pushed") == 2 * BATCH, what="two flushes")
        # When one counts more, and is killed before it has written that
        _push(killed, BATCH)
        killed.kill()
        done: list[str] = []
        with Worker("mail", lambda job: done.append(job.id), prefetch=50, endpoint=other.doors["smq"]):
            wait_until(lambda: len(set(done)) == 3 * BATCH, what="all jobs at the other")
        wait_until(lambda: sums().get("committed") == 3 * BATCH, what="its flush")
        assert 2 * BATCH <= sums()["pushed"] <= 3 * BATCH
        # And a clean stop writes what there is
        before = sums()["pushed"]
        _push(other, BATCH)
        other.terminate()
        other.restart()
        with Client(endpoint=other.doors["smq"]) as again:
            assert again.history("mail")["total"]["pushed"] == before + BATCH


def _push(broker: BrokerProcess, count: int) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for _ in range(count):
            producer.push("mail", b"job")
