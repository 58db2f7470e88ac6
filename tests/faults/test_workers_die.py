"""A worker dies, freezes, or is killed by its job: others get the job, and only a poison job ends dead."""

import time
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from faults.fleet import Fleet, Program
from sluicemq import Client, Producer
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos everything at once.
pytestmark = pytest.mark.full

KINDS = ["rep", "pull", "library"]
BEATS = {"heartbeat": 0.5, "silence": 3.0}
#: So long that a test which waits for it fails.
NEVER = {"heartbeat": 1000.0, "silence": 3000.0}
ROUNDS = 3
HOLD = "hold"

Stored = Callable[[], list[dict[str, Any]]]

CONFIG: dict[str, Any] = {
    "broker": {"poll": 0.5},
    "queues": {"default": {"backoff": "none"}},  # deaths follow each other at once
    "devices": [
        {
            "kind": "streamer",
            "frontend": ANY_PORT,
            "backend": ANY_PORT,
            "commit": ANY_PORT,
            "ack": "explicit",
            "prefetch": 100,
        },
        {"kind": "queue", "queue": "default", "frontend": ANY_PORT, "backend": ANY_PORT},
    ],
}


@pytest.fixture(scope="module", params=[BEATS], ids=["beats"])
def running_broker(mongo_uri: str, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """One broker for all tests here; their queue is empty and without workers when each of them begins."""
    config = {**CONFIG, "broker": {**CONFIG["broker"], **request.param}}
    with (
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        BrokerProcess(mongo_uri, f"test_{token_hex(6)}", config=config) as broker,
    ):
        yield broker
        mongo.drop_database(broker.config["broker"]["database"])


@pytest.fixture
def broker(running_broker: BrokerProcess, client: Client, stored: Stored) -> BrokerProcess:
    wait_until(lambda: workers(client) == 0, what="the leaving of the former test's workers")
    client.queues.purge("default", "dead").result()
    assert stored() == []
    return running_broker


@pytest.fixture
def client(running_broker: BrokerProcess) -> Iterator[Client]:
    with Client(endpoint=running_broker.doors["smq"]) as client:
        yield client


@pytest.fixture
def stored(mongo_uri: str, running_broker: BrokerProcess) -> Iterator[Stored]:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        jobs = mongo[running_broker.config["broker"]["database"]]["queue.default"]
        yield lambda: list(jobs.find({}))


@pytest.mark.parametrize("running_broker", [NEVER], indirect=True, ids=["never"])
@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(20, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_job_of_a_killed_worker_goes_to_another_at_once_and_waits_for_no_silence(
    broker: BrokerProcess, client: Client, fleet: Fleet, stored: Stored, kind: str, rounds: int
) -> None:
    survivor = start_worker(fleet, broker, kind)
    for number in range(rounds):
        other = start_worker(fleet, broker, kind)
        wait_until(lambda: workers(client) == 2, what="the workers' coming")
        job = f"{HOLD}-{number}"
        push(broker, job)
        holder, survivor = whoever_has(job, [survivor, other])
        holder.end()
        wait_for(job, survivor)
        survivor.go()
        survivor.wait_said("done", len(survivor.said("got")))
        wait_until(lambda: not stored(), what="the job's commit")


@pytest.mark.parametrize("kind", KINDS)
def test_the_job_of_a_frozen_worker_goes_to_another_and_a_late_answer_changes_nothing(
    broker: BrokerProcess, client: Client, fleet: Fleet, stored: Stored, kind: str
) -> None:
    team = [start_worker(fleet, broker, kind), start_worker(fleet, broker, kind)]
    wait_until(lambda: workers(client) == 2, what="the workers' coming")
    push(broker, HOLD)
    frozen, other = whoever_has(HOLD, team)

    frozen.freeze()
    wait_for(HOLD, other)
    frozen.thaw()
    frozen.go()
    frozen.wait_said("done")
    wait_until(lambda: workers(client) == 2, what="the frozen worker's return")
    if kind == "pull":  # the others' answers were dropped with their connections
        wait_until(lambda: client.counters().counters.get("late_verdicts"), what="the late answer")

    (job,) = stored()
    assert job["state"] == "reserved"
    assert job["attempts"] == 2
    seen = "nothing heard for 3 s" if kind == "library" else "no answer to heartbeats for 3.0 s"
    assert job["errors"][-1]["reason"] == f"the worker is taken for dead: {seen}"
    other.go()
    wait_until(lambda: not stored(), what="the job's commit")


@pytest.mark.parametrize("kind", ["rep", "pull"])
def test_a_job_that_kills_its_worker_ends_dead_with_its_history_and_takes_no_other_with_it(
    broker: BrokerProcess, client: Client, fleet: Fleet, stored: Stored, kind: str
) -> None:
    fine = [f"fine-{number}" for number in range(20)]
    push(broker, *fine[:10], "poison", *fine[10:])
    deaths = work_until(lambda: start_worker(fleet, broker, kind), lambda: states(stored) == ["dead"])
    assert deaths == 5
    assert_is_dead_of_its_workers(client)
    assert done(fleet) >= set(fine)


def test_a_job_that_kills_a_library_worker_with_100_jobs_takes_none_of_them_with_it(
    broker: BrokerProcess, client: Client, fleet: Fleet, stored: Stored
) -> None:
    fine = [f"fine-{number}" for number in range(150)]
    push(broker, *fine[:50], "poison", *fine[50:])
    deaths = work_until(
        lambda: fleet.worker("library", broker.doors["smq"], "default", 100, 4),
        lambda: states(stored) == ["dead"],
    )
    assert deaths == 5
    assert_is_dead_of_its_workers(client)
    assert done(fleet) >= set(fine)


def assert_is_dead_of_its_workers(client: Client) -> None:
    (job,) = client.peek("default", "dead")
    assert job["payload"] == b"poison"
    assert job["attempts"] == 5
    assert [(row["attempt"], row["reason"]) for row in job["errors"]] == [
        (attempt, "the worker died") for attempt in range(1, 6)
    ]


def work_until(start: Callable[[], Program], condition: Callable[[], bool]) -> int:
    """Keep one worker at work until ``condition``; returns how many have died."""
    deaths, worker = 0, start()
    deadline = time.monotonic() + 2 * TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"after {deaths} deaths it is not over"
        if not worker.alive:
            deaths += 1
            worker = start()
        time.sleep(0.02)
    return deaths + (not worker.alive)


def states(stored: Stored) -> list[str]:
    return [row["state"] for row in stored()]


def done(fleet: Fleet) -> set[str]:
    return {job for program in fleet.programs for (job,) in program.said("done")}


def start_worker(fleet: Fleet, broker: BrokerProcess, kind: str) -> Program:
    arguments: dict[str, list[object]] = {
        "rep": [broker.doors.get("rep")],
        "pull": [broker.doors.get("pull"), broker.doors.get("commit")],
        "library": [broker.doors["smq"], "default", 1, 1],
    }
    return fleet.worker(kind, *arguments[kind])


def push(broker: BrokerProcess, *payloads: str) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for payload in payloads:
            producer.push("default", payload.encode())


def workers(client: Client) -> int:
    return next(int(queue.workers) for queue in client.queues.list() if queue.name == "default")


def whoever_has(job: str, team: list[Program]) -> tuple[Program, Program]:
    """Who has the job, and who has not."""
    holder: Program = wait_until(
        lambda: next((worker for worker in team if has(worker, job)), None), what=f"{job}'s delivery"
    )
    (other,) = (worker for worker in team if worker is not holder)
    return holder, other


def has(worker: Program, job: str) -> bool:
    return any(name == job for _, name, _ in worker.said("got"))


def wait_for(job: str, worker: Program) -> None:
    wait_until(lambda: has(worker, job), what=f"{job} with another worker")
