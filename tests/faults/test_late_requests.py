"""Requests that arrive late: their client has sent them again elsewhere, and was confirmed there."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self, TypeVar

import pytest

from sluicemq import Client, Job, Message, Producer, Publisher, Reader, Worker
from support.broker_process import BrokerProcess
from support.late_relay import LateRelay
from support.waiting import TIMEOUT, wait_until

SILENCE = 1.0
JOBS = 200
SETTINGS = {"lease": 60.0, "poll": 0.5, "heartbeat": 0.3, "silence": SILENCE}
CONFIG = {"broker": SETTINGS, "devices": []}


@contextmanager
def brokers(mongo_uri: str, database: str, count: int) -> Iterator[list[BrokerProcess]]:
    """Brokers that share a MongoDB; the last one may be the first."""
    with BrokerProcess(mongo_uri, database, config=CONFIG) as one:
        if count == 1:
            yield [one, one]
            return
        with BrokerProcess(mongo_uri, database, config=CONFIG) as other:
            yield [one, other]


@pytest.mark.parametrize("count", [1, 2])
def test_messages_in_a_relay_are_stored_once(mongo_uri: str, database: str, count: int) -> None:
    with brokers(mongo_uri, database, count) as (late, other), LateRelay(late.doors["smq"]) as relay:
        with Publisher(endpoint=late.doors["smq"]) as publisher:
            publisher.publish("orders", "a", b"0").wait(TIMEOUT)
        with through(
            relay.address, lambda: Publisher(endpoint=[relay.address, other.doors["smq"]])
        ) as publisher:
            relay.hold()
            receipts = [publisher.publish("orders", "a", b"%d" % at) for at in range(1, 100)]
            wait_until(lambda: relay.kept, what="messages in the relay")
            relay.cut()
            publisher.flush(TIMEOUT)
            relay.deliver()
            assert relay.broker_has_ended.wait(TIMEOUT)
            publisher.publish("orders", "a", b"100").wait(TIMEOUT)
        found = all_of(other)

    assert [job.payload for job in found] == [b"%d" % at for at in range(101)]
    assert [receipt.sequence for receipt in receipts] == [message.sequence for message in found[1:100]]


@pytest.mark.parametrize("wrote_before", [False, True])
def test_late_messages_are_stored_once(mongo_uri: str, database: str, *, wrote_before: bool) -> None:
    with brokers(mongo_uri, database, 2) as (frozen, other):
        if wrote_before:
            with Publisher(endpoint=frozen.doors["smq"]) as publisher:
                publisher.publish("orders", "a", b"before").wait(TIMEOUT)
        with through(
            frozen.doors["smq"], lambda: Publisher(endpoint=[frozen.doors["smq"], other.doors["smq"]])
        ) as publisher:
            with stopped(frozen):
                receipts = [publisher.publish("orders", "a", b"%d" % at) for at in range(100)]
                publisher.flush(TIMEOUT)
            with Client(endpoint=frozen.doors["smq"]) as client:
                wait_until(lambda: client.counters()["broker"]["storing"] == 0, what="all that it had read")
        found = all_of(other)

    assert [job.payload for job in found[wrote_before:]] == [b"%d" % at for at in range(100)]
    assert [receipt.sequence for receipt in receipts] == [
        message.sequence for message in found[wrote_before:]
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_jobs_in_a_relay_run_once(mongo_uri: str, database: str, count: int) -> None:
    with (
        brokers(mongo_uri, database, count) as (late, other),
        LateRelay(late.doors["smq"]) as relay,
        Runs(other) as runs,
        through(relay.address, lambda: Producer(endpoint=[relay.address, other.doors["smq"]])) as producer,
    ):
        relay.hold()
        receipts = [producer.push("mail", b"x") for _ in range(JOBS)]
        wait_until(lambda: relay.kept, what="jobs in the relay")
        relay.cut()
        producer.flush(TIMEOUT)
        runs.wait_for(JOBS)
        relay.deliver()
        assert relay.broker_has_ended.wait(TIMEOUT)
        producer.push("mail", b"last").wait(TIMEOUT)
        runs.wait_for(JOBS + 1)

    assert runs.again == {}
    assert runs.count.keys() >= {receipt.id for receipt in receipts}


def test_jobs_at_a_broker_that_stood_still_run_once(mongo_uri: str, database: str) -> None:
    with brokers(mongo_uri, database, 2) as (frozen, other), Runs(other) as runs:
        endpoints = [frozen.doors["smq"], other.doors["smq"]]
        with through(endpoints[0], lambda: Producer(endpoint=endpoints)) as producer:
            producer.push("mail", b"first").wait(TIMEOUT)
            with stopped(frozen):
                receipts = [producer.push("mail", b"x") for _ in range(JOBS)]
                producer.flush(TIMEOUT)
                runs.wait_for(JOBS + 1)
            with Client(endpoint=frozen.doors["smq"]) as client:
                wait_until(lambda: not client.counters()["broker"]["storing"], what="its rest")
            producer.push("mail", b"last").wait(TIMEOUT)
            runs.wait_for(JOBS + 2)
    assert runs.again == {}
    assert runs.count.keys() >= {receipt.id for receipt in receipts}


def test_a_pause_in_a_relay_does_not_undo_a_later_resume(mongo_uri: str, database: str) -> None:
    with (
        brokers(mongo_uri, database, 1) as (broker, _),
        LateRelay(broker.doors["smq"]) as relay,
        through(relay.address, lambda: Client(endpoint=[relay.address, broker.doors["smq"]])) as client,
    ):
        with Producer(endpoint=broker.doors["smq"]) as producer:
            producer.push("mail", b"x").wait(TIMEOUT)
        relay.hold()
        pausing = threading.Thread(target=client.pause, args=("mail",))
        pausing.start()
        wait_until(lambda: relay.kept, what="the request in the relay")
        relay.cut()
        pausing.join(TIMEOUT)
        client.resume("mail")
        relay.deliver()
        assert relay.broker_has_ended.wait(TIMEOUT)

        assert not client.queues()[0]["paused"]


class Runs:
    """A worker of queue ``mail`` at one broker, and how often each job ran."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.count: Counter[str] = Counter()
        self._worker = Worker("mail", self._handle, concurrency=4, endpoint=broker.doors["smq"])

    @property
    def again(self) -> dict[str, int]:
        return {job: count for job, count in self.count.items() if count > 1}

    def wait_for(self, jobs: int) -> None:
        wait_until(lambda: len(self.count) >= jobs, what=f"{jobs} jobs")

    def _handle(self, job: Job) -> None:
        self.count[job.id] += 1

    def __enter__(self) -> Self:
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()


Connected = TypeVar("Connected", Publisher, Producer, Client)


def through(endpoint: str, make: Callable[[], Connected]) -> Connected:
    """Return one that is connected there, of two endpoints that it may choose from."""
    while True:
        made = make()
        if wait_until(partial(getattr, made, "connected_to"), what="a connection") == endpoint:
            return made
        made.close()


@contextmanager
def stopped(broker: BrokerProcess) -> Iterator[None]:
    """Let a broker stand still for longer than its clients wait for a sign of life."""
    broker.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        yield
        time.sleep(max(0.0, began + 1.5 * SILENCE - time.monotonic()))  # the subject of these tests
    finally:
        broker.send_signal(signal.SIGCONT)


def all_of(broker: BrokerProcess) -> list[Message]:
    with Reader("orders", endpoint=broker.doors["smq"]) as reader:
        return list(reader)
