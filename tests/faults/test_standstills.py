"""A store, a broker, its workers or the reader of its log stand still: all is told, nothing grows."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from click.testing import CliRunner, Result
from pymongo import MongoClient

from faults.fleet import Fleet
from sluicemq import Client, Job, Producer, Worker
from sluicemq.cli.app import app
from sluicemq.protocol.rows import plain
from sluicemq_broker.store import EVERY
from sluicemq_broker.store.availability import SILENCE
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.long_forms import long
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        try:
            yield process
        finally:
            os.kill(process.mongod_pid, signal.SIGCONT)


def run(broker: BrokerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--endpoint", broker.doors["smq"], *arguments])


def counts(broker: BrokerProcess) -> dict[str, Any]:
    with Client(endpoint=broker.doors["smq"]) as client:
        found: dict[str, Any] = plain(client.queues.get("mail"))
        return found


@pytest.mark.full
def test_a_store_that_stands_still_is_named_and_what_was_pushed_is_one_job(broker: BrokerProcess) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("mail", b"before").wait(60)
    answering = run(broker, "ping")
    assert (answering.exit_code, answering.stdout.endswith("store: ok\n")) == (0, True)
    os.kill(broker.mongod_pid, signal.SIGSTOP)
    silent = wait_until(lambda: result if (result := run(broker, "ping")).exit_code == 4 else None)
    # Then: who asks is told
    assert re.search(r"answers in .*; store: MongoDB has not answered for \d", silent.stdout)
    stats = run(broker, "stats", "--json")
    told = json.loads(stats.stdout)
    assert (stats.exit_code, "has not answered" in told["broker"]["store"]) == (0, True)
    assert told["broker"]["store_silent"] > 0
    assert "mail" in [row["name"] for row in told["queues"]]
    listed = run(broker, "queues")
    assert (listed.exit_code, "store: MongoDB has not answered" in listed.stderr) == (4, True)
    assert "mail" in listed.stdout  # as it was counted last
    # And: so is who pushes, with the id that makes it one job however often it is pushed
    pushed = run(broker, "--timeout", "1", "push", "mail", "once")
    assert pushed.exit_code == 4
    job_id = re.findall(r"--id ([0-9a-f]+),", pushed.stderr)[0]
    assert f"job {job_id} for queue mail is not confirmed after 1 s" in pushed.stderr
    assert "the broker answers, its store does not: MongoDB has not answered" in pushed.stderr
    # When: it goes on
    os.kill(broker.mongod_pid, signal.SIGCONT)
    wait_until(lambda: run(broker, "ping").exit_code == 0)
    again = run(broker, "--timeout", "60", "push", "mail", "once", "--id", job_id)
    assert (again.exit_code, again.stdout) == (0, f"{job_id}\n")
    wait_until(lambda: counts(broker)["ready"] == 2)


@pytest.fixture(scope="module")
def healthy_broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(config={"broker": {"http": "127.0.0.1:0"}}) as broker:
        yield broker


def test_a_stopped_mongodb_makes_the_broker_unready_at_all_doors(healthy_broker: BrokerProcess) -> None:
    web = Web(healthy_broker.http)
    with Producer(endpoint=healthy_broker.doors["smq"]) as producer:
        producer.push("mail", b"job").wait(60)
    with Client(timeout=60, endpoint=healthy_broker.doors["smq"]) as client:
        assert client.queues.get("mail").ready == 1
        os.kill(healthy_broker.mongod_pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            unready = wait_until(lambda: (answer := web.get("/readyz")).status == 503 and answer)
            noticed = time.monotonic() - began
            stats = client.stats()
            alive, scraped = web.get("/healthz"), web.get("/metrics")
        finally:
            os.kill(healthy_broker.mongod_pid, signal.SIGCONT)
        assert unready.json["store"].startswith("MongoDB has not answered for")
        assert (unready.json["serves"], unready.json["doors"]) == (False, "ok")
        assert stats["broker"]["store"].startswith("MongoDB has not answered for")
        assert [(row["name"], row["ready"]) for row in stats["queues"] if row["ready"]] == [("mail", 1)]
        assert alive.status == scraped.status == 200
        assert b"\nsluicemq_ready 0.0\n" in scraped.body
        wait_until(lambda: web.get("/readyz").status == 200, what="readiness")
        assert client.stats()["broker"]["store"] == "ok"
    assert noticed > SILENCE - 2 * EVERY  # not for one slow answer


def test_it_is_noticed_within_three_seconds() -> None:
    assert SILENCE + EVERY < 3


def test_a_broker_that_stops_is_not_ready(healthy_broker: BrokerProcess) -> None:
    # Given a stop that waits for a job
    web, endpoint = Web(healthy_broker.http), healthy_broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer:
        producer.push("slow", b"job").wait(60)
    with Client(endpoint=endpoint) as client, client.jobs.reserve("slow", 1, wait=60):
        healthy_broker.process.terminate()
        unready = wait_until(lambda: (answer := web.get("/readyz")).status == 503 and answer)
        assert unready.json["doors"] == "the broker starts or stops"


SHORT_SILENCE = 4.0
CONFIG = {"broker": {"lease": 60.0, "poll": 0.5, "heartbeat": 0.4, "silence": SHORT_SILENCE}, "devices": []}


def test_the_jobs_of_its_workers_are_charged_with_nothing(mongo_uri: str, database: str) -> None:
    attempts: list[int] = []
    enough = threading.Event()

    def handler(job: Job) -> None:
        attempts.append(job.attempt)
        assert enough.wait(60)

    with (
        BrokerProcess(mongo_uri, database, config=CONFIG) as broker,
        Producer(endpoint=broker.doors["smq"]) as producer,
        Client(endpoint=broker.doors["smq"]) as client,
        Worker("mail", handler, concurrency=2, endpoint=broker.doors["smq"]),
    ):
        job = producer.push("mail", b"x")
        wait_until(lambda: attempts, what="a job at work")

        broker.send_signal(signal.SIGSTOP)
        time.sleep(SHORT_SILENCE * 1.5)  # the subject of this test: nothing runs meanwhile
        broker.send_signal(signal.SIGCONT)

        client.ping(TIMEOUT)
        seen = client.show("mail", job.id)
        enough.set()
        wait_until(
            lambda: client.queues.list()[0].reserved + client.queues.list()[0].ready == 0, what="the commit"
        )
    assert "errors" not in seen
    assert "suspect" not in seen
    assert set(attempts) == {1}


MIB = 2**20


@pytest.mark.full
@pytest.mark.parametrize("count", [80_000, long(200_000)])
def test_jobs_without_a_worker_cost_the_broker_no_memory(mongo_uri: str, database: str, count: int) -> None:
    with (
        BrokerProcess(mongo_uri, database) as broker,
        Fleet() as fleet,
        MongoClient[dict[str, object]](mongo_uri) as client,
    ):
        process = psutil.Process(broker.pid)
        before = process.memory_info().rss
        fleet.start("flood.py", broker.doors["push"], 200, count)
        jobs = client[database]["queue.default"]
        of_ready: list[dict[str, Any]] = [
            {"$match": {"state": "ready"}},
            {"$group": {"_id": None, "jobs": {"$sum": {"$ifNull": ["$left", 1]}}}},
        ]
        wait_until(
            lambda: [row["jobs"] for row in jobs.aggregate(of_ready)] == [count],
            4 * TIMEOUT,
            "storing all jobs",
        )
        assert process.memory_info().rss - before < 50 * MIB


class Unheard(BrokerProcess):
    """Its stdout and stderr are a pipe that is full from the start, and that nobody reads."""

    def __init__(self, mongodb_uri: str, database: str, folder: Path) -> None:
        super().__init__(mongodb_uri, database, folder=folder)
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        try:
            while True:
                os.write(self._pipe[1], bytes(4096))
        except BlockingIOError:
            os.set_blocking(self._pipe[1], True)

    @property
    def _log_file(self) -> Path:
        return Path(f"/proc/self/fd/{self._pipe[1]}")

    def log_text(self) -> str:
        return ""

    def close(self) -> None:
        super().close()
        for end in self._pipe:
            os.close(end)


@pytest.mark.full
def test_a_broker_with_an_unread_log_serves_and_stops(mongo_uri: str, database: str, tmp_path: Path) -> None:
    with Unheard(mongo_uri, database, tmp_path) as broker, zmq.Context() as context:
        push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        push.connect(broker.doors["push"])
        pull.connect(broker.doors["pull"])
        # When there is much to be said, and then a job
        for _ in range(500):  # with 2,000 it would be cut, and the job be lost with its connection
            push.send_multipart([b"no such queue", b"no headers", b"payload"])
        push.send(b"job")
        assert pull.poll(60_000)
        assert pull.recv() == b"job"
        context.destroy(linger=0)
        assert broker.terminate() == 0
