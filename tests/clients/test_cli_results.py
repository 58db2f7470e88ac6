"""``sluicemq call``, ``result``, ``pop`` and what ``push`` says of many, against a scripted broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from clients.cli_runs import Run, nobody
from clients.scripted_broker import SILENCE, Received, ScriptedBroker
from sluicemq import DeadError, NotFoundError, TimeoutError
from sluicemq.cli.app import app
from sluicemq.protocol import wire


def test_call_prints_the_bytes_of_the_result_and_no_others(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.RESULT] = lambda _message: b"\xff\x00\n\n"
    result = run("call", "mail", "hello")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"\xff\x00\n\n"
    assert [payload for _id, payload in broker.pushed()] == [b"hello"]


def test_call_of_a_dash_pushes_stdin_and_tells_in_json(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.RESULT] = lambda _message: b"42"
    result = run("--json", "call", "mail", "-", "--id", "mine", stdin=b"a\nb")
    assert json.loads(result.stdout) == {"queue": "mail", "id": "mine", "result": "42"}
    assert broker.pushed() == [("mine", b"a\nb")]


def test_call_without_a_result_in_time_ends_with_1_and_says_how(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.RESULT] = lambda _message: SILENCE
    result = run("call", "mail", "x", "--id", "mine", "--timeout", "0.3")
    assert result.exit_code == 1
    assert "job mine has no result after 0.3 s; `sluicemq jobs result mail mine` asks again" in result.stderr


@pytest.mark.parametrize("command", [["call", "mail", "x"], ["jobs", "result", "mail", "mine"]])
def test_the_error_of_a_dead_job_ends_with_1(broker: ScriptedBroker, run: Run, command: list[str]) -> None:
    broker.on[wire.RESULT] = lambda _message: DeadError("no cat")
    result = run(*command)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "sluicemq: no cat\n")


def test_a_refused_call_ends_with_1(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "TOO_LARGE", "too much"]]
    result = run("call", "mail", "x")
    assert (result.exit_code, result.stderr) == (1, "sluicemq: too much\n")


def test_result_prints_it_and_waits_as_long_as_it_is_told(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.RESULT] = lambda _message: b"42"
    assert run("jobs", "result", "mail", "mine", "--wait", "2.5").stdout_bytes == b"42"
    assert broker.of(wire.RESULT)[0].fields == ["mail", "mine", 2.5]


@pytest.mark.parametrize("error", [NotFoundError("no job mine"), TimeoutError("job mine has not ended")])
def test_no_result_ends_with_1_as_long_as_the_broker_is_there(
    broker: ScriptedBroker, run: Run, error: Exception
) -> None:
    broker.on[wire.RESULT] = lambda _message: error
    result = run("jobs", "result", "mail", "mine")
    assert (result.exit_code, result.stderr) == (1, f"sluicemq: {error}\n")


@pytest.mark.parametrize("command", [["call", "q", "x"], ["jobs", "result", "q", "id"], ["pop", "q"]])
def test_without_a_broker_they_end_with_3(command: list[str]) -> None:
    result = CliRunner().invoke(app, ["--endpoint", nobody(), "--timeout", "2", *command])
    assert result.exit_code == 3
    assert "no broker answers" in result.stderr


def deliver(broker: ScriptedBroker, payloads: list[bytes]) -> None:
    """To the first who wants work, and to nobody after it."""

    def ready(message: Received) -> None:
        if message.fields[1] and not broker.of(wire.READY):
            broker.deliver(message.peer, message.fields[0], payloads)

    broker.on[wire.READY] = ready


def test_pop_prints_a_payload_on_a_line(broker: ScriptedBroker, run: Run) -> None:
    deliver(broker, ["ä".encode(), b"b"])
    result = run("pop", "mail", "--count", "2", "--wait", "60")
    assert (result.exit_code, result.stdout_bytes) == (0, "ä\nb\n".encode())
    assert broker.of(wire.READY)[0].fields == ["mail", 2, {"pop": True, "look": True}]
    assert broker.settled() == {}


def test_pop_of_an_empty_queue_says_so(run: Run) -> None:
    result = run("pop", "mail")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no job is ready in mail\n")


def test_work_may_pop(broker: ScriptedBroker, run: Run) -> None:
    deliver(broker, [b"a"])
    broker.on[wire.QUEUE] = lambda _message: {"name": "mail", "ready": 0}
    result = run("work", "mail", "--print", "--pop", "--drain")
    assert result.exit_code == 0
    assert result.stdout.startswith("a\n")
    assert broker.of(wire.READY)[0].fields[1:] == [1, {"pop": True}]
    assert broker.settled() == {}


def test_work_that_pops_takes_no_count(run: Run) -> None:
    result = run("work", "mail", "--print", "--pop", "--count", "3")
    assert result.exit_code == 2
    assert "sluicemq pop QUEUE --count N" in result.stderr


def refuse_bad(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda message: [
        [at, "BAD_HEADERS", "no"] for at, row in enumerate(message.fields[1]) if row[1] == b"bad"
    ]


def test_push_names_the_refused_lines_and_stores_the_others(broker: ScriptedBroker, run: Run) -> None:
    refuse_bad(broker)
    result = run("--json", "push", "mail", "--lines", stdin=b"one\nbad\nthree\nbad\n")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert [at is None for at in told.pop("ids")] == [False, True, False, True]
    assert told == {"queue": "mail", "pushed": 2, "refused": 2}
    for line in ("line 2 refused: no", "line 4 refused: no"):
        assert line in result.stderr


def test_push_names_the_files_that_are_refused(broker: ScriptedBroker, run: Run, tmp_path: Path) -> None:
    refuse_bad(broker)
    for name in ("good", "bad"):
        (tmp_path / name).write_text(name)
    result = run("push", "mail", "--file", str(tmp_path / "good"), str(tmp_path / "bad"))
    assert result.exit_code == 1
    assert f"file {tmp_path / 'bad'} refused: no" in result.stderr
