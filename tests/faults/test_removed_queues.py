"""A queue that is removed stays removed, whatever looks at it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from faults.proxied import RawClient
from sluicemq import Client, NotFoundError, Producer
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.waiting import wait_until


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
