"""An insert is applied, and repeated or late: what was done and committed meanwhile is not run again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from faults.mongo_proxy import Fault, Held, Late
from faults.proxied import ProxiedBroker, SharedQueue, proxied_brokers
from faults.replica_set import ReplicaSet
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos everything at once.
pytestmark = pytest.mark.full

full = pytest.mark.full
JOBS = [b"%d" % number for number in range(20)]
#: Codes of write-concern errors: WriteConcernFailed; ShutdownInProgress, which the driver retries.
FAILED, SHUTDOWN = 64, 91


@pytest.fixture(scope="module")
def replica_set() -> Iterator[ReplicaSet]:
    """A MongoDB that fails on command; all tests here use it."""
    with ReplicaSet() as replica_set:
        yield replica_set


@pytest.fixture(scope="module")
def brokers(replica_set: ReplicaSet) -> Iterator[list[ProxiedBroker]]:
    with proxied_brokers(uri_of(replica_set), f"test_{token_hex(6)}") as brokers:
        yield brokers


@pytest.fixture
def shared(brokers: list[ProxiedBroker], replica_set: ReplicaSet) -> Iterator[SharedQueue]:
    with MongoClient[dict[str, Any]](uri_of(replica_set)) as mongo:
        shared = SharedQueue(brokers, mongo, f"q{token_hex(4)}")
        try:
            yield shared
        finally:
            shared.close()


def uri_of(replica_set: ReplicaSet) -> str:
    return f"mongodb://127.0.0.1:{replica_set.ports[0]}/?directConnection=true"


@pytest.mark.parametrize("times", [1, 2, 3, pytest.param(5, marks=full)])
def test_jobs_done_elsewhere_are_not_stored_again_by_lost_replies(shared: SharedQueue, times: int) -> None:
    held = shared.a.proxy.hold(shared.on("insert"), times)

    def lose_the_replies() -> None:
        for count in range(1, times + 1):
            held.wait(count)
            held.met[count - 1].cut()

    done_once(shared, held, lose_the_replies)


@pytest.mark.parametrize("seconds", [7, pytest.param(20, marks=full)])
def test_jobs_done_elsewhere_are_not_stored_again_by_a_cut(shared: SharedQueue, seconds: float) -> None:
    """Longer than the driver retries."""
    held = shared.a.proxy.hold(shared.on("insert"))

    def come_back_later() -> None:
        shared.a.proxy.cut_off()
        threading.Event().wait(seconds)
        shared.a.proxy.connect()

    done_once(shared, held, come_back_later)


@full
def test_jobs_done_at_another_broker_are_not_stored_again_when_no_reply_comes(shared: SharedQueue) -> None:
    """The driver gives up by itself."""
    done_once(shared, shared.a.proxy.hold(shared.on("insert")), lambda: None)


def done_once(shared: SharedQueue, held: Fault[Held], afterwards: Callable[[], None]) -> None:
    """Push at A, whose insert is held; all is done at B; what happens then leads to no other delivery."""
    producer = shared.client(shared.a)
    with shared.working(shared.b) as handled:
        answer = producer.push_all(JOBS)
        held.wait()
        wait_until(lambda: len(handled) == len(JOBS), what="the jobs at the other broker")
        shared.wait_empty()
        afterwards()
        assert producer.answer(answer, 60) == []
        shared.wait_empty()  # whatever was stored again has been delivered again
        assert handled == Counter(JOBS)


@pytest.mark.parametrize("at", ["the other broker", "the same broker"])
@pytest.mark.parametrize("times", [1, 2, pytest.param(4, marks=full)])
def test_an_insert_that_lands_late_stores_nothing_done(shared: SharedQueue, times: int, at: str) -> None:
    # Given inserts that are kept back, whose sender repeats them
    delayed = shared.a.proxy.delay(shared.on("insert"), times)
    producer = shared.client(shared.a)
    with shared.working(shared.b if at == "the other broker" else shared.a) as handled:
        answer = producer.push_all(JOBS)
        for count in range(1, times + 1):
            delayed.wait(count)
            delayed.met[count - 1].cut()
        assert producer.answer(answer, 60) == []
        wait_until(lambda: len(handled) == len(JOBS), what="the jobs")
        shared.wait_empty()
        for late in delayed.met:
            late.land()
        shared.wait_empty()
        assert handled == Counter(JOBS)


@full
@pytest.mark.timeout(300)
def test_an_insert_that_lands_after_45_seconds_stores_nothing_that_was_done(shared: SharedQueue) -> None:
    """Nobody cuts anything: the driver gives up by itself."""
    delayed: Fault[Late] = shared.a.proxy.delay(shared.on("insert"), 2)
    producer = shared.client(shared.a)
    with shared.working(shared.a) as handled:
        answer = producer.push_all(JOBS)
        assert producer.answer(answer, 90) == []
        wait_until(lambda: len(handled) == len(JOBS), what="the jobs")
        shared.wait_empty()
        for late in delayed.met:
            late.land()
        shared.wait_empty()
        assert handled == Counter(JOBS)


@pytest.mark.parametrize("code", [FAILED, SHUTDOWN])
@pytest.mark.parametrize("times", [1, 3])
def test_jobs_done_at_another_broker_are_not_stored_again_after_write_concern_errors(
    shared: SharedQueue, replica_set: ReplicaSet, code: int, times: int
) -> None:
    doubt_inserts(replica_set, shared, code, times)
    held = shared.a.proxy.hold(shared.on("insert"))
    done_once(shared, held, held.release)


@pytest.mark.parametrize("code", [FAILED, SHUTDOWN])
@pytest.mark.parametrize("times", [1, 3])
def test_jobs_whose_durability_was_in_doubt_are_delivered_once_at_the_same_broker(
    shared: SharedQueue, replica_set: ReplicaSet, code: int, times: int
) -> None:
    doubt_inserts(replica_set, shared, code, times)
    producer = shared.client(shared.a)
    with shared.working(shared.a) as handled:
        for job in JOBS:
            producer.push(job)
        wait_until(lambda: len(handled) == len(JOBS), what="the jobs")
        shared.wait_empty()
        assert handled == Counter(JOBS)


def doubt_inserts(replica_set: ReplicaSet, shared: SharedQueue, code: int, times: int) -> None:
    """The next inserts into the queue are applied, and MongoDB says that it does not know how durably."""
    data = {
        "failCommands": ["insert"],
        "writeConcernError": {"code": code, "errmsg": "injected by the test"},
        "namespace": f"{shared.database.name}.queue.{shared.name}",
    }
    replica_set.fail(replica_set.ports[0], "failCommand", {"times": times}, data)
