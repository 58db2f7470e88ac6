"""The worked example of pipelines, run as its README says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT

PROGRAM = Path(__file__).parents[2] / "examples" / "pipelines" / "pipelines.py"


@pytest.fixture(scope="module")
def endpoint(mongo_uri: str) -> Iterator[str]:
    with BrokerProcess(mongo_uri, config={"devices": []}) as broker:
        address = broker.doors["smq"]
        command = [sys.executable, str(PROGRAM), "--endpoint", address, "work"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as worker:
            try:
                yield address
            finally:
                worker.terminate()
                worker.wait(TIMEOUT)


def ordered(endpoint: str, *arguments: str) -> tuple[int, str]:
    return asked(endpoint, "order", *arguments)


def asked(endpoint: str, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(PROGRAM), "--endpoint", endpoint, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def test_a_list_of_orders_is_done_when_each_of_them_is(endpoint: str) -> None:
    assert asked(endpoint, "list", "3 cups", "1 pot", "2 plates") == (0, "all 3 are seen to")


def test_who_has_ordered_a_list_hears_which_of_them_is_none(endpoint: str) -> None:
    status, said = asked(endpoint, "list", "3 cups", "0 pots")
    assert status == 1
    assert "an order needs a count of 1 or more, not 0" in said


def test_an_order_goes_down_the_chain_to_its_end(endpoint: str) -> None:
    assert ordered(endpoint, "3", "cups") == (0, "sent 3 cups")


def test_a_stage_chooses_another_end(endpoint: str) -> None:
    assert ordered(endpoint, "30", "cups", "--patience", "0.1") == (0, "reminded of 30 cups")


def test_who_has_ordered_hears_that_a_stage_rejects(endpoint: str) -> None:
    status, said = ordered(endpoint, "0", "cups")
    assert status == 1
    assert "an order needs a count of 1 or more, not 0" in said
