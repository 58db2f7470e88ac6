"""Whether a broker tells at once, at each of its doors, that it can't serve."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from sluicemq import Client, Producer
from sluicemq_broker.store import EVERY
from sluicemq_broker.store.availability import SILENCE
from support.broker_process import BrokerProcess
from support.http_reader import Web
from support.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(config={"broker": {"http": "127.0.0.1:0"}}) as broker:
        yield broker


def test_a_stopped_mongodb_makes_the_broker_unready_at_all_doors(broker: BrokerProcess) -> None:
    web = Web(broker.http)
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("mail", b"job").wait(60)
    with Client(timeout=60, endpoint=broker.doors["smq"]) as client:
        assert client.queues.get("mail").ready == 1
        os.kill(broker.mongod_pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            unready = wait_until(lambda: (answer := web.get("/readyz")).status == 503 and answer)
            noticed = time.monotonic() - began
            stats = client.stats()
            alive, scraped = web.get("/healthz"), web.get("/metrics")
        finally:
            os.kill(broker.mongod_pid, signal.SIGCONT)
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


def test_a_broker_that_stops_is_not_ready(broker: BrokerProcess) -> None:
    # Given a stop that waits for a job
    web, endpoint = Web(broker.http), broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer:
        producer.push("slow", b"job").wait(60)
    with Client(endpoint=endpoint) as client, client.jobs.reserve("slow", 1, wait=60):
        broker.process.terminate()
        unready = wait_until(lambda: (answer := web.get("/readyz")).status == 503 and answer)
        assert unready.json["doors"] == "the broker starts or stops"
