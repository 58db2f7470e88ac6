"""MongoDB is killed or frozen under load: the broker waits, bounded, and goes on by itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

import psutil
import pytest
from pymongo import MongoClient

from faults.fleet import Fleet
from sluicemq import Client, Job, Producer, Worker
from support.broker_process import BrokerProcess
from support.ports import tcp
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

MIB = 2**20
HWM, PAYLOAD = 5_000, 1_000
#: What the mark lets in is held as Python objects and in MongoDB's messages; and TCP's buffers are full.
MOST_GROWTH = 60 * MIB

CONFIG = {
    "broker": {"hwm": HWM, "lease": 2.0, "poll": 0.5},
    "devices": [{"kind": "streamer", "frontend": tcp(), "backend": tcp(), "commit": tcp(), "hwm": HWM}],
}


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(config=CONFIG) as broker:
        yield broker


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@pytest.fixture
def confirming(broker: BrokerProcess) -> Iterator[Confirming]:
    with Confirming(broker.doors["smq"]) as confirming:
        yield confirming


class Confirming:
    """A library producer that pushes to queue ``confirmed`` without pause, and notes what was confirmed."""

    def __init__(self, endpoint: str) -> None:
        self.pushed: set[str] = set()
        self.confirmed: set[str] = set()
        self.error: Exception | None = None
        self._endpoint = endpoint
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def finish(self, timeout: float = 60.0) -> None:
        """Push no more, and wait until all is confirmed."""
        self._enough.set()
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "some pushes were not confirmed"
        assert self.error is None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            with Producer(self._endpoint, window=2000, close_timeout=50) as producer:
                while not self._enough.is_set():
                    receipts = [producer.push("confirmed", b"x" * PAYLOAD) for _ in range(200)]
                    self.pushed |= {each.id for each in receipts}
                    for each in receipts:
                        each.wait(50)
                        self.confirmed.add(each.id)
        except Exception as error:  # noqa: BLE001 - told by finish()
            self.error = error


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.full)])
def test_a_killed_mongod_comes_back_and_nothing_received_or_confirmed_is_lost(
    broker: BrokerProcess, fleet: Fleet, confirming: Confirming, kills: int
) -> None:
    handled: Counter[str] = Counter()
    with Worker(broker.doors["smq"], "confirmed", lambda job: count(handled, job), prefetch=200):
        under_load(broker, fleet, confirming)

        for _ in range(kills):
            done = len(handled)
            os.kill(mongod(broker).pid, signal.SIGKILL)
            wait_for_more(handled, done)

        assert_nothing_is_lost(broker, fleet, confirming, handled)


@pytest.mark.parametrize("seconds", [4, pytest.param(20, marks=pytest.mark.full)])
def test_a_frozen_mongod_costs_bounded_memory_and_nothing_received_or_confirmed_is_lost(
    broker: BrokerProcess, fleet: Fleet, confirming: Confirming, seconds: int
) -> None:
    process = psutil.Process(broker.pid)
    before = process.memory_info().rss
    handled: Counter[str] = Counter()
    with Worker(broker.doors["smq"], "confirmed", lambda job: count(handled, job), prefetch=200):
        under_load(broker, fleet, confirming)

        most = while_frozen(mongod(broker), seconds, lambda: process.memory_info().rss)

        done = len(handled)
        wait_for_more(handled, done)
        assert most - before < MOST_GROWTH
        assert_nothing_is_lost(broker, fleet, confirming, handled)


def under_load(broker: BrokerProcess, fleet: Fleet, confirming: Confirming) -> None:
    fleet.start("flood.py", broker.doors["push"], PAYLOAD)
    wait_until(lambda: len(confirming.confirmed) > 500, what="the first confirmations")
    wait_until(lambda: stored(broker, "default") > 1500, what="the flood")


def wait_for_more(handled: Counter[str], done: int) -> None:
    wait_until(lambda: len(handled) > done + 500, what="going on")


def while_frozen(mongod: psutil.Process, seconds: float, measure: Any) -> int:
    """Freeze mongod for so long; returns the most that was measured meanwhile."""
    thawed_at, most = time.monotonic() + seconds, 0
    mongod.suspend()
    try:
        while time.monotonic() < thawed_at:
            most = max(most, measure())
            time.sleep(0.05)
    finally:
        mongod.resume()
    return most


def mongod(broker: BrokerProcess) -> psutil.Process:
    """The mongod that runs now: a restarted one has another pid."""
    found: psutil.Process = wait_until(
        lambda: next(
            (each for each in psutil.Process(broker.pid).children() if each.name() == "mongod"), None
        ),
        what="a running mongod",
    )
    return found


def assert_nothing_is_lost(
    broker: BrokerProcess, fleet: Fleet, confirming: Confirming, handled: Counter[str]
) -> None:
    confirming.finish()
    wait_until(lambda: handled.keys() >= confirming.confirmed, what="delivery of what was confirmed")
    wait_until(lambda: stored(broker, "confirmed") == 0, what="commit of what was delivered")
    assert_all_received_is_stored(broker, fleet, len(confirming.pushed))


def assert_all_received_is_stored(broker: BrokerProcess, fleet: Fleet, of_the_library: int) -> None:
    """The flood's messages have no ids that could be repeated: each one received is one document."""
    for program in fleet.programs:
        program.end()
    wait_until(
        lambda: stored(broker, "default") == counter(broker, "received") - of_the_library,
        60,
        "storing what was received",
    )


def count(handled: Counter[str], job: Job) -> None:
    handled[job.id] += 1


def counter(broker: BrokerProcess, name: str) -> int:
    with Client(broker.doors["smq"]) as client:
        return int(client.counters()["counters"].get(name, 0))


def stored(broker: BrokerProcess, queue: str) -> int:
    """Counted one by one by mongod itself, for the broker answers large counts with an estimate."""
    with MongoClient[dict[str, object]](broker.embedded_uri) as client:
        return int(client["sluicemq"][f"queue.{queue}"].count_documents({}))
