"""A bank whose worker is killed or frozen around its transactions: not a cent is lost, or paid twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from faults.fleet import Fleet, Program
from faults.replica_set import ReplicaSet
from sluicemq import Client, Producer, outbox
from support.broker_process import BrokerProcess
from support.waiting import wait_until

#: Each case waits until MongoDB ends a transaction, or a broker gives a silent worker up.
pytestmark = pytest.mark.full

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


def test_a_bank_balances_whose_worker_is_killed_around_its_transactions(bank: Bank) -> None:
    bank.order()
    for point in POINTS * 2:
        worker = bank.worker(point)
        worker.wait_said("halted")
        worker.end()
    bank.worker()
    bank.await_all()
    bank.balances()


@pytest.mark.parametrize("point", POINTS)
def test_a_bank_balances_whose_worker_was_frozen_and_goes_on_behind_another_one(
    bank: Bank, point: str
) -> None:
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
