"""Two brokers on one queue: each does its part, and clients outlast either."""

import socket as sockets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import pytest
from pymongo import MongoClient

from faults.proxied import RawClient, shared_queue
from faults.replica_set import ReplicaSet
from sluicemq import Client, Job, Producer, Worker
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.long_forms import long
from support.raw_sockets import shake_hands
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos everything at once.
pytestmark = pytest.mark.full

full = pytest.mark.full
LARGE, JOBS, DEAF = 48 * 2**10, 600, 2


@pytest.mark.parametrize(("ack", "prefetch"), [long("received", 64), long("auto", 64), ("explicit", 4)])
def test_workers_that_do_not_read_keep_their_prefetch_alone(mongo_uri: str, ack: str, prefetch: int) -> None:
    streamer = {"kind": "streamer", "frontend": ANY_PORT, "backend": ANY_PORT, "commit": ANY_PORT}
    config = {"devices": [{**streamer, "ack": ack, "prefetch": prefetch}]}
    with shared_queue(mongo_uri, queue="default", config=config) as shared, ExitStack() as stack:
        # Given workers that have shaken hands and read nothing more
        for _ in range(DEAF):
            stack.enter_context(deaf(shared.a.process.doors["pull"]))
        with Client(endpoint=shared.a.endpoint) as client:
            wait_until(lambda: client.queues.list()[0].workers == DEAF, what="the workers that don't read")
        with Producer(endpoint=shared.a.endpoint) as producer:
            for number in range(JOBS):
                producer.push("default", b"%d " % number + bytes(LARGE))
        with shared.working(shared.b, prefetch=20) as handled:
            wait_until(lambda: shared.stored() <= DEAF * prefetch, what="all but what the deaf ones keep")
            assert set(handled.values()) == {1}
            if ack == "auto":  # what they were sent is not stored any more, and nothing else is held for them
                shared.wait_empty()
            else:
                wait_until(lambda: len(handled) == JOBS - shared.stored(), what="the others' last one")


@contextmanager
def deaf(address: str) -> Iterator[sockets.socket]:
    """A PULL socket that has shaken hands, with a small receive buffer."""
    with shake_hands(address, b"PULL") as worker:
        worker.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 2**17)
        yield worker


def test_brokers_of_other_databases_leave_each_others_jobs_alone(mongo_uri: str, database: str) -> None:
    shared = {"queues": {"shared": {"database": database}}}
    names = [f"{database}_{name}" for name in "ab"]
    with MongoClient[dict[str, Any]](mongo_uri) as mongo, ExitStack() as stack:
        for name in names:
            stack.callback(mongo.drop_database, name)
        settings = {"silence": 100.0, "heartbeat": 20.0, "poll": 0.5}
        brokers = [
            stack.enter_context(
                BrokerProcess(mongo_uri, name, config={**shared, "broker": {**settings, "lease": lease}})
            )
            for name, lease in zip(names, (30.0, 0.5), strict=True)
        ]
        holder, idle = (stack.enter_context(RawClient(broker.doors["smq"], "shared")) for broker in brokers)
        running_jobs_stay(holder, idle, seconds=3)


@full
@pytest.mark.timeout(300)
def test_a_secondary_that_lags_frees_no_jobs_whatever_the_uri_prefers(database: str) -> None:
    with ReplicaSet(3) as replica_set, ExitStack() as stack:
        primary = replica_set.primary()
        lagging = next(port for port in replica_set.ports if port != primary)
        preferring = f"{replica_set.uri}&readPreference=secondaryPreferred"
        settings = {"silence": 100.0, "heartbeat": 20.0, "poll": 0.5}
        lease = 1.0
        second = stack.enter_context(
            BrokerProcess(preferring, database, config={"broker": {**settings, "lease": lease}})
        )
        with RawClient(second.doors["smq"], "shared") as early:
            early.push(b"so that the queue is known")
            early.ready(1)
            early.commit(early.take()[0])
        replica_set.fail(lagging, "stopReplProducer", "alwaysOn")
        try:
            first = stack.enter_context(
                BrokerProcess(preferring, database, config={"broker": {**settings, "lease": 30.0}})
            )
            holder, idle = (
                stack.enter_context(RawClient(broker.doors["smq"], "shared")) for broker in (first, second)
            )
            running_jobs_stay(holder, idle, seconds=15)
        finally:
            replica_set.fail(lagging, "stopReplProducer", "off")


def running_jobs_stay(holder: RawClient, idle: RawClient, seconds: float) -> None:
    """Jobs at a live broker's worker are its own, for many sweeps of another broker with an idle worker."""
    holder.ready(3)
    for number in range(3):
        holder.push(b"%d" % number)
    jobs = holder.take(3)
    idle.ready(10)
    assert not idle.offered(seconds), "the jobs of a live broker were given to another"
    for job in jobs:
        holder.commit(job)
    assert not idle.offered(0.5)
    idle.ready(0)
    assert {job.attempt for job in jobs} == {1}


#: A frozen broker is noticed by its silence.
SETTINGS = {"broker": {"lease": 3.0, "heartbeat": 0.3, "silence": 2.0}}

Brokers = list[BrokerProcess]


@pytest.fixture
def two(mongo_uri: str, database: str) -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield [stack.enter_context(BrokerProcess(mongo_uri, database, config=SETTINGS)) for _ in range(2)]


def endpoints(brokers: Brokers) -> list[str]:
    return [broker.doors["smq"] for broker in brokers]


def stop(broker: BrokerProcess) -> None:
    assert broker.terminate() == 0


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
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT)
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
