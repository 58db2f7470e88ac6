"""An order for many jobs whose client leaves, whose broker is killed; and what is asked beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from faults.mongo_proxy import CuttingProxy
from sluicemq import Client, Producer, UnfinishedError
from sluicemq_broker.queues.tasks import AT_ONCE
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

#: Takes many connections and seconds each: by default test_bounds and the unit tests of rates see the rule.
pytestmark = pytest.mark.full

JOBS = 1800
#: Removed pages take so long that an order has several after its first half second.
SLOWLY = 0.3
CONFIG = {"broker": {"lease": 2.0, "stop_timeout": 5.0}}


class Slow:
    """A broker at whose MongoDB each page of a purge takes long, and a queue with jobs."""

    def __init__(self, broker: BrokerProcess, documents: Any) -> None:
        self.broker = broker
        self.jobs = documents["queue.full"]
        with Producer(endpoint=broker.doors["smq"]) as producer:
            for _ in range(JOBS):
                producer.push("full", b"job")

    def client(self) -> Client:
        return Client(timeout=TIMEOUT, endpoint=self.broker.doors["smq"])

    def purge(self) -> str:
        """Order it and leave; the id of the task."""
        with self.client() as client, pytest.raises(UnfinishedError) as raised:
            client.purge("full", wait=0.0)
        wait_until(lambda: self.jobs.count_documents({}) < JOBS, what="the first page")
        return raised.value.task


@pytest.fixture
def slow(mongo_uri: str, database: str) -> Iterator[Slow]:
    with (
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        CuttingProxy(mongo_uri) as proxy,
        BrokerProcess(proxy.uri, database, config=CONFIG) as broker,
    ):
        slow = Slow(broker, mongo[database])
        proxy.slow(lambda command: command.name == "delete", SLOWLY)
        proxy.slow(lambda command: command.name == "drop", 2 * AT_ONCE)
        yield slow


def test_an_order_goes_on_when_its_client_has_left_and_others_follow_it(slow: Slow) -> None:
    task = slow.purge()
    with slow.client() as client:
        assert client.task(task)["state"] == "running"
        client.queues()
        client.stats()
        assert client.follow(task) == JOBS
    assert slow.jobs.count_documents({}) == 0


def test_what_is_asked_after_an_order_on_the_same_connection_does_not_wait_for_it(slow: Slow) -> None:
    removed: list[int] = []
    with slow.client() as client:
        orders = threading.Thread(target=lambda: removed.append(client.purge("full")))
        orders.start()
        [row] = wait_until(client.tasks, what="the task")
        assert (row["state"], removed) == ("running", [])
        orders.join()
    assert removed == [JOBS]


def test_an_order_goes_on_after_a_clean_stop(slow: Slow) -> None:
    task = slow.purge()
    slow.broker.terminate()
    left = slow.jobs.count_documents({})
    assert 0 < left < JOBS
    slow.broker.restart()
    with slow.client() as client:
        client.follow(task)
    assert slow.jobs.count_documents({}) == 0


def test_a_queue_whose_removal_takes_long_is_removed_once(slow: Slow) -> None:
    with slow.client() as client:
        client.delete("full")
        assert [row["name"] for row in client.queues() if row["name"] == "full"] == []
    assert "Traceback" not in slow.broker.log_text()
