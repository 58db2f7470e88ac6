"""The README is true: its code runs, its configuration is the real one, its claims name real things."""

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import BrokerProcess, free_port, wait_until
from sluicemq import Client, Producer, errors
from sluicemq_broker.config.settings import Config, describe, load
from sluicemq_broker.job.job import State

README = (Path(__file__).parents[2] / "README.md").read_text()
DOORS = {
    5550: "smq",
    5551: "push",
    5552: "pull",
    5553: "req",
    5554: "rep",
    5555: "pub",
    5556: "sub",
    5557: "commit",
}


def block(name: str) -> str:
    """The code block that follows the mark of this name."""
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"the README has no block {name!r}"
    return found[1]


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, f"readme-{free_port()}") as process:
        yield process


def program(broker: BrokerProcess, name: str) -> subprocess.Popen[str]:
    """Run a block of the README as it stands, but for the ports of this broker."""
    code = re.sub(r"tcp://127\.0\.0\.1:(\d+)", lambda found: broker.doors[DOORS[int(found[1])]], block(name))
    return subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)


def test_the_life_of_a_job_is_drawn_as_the_code_has_it() -> None:
    assert block("life of a job").strip() in (inspect.getdoc(State) or "").replace("\n    ", "\n")


def test_the_quick_start_copies_and_runs(broker: BrokerProcess) -> None:
    # Given the producer, which ends before anybody works
    assert program(broker, "quick start: producer").wait(60) == 0
    # When the worker starts, and an asker asks
    worker = program(broker, "quick start: worker")
    try:
        assert worker.stdout
        assert worker.stdout.readline() == "b'hello'\n"
        asker = program(broker, "quick start: asker")
        answer, _ = asker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.communicate()
    # Then the worker's answer is the asker's
    assert answer == "b'done'\n"


def test_the_example_of_the_library_runs_to_its_end(broker: BrokerProcess) -> None:
    # When it is run as it stands
    output, _ = program(broker, "library").communicate(timeout=60)
    # Then every job was worked on, the delayed one last, and the queue is empty
    assert "my-id b'last' 1" in output
    assert output.count("b'") == 1001
    with Client(broker.doors["smq"]) as client:

        def numbers() -> dict[str, object]:
            return next(queue for queue in client.queues() if queue["name"] == "numbers")

        wait_until(lambda: numbers()["ready"] == numbers()["reserved"] == 0, what="an empty queue")


def test_the_example_of_results_claims_and_pops_prints_what_it_says(broker: BrokerProcess) -> None:
    output, _ = program(broker, "results").communicate(timeout=60)
    assert output.splitlines() == ["b'abab'", "b'9999'", "b'9999'", "2"]


def test_the_configuration_shown_is_every_setting_with_its_default() -> None:
    shown = tomllib.loads(block("configuration"))
    real = tomllib.loads(describe(Config.default()))
    # The data folder is each user's own.
    shown["broker"].pop("data_dir")
    real["broker"].pop("data_dir")
    assert shown == real


def test_the_comments_of_the_configuration_are_the_real_ones() -> None:
    def without_folder(text: str) -> list[str]:
        return [line for line in text.strip().splitlines() if not line.startswith("data_dir")]

    assert without_folder(block("configuration")) == without_folder(describe(Config.default()))


def test_the_example_of_a_device_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_text(block("devices"))
    config = load(file, {}, {})
    assert [(each.kind, each.queue, each.ack) for each in config.devices] == [
        ("streamer", "mail", "explicit")
    ]


def test_every_error_code_is_named_and_every_file_that_is_named_exists() -> None:
    codes = {kind.code for kind in errors.SluiceError.__subclasses__()}
    named = next(line for line in README.splitlines() if line.startswith("Error codes:"))
    assert set(re.findall(r"`([A-Z_]+)`", named)) == codes
    root = Path(__file__).parents[2]
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / link).exists(), link


def test_the_example_of_a_pull_worker_works_on_the_example_of_a_device(
    mongo_uri: str, database: str, tmp_path: Path
) -> None:
    # Given the device of the README, on free ports
    ports = {port: free_port() for port in ("5561", "5562", "5567")}

    def elsewhere(text: str) -> str:
        text = re.sub(r"tcp://127\.0\.0\.1:(\d+)", lambda found: f"tcp://127.0.0.1:{ports[found[1]]}", text)
        return text.replace("ipc:///tmp/mail.sock", f"ipc://{tmp_path}/mail.sock")

    config = tomllib.loads(elsewhere(block("devices")))
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        worker = subprocess.Popen(
            [sys.executable, "-u", "-c", elsewhere(block("pull worker"))], stdout=subprocess.PIPE, text=True
        )
        try:
            # When something is pushed
            with Producer(broker.doors["smq"]) as producer:
                producer.push("mail", b"letter")
            # Then the worker of the README has it, and commits it
            assert worker.stdout
            assert worker.stdout.readline() == "b'letter'\n"
            with Client(broker.doors["smq"]) as client:
                wait_until(lambda: client.stats()["counters"].get("committed") == 1, what="the commit")
        finally:
            worker.kill()
            worker.communicate()
