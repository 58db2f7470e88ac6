"""SIGTERM: nothing that was received is lost, running jobs may finish, the rest goes back uncharged."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from pymongo import MongoClient
from pymongo.collection import Collection

from faults.fleet import Fleet
from faults.mongo_proxy import CuttingProxy
from sluicemq import Client, Job, Producer, Worker
from support.broker_process import BrokerProcess
from support.waiting import wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

CONFIG = {"broker": {"stop_timeout": 4.0}}
PATIENT = {"broker": {"stop_timeout": 1000.0}}

Jobs = Collection[dict[str, Any]]


@pytest.fixture
def broker(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, database, config=CONFIG) as broker:
        yield broker


@pytest.fixture
def patient(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, database, config=PATIENT) as broker:
        yield broker


@pytest.fixture
def jobs(mongo_uri: str, database: str) -> Iterator[Jobs]:
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        yield client[database]["queue.default"]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


def test_under_a_flood_everything_received_is_stored_or_counted_as_refused(
    mongo_uri: str, database: str, jobs: Jobs, fleet: Fleet
) -> None:
    # A fifth of it passes in any case: a flood is never quiet.
    with BrokerProcess(mongo_uri, database, config={"broker": {"stop_timeout": 30.0}}) as broker:
        fleet.start("flood.py", broker.doors["push"], 200)
        wait_until(lambda: counters(broker)["pushed"] > 5000, what="the flood")
        code = broker.terminate()
        counted = counted_at_the_end(broker)
    assert code == 0
    assert counted["received"] == counted["pushed"] + counted["refused"]
    assert counted["unclear"] == 0
    assert counted["pushed"] == jobs.count_documents({})


def test_a_mongodb_that_is_away_is_not_waited_for(mongo_uri: str, database: str, fleet: Fleet) -> None:
    with CuttingProxy(mongo_uri) as proxy, BrokerProcess(proxy.uri, database, config=CONFIG) as broker:
        with_a_job(fleet, broker)
        fleet.start("flood.py", broker.doors["push"], 200)
        wait_until(lambda: counters(broker)["pushed"] > 5000, what="the flood")
        proxy.freeze()
        assert broker.terminate() == 0


def test_a_signal_after_a_second_stops_at_once(patient: BrokerProcess, fleet: Fleet, jobs: Jobs) -> None:
    with_a_job(fleet, patient)
    signal_until_it_hurries(patient)
    assert left(jobs) == [("ready", 0)]


def test_it_stops_at_once_too_where_mongodb_does_not_answer(mongo_uri: str, database: str) -> None:
    with (
        CuttingProxy(mongo_uri) as proxy,
        BrokerProcess(proxy.uri, database, config=PATIENT) as broker,
        zmq.Context() as context,
        context.socket(zmq.PUSH) as producer,
    ):
        producer.connect(broker.doors["push"])
        producer.send(b"first")
        wait_until(lambda: counters(broker)["pushed"] == 1, what="the first job")
        proxy.freeze()
        producer.send(b"second")
        signal_until_it_hurries(broker)


def signal_until_it_hurries(broker: BrokerProcess) -> None:
    """Like somebody who presses Ctrl-C again and again."""
    wait_until(
        lambda: "second signal" in broker.log_text() or broker.send_signal(signal.SIGINT), what="its hurry"
    )
    assert broker.process.wait(60) == 0


def test_two_signals_within_a_second_are_one(patient: BrokerProcess, fleet: Fleet, jobs: Jobs) -> None:
    worker = with_a_job(fleet, patient)
    patient.send_signal(signal.SIGTERM)
    patient.send_signal(signal.SIGINT)
    patient.wait_log("waiting for 1 running jobs")
    worker.go()
    assert patient.process.wait(60) == 0
    assert left(jobs) == []


def test_a_stopping_broker_lets_running_jobs_finish(patient: BrokerProcess, fleet: Fleet, jobs: Jobs) -> None:
    worker = with_a_job(fleet, patient)
    patient.process.terminate()
    patient.wait_log("waiting for 1 running jobs")
    worker.go()
    assert patient.process.wait(60) == 0
    assert left(jobs) == []


def test_a_stopping_broker_gives_back_what_does_not_finish_and_burns_no_attempt(
    broker: BrokerProcess, fleet: Fleet, jobs: Jobs
) -> None:
    worker = fleet.worker("library", broker.doors["smq"], "default", 10, 2)
    push(broker, [b"hold"] * 30)
    worker.wait_said("got", 2)
    code = broker.terminate()
    assert code == 0
    assert left(jobs) == [("ready", 0)] * 30


def test_a_stopping_library_worker_finishes_running_jobs_and_gives_back_the_others_uncharged(
    broker: BrokerProcess, fleet: Fleet, jobs: Jobs
) -> None:
    worker = fleet.worker("library", broker.doors["smq"], "default", 10, 2)
    push(broker, [b"hold"] * 10)
    worker.wait_said("got", 2)
    worker.process.terminate()
    wait_until(lambda: left(jobs).count(("ready", 0)) == 8, what="the staged jobs' return")
    worker.go(2)
    assert worker.process.wait(60) == 0
    assert left(jobs) == [("ready", 0)] * 8


def test_a_producer_that_pushes_during_a_restart_loses_nothing(broker: BrokerProcess, jobs: Jobs) -> None:
    numbers = [b"%d" % number for number in range(20_000)]
    pushing = threading.Thread(target=push, args=(broker, numbers))
    pushing.start()
    wait_until(lambda: counters(broker)["pushed"] > 1000, what="the first pushes")
    broker.terminate()
    broker.restart()
    pushing.join(60)
    assert not pushing.is_alive()
    assert sorted(job["payload"] for job in jobs.find({}, {"payload": 1})) == sorted(numbers)


def test_a_worker_goes_on_after_a_restart(broker: BrokerProcess, jobs: Jobs) -> None:
    handled: list[tuple[bytes, int]] = []

    def handle(job: Job) -> None:
        handled.append((job.payload, job.attempt))

    with Worker("default", handle, prefetch=50, endpoint=broker.doors["smq"]):
        broker.terminate()
        broker.restart()
        push(broker, [b"after"])
        wait_until(lambda: not left(jobs) and handled, what="the job's commit")

    assert handled == [(b"after", 1)]


def with_a_job(fleet: Fleet, broker: BrokerProcess) -> Any:
    """A REP worker that holds a job."""
    worker = fleet.worker("rep", broker.doors["rep"])
    push(broker, [b"hold"])
    worker.wait_said("got")
    return worker


def push(broker: BrokerProcess, payloads: list[bytes]) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for payload in payloads:
            producer.push("default", payload)


def counters(broker: BrokerProcess) -> Any:
    with Client(endpoint=broker.doors["smq"]) as client:
        return {"pushed": 0, **client.counters()["counters"]}


def counted_at_the_end(broker: BrokerProcess) -> dict[str, int]:
    line = re.search(r"counted: (.*)", broker.log_text())
    assert line, "no line with what was counted"
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line[1])}


def left(jobs: Jobs) -> list[tuple[str, int]]:
    return [(job["state"], job["attempts"]) for job in jobs.find({}, {"state": 1, "attempts": 1})]
