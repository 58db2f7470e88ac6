"""``kill -9`` of a broker: every confirmed job is done after all, and no attempt is charged for it."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient

from faults.fleet import Fleet
from sluicemq import Client, Job, Producer, Worker
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
