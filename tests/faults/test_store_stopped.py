"""MongoDB stands still: who asks is told that the broker is there and its store is not."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluicemq import Client, Producer
from sluicemq.cli.app import app
from sluicemq.protocol.rows import plain
from support.broker_process import BrokerProcess
from support.waiting import wait_until


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
