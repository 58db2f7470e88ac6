"""A broker that is stopped for longer than ``silence`` charges no job with a worker's death."""

from __future__ import annotations

import signal
import threading
import time

from sluicemq import Client, Job, Producer, Worker
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

SILENCE = 4.0
CONFIG = {"broker": {"lease": 60.0, "poll": 0.5, "heartbeat": 0.4, "silence": SILENCE}, "devices": []}


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
        time.sleep(SILENCE * 1.5)  # the subject of this test: nothing runs meanwhile
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
