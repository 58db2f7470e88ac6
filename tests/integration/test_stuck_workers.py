"""Handlers that hang are named: in the list of workers, logs, incidents. Workers are made quiet, and end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluicemq import Client, Job, Producer, Worker
from sluicemq.protocol.rows import WorkerRow
from support.broker_process import BrokerProcess
from support.broker_under_test import serving
from support.http_reader import Web
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    queues = {"hangs": {"visibility_timeout": 0.3, "backoff": "none"}, "one": {}, "two": {}}
    settings: dict[str, Any] = {"poll": 0.2, "history": True, "http": "127.0.0.1:0"}
    with serving(mongo_uri, [], queues=queues, **settings) as broker:
        yield broker.process


def test_a_handler_that_hangs_is_named_with_its_job_and_the_next_one_waits(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a worker whose only thread does not return
    go_on, endpoint = threading.Event(), broker.doors["smq"]

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
            broker.wait_log(f"job {stuck} has run for")
            found = wait_until(lambda: incidents(broker, "stuck"))
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


def test_a_quiet_worker_ends_its_job_and_gets_no_other(broker: BrokerProcess) -> None:
    go_on, begun, endpoint = threading.Event(), threading.Semaphore(0), broker.doors["smq"]

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


def test_a_worker_is_stopped_with_all_its_queues_after_what_it_has_begun(broker: BrokerProcess) -> None:
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        worker = Worker(["one", "two"], lambda job: job.payload, endpoint=endpoint, name="stopped")
        runs = threading.Thread(target=worker.run)
        runs.start()
        assert producer.call("two", b"x", TIMEOUT) == b"x"
        assert client.workers.stop(one(client, "two").name) == 2
        runs.join(TIMEOUT)
        assert not runs.is_alive()
        wait_until(lambda: not client.workers.list("two"))
