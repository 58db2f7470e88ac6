"""The worked example: sums that follow a stream, right after every crash and after a rebuild."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient

from sluicemq import Client
from sluicemq.protocol.rows import plain
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

#: Explores at random: by default test_model_brokers and the unit models do, for a shorter time.
pytestmark = pytest.mark.full

PROGRAM = Path(__file__).parents[2] / "examples" / "aggregate" / "aggregate.py"
#: How many documents and tags; changes are a tenth of the documents.
SIZES = [
    pytest.param((12_000, 3000), id="a tenth"),
    # Two minutes alone, more than five beside others.
    pytest.param((120_000, 30_000), id="whole", marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
]


class Example:
    """The program, on a broker and a database of its own."""

    def __init__(self, broker: BrokerProcess, uri: str, database: str, documents: int, tags: int) -> None:
        self.client = Client(endpoint=broker.doors["smq"])
        self._running: list[subprocess.Popen[bytes]] = []
        self._environ = os.environ | {"SLUICEMQ_ENDPOINT": broker.doors["smq"]}
        self._options = ["--mongodb-uri", uri, "--database", database]
        self._options += ["--documents", str(documents), "--tags", str(tags)]
        self._options += ["--changes", str(documents // 10)]

    def start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(PROGRAM), what, *self._options, "--batch", "500", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environ)
        self._running.append(process)
        return process

    def run(self, what: str, *options: str) -> tuple[int, str]:
        """Its code, and what it said, when it has ended by itself."""
        process = self.start(what, *options)
        said, complaints = process.communicate(timeout=60 * TIMEOUT)
        return process.returncode, (said + complaints).decode()

    def behind(self) -> int:
        """Changes that are not in the sums yet, as far as is known; all, before anybody has begun."""
        rows = self.client.subscriptions("documents")
        return int(rows[0]["behind"]) if rows else sys.maxsize

    def kill_when_behind_falls(self, process: subprocess.Popen[bytes]) -> None:
        """In the midst of it, wherever that is."""
        wait_until(self.rows, 10 * TIMEOUT)
        before = self.behind()
        wait_until(lambda: self.behind() < before or not self.behind(), 10 * TIMEOUT)
        process.kill()
        process.wait()

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = plain(self.client.subscriptions.list("documents"))
        return found

    def close(self) -> None:
        self.client.close()
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def example(mongo_uri: str, request: pytest.FixtureRequest) -> Iterator[Example]:
    documents, tags = request.param
    name = f"test_{token_hex(6)}"
    with (
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        BrokerProcess(mongo_uri, name, config={"devices": []}) as broker,
    ):
        example = Example(broker, mongo_uri, f"{name}_sums", documents, tags)
        try:
            yield example
        finally:
            example.close()
            mongo.drop_database(name)
            mongo.drop_database(f"{name}_sums")


@pytest.mark.parametrize("example", SIZES, indirect=True)
def test_the_sums_are_right_whoever_is_killed_when(example: Example) -> None:
    # Given changes, and an update that is killed in the midst of them
    assert example.run("change")[0] == 0
    example.kill_when_behind_falls(example.start("update"))
    # Then a rebuild may not begin: who knows what is in the sums
    code, said = example.run("rebuild")
    assert (code, "held for 'update'" in said) == (1, True), said
    # When another update goes on, while more changes come, and ends in order
    update = example.start("update")
    assert example.run("change", "--documents", "1000", "--changes", "500")[0] == 0
    wait_until(lambda: example.behind() == 0, 60 * TIMEOUT)
    update.send_signal(signal.SIGTERM)
    assert update.wait(TIMEOUT) == 0
    assert example.run("check")[0] == 0
    # When a rebuild is killed in the midst of it
    example.kill_when_behind_falls(example.start("rebuild"))
    # Then an update stands by for nothing, until a rebuild has ended
    code, said = example.run("rebuild")
    lines = said.splitlines()
    assert (code, lines[-1].startswith("rebuilt up to change ")) == (0, True), said
    # Without a terminal each step is a line; on a busy machine the library's warnings come between them.
    steps = [int(step[1]) for line in lines if (step := re.fullmatch(r"(\d+) of \d+", line))]
    assert steps, said
    assert steps == sorted(set(steps)), said
    code, said = example.run("check")
    assert code == 0, said
    assert " 0 changes are not in them" in said
