"""Back-off, expiry, kept jobs and each job's own settings, as they look from every door."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import zmq

from sluicemq import Client, Job, Producer, Retry, Worker
from support.broker_under_test import ANY_PORT, BrokerUnderTest, Doors, serving, spare
from support.raw_sockets import code, receive
from support.waiting import wait_until

WAIT = 0.6
#: What a queue's own settings are here, unless a header says otherwise.
OWN: dict[str, Any] = {
    "backoff": "fixed",
    "backoff_base": WAIT,
    "backoff_jitter": 0,
    "max_attempts": 3,
    "visibility_timeout": 77.0,
    "priority": 7,
    "ttl": 500,
    "delay": 50,
    "keep_done": 60,
    "dead_retention": 600,
    "on_expiry": "dead",
}
LASTING = {name: OWN[name] for name in OWN if name not in ("ttl", "delay", "keep_done")}
#: What is rolled back in these queues comes again in this time only if its worker says so.
LONG = 1000.0
SLOW: list[dict[str, Any]] = [
    {"kind": "queue", "queue": "slow_ask-0"},
    {"kind": "queue", "queue": "slow_ask-1"},
    {"kind": "streamer", "queue": "slow_ack-0", "ack": "explicit", "commit": ANY_PORT},
    {"kind": "streamer", "queue": "slow_pop-0", "commit": ANY_PORT},
]


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    slow = [{"frontend": ANY_PORT, "backend": ANY_PORT, **device} for device in SLOW]
    devices = [*spare(ask=12, ack=6, pop=6), *slow]
    queues = {"*": LASTING, "settings": OWN}
    queues |= {device["queue"]: {**LASTING, "backoff_base": LONG} for device in SLOW}
    with serving(mongo_uri, devices, queues=queues, poll=0.5, lease=3) as broker:
        yield broker


def in_json(**headers: Any) -> bytes:
    return json.dumps(headers).encode()


def by_rep(broker: BrokerUnderTest, doors: Doors, verdict: list[bytes]) -> list[float]:
    worker = broker.socket(zmq.REP, doors.back)
    broker.ask(doors.front, b"", b'{"reply": "accepted"}', b"work")
    receive(worker)
    times = [time.monotonic()]
    worker.send_multipart(verdict)
    receive(worker)
    worker.send(b"done")
    return [*times, time.monotonic()]


def by_pull(broker: BrokerUnderTest, doors: Doors, verdict: list[bytes]) -> list[float]:
    worker, commits = broker.socket(zmq.PULL, doors.back), broker.socket(zmq.PUSH, doors.commit)
    broker.push(doors.front, b"work")
    receipt, _ = receive(worker)
    times = [time.monotonic()]
    commits.send_multipart([verdict[0], receipt, *verdict[1:]])
    receipt, _ = receive(worker)
    commits.send_multipart([b"COMMIT", receipt])
    return [*times, time.monotonic()]


def by_library(broker: BrokerUnderTest, doors: Doors, verdict: list[bytes]) -> list[float]:
    times: list[float] = []

    def handler(_job: Job) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise Retry("why", delay=float(verdict[2])) if len(verdict) > 2 else OSError("why")

    with Worker(doors.queue, handler, endpoint=broker.doors["smq"]):
        broker.push(doors.front, b"work")
        wait_until(lambda: len(times) == 2, what="the second delivery")
    return times


WAYS = pytest.mark.parametrize(
    ("shape", "roll_back"), [("ask", by_rep), ("ack", by_pull), ("pop", by_library)]
)


@WAYS
def test_a_job_that_was_rolled_back_comes_again_after_its_backoff(
    broker: BrokerUnderTest, shape: str, roll_back: Callable[..., list[float]]
) -> None:
    before, after = roll_back(broker, broker.take(shape), [b"ROLLBACK"])
    assert after - before >= WAIT - 0.05


@WAYS
def test_a_job_that_was_rolled_back_comes_again_at_once_if_the_worker_says_so(
    broker: BrokerUnderTest, shape: str, roll_back: Callable[..., list[float]]
) -> None:
    assert roll_back(broker, broker.take(f"slow_{shape}"), [b"ROLLBACK", b"why", b"0"])


def test_the_wait_is_as_the_queues_settings_have_it_and_is_told_by_the_job(broker: BrokerUnderTest) -> None:
    doors = broker.take("slow_ask")
    worker = broker.socket(zmq.REP, doors.back)
    broker.ask(doors.front, b"", in_json(reply="accepted"), b"work")
    receive(worker)
    worker.send_multipart([b"ROLLBACK", b"why"])
    broker.await_count(doors.queue, "scheduled", 1)
    [job] = broker.admin.peek(doors.queue, "scheduled")
    assert job["eligible_at"] - job["errors"][0]["at"] == pytest.approx(LONG, abs=1)
    assert job["errors"][0]["worker"]


def test_an_expired_job_that_goes_to_the_dead_letters_answers_that_it_has_expired_also_when_asked_again(
    broker: BrokerUnderTest,
) -> None:
    doors = broker.take("ask")
    question = (b"", in_json(id="late", ttl=0.1), b"work")
    for _ in range(2):
        assert code(broker.ask(doors.front, *question)) == "EXPIRED"
    letter = broker.dead_letter(doors.queue)
    assert (letter["id"], letter["reason"], letter["attempts"]) == ("late", "expired", 0)


def done_by_rep(broker: BrokerUnderTest, doors: Doors) -> bytes:
    worker = broker.socket(zmq.REP, doors.back)
    receive(worker)
    worker.send(b"result")
    return b"result"


def done_by_pull(broker: BrokerUnderTest, doors: Doors) -> bytes:
    worker, commits = broker.socket(zmq.PULL, doors.back), broker.socket(zmq.PUSH, doors.commit)
    receipt, _ = receive(worker)
    commits.send_multipart([b"COMMIT", receipt, b"result"])
    return b"result"


def done_by_pop(broker: BrokerUnderTest, doors: Doors) -> bytes:
    receive(broker.socket(zmq.PULL, doors.back))
    return b""


def done_by_library(broker: BrokerUnderTest, doors: Doors) -> bytes:
    with Worker(doors.queue, lambda _job: b"result", endpoint=broker.doors["smq"]):
        broker.await_count(doors.queue, "done", 1)
    return b"result"


@pytest.mark.parametrize(
    ("shape", "work"),
    [("ask", done_by_rep), ("ack", done_by_pull), ("pop", done_by_pop), ("pop", done_by_library)],
)
def test_a_kept_job_stays_as_done_with_its_whole_story(
    broker: BrokerUnderTest, shape: str, work: Callable[[BrokerUnderTest, Doors], bytes]
) -> None:
    doors = broker.take(shape)
    pushed = time.time()
    headers: dict[str, Any] = {"keep_done": 30, "headers": {"k": "v"}}
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push(doors.queue, b"work", id="kept", **headers).wait(60)
    result = work(broker, doors)
    broker.await_count(doors.queue, "done", 1)
    [job] = broker.admin.peek(doors.queue, "done")
    assert (job["payload"], job["result"], job["headers"]) == (b"work", result, {"k": "v"})
    assert job["attempts"] == 1
    assert job["worker"]
    assert pushed - 5 < job["created_at"] <= job["started_at"] <= job["ended_at"] < time.time() + 5
    assert job["remove_at"] == pytest.approx(job["ended_at"] + 30)


def test_the_start_of_a_kept_job_is_that_of_its_last_delivery(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    broker.ask(doors.front, b"", in_json(keep_done=30, reply="accepted"), b"work")
    receive(worker)
    worker.send_multipart([b"ROLLBACK", b"not yet", b"0.3"])
    receive(worker)
    wait_until(lambda: broker.counts(doors.queue)["reserved"] == 1)
    worker.send(b"done")
    broker.await_count(doors.queue, "done", 1)
    [job] = broker.admin.peek(doors.queue, "done")
    assert job["attempts"] == 2
    assert job["created_at"] + 0.3 <= job["started_at"] + 0.002
    assert job["errors"][0]["at"] <= job["started_at"] <= job["ended_at"]


QUEUE = "settings"
NOT_BEFORE = float(round(time.time()) + 50_000)
HEADERS: dict[str, Any] = {
    "priority": 0,
    "delay": 4000,
    "not_before": datetime.fromtimestamp(NOT_BEFORE, UTC).isoformat(),
    "ttl": 90_000,
    "max_attempts": 0,
    "visibility_timeout": 9.5,
    "backoff": "linear",
    "keep_done": 0,
}


def by_push(broker: BrokerUnderTest, job_id: str, headers: dict[str, Any]) -> None:
    broker.push(broker.take("pop").front, QUEUE.encode(), in_json(id=job_id, **headers), b"x")


def by_req(broker: BrokerUnderTest, job_id: str, headers: dict[str, Any]) -> None:
    all_headers = in_json(id=job_id, reply="accepted", **headers)
    assert broker.ask(broker.take("ask").front, QUEUE.encode(), all_headers, b"x") == [job_id.encode()]


def by_producer(broker: BrokerUnderTest, job_id: str, headers: dict[str, Any]) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push(QUEUE, b"x", id=job_id, **headers).wait(60)


def by_command(broker: BrokerUnderTest, job_id: str, headers: dict[str, Any]) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in headers.items()]
    program = "from sluicemq.cli import main; main()"
    endpoint = broker.doors["smq"]
    command = [sys.executable, "-c", program, "--endpoint", endpoint, "push", QUEUE, "x", "--id", job_id]
    subprocess.run([*command, *options], check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("push", [by_push, by_req, by_producer, by_command])
def test_every_setting_is_the_queues_own_unless_the_job_has_another_at_each_door(
    broker: BrokerUnderTest, push: Callable[[BrokerUnderTest, str, dict[str, Any]], None]
) -> None:
    push(broker, f"own-{push.__name__}", HEADERS)
    push(broker, f"defaults-{push.__name__}", {})
    own, defaults = (stored(broker.admin, f"{kind}-{push.__name__}") for kind in ("own", "defaults"))
    assert {name: own[name] for name in ("priority", "max_attempts", "visibility_timeout", "keep_done")} == {
        "priority": 0, "max_attempts": 0, "visibility_timeout": 9.5, "keep_done": 0,
    }  # fmt: skip
    backoff = {"kind": "linear", "base": WAIT, "factor": 2.0, "cap": 3600.0, "jitter": 0.0}
    assert own["backoff"] == backoff
    assert own["eligible_at"] == NOT_BEFORE
    assert own["expires_at"] - own["created_at"] == pytest.approx(90_000, abs=1)
    assert defaults["priority"] == 7
    assert defaults["eligible_at"] - defaults["created_at"] == pytest.approx(50, abs=1)
    assert defaults["expires_at"] - defaults["created_at"] == pytest.approx(500, abs=1)
    assert not {"max_attempts", "visibility_timeout", "keep_done", "backoff"} & defaults.keys()


def stored(admin: Client, job_id: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        return next((row for row in admin.peek(QUEUE, "scheduled", 100) if row["id"] == job_id), None)

    wait_until(lambda: QUEUE in [queue.name for queue in admin.queues.list()], what="the making of the queue")
    return wait_until(found, what=f"the push of {job_id}")  # type: ignore[no-any-return]
