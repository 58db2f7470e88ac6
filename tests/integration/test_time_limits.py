"""Time limits and handlers that hang: interrupted, failed, named."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from sluicemq import Client, DeadError, HardTimeLimitError, Job, Producer, SoftTimeLimitError, Worker, aio
from sluicemq.protocol.rows import AttemptRow, WorkerRow
from support.broker_process import BrokerProcess
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.http_reader import Web
from support.raw_sockets import receive
from support.waiting import TIMEOUT, wait_until

SHORT = 0.1
QUEUES = {
    "*": {"backoff": "none", "max_attempts": 1},
    "slow": {"soft_time_limit": 60, "kind_soft_time_limits": {"quick": SHORT}},
    "stuck": {"hard_time_limit": SHORT},
}


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=1), queues=QUEUES) as broker:
        yield broker


@pytest.fixture
def endpoint(broker: BrokerUnderTest) -> str:
    return broker.process.doors["smq"]


def never(_job: Job) -> None:
    """Go on for ever, in Python."""
    pause = threading.Event()
    while not pause.wait(0.005):
        pass


def pushed(producer: Producer, queue: str, payload: bytes, **options: Any) -> str:
    receipt = producer.push(queue, payload, **options)
    receipt.wait(TIMEOUT)
    return receipt.id


def failed(client: Client, queue: str, job_id: str) -> AttemptRow:
    """Wait until a job is dead, and return how it has failed."""
    rows = wait_until(lambda: [row for row in client.jobs.list(queue, "dead") if row.id == job_id])
    assert rows[0].errors is not None
    found: AttemptRow = rows[0].errors[0]
    return found


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ({}, 60),
        ({"soft_time_limit": 30}, 30),
        ({"soft_time_limit": 90}, 60),
        ({"kind": "quick", "soft_time_limit": 30}, SHORT),
        ({"kind": "quick", "soft_time_limit": "100ms", "hard_time_limit": "1m"}, SHORT),
    ],
)
def test_the_smallest_of_the_limits_holds(endpoint: str, given: dict[str, object], holds: float) -> None:
    seen: list[object] = []
    with (
        Producer(endpoint=endpoint) as producer,
        Worker("slow", lambda job: seen.append(job.time_limits), endpoint=endpoint),
    ):
        producer.call("slow", b"x", TIMEOUT, **given)  # type: ignore[arg-type]
    assert seen == [(holds, 60 if "hard_time_limit" in given else None)]


def test_a_handler_is_interrupted_at_the_soft_limit_and_may_clean_up(endpoint: str) -> None:
    ended: list[str] = []

    def handle(job: Job) -> None:
        try:
            never(job)
        except SoftTimeLimitError as error:
            ended.append(f"{job.id}: {error}")
            raise

    with (
        Producer(endpoint=endpoint) as producer,
        Client(endpoint=endpoint) as client,
        Worker("slow", handle, endpoint=endpoint),
    ):
        job_id = pushed(producer, "slow", b"x", kind="quick")
        failure = failed(client, "slow", job_id)
        assert ended == [f"{job_id}: the soft time limit of the job is over"]
        assert str(failure.reason).endswith("it ran for longer than its soft_time_limit of 0.1 s")
        assert failure.type == "sluicemq.time_limits.SoftTimeLimitError"
        assert str(failure.place).endswith("test_time_limits.never")


@pytest.mark.parametrize("in_threads", [False, True])
def test_a_coroutine_is_cancelled_at_the_soft_limit(endpoint: str, in_threads: bool) -> None:  # noqa: FBT001
    async def wait(_job: aio.Job) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        handler = never if in_threads else wait
        async with (
            aio.Worker("slow", handler, in_threads=in_threads, endpoint=endpoint),
            aio.Producer(endpoint=endpoint) as producer,
        ):
            reply = await producer.submit("slow", b"x", kind="quick")
            with pytest.raises(DeadError, match=r"soft_time_limit of 0\.1 s"):
                await reply

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


def test_a_worker_whose_handler_does_not_end_at_the_hard_limit_ends(endpoint: str) -> None:
    # Given a handler that no exception reaches
    go_on = threading.Event()

    def hang(_job: Job) -> None:
        go_on.wait(TIMEOUT)

    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        worker = Worker("stuck", hang, endpoint=endpoint, stop_timeout=TIMEOUT)
        job_id = pushed(producer, "stuck", b"x")
        # Then its worker ends, and the job has failed for that reason
        with pytest.raises(HardTimeLimitError, match=f"job {job_id} of queue stuck does not end"):
            worker.run()
        reason = failed(client, "stuck", job_id).reason
        assert reason == "hard_time_limit of 0.1 s passed"
        go_on.set()


def test_a_job_at_a_plain_worker_has_failed_at_its_hard_limit(broker: BrokerUnderTest, endpoint: str) -> None:
    doors = broker.take("ask")
    asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        job_id = pushed(producer, doors.queue, b"slow", hard_time_limit=SHORT, max_attempts=1)
        receive(worker)
        failure = failed(client, doors.queue, job_id)
        assert failure.reason == "hard_time_limit of 0.1 s passed"
        assert failure.type == "sluicemq.time_limits.HardTimeLimitError"
        # Its late answer changes nothing, and it gets the next one
        worker.send(b"late")
        asker.send(b"next")
        assert receive(worker) == [b"next"]
        worker.send(b"done")
        assert receive(asker) == [b"done"]
        assert [job.id for job in client.jobs.list(doors.queue, "dead")] == [job_id]


@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_a_command_is_ended_at_its_limit(endpoint: str, limit: str) -> None:
    queue = f"commands-{limit}"
    command = "trap 'exit 3' TERM; sleep 60 & wait" if limit == "soft" else "trap '' TERM; sleep 60"
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        limits = {f"{limit}_time_limit": SHORT}
        job_id = pushed(producer, queue, b"x", **limits)
        program = [
            sys.executable,
            "-m",
            "sluicemq.cli",
            "--endpoint",
            endpoint,
            "work",
            queue,
            "--exec",
            command,
        ]
        process = subprocess.Popen([*program, "--count", "1"], stderr=subprocess.PIPE)
        reason = failed(client, queue, job_id).reason
        assert f"{limit}_time_limit of 0.1 s" in reason  # as the command, or the broker, was first
        process.communicate(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def watched_broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    queues = {"hangs": {"visibility_timeout": 0.3, "backoff": "none"}, "one": {}, "two": {}}
    settings: dict[str, Any] = {"poll": 0.2, "history": True, "http": "127.0.0.1:0"}
    with serving(mongo_uri, [], queues=queues, **settings) as broker:
        yield broker.process


def test_a_handler_that_hangs_is_named_with_its_job_and_the_next_one_waits(
    watched_broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a worker whose only thread does not return
    go_on, endpoint = threading.Event(), watched_broker.doors["smq"]

    def handle(job: Job) -> None:
        if job.payload == b"hangs":
            go_on.wait(TIMEOUT)

    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        stuck = producer.push("hangs", b"hangs", kind="slow", max_attempts=1).id
        with caplog.at_level(logging.ERROR, "sluicemq"), Worker("hangs", handle, endpoint=endpoint):
            # When its time is up, and the broker has disconnected it
            rows = wait_until(lambda: [worker for worker in client.workers.list("hangs") if worker.stuck])
            assert [job.id for job in rows[0].stuck] == [stuck]
            # Then the broker's log, an incident and the worker's log name job, worker and what to do
            watched_broker.wait_log(f"job {stuck} has run for")
            found = wait_until(lambda: incidents(watched_broker, "stuck"))
            assert stuck in found[0]["figures"]["said"]
            assert rows[0].name in found[0]["figures"]["said"]
            wait_until(lambda: any(stuck in record.getMessage() for record in caplog.records))
            # When the handler returns, the worker works again, and is not stuck
            go_on.set()
            assert producer.call("hangs", b"next", TIMEOUT, visibility_timeout=60) == b""
            wait_until(lambda: not any(worker.stuck for worker in client.workers.list("hangs")))


def incidents(broker: BrokerProcess, kind: str) -> list[dict[str, Any]]:
    answer = Web(broker.http).get("/api/v1/incidents?queue=hangs").json
    with Client(endpoint=broker.doors["smq"]) as client:
        rows = client.incidents.list("hangs").incidents
    found = [row for row in answer["incidents"] if row["kind"] == kind]
    assert not found or found[0]["at"] in [row.at for row in rows if row.kind == kind]
    return found


def one(client: Client, queue: str) -> WorkerRow:
    rows: list[WorkerRow] = wait_until(lambda: client.workers.list(queue))
    return rows[0]


def test_a_quiet_worker_ends_its_job_and_gets_no_other(watched_broker: BrokerProcess) -> None:
    go_on, begun, endpoint = threading.Event(), threading.Semaphore(0), watched_broker.doors["smq"]

    def handle(_job: Job) -> bytes:
        begun.release()
        go_on.wait(TIMEOUT)
        return b"done"

    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        with Worker("one", handle, endpoint=endpoint, name="quieted"):
            first = producer.submit("one", b"1")
            assert begun.acquire(timeout=TIMEOUT)
            name = one(client, "one").name
            assert client.workers.quiet(name) == 1
            second = producer.submit("one", b"2")
            go_on.set()
            assert first.result(TIMEOUT) == b"done"
            assert one(client, "one").quiet
            assert client.queues.get("one").ready == 1
            # And another worker has the next
            with Worker("one", handle, endpoint=endpoint, name="other"):
                assert second.result(TIMEOUT) == b"done"
        assert client.workers.quiet("nobody") == 0


def test_a_worker_is_stopped_with_all_its_queues(watched_broker: BrokerProcess) -> None:
    endpoint = watched_broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        worker = Worker(["one", "two"], lambda job: job.payload, endpoint=endpoint, name="stopped")
        runs = threading.Thread(target=worker.run)
        runs.start()
        assert producer.call("two", b"x", TIMEOUT) == b"x"
        assert client.workers.stop(one(client, "two").name) == 2
        runs.join(TIMEOUT)
        assert not runs.is_alive()
        wait_until(lambda: not client.workers.list("two"))
