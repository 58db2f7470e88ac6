"""The worked example of tasks, run as its README says."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicemq import Client
from support.broker_process import BrokerProcess
from support.ports import free_port
from support.waiting import TIMEOUT, wait_until

FOLDER = Path(__file__).parents[2] / "examples" / "tasks"


@pytest.fixture(scope="module")
def environment(mongo_uri: str) -> Iterator[dict[str, str]]:
    with BrokerProcess(mongo_uri, f"tasks-{free_port()}", config={"devices": []}) as broker:
        variables = os.environ | {"SLUICEMQ_ENDPOINT": broker.doors["smq"], "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "sluicemq.cli", "work", "shop:app", "--processes", "2"]
        with subprocess.Popen(command, cwd=FOLDER, env=variables, stderr=subprocess.DEVNULL) as worker:
            try:
                yield variables
            finally:
                worker.terminate()
                worker.wait(TIMEOUT)


def ordered(environment: dict[str, str], *lines: str) -> tuple[int, str]:
    command = [sys.executable, "shop.py", "order", *lines]
    done = subprocess.run(
        command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def test_an_order_is_priced_charged_and_told_of(environment: dict[str, str]) -> None:
    assert ordered(environment, "cups=3", "pots=1") == (0, "Ann has paid 29 at attempt 2")


def test_an_order_of_what_is_not_sold_is_a_dead_letter(environment: dict[str, str]) -> None:
    status, said = ordered(environment, "forks=1")
    assert (status, "there are no forks" in said) == (1, True)


def test_the_worker_has_declared_the_report_of_each_night(environment: dict[str, str]) -> None:
    with Client(endpoint=environment["SLUICEMQ_ENDPOINT"]) as client:
        wait_until(lambda: [schedule.name for schedule in client.schedules.list()] == ["example-shop.report"])
