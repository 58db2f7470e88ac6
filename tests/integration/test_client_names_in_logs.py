"""Logs and histories name clients by name, host and pid, and say what they are about in fields."""

import json
import os
import re
import socket
from collections.abc import Iterator

import pytest

from sluicemq import Client, Job, Producer, Reject, Worker
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, "test_who", config={"devices": []}, args=["--log-format=json"]) as running:
        yield running


@pytest.mark.parametrize(("name", "called"), [("mailer", "mailer"), (None, "python")])
def test_a_worker_is_named_by_name_host_and_pid(broker: BrokerProcess, name: str | None, called: str) -> None:
    endpoint, queue = broker.doors["smq"], f"named-{called}"

    def refuse(_job: Job) -> None:
        raise Reject("no")

    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        job = producer.push(queue, b"x")
        job.wait(TIMEOUT)
        with Worker(queue, refuse, name=name, endpoint=endpoint):
            wait_until(lambda: client.jobs.get(queue, job.id).state == "dead")
        assert (
            client.show(queue, job.id)["errors"][-1]["worker"]
            == f"{called} {socket.gethostname()}:{os.getpid()}"
        )


def test_a_line_about_a_queue_has_it_as_a_field(broker: BrokerProcess) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("made", b"x").wait(TIMEOUT)
    broker.wait_log("queue made: ")
    lines = [json.loads(line) for line in broker.log_text().splitlines()]
    assert [line["queue"] for line in lines if "queue made: " in line["message"]] == ["made"]
    assert all("queue" not in line for line in lines if "ready (pid" in line["message"])


def test_a_line_for_people_has_date_and_time(mongo_uri: str) -> None:
    with BrokerProcess(mongo_uri, "test_who", config={"devices": []}) as broker:
        broker.wait_log("ready")
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO +broker: ", broker.log_text())
