"""Clients with the endpoints of two brokers: faults and restarts of one cost no job and no error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Self

import pytest

from sluicemq import Client, Job, Producer, Worker
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

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
