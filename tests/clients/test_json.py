"""Every command has ``--json``, and prints one JSON object on stdout with it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import zmq
from click.testing import CliRunner

from sluicemq import Client, Producer
from sluicemq.cli.app import app
from sluicemq.protocol.keys import KeyPair, decode, write_key_file
from sluicemq.protocol.secret_files import write_secret
from support.broker_process import BrokerProcess
from support.long_forms import long
from support.ports import tcp

#: How a command is called on a queue of its own, where that is not with its arguments alone; ID is a job that
#: lies ready there. One that would ask, or need more, or last, stands here.
CALLS = {
    "push --lines": ["QUEUE", "--lines"],
    "work": ["QUEUE", "--exec", "cat", "--drain"],
    "call": ["QUEUE", "x", "--timeout", "0.2"],
    "queues list": [],
    "jobs change": ["QUEUE", "ID", "--priority", "3"],
    "queues wait-until-empty": ["QUEUE", "--for", "0.1"],
    "subscriptions delete": ["QUEUE", "sums", "--yes"],
    "queues purge": ["QUEUE", "--yes"],
    "queues delete": ["QUEUE", "--yes"],
    "dead-letters redrive": ["QUEUE", "--all"],
    "dead-letters discard": ["QUEUE", "--yes"],
    "jobs list": ["QUEUE"],
    "jobs show": ["QUEUE", "ID"],
    "operations list": [],
    "workers list": [],
    "top": [],
    "operations show": ["nosuch"],
    "operations cancel": ["nosuch"],
    "subscriptions seek": ["QUEUE", "sums", "1"],
    "streams trim": ["QUEUE", "1", "--yes"],
    "streams erase": ["QUEUE", "--yes"],
    "ping": [],
    "queues set-settings": ["QUEUE", "ttl", "1000"],
    "queues settings": ["QUEUE"],
    "queues unset-settings": ["QUEUE", "ttl"],
    "config check": [],
    "backup": ["--mongodb-uri-file", "URI_FILE", "--database", "test_json", "--out", "FOLDER"],
    "restore": ["KEY_FILE", "--data-dir", "FOLDER", "--yes"],
    "key show": ["KEY_FILE"],
    "principals add": ["QUEUE", "push=x", "--key", "KEY_FILE"],
    "principals hash": ["--password-file", "-"],
    "principals grant": ["nosuch", "push=x"],
    "principals remove": ["nosuch", "--yes"],
    "principals rotate": ["nosuch", "--token"],
    "schedules add": ["NAME", "QUEUE", "x", "--every", "1000"],
    "device": ["streamer", "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"],
    "serve": ["--mongodb-uri", "URI", "--endpoint", "tcp://127.0.0.1:*", "--config", "NO_DEVICES"],
}
#: Measures, which tests of its own see; prints a script for a shell; prints a line a message, event,
#: or job; needs a worker.
ELSEWHERE = {
    "bench", "completion", "streams tail", "events read", "events follow", "workers quiet", "workers stop",
    "dead-letters export",
}  # fmt: skip
#: Those that become another program; the first two last until they are ended.
BECOMING = {"device", "serve", "config check"}
LASTING = {"device", "serve"}


def calls(group: click.Group, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Each command of the application, and what it is called with: its arguments, by their names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        whole = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from calls(command, whole)
        elif whole not in {*CALLS, *ELSEWHERE}:
            yield (
                whole,
                [
                    param.name.upper()
                    for param in command.params
                    if isinstance(param, click.Argument) and param.name
                ],
            )


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, "test_json", config={"devices": []}) as running:
        yield running


def _with_the_flag() -> Iterator[Any]:
    """Before the command, and after it; of those that become another program once."""
    for call, arguments in (*CALLS.items(), *calls(app)):
        yield pytest.param(call, arguments, "before", id=f"{call}-before")
        after = long if call in BECOMING else pytest.param
        yield after(call, arguments, "after", id=f"{call}-after")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("call", "arguments", "place"), list(_with_the_flag()))
def test_every_command_prints_one_json_object_on_stdout(
    broker: BrokerProcess, mongo_uri: str, tmp_path: Path, call: str, arguments: list[str], place: str
) -> None:
    name = " ".join(word for word in call.split() if not word.startswith("-"))
    queue = f"{name.replace(' ', '-')}-{place}".lower()
    endpoint = broker.doors["smq"]
    with Producer(endpoint=endpoint) as producer:
        job = producer.push(queue, b"x").id
    (tmp_path / "none.toml").write_text(f"devices = []\n[broker]\ndata_dir = '{tmp_path}'\nhttp = ''\n")
    write_secret(tmp_path / "uri", mongo_uri)
    write_key_file(tmp_path / "a.key", KeyPair(*[decode(key.decode()) for key in zmq.curve_keypair()]))
    given = {
        "QUEUE": queue,
        "ID": job,
        "URI": mongo_uri,
        "NO_DEVICES": str(tmp_path / "none.toml"),
        "KEY_FILE": str(tmp_path / "a.key"),
        "URI_FILE": str(tmp_path / "uri"),
        "FOLDER": str(tmp_path / "folder"),
    }
    words = [given.get(word, word) for word in arguments]
    command = ["--json", *name.split(), *words] if place == "before" else [*name.split(), *words, "--json"]

    if name in BECOMING:
        output = printed_by_program(command, endpoint, lasting=name in LASTING)
    else:
        output = printed(command, endpoint)

    lines = output.splitlines()
    assert len(lines) == 1, output
    assert isinstance(json.loads(lines[0]), dict)


def test_jobs_that_are_printed_are_a_line_each_and_their_sum_is_the_last(broker: BrokerProcess) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push_many("printed", [b"1", b"2"])
    command = ["--json", "work", "printed", "--print", "--drain"]
    lines = [json.loads(line) for line in printed(command, broker.doors["smq"]).splitlines()]
    assert [line["payload"] for line in lines[:2]] == ["1", "2"]
    assert lines[2:] == [{"queue": "printed", "committed": 2, "rejected": 0, "rolled_back": 0}]


def test_a_pop_of_an_empty_queue_is_an_object_without_jobs(broker: BrokerProcess) -> None:
    with Client(endpoint=broker.doors["smq"]) as client, Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("emptied", b"x").wait(60)
        command = ["--json", "pop", "emptied"]
        first, second = (json.loads(printed(command, broker.doors["smq"])) for _ in range(2))
        assert client.jobs.list("emptied") == []
    assert [job["payload"] for job in first["jobs"]] == ["x"]
    assert second == {"queue": "emptied", "jobs": []}


def test_a_configuration_that_is_wrong_is_an_object_with_all_that_is(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[broker]\nlease = 0\nhwm = 0\n")
    command = ["--json", "config", "check", str(tmp_path / "wrong.toml")]
    found = json.loads(printed_by_program(command, tcp()))
    assert found["valid"] is False
    assert [row["place"].rpartition(" ")[2] for row in found["errors"]] == ["lease", "hwm"]


def printed(command: list[str], endpoint: str) -> str:
    return CliRunner().invoke(app, command, input="one\ntwo\n", env={"SLUICEMQ_ENDPOINT": endpoint}).stdout


def printed_by_program(command: list[str], endpoint: str, *, lasting: bool = False) -> str:
    """The same of one that becomes another program; one that lasts is ended after its first line."""
    program = [sys.executable, "-m", "sluicemq.cli", *command]
    environment = {**os.environ, "SLUICEMQ_ENDPOINT": endpoint}
    with subprocess.Popen(program, env=environment, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            first = process.stdout.readline() if lasting else ""
            if lasting:
                process.send_signal(signal.SIGTERM)
            return first + process.communicate(timeout=120)[0]
        finally:
            process.kill()
