"""The command line against a scripted broker: output, exit codes, errors in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from time import time
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from sluicemq import BadQueue, NotFound, installed, wire
from sluicemq.cli.app import app
from stub_broker import SECONDS, SILENCE, StubBroker

Run = Callable[..., Result]


@pytest.fixture
def run(broker: StubBroker) -> Run:
    """Run a command against the stub."""

    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, ["--endpoint", broker.endpoint, *arguments], input=stdin)

    return run


def nobody() -> str:
    gone = StubBroker().start()
    gone.stop()
    return gone.endpoint


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_package_itself_is_the_command(flag: str) -> None:
    command = [sys.executable, "-m", "sluicemq", flag]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    assert told == f"sluicemq, version {metadata.version('sluicemq')}\n"


# ----------------------------------------------------- a broker without its store


def silent_store(broker: StubBroker) -> None:
    """It answers what it can without MongoDB."""
    health = {"store": "MongoDB has not answered for 4.2 s", "store_silent": 4.2}
    broker.on[wire.PING] = lambda message: health if message.fields == [True] else None


def test_a_push_that_only_the_store_has_not_confirmed_says_so_and_how_to_repeat_it(
    broker: StubBroker, run: Run
) -> None:
    silent_store(broker)
    broker.on[wire.PUSH] = lambda _message: SILENCE
    result = run("--timeout", "0.5", "push", "mail", "hello", "--id", "mine")
    assert result.exit_code == 4
    assert result.stderr == (
        "sluicemq: job mine for queue mail is not confirmed after 0.5 s; the broker answers, its store does "
        "not: MongoDB has not answered for 4.2 s. Job mine may be stored already, or still be: push it "
        "again with --id mine, which makes no second one\n"
    )


@pytest.mark.parametrize(
    "command", [["purge", "mail", "--yes"], ["call", "mail", "x"], ["result", "mail", "x"]]
)
def test_every_command_tells_a_silent_store_from_a_silent_broker(
    broker: StubBroker, run: Run, command: list[str]
) -> None:
    # Given
    for verb in (wire.PURGE, wire.RESULT):
        broker.on[verb] = lambda _message: SILENCE
    # When, Then: all answer
    answered = run("--timeout", "0.5", *command, "--json")
    assert (answered.exit_code, "--timeout" in answered.stderr) in [(3, True), (1, False)]
    # When, Then: the store does not
    silent_store(broker)
    silent = run("--timeout", "0.5", *command, "--json")
    assert (silent.exit_code, "its store does not: MongoDB has not answered" in silent.stderr) == (4, True)
    assert json.loads(silent.stdout)["error"]["code"] == "TIMEOUT"


def test_a_ping_tells_of_the_store(broker: StubBroker, run: Run) -> None:
    assert run("ping").exit_code == 0  # of an older broker, which tells nothing of it
    silent_store(broker)
    result = run("ping", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["store"], told["store_silent"]) == (
        4, "MongoDB has not answered for 4.2 s", 4.2,
    )  # fmt: skip


# ---------------------------------------------------------------- completion


def completed(*line: str) -> list[str]:
    """What a shell is told for the last word of a line."""
    shell = ShellComplete(app, {}, "sluicemq", "_SLUICEMQ_COMPLETE")
    return [each.value for each in shell.get_completions(list(line[:-1]), line[-1])]


def test_the_names_of_queues_are_completed_wherever_one_is_wanted(broker: StubBroker) -> None:
    broker.on[wire.QUEUES] = lambda _message: [{"name": name} for name in ("mail", "mails.old", "other")]
    before, after = ["--endpoint", broker.endpoint], ["--endpoint", broker.endpoint]
    assert completed(*before, "peek", "ma") == ["mail", "mails.old"]
    assert completed("work", *after, "") == ["mail", "mails.old", "other"]
    assert completed(*before, "dead", "list", "o") == ["other"]
    assert completed(*before, "dead", "redrive", "mail", "--to", "o") == ["other"]


def test_without_a_broker_commands_are_completed_and_no_queues() -> None:
    assert completed("--endpoint", nobody(), "peek", "") == []
    assert "peek" in completed("pe")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_needs_to_complete_is_printed(run: Run, shell: str) -> None:
    printed = run("completion", shell)
    assert (printed.exit_code, f"_SLUICEMQ_COMPLETE={shell}_complete" in printed.stdout) == (0, True)


# ---------------------------------------------------------------------- push


@pytest.mark.parametrize(
    "command",
    [
        ["push", "mail", "x", "--priority", "300"],
        ["push", "mail", "--lines", "--priority", "300"],
        ["change", "mail", "one", "--priority", "300"],
    ],
)
def test_a_priority_that_no_job_may_have_is_a_usage_error_everywhere(
    broker: StubBroker, run: Run, command: list[str]
) -> None:
    result = run(*command, stdin=b"x\n")
    assert (result.exit_code, "from 0 to 255" in result.stderr) == (2, True)
    assert broker.pushed() == []


def test_a_priority_that_no_job_may_have_is_a_usage_error_in_a_configuration_too(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[queues.mail]\npriority = 300\n")
    program = [sys.executable, "-m", "sluicemq", "config", "check", "wrong.toml"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, check=False, timeout=SECONDS)
    assert (done.returncode, b"from 0 to 255" in done.stderr) == (2, True)


def test_what_only_the_broker_finds_wrong_in_a_job_is_a_usage_error_too(broker: StubBroker, run: Run) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "BAD_HEADERS", "header 'priority' is 200, expected less"]]
    assert run("push", "mail", "x", "--priority", "200").exit_code == 2


def test_push_prints_the_id_of_the_stored_job(broker: StubBroker, run: Run) -> None:
    result = run("push", "mail", "hello")
    assert result.exit_code == 0
    assert broker.pushed() == [(result.stdout.strip(), b"hello")]


def test_push_sends_its_options(broker: StubBroker, run: Run) -> None:
    options = ["--priority", "3", "--delay", "1.5", "--ttl", "60", "--id", "mine"]
    result = run("--json", "push", "mail", "x", *options, "--header", "a=1", "--header", "b=x=y")
    assert json.loads(result.stdout) == {"queue": "mail", "id": "mine", "pushed": 1, "refused": 0}
    headers = {"priority": 3, "delay": 1.5, "ttl": 60.0, "headers": {"a": "1", "b": "x=y"}}
    assert broker.of(wire.PUSH)[0].fields == ["mail", [["mine", b"x", headers]]]


def test_push_makes_a_job_of_every_line(broker: StubBroker, run: Run) -> None:
    result = run("push", "mail", "--lines", stdin=b"one\r\n\ntwo\xff\nthree")
    assert result.exit_code == 0
    assert result.stderr == "4 jobs pushed to mail, 0 refused\n"
    assert [payload for _id, payload in broker.pushed()] == [b"one", b"", b"two\xff", b"three"]


def test_push_makes_a_job_of_every_file_and_of_stdin(broker: StubBroker, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00a\n")
    result = run("--json", "push", "mail", "--file", str(tmp_path / "a"), "--file", "-", stdin=b"b\nc\n")
    ids = [job_id for job_id, _payload in broker.pushed()]
    assert json.loads(result.stdout) == {"queue": "mail", "pushed": 2, "refused": 0, "ids": ids}
    assert [payload for _id, payload in broker.pushed()] == [b"\x00a\n", b"b\nc\n"]


def test_files_may_follow_one_option(broker: StubBroker, run: Run, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    assert run("push", "mail", "--file", *(str(tmp_path / name) for name in "abc")).exit_code == 0
    assert [payload for _id, payload in broker.pushed()] == [b"a", b"b", b"c"]


def test_push_of_a_dash_is_stdin_as_one_job(broker: StubBroker, run: Run) -> None:
    assert run("push", "mail", "-", stdin=b"a\nb\n").exit_code == 0
    assert [payload for _id, payload in broker.pushed()] == [b"a\nb\n"]


@pytest.mark.parametrize(("moment", "sent"), [("12.5", 12.5), ("2030-01-31T12:00:00Z",) * 2])
def test_push_sends_the_rules_of_delivery(broker: StubBroker, run: Run, moment: str, sent: Any) -> None:
    run(
        "push", "mail", "x", "--max-attempts", "3", "--not-before", moment, "--visibility-timeout", "9",
        "--backoff", "linear", "--keep-done", "60", "--priority", "0", "--delay", "0", "--ttl", "5",
    )  # fmt: skip
    assert broker.of(wire.PUSH)[0].fields[1][0][2] == {
        "max_attempts": 3, "not_before": sent, "visibility_timeout": 9.0,
        "backoff": "linear", "keep_done": 60.0, "priority": 0, "delay": 0.0, "ttl": 5.0,
    }  # fmt: skip


def test_push_ends_with_1_and_the_reason_when_the_job_is_refused(broker: StubBroker, run: Run) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "QUEUE_FULL", "1000 queues are enough"]]
    result = run("push", "mail", "x")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "sluicemq: 1000 queues are enough"


def test_push_sends_its_dedupe_id_and_window(broker: StubBroker, run: Run) -> None:
    run("push", "mail", "x", "--dedupe-id", "order-7", "--dedupe-window", "60")
    assert broker.of(wire.PUSH)[0].fields[1][0][2] == {"dedupe_id": "order-7", "dedupe_window": 60.0}


def test_push_of_a_duplicate_ends_with_1_and_names_the_first_job(broker: StubBroker, run: Run) -> None:
    broker.on[wire.PUSH] = lambda _message: [[0, "DUPLICATE", "not stored", "first"]]
    result = run("--json", "push", "mail", "x", "--dedupe-id", "order-7")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "error": {"code": "DUPLICATE", "message": "not stored", "id": "first"}
    }


def test_push_of_many_counts_what_is_refused_and_ends_with_1(broker: StubBroker, run: Run) -> None:
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
        ["peek", "mail", "--state", "lost"],
        ["nonsense"],
        ["--endpoint", "localhost", "queues"],
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(run: Run, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert result.stdout == ""


# ---------------------------------------------------------------------- queues and jobs

COUNTS = {"scheduled": 1, "reserved": 0, "done": 0, "dead": 2}
QUEUES = [
    {"name": "mail", "ready": 12, **COUNTS, "workers": 1, "exact": True},
    {"name": "thumbs", "ready": 0, **COUNTS, "workers": 4, "exact": False},
]


def test_queues_are_shown_as_a_table_of_whatever_the_broker_tells(broker: StubBroker, run: Run) -> None:
    broker.on[wire.QUEUES] = lambda _message: QUEUES
    lines = run("queues").stdout.splitlines()
    assert lines[0].split() == ["name", "ready", "sched", "resv", "dead", "workers"]
    assert lines[1].split() == ["mail", "12", "1", "0", "2", "1"]
    assert lines[2].split()[0] == "thumbs"


def test_queues_as_json_are_one_object(broker: StubBroker, run: Run) -> None:
    broker.on[wire.QUEUES] = lambda _message: QUEUES
    assert json.loads(run("--json", "queues").stdout) == {"queues": QUEUES}


def test_stats_show_the_broker_its_counters_and_its_queues(broker: StubBroker, run: Run) -> None:
    stats = {"broker": {"id": "b1"}, "counters": {"pushed": 7, "replies_dropped": 0}, "queues": QUEUES}
    broker.on[wire.STATS] = lambda _message: stats
    shown = run("stats").stdout
    for word in ("broker", "b1", "replies_dropped", "pushed", "thumbs"):
        assert word in shown
    assert json.loads(run("--json", "stats").stdout) == stats


def test_peek_shows_jobs_with_times_and_the_beginning_of_payloads(broker: StubBroker, run: Run) -> None:
    # Given
    job = {
        "id": "one", "state": "dead", "payload": b"\xffx" + b"y" * 100, "headers": {"a": 1}, "priority": 0,
        "attempts": 5, "created_at": 0, "eligible_at": 1.5, "expires_at": None, "errors": [],
    }  # fmt: skip
    broker.on[wire.PEEK] = lambda _message: [job]
    # When
    shown = run("peek", "mail", "--state", "dead", "--limit", "3").stdout
    # Then
    assert broker.of(wire.PEEK)[0].fields == ["mail", "dead", 3]
    assert shown.split()[:5] == ["id", "attempts", "age", "headers", "payload"]
    assert '{"a": 1}' in shown
    assert "\\xffxyyy" in shown
    assert "yyy…" in shown
    as_json = json.loads(run("--json", "peek", "mail").stdout)
    assert as_json["jobs"][0]["payload"]["base64"].startswith("/3h5")


def test_peek_shows_when_a_job_is_due_and_the_reason_of_its_last_failure(
    broker: StubBroker, run: Run
) -> None:
    reasons = [{"reason": "first", "attempt": 1}, {"reason": "disk full", "attempt": 2}]
    job = {"id": "one", "state": "ready", "eligible_at": time() + 3 * 3600 + 60, "errors": reasons}
    broker.on[wire.PEEK] = lambda _message: [job]
    shown = run("peek", "mail").stdout
    assert shown.split("\n")[0].split() == ["id", "due", "last", "error"]
    assert shown.split("\n")[1].split() == ["one", "in", "3", "h", "disk", "full"]


def test_peek_in_a_narrow_terminal_shows_ids_whole(
    broker: StubBroker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("COLUMNS", "30")
    job = {"id": "i" * 50, "attempts": 1, "payload": b"p " * 40, "headers": {"key": "value " * 20}}
    broker.on[wire.PEEK] = lambda _message: [job]
    assert "i" * 50 in run("peek", "mail").stdout


def test_nothing_shown_can_command_the_terminal(broker: StubBroker, run: Run) -> None:
    evil = "\x1b[2J\x9b2J\r\u202e"
    job = {"id": evil, "payload": evil.encode(), "headers": {evil: evil}, "errors": [{"reason": evil}]}
    broker.on[wire.PEEK] = lambda _message: [job]
    broker.on[wire.QUEUES] = lambda _message: [{"name": evil}]
    broker.on[wire.STATS] = lambda _message: {evil: {evil: evil}}
    broker.on[wire.CANCEL] = lambda _message: NotFound(evil)
    for command in (["peek", "q"], ["queues"], ["stats"], ["cancel", "q", "x"], ["--json", "peek", "q"]):
        result = run(*command)
        assert result.output
        assert all(line.isprintable() for line in result.output.split("\n")), command
    as_json = json.loads(run("--json", "peek", "q").stdout)
    assert as_json["jobs"][0]["id"] == evil


def test_queues_asks_for_one_queue_alone(broker: StubBroker, run: Run) -> None:
    # Given
    no_queue = BadQueue("there is no queue 'nosuch'")
    broker.on[wire.QUEUE] = lambda message: QUEUES[1] if message.fields == ["thumbs"] else no_queue
    # Then
    assert json.loads(run("queues", "thumbs", "--json").stdout) == {"queues": QUEUES[1:]}
    unknown = run("queues", "nosuch")
    assert unknown.exit_code == 1
    assert unknown.stderr == "sluicemq: there is no queue 'nosuch'\n"
    assert broker.of(wire.QUEUES) == []


def test_the_shared_options_may_follow_the_command(broker: StubBroker) -> None:
    arguments = ["--endpoint", nobody(), "ping", "--endpoint", broker.endpoint, "--timeout", "60", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert json.loads(result.stdout)["endpoint"] == broker.endpoint


def test_an_error_is_told_as_json_when_the_option_follows_the_command(broker: StubBroker, run: Run) -> None:
    broker.on[wire.CANCEL] = lambda _message: NotFound("no job")
    assert json.loads(run("cancel", "q", "x", "--json").stdout)["error"]["code"] == "NOT_FOUND"


def test_purge_asks_first_and_a_no_ends_with_1(broker: StubBroker, run: Run) -> None:
    result = run("purge", "mail", stdin=b"n\n")
    assert result.exit_code == 1
    assert "Remove all ready jobs of queue mail?" in result.stderr
    assert broker.of(wire.PURGE) == []


def test_purge_and_delete_do_it_after_a_yes(broker: StubBroker, run: Run) -> None:
    broker.on[wire.PURGE] = broker.on[wire.DELETE] = lambda _message: 12
    assert run("purge", "mail", stdin=b"y\n").stdout == "removed 12 ready jobs of mail\n"
    assert run("purge", "mail", "--state", "dead", "--yes").stdout == "removed 12 dead jobs of mail\n"
    assert run("delete", "mail", "--yes").stdout == "deleted mail with 12 jobs\n"
    assert [message.fields[:2] for message in broker.of(wire.PURGE)] == [["mail", "ready"], ["mail", "dead"]]
    assert broker.of(wire.DELETE)[0].fields[:1] == ["mail"]


def test_cancel_names_the_job(broker: StubBroker, run: Run) -> None:
    assert json.loads(run("--json", "cancel", "mail", "one").stdout) == {"queue": "mail", "id": "one"}
    assert broker.of(wire.CANCEL)[0].fields == ["mail", "one"]


def test_a_refusal_is_one_line_and_with_json_also_an_object(broker: StubBroker, run: Run) -> None:
    broker.on[wire.CANCEL] = lambda _message: NotFound("no job 'one' in mail")
    result = run("--json", "cancel", "mail", "one")
    assert result.exit_code == 1
    assert result.stderr == "sluicemq: no job 'one' in mail\n"
    assert json.loads(result.stdout) == {"error": {"code": "NOT_FOUND", "message": "no job 'one' in mail"}}


# ---------------------------------------------------------------------- ping, no broker


def test_ping_tells_how_long_it_took(broker: StubBroker, run: Run) -> None:
    assert f"{broker.endpoint} answers in" in run("ping").stdout
    assert json.loads(run("--json", "ping").stdout)["seconds"] > 0


def test_ping_waits_for_a_broker_that_comes_up(broker: StubBroker) -> None:
    # Given
    broker.stop()
    environment = os.environ | {"SLUICEMQ_ENDPOINT": broker.endpoint}
    command = [sys.executable, "-m", "sluicemq.cli", "ping", "--wait", "60"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            # When
            broker.start()
            # Then
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    "command",
    [["queues"], ["ping"], ["push", "q", "x"], ["push", "q", "--lines"], ["work", "q", "--print"],
     ["purge", "q", "--yes"]],
)  # fmt: skip
def test_without_a_broker_every_command_ends_with_3_and_says_what_to_do(command: list[str]) -> None:
    done = CliRunner().invoke(app, ["--endpoint", nobody(), "--timeout", "60", *command], input=b"")
    assert done.exit_code == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "no broker answers at tcp://127.0.0.1" in done.stderr
    assert "; start one with `sluicemq serve`" in done.stderr


def test_one_that_hangs_up_on_everybody_is_told_from_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        program = [sys.executable, "-m", "sluicemq.cli", "--endpoint", endpoint, "--timeout", "3", "queues"]
        done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS, check=False)
        listener.shutdown(socket.SHUT_RDWR)
    assert done.returncode == 3
    assert "hangs up before any greeting: a broker that has no connection left" in done.stderr
    assert "sluicemq serve" not in done.stderr


# ---------------------------------------------------------------------- work


def start_work(broker: StubBroker, *arguments: str) -> tuple[subprocess.Popen[str], bytes]:
    command = [sys.executable, "-m", "sluicemq.cli", "--endpoint", broker.endpoint, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, broker.wait_for(wire.READY)[0].peer


def end_work(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=SECONDS)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("cat; printf $JOB_ID-$JOB_QUEUE-$JOB_ATTEMPT", ["COMMIT", b"xid-x-q-4", None]),
        ("echo first >&2; echo no such user >&2; exit 100", ["REJECT", "no such user", None]),
        ("exit 100", ["REJECT", "exit status 100", None]),
        ("echo disk full >&2; exit 1", ["ROLLBACK", "disk full", None]),
        ("kill -9 $$", ["ROLLBACK", "exit status -9", None]),
    ],
)
def test_the_commands_exit_status_is_the_verdict(
    broker: StubBroker, command: str, verdict: list[Any]
) -> None:
    process, peer = start_work(broker, "work", "q", "--exec", command)
    try:
        broker.deliver(peer, "q", [b"x"], attempt=4)
        broker.wait_for(wire.SETTLE)
    finally:
        end_work(process)
    assert broker.settled() == {b"r-x": verdict}
    assert process.returncode == 0


def test_a_command_is_told_of_the_trace_of_its_job(broker: StubBroker) -> None:
    # Given: what is no context is told to nobody
    process, peer = start_work(broker, "work", "q", "--exec", 'printf "$TRACEPARENT/$TRACESTATE"')
    headers = {"traceparent": "00-ab-cd-01", "tracestate": "a\nb"}
    row = [b"r-x", "id-x", b"x", headers, 1]
    # When
    try:
        broker.send(peer, wire.encode(wire.DELIVER, 0, "q", [row]))
        broker.wait_for(wire.SETTLE)
    finally:
        end_work(process)
    # Then
    assert broker.settled() == {b"r-x": ["COMMIT", b"00-ab-cd-01/", None]}


def test_a_command_lets_its_jobs_go_on_to_another_queue(broker: StubBroker) -> None:
    process, peer = start_work(
        broker, "--json", "work", "q", "--exec", "printf on-; cat", "--forward", "next"
    )
    try:
        broker.deliver(peer, "q", [b"x"])
        broker.wait_for(wire.SETTLE)
    finally:
        said, _ = end_work(process)
    assert broker.settled() == {b"r-x": ["FORWARD", None, None, ["next", b"on-x", None]]}
    assert json.loads(said)["forwarded"] == 1


def test_work_tells_at_its_end_what_it_has_done(broker: StubBroker) -> None:
    process, peer = start_work(broker, "--json", "work", "q", "--exec", "grep -q good", "--prefetch", "3")
    broker.deliver(peer, "q", [b"good", b"bad", b"good too"])
    broker.wait_until(lambda: len(broker.settled()) == 3)
    output, errors = end_work(process)
    assert json.loads(output) == {"queue": "q", "committed": 2, "rejected": 0, "rolled_back": 1}
    assert errors.endswith("2 committed, 0 rejected, 1 rolled back\n")


def test_work_prints_payloads_and_commits_them(broker: StubBroker) -> None:
    process, peer = start_work(broker, "work", "q", "--print", "--prefetch", "2")
    broker.deliver(peer, "q", [b"one", b"two"])
    broker.wait_until(lambda: len(broker.settled()) == 2)
    assert end_work(process)[0] == "one\ntwo\n"
    assert process.returncode == 0


def test_work_whose_reader_has_gone_gives_the_jobs_back_and_ends_quietly_with_1(broker: StubBroker) -> None:
    # Given
    process, peer = start_work(broker, "work", "q", "--print", "--prefetch", "5")
    assert process.stdout
    process.stdout.close()
    # When
    broker.deliver(peer, "q", [b"1", b"2", b"3", b"4", b"5"])
    # Then
    assert process.wait(SECONDS) == 1
    assert process.stderr
    assert process.stderr.read() == ""
    process.stderr.close()
    assert {row[0] for row in broker.settled().values()} == {"RELEASE"}
    assert len(broker.settled()) == 5


def test_work_on_a_full_disk_gives_the_job_back_and_says_why(broker: StubBroker) -> None:
    command = [sys.executable, "-m", "sluicemq.cli", "--endpoint", broker.endpoint, "work", "q", "--print"]
    with Path("/dev/full").open("w") as full, subprocess.Popen(
        command, stdout=full, stderr=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        broker.deliver(broker.wait_for(wire.READY)[0].peer, "q", [b"1"])
        assert process.communicate(timeout=SECONDS)[1] == (
            "sluicemq: can't write to stdout: No space left on device\n"
        )
    assert process.returncode == 1
    assert broker.settled() == {b"r-1": ["RELEASE", None, None]}


@pytest.mark.parametrize("arguments", [["peek", "q"], ["--json", "queues"], ["ping"]])
def test_a_result_that_can_not_be_written_is_one_line(broker: StubBroker, arguments: list[str]) -> None:
    broker.on[wire.PEEK] = broker.on[wire.QUEUES] = lambda _message: [{"id": "one", "name": "q"}]
    command = [sys.executable, "-m", "sluicemq.cli", "--endpoint", broker.endpoint, *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "sluicemq: can't write to stdout: No space left on device\n"


@pytest.mark.parametrize(("command", "status"), [("nosuchprogram", "127"), ("/dev/null", "126")])
def test_a_command_that_can_not_be_run_ends_the_work_and_harms_no_job(
    broker: StubBroker, command: str, status: str
) -> None:
    process, peer = start_work(broker, "work", "q", "--exec", command)
    broker.deliver(peer, "q", [b"x"])
    errors = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 1
    assert f"(exit status {status} of the shell)" in errors.splitlines()[-1]
    assert f"Error: '{command}' " in errors
    assert broker.settled() == {b"r-x": ["RELEASE", None, None]}


def test_work_whose_errors_nobody_reads_still_does_its_jobs(broker: StubBroker) -> None:
    process, peer = start_work(broker, "work", "q", "--exec", "echo trouble >&2")
    assert process.stderr
    process.stderr.close()
    broker.deliver(peer, "q", [b"x"])
    broker.wait_for(wire.SETTLE)
    process.kill()
    process.wait()
    process.stdout.close()  # type: ignore[union-attr]
    assert broker.settled() == {b"r-x": ["COMMIT", b"", None]}


def test_work_does_not_count_what_came_too_late(broker: StubBroker) -> None:
    late = [0, "LEASE_LOST", "given to another"]
    broker.on[wire.SETTLE] = lambda message: [late] if message.fields[0][0][0] == b"r-1" else []
    process, peer = start_work(broker, "work", "q", "--exec", "true", "--json")
    for payload in (b"1", b"2", b"3"):
        broker.deliver(peer, "q", [payload])
    broker.wait_until(lambda: len(broker.settled()) == 3)
    output, errors = end_work(process)
    assert json.loads(output) == {
        "queue": "q", "committed": 2, "rejected": 0, "rolled_back": 0, "too_late": 1
    }  # fmt: skip
    assert errors.endswith("2 committed, 0 rejected, 0 rolled back, 1 too late\n")


def test_work_stops_after_a_count_of_jobs_and_gives_back_the_rest(broker: StubBroker) -> None:
    process, peer = start_work(broker, "work", "q", "--print", "--prefetch", "3", "--count", "2")
    broker.deliver(peer, "q", [b"1", b"2", b"3"])
    assert process.communicate(timeout=SECONDS)[0] == "1\n2\n"
    assert process.returncode == 0
    assert [row[0] for row in broker.settled().values()].count("COMMIT") == 2
    assert broker.settled()[b"r-3"] == ["RELEASE", None, None]


def test_work_stops_when_the_queue_is_empty(broker: StubBroker) -> None:
    # Given: a queue that is said to hold one more until that was delivered
    holds = iter([1, 0])
    broker.on[wire.QUEUE] = lambda _message: {"name": "q", "ready": next(holds)}
    process, peer = start_work(broker, "work", "q", "--print", "--drain")
    # When
    broker.deliver(peer, "q", [b"1"])
    broker.wait_for(wire.QUEUE)
    broker.deliver(peer, "q", [b"2"])
    # Then
    assert process.communicate(timeout=SECONDS)[0] == "1\n2\n"
    assert process.returncode == 0
    assert len(broker.of(wire.QUEUE)) == 2


def test_work_that_is_refused_ends_with_1(broker: StubBroker) -> None:
    broker.on[wire.READY] = lambda message: BadQueue("no such queue") if message.fields[1] else None
    process, _peer = start_work(broker, "work", "q", "--exec", "cat")
    assert process.wait(SECONDS) == 1
    assert "sluicemq: no such queue" in end_work(process)[1]


# ---------------------------------------------------------------------- the broker's own commands


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been executed."""
    calls: list[str] = []
    monkeypatch.setattr(os, "execv", lambda _path, arguments: calls.extend(arguments))
    return calls


def test_serve_hands_everything_over_untouched(run: Run, executed: list[str]) -> None:
    arguments = ["--help", "--config", "a.toml", "--", "-x", "--endpoint=y"]
    assert run("serve", *arguments).exit_code == 0
    assert executed == [sys.executable, "-P", "-m", "sluicemq_broker", *arguments]


def test_serve_knows_the_short_help_too(run: Run, executed: list[str]) -> None:
    run("serve", "-h")
    assert executed == [sys.executable, "-P", "-m", "sluicemq_broker", "--help"]


def test_config_check_asks_the_broker(run: Run, executed: list[str]) -> None:
    assert run("config", "check", "a.toml").exit_code == 0
    assert run("config", "check").exit_code == 0
    once = [sys.executable, "-P", "-m", "sluicemq_broker", "--check-config"]
    assert executed == [*once, "--config", "a.toml", *once]


def test_serve_without_the_broker_says_what_to_install(
    run: Run, executed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "_is_installed", lambda name: name != "gevent")
    result = run("serve")
    assert result.exit_code == 1
    assert "pip install 'sluicemq[broker]'" in result.stderr
    assert executed == []


def test_the_command_without_click_says_what_to_install() -> None:
    program = "import sys; sys.modules['click'] = None; from sluicemq.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "sluicemq: the command line needs click and rich: pip install 'sluicemq[cli]'\n"
