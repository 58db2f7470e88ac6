"""Clients with the endpoints of two brokers: faults and restarts of one cost no job and no error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import pytest
from pymongo import MongoClient

from sluicemq import Batch, Client, Job, Producer, Publisher, Reader, Subscription, Worker
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

#: A frozen broker is noticed by its silence.
SETTINGS = {"broker": {"lease": 3.0, "heartbeat": 0.3, "silence": 2.0}}
QUEUE = "work"

Brokers = list[BrokerProcess]


@pytest.fixture
def two(mongo_uri: str, database: str) -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield [stack.enter_context(BrokerProcess(mongo_uri, database, config=SETTINGS)) for _ in range(2)]


def endpoints(brokers: Brokers) -> list[str]:
    return [each.doors["smq"] for each in brokers]


def at(brokers: Brokers, endpoint: str) -> BrokerProcess:
    return next(each for each in brokers if each.doors["smq"] == endpoint)


def kill(broker: BrokerProcess) -> None:
    broker.kill()


def freeze(broker: BrokerProcess) -> None:
    broker.send_signal(signal.SIGSTOP)


def stop(broker: BrokerProcess) -> None:
    assert broker.terminate() == 0


@pytest.mark.parametrize("fault", [kill, freeze, stop])
def test_pushes_results_and_questions_go_on_at_the_other_broker(
    mongo_uri: str, database: str, two: Brokers, fault: Callable[[BrokerProcess], None]
) -> None:
    with (
        Producer(endpoint=endpoints(two)) as producer,
        Client(timeout=TIMEOUT, endpoint=endpoints(two)) as client,
    ):
        receipts = [producer.push("first", b"%d" % number) for number in range(2000)]
        reply = producer.submit("asked", b"x")
        reply.receipt.wait(TIMEOUT)
        lost = at(two, producer.connected_to)
        receipts += [producer.push("first", b"%d" % number) for number in range(2000, 4000)]

        fault(lost)

        receipts += [producer.push("first", b"%d" % number) for number in range(4000, 6000)]
        for receipt in receipts:
            receipt.wait(TIMEOUT)
        (other,) = [each for each in two if each is not lost]
        with Worker("asked", lambda job: job.payload + b"!", endpoint=other.doors["smq"]):
            assert reply.result(TIMEOUT) == b"x!"
        assert client.queues.get("first").ready == len(receipts)
        assert producer.connected_to == other.doors["smq"]
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        stored = mongo[database]["queue.first"].find({}, {"_id": 1}).sort("seq")
        assert sorted(each["_id"] for each in stored) == [receipt.id for receipt in receipts]


@pytest.mark.parametrize("fault", [kill, stop])
def test_messages_of_a_stream_are_published_read_and_worked_on_once_each(
    two: Brokers, fault: Callable[[BrokerProcess], None]
) -> None:
    seen: list[bytes] = []

    def note(batch: Batch) -> None:
        seen.extend(message.payload for message in batch)

    wanted = [b"%d" % number for number in range(1000)]
    with Publisher(endpoint=endpoints(two)) as maker:
        maker.publish("s", "topic", wanted[0]).wait(TIMEOUT)
    with (
        Publisher(endpoint=endpoints(two)) as publisher,
        Reader("s", follow=True, endpoint=endpoints(two)) as reader,
        Subscription("s", "all", note, endpoint=endpoints(two)),
    ):
        for payload in wanted[1:400]:
            publisher.publish("s", "topic", payload)
        publisher.flush(TIMEOUT)
        wait_until(lambda: len(seen) >= 400, what="the first messages")
        lost = at(two, publisher.connected_to)
        for payload in wanted[400:700]:
            publisher.publish("s", "topic", payload)

        fault(lost)

        for payload in wanted[700:]:
            publisher.publish("s", "topic", payload)
        publisher.flush(TIMEOUT)
        read: list[bytes] = []
        while len(read) < len(wanted):
            message = reader.read(TIMEOUT)
            assert message
            read.append(message.payload)
        wait_until(lambda: wanted[-1] in seen, what="the last message")
    assert read == wanted
    if fault is stop:  # the holder marks its batch and lets go
        assert seen == wanted
    else:
        assert sorted(set(seen), key=int) == wanted


def test_both_brokers_die_and_one_comes_back(two: Brokers) -> None:
    with (
        Producer(endpoint=endpoints(two)) as producer,
        Client(timeout=TIMEOUT, endpoint=endpoints(two)) as client,
    ):
        producer.push("q", b"first").wait(TIMEOUT)
        client.ping()
        for each in two:
            each.kill()
        receipt = producer.push("q", b"second")
        two[1].restart()
        receipt.wait(TIMEOUT)
        client.ping()
        assert client.connected_to == two[1].doors["smq"]


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.full)])
def test_a_rolling_restart_under_load_costs_no_error(two: Brokers, rounds: int) -> None:
    """Changes that are not repeated are asked for all the time, too."""
    with Load(endpoints(two)) as load:
        for _ in range(rounds):
            for broker in two:
                load.wait_for_more()
                stop(broker)
                load.wait_for_more()
                broker.restart()
        load.wait_for_more()
    assert load.errors == []


class Load:
    """Programs that push, ask, change, reserve, pop and work, until they are stopped; ``errors`` of all."""

    def __init__(self, endpoints: list[str]) -> None:
        self.errors: list[str] = []
        self._endpoints = endpoints
        self._over = threading.Event()
        self._done = dict.fromkeys(("push", "call", "ask", "change", "order", "reserve", "pop"), 0)
        self._threads = [
            threading.Thread(target=self._repeat, args=(name, getattr(self, f"_{name}")))
            for name in self._done
        ]
        self._worker = Worker("asked", self._answer, prefetch=4, endpoint=endpoints)

    def __enter__(self) -> Self:
        self._producer = Producer(endpoint=self._endpoints)
        self._client = Client(timeout=TIMEOUT, endpoint=self._endpoints)
        for queue in ("pushed", "changed", "ordered"):
            self._producer.push(queue, b"first").wait(TIMEOUT)
        self._worker.start()
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(2 * TIMEOUT)
        for end in (self._producer.close, self._client.close, self._worker.stop):
            self._caught("end", end)

    def wait_for_more(self) -> None:
        """Wait until each program has done its work some more times, or has failed."""
        before = dict(self._done)
        wait_until(
            lambda: self.errors or all(self._done[name] >= count + 3 for name, count in before.items()),
            what=f"progress beyond {before}",
        )

    def _repeat(self, name: str, step: Callable[[], None]) -> None:
        while not self._over.is_set() and self._caught(name, step):
            self._done[name] += 1

    def _caught(self, name: str, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - all are counted
            self.errors.append(f"{name}: {error!r}")
        return not self.errors

    @staticmethod
    def _answer(job: Job) -> bytes:
        return job.payload

    def _push(self) -> None:
        receipts = [self._producer.push("pushed", b"x") for _ in range(50)]
        for receipt in receipts:
            receipt.wait(TIMEOUT)

    def _call(self) -> None:
        assert self._producer.call("asked", b"y", TIMEOUT) == b"y"

    def _ask(self) -> None:
        self._client.queues()

    def _change(self) -> None:
        """Cancel a job and set a watermark: none of them is repeated."""
        receipt = self._producer.push("changed", b"z", delay=3600)
        receipt.wait(TIMEOUT)
        self._client.change("changed", receipt.id, priority=3)
        self._client.cancel("changed", receipt.id)

    def _order(self) -> None:
        """Purge, which a broker that stops leaves to the next one."""
        self._producer.push("ordered", b"z").wait(TIMEOUT)
        self._client.purge("ordered")

    def _reserve(self) -> None:
        with self._client.reserve("pushed", 5, wait=1) as claim:
            for job in claim.jobs:
                job.commit()

    def _pop(self) -> None:
        self._client.pop("pushed", 5, wait=1)
