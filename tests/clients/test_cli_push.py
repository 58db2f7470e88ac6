"""``sluicemq push``, ``call``, ``result`` and ``pop``: what they take, refuse and say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clients.cli_runs import Run, nobody
from clients.scripted_broker import SECONDS, SILENCE, Received, ScriptedBroker, Several
from sluicemq import DeadError, NotFoundError, TimeoutError
from sluicemq.cli.app import app
from sluicemq.protocol import wire


@pytest.mark.parametrize(
    "command",
    [
        ["push", "mail", "x", "--priority", "300"],
        ["push", "mail", "--lines", "--priority", "300"],
        ["jobs", "change", "mail", "one", "--priority", "300"],
    ],
)
def test_an_impossible_priority_is_wrong_usage(broker: ScriptedBroker, run: Run, command: list[str]) -> None:
    result = run(*command, stdin=b"x\n")
    assert (result.exit_code, "from 0 to 255" in result.stderr) == (2, True)
    assert broker.pushed() == []


def test_a_priority_that_no_job_may_have_is_a_usage_error_in_a_configuration_too(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[queues.mail]\npriority = 300\n")
    program = [sys.executable, "-m", "sluicemq", "config", "check", "wrong.toml"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, check=False, timeout=SECONDS)
    assert (done.returncode, b"from 0 to 255" in done.stderr) == (2, True)


def test_what_the_broker_finds_wrong_in_a_job_is_a_usage_error(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "BAD_HEADERS", "header 'priority' is 200, expected less"]]
    assert run("push", "mail", "x", "--priority", "200").exit_code == 2


def test_push_prints_the_id_of_the_stored_job(broker: ScriptedBroker, run: Run) -> None:
    result = run("push", "mail", "hello")
    assert result.exit_code == 0
    assert broker.pushed() == [(result.stdout.strip(), b"hello")]


def test_push_sends_its_options(broker: ScriptedBroker, run: Run) -> None:
    options = ["--priority", "3", "--delay", "1.5", "--ttl", "60", "--id", "mine"]
    result = run("--json", "push", "mail", "x", *options, "--header", "a=1", "--header", "b=x=y")
    assert json.loads(result.stdout) == {"queue": "mail", "id": "mine", "pushed": 1, "refused": 0}
    headers = {"priority": 3, "delay": 1.5, "ttl": 60.0, "headers": {"a": "1", "b": "x=y"}}
    assert broker.of(wire.PUSH)[0].fields == ["mail", [["mine", b"x", headers]]]


@pytest.mark.parametrize("dash", [[], ["-"]])
def test_push_makes_a_job_of_every_line(broker: ScriptedBroker, run: Run, dash: list[str]) -> None:
    result = run("push", "mail", "--lines", *dash, stdin=b"one\r\n\ntwo\xff\nthree")
    assert result.exit_code == 0
    assert result.stderr == "4 jobs pushed to mail, 0 refused\n"
    assert [payload for _id, payload in broker.pushed()] == [b"one", b"", b"two\xff", b"three"]


def test_push_makes_a_job_of_each_file_and_of_stdin(broker: ScriptedBroker, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00a\n")
    result = run("--json", "push", "mail", "--file", str(tmp_path / "a"), "--file", "-", stdin=b"b\nc\n")
    ids = [job_id for job_id, _payload in broker.pushed()]
    assert json.loads(result.stdout) == {"queue": "mail", "pushed": 2, "refused": 0, "ids": ids}
    assert [payload for _id, payload in broker.pushed()] == [b"\x00a\n", b"b\nc\n"]


def test_files_may_follow_one_option(broker: ScriptedBroker, run: Run, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    assert run("push", "mail", "--file", *(str(tmp_path / name) for name in "abc")).exit_code == 0
    assert [payload for _id, payload in broker.pushed()] == [b"a", b"b", b"c"]


def test_push_of_a_dash_is_stdin_as_one_job(broker: ScriptedBroker, run: Run) -> None:
    assert run("push", "mail", "-", stdin=b"a\nb\n").exit_code == 0
    assert [payload for _id, payload in broker.pushed()] == [b"a\nb\n"]


@pytest.mark.parametrize(("moment", "sent"), [("12.5", 12.5), ("2030-01-31T12:00:00Z",) * 2])
def test_push_sends_the_rules_of_delivery(broker: ScriptedBroker, run: Run, moment: str, sent: Any) -> None:
    run(
        "push", "mail", "x", "--max-attempts", "3", "--not-before", moment, "--visibility-timeout", "9",
        "--backoff", "linear", "--keep-done", "60", "--priority", "0", "--delay", "0", "--ttl", "5",
    )  # fmt: skip
    assert broker.of(wire.PUSH)[0].fields[1][0][2] == {
        "max_attempts": 3, "not_before": sent, "visibility_timeout": 9.0,
        "backoff": "linear", "keep_done": 60.0, "priority": 0, "delay": 0.0, "ttl": 5.0,
    }  # fmt: skip


def test_push_ends_with_1_and_the_reason_when_the_job_is_refused(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "QUEUE_FULL", "1000 queues are enough"]]
    result = run("push", "mail", "x")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "sluicemq: 1000 queues are enough"


@pytest.mark.parametrize(("state", "code"), [("dead", 1), ("ready", 0), (None, 0)])
def test_push_of_a_known_id_says_so(broker: ScriptedBroker, run: Run, state: str | None, code: int) -> None:
    broker.on[wire.PUSH] = lambda message: Several([[], list(range(len(message.fields[1]))), [state]])
    one = run("--json", "push", "mail", "x", "--id", "mine")
    assert (one.exit_code, json.loads(one.stdout)["pushed"], json.loads(one.stdout)["state"]) == (
        code,
        0,
        state,
    )
    said = f"job mine existed in mail{f', and is {state}' if state else ''}: none was pushed"
    assert one.stderr.splitlines()[-1].startswith(said)
    many = run("--json", "push", "mail", "--lines", stdin=b"x\n")
    told = json.loads(many.stdout)
    assert (many.exit_code, told["pushed"], told["existed"], told["dead"]) == (code, 0, 1, code)


def test_push_sends_its_dedupe_id_and_window(broker: ScriptedBroker, run: Run) -> None:
    run("push", "mail", "x", "--dedupe-id", "order-7", "--dedupe-window", "60")
    assert broker.of(wire.PUSH)[0].fields[1][0][2] == {"dedupe_id": "order-7", "dedupe_window": 60.0}


def test_push_of_a_duplicate_ends_with_1_and_names_the_first_job(broker: ScriptedBroker, run: Run) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "DUPLICATE", "not stored", "first"]]
    result = run("--json", "push", "mail", "x", "--dedupe-id", "order-7")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "error": {"code": "DUPLICATE", "message": "not stored", "id": "first"}
    }


def test_push_of_many_counts_what_is_refused_and_ends_with_1(broker: ScriptedBroker, run: Run) -> None:
    def refuse_evens(message: Any) -> Any:
        return [[at, "TOO_LARGE", "no"] for at, row in enumerate(message.fields[1]) if int(row[1]) % 2 == 0]

    broker.on[wire.PUSH] = refuse_evens
    result = run("--json", "push", "mail", "--lines", stdin=b"".join(b"%d\n" % n for n in range(50)))
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["pushed"], told["refused"], told["ids"].count(None)) == (25, 25, 25)
    assert result.stderr.count("refused: no") == 10


@pytest.mark.parametrize(
    "arguments",
    [
        ["push", "mail"],
        ["push", "mail", "x", "--lines"],
        ["push", "mail", "--lines", "--id", "one"],
        ["push", "mail", "--lines", "--dedupe-id", "one"],
        ["push", "mail", "x", "--dedupe-window", "9"],
        ["push", "mail", "x", "--header", "nothing"],
        ["push", "mail", "x", "--priority", "high"],
        ["push", "mail", "--file", "/does/not/exist"],
        ["work", "mail"],
        ["work", "mail", "--print", "--exec", "cat"],
        ["work", "mail", "--print", "--prefetch", "0"],
        ["work", "mail", "--print", "--count", "3", "--concurrency", "2"],
        ["push", "mail", "x", "y"],
        ["push", "mail", "x", "--max-attempts", "-1"],
        ["--timeout", "0", "ping"],
        ["ping", "--timeout", "-1"],
        ["ping", "--endpoint", "localhost"],
        ["jobs", "list", "mail", "--state", "lost"],
        ["nonsense"],
        ["--endpoint", "localhost", "queues"],
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert result.stdout == ""


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
def test_no_result_ends_with_1_beside_a_broker(broker: ScriptedBroker, run: Run, error: Exception) -> None:
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
