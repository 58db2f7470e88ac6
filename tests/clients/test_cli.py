"""The command: shared options, a store or broker away, completion, ``ping --http``."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from clients.cli_runs import Run, nobody, run_process, run_without
from clients.scripted_broker import SECONDS, SILENCE, ScriptedBroker
from sluicemq.cli.app import app
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.certificates import Authority
from support.ports import free_port


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_package_itself_is_the_command(flag: str) -> None:
    command = [sys.executable, "-m", "sluicemq", flag]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    assert told == f"sluicemq, version {metadata.version('sluicemq')}\n"


@pytest.mark.parametrize(("typed", "meant"), [("quues", "queues"), ("pusch", "push"), ("xyzzy", None)])
def test_a_mistyped_command_names_the_one_it_may_mean(run: Run, typed: str, meant: str | None) -> None:
    result = run(typed)
    assert result.exit_code == 2
    assert f"No such command '{typed}'." in result.stderr
    assert ("Did you mean" in result.stderr) == bool(meant)
    assert f"Did you mean {meant!r}?" in result.stderr or not meant


@pytest.mark.parametrize(
    "arguments",
    [
        ["queues", "\udcff"],
        ["push", "\udcff", "x"],
        ["push", "q", "x", "--header", "a=\udcff"],
        ["push", "q", "x", "--group", "\udcff"],
        ["jobs", "show", "q", "\udcff"],
        ["queues", "delete", "\udcff", "--yes"],
        ["jobs", "result", "q", "\udcff"],
        ["dead-letters", "redrive", "q", "ok", "\udcff"],
        ["dead-letters", "discard", "q", "--reason", "\udcff"],
        ["schedules", "delete", "\udcff"],
        ["schedules", "add", "name", "q", "x", "--cron", "\udcff"],
        ["streams", "show", "\udcff"],
        ["workers", "\udcff"],
        ["work", "\udcff", "--print"],
        ["pop", "\udcff"],
        ["operations", "show", "\udcff"],
        ["--endpoint", "ipc://\udcff", "queues"],
    ],
    ids=lambda arguments: " ".join(arguments).encode(errors="backslashreplace").decode(),
)
def test_an_argument_not_in_utf_8_is_an_error(run: Run, broker: ScriptedBroker, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.exception
    assert "Invalid value for" in result.stderr
    assert broker.received == []


# --------------------------------------------------- a broker without its store


def silent_store(broker: ScriptedBroker) -> None:
    """It answers what it can without MongoDB."""
    health = {"store": "MongoDB has not answered for 4.2 s", "store_silent": 4.2}
    broker.on[wire.PING] = lambda message: health if message.fields == [True] else None


def test_a_push_the_store_has_not_confirmed_says_how_to_repeat_it(broker: ScriptedBroker, run: Run) -> None:
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
    "command", [["queues", "purge", "mail", "--yes"], ["call", "mail", "x"], ["jobs", "result", "mail", "x"]]
)
def test_a_silent_store_is_no_silent_broker(broker: ScriptedBroker, run: Run, command: list[str]) -> None:
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


def test_a_ping_tells_of_the_store(broker: ScriptedBroker, run: Run) -> None:
    assert run("ping").exit_code == 0  # of an older broker, which tells nothing of it
    silent_store(broker)
    result = run("ping", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["store"], told["store_silent"]) == (
        4, "MongoDB has not answered for 4.2 s", 4.2,
    )  # fmt: skip


# ------------------------------------------------------------------- completion


def completed(*line: str) -> list[str]:
    """What a shell is told for the last word of a line."""
    shell = ShellComplete(app, {}, "sluicemq", "_SLUICEMQ_COMPLETE")
    return [completion.value for completion in shell.get_completions(list(line[:-1]), line[-1])]


def test_the_names_of_queues_are_completed_wherever_one_is_wanted(broker: ScriptedBroker) -> None:
    broker.on[wire.QUEUES] = lambda _message: [{"name": name} for name in ("mail", "mails.old", "other")]
    before, after = ["--endpoint", broker.endpoint], ["--endpoint", broker.endpoint]
    assert completed(*before, "peek", "ma") == ["mail", "mails.old"]
    assert completed("work", *after, "") == ["mail", "mails.old", "other"]
    assert completed(*before, "dead", "list", "o") == ["other"]
    assert completed(*before, "dead", "redrive", "mail", "--to", "o") == ["other"]


def test_without_a_broker_commands_are_completed_and_no_queues() -> None:
    assert completed("--endpoint", nobody(), "jobs", "list", "") == []
    assert completed("dea") == ["dead-letters"]
    assert "list" in completed("jobs", "l")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_needs_to_complete_is_printed(run: Run, shell: str) -> None:
    printed = run("completion", shell)
    assert (printed.exit_code, f"_SLUICEMQ_COMPLETE={shell}_complete" in printed.stdout) == (0, True)


# -------------------------------------------------------------- ping, no broker


def test_ping_tells_how_long_it_took(broker: ScriptedBroker, run: Run) -> None:
    assert f"{broker.endpoint} answers in" in run("ping").stdout
    assert json.loads(run("--json", "ping").stdout)["seconds"] > 0


def test_ping_waits_for_a_broker_that_comes_up(broker: ScriptedBroker) -> None:
    broker.stop()
    environment = os.environ | {"SLUICEMQ_ENDPOINT": broker.endpoint}
    command = [sys.executable, "-m", "sluicemq.cli", "ping", "--wait", "60"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            broker.start()
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    "command",
    [["queues"], ["ping"], ["push", "q", "x"], ["push", "q", "--lines"], ["work", "q", "--print"],
     ["queues", "purge", "q", "--yes"]],
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


# ---------------------------------------------------- the broker's own commands


#: A broker that only tells how it was started.
_TELLING = "import json, sys; print(json.dumps(sys.orig_argv))"
_BROKER = [sys.executable, "-P", "-m", "sluicemq_broker"]

Executed = Callable[..., list[str]]


@pytest.fixture
def executed(tmp_path: Path) -> Executed:
    package = tmp_path / "sluicemq_broker"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_TELLING)

    def executed(*arguments: str) -> list[str]:
        done = run_process(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    return executed


def test_serve_hands_everything_over_untouched(executed: Executed) -> None:
    arguments = ["--help", "--config", "a.toml", "--", "-x", "--endpoint=y"]
    assert executed("--endpoint", "tcp://nobody:1", "serve", *arguments) == [*_BROKER, *arguments]


def test_serve_knows_the_short_help_too(executed: Executed) -> None:
    assert executed("serve", "-h") == [*_BROKER, "--help"]


def test_config_check_asks_the_broker(executed: Executed) -> None:
    assert executed("config", "check", "a.toml") == [*_BROKER, "--check-config", "--config", "a.toml"]
    assert executed("config", "check") == [*_BROKER, "--check-config"]


def test_serve_without_the_broker_says_what_to_install(tmp_path: Path) -> None:
    done = run_without("gevent", tmp_path, "serve", "--help")
    assert done.returncode == 1
    assert "pip install '.[broker]' in a checkout of SluiceMQ" in done.stderr
    assert done.stdout == ""


def test_the_command_without_click_says_what_to_install(tmp_path: Path) -> None:
    done = run_without("click", tmp_path, "queues")
    assert done.returncode == 1
    assert done.stderr == (
        "sluicemq: the command line needs click and rich: pip install '.[cli]' in a checkout of SluiceMQ\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["key", "show", "/nowhere/a.key"],
        ["backup", "--out", "/nowhere", "--mongodb-uri-file", "/nowhere/uri"],
        ["backup", "--out", "/nowhere", "--config", "/nowhere/broker.toml"],
        ["restore", "/nowhere/a.tar", "--config", "/nowhere/broker.toml"],
        ["doctor", "--config", "/dev/null", "--report", "/nowhere/report"],
    ],
    ids=" ".join,
)
def test_a_value_that_nothing_may_have_is_wrong_usage_wherever_it_is_found(words: list[str]) -> None:
    nowhere = {"SLUICEMQ_ENDPOINT": "tcp://127.0.0.1:9"}
    assert CliRunner().invoke(app, words, env=nowhere).exit_code == 2


READY = {"serves": True, "store": "ok", "lease": "ok", "doors": "ok"}
AWAY = {"serves": False, "store": "MongoDB has not answered for 4.2 s", "lease": "ok", "doors": "ok"}


def ping(address: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["ping", "--http", address, *words])


@contextmanager
def door(*answers: object, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A door that answers so, one question after the other; the last answer again and again."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/readyz"
            answer = left.pop(0) if len(left) > 1 else left[0]
            said = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(200 if answer == READY else 503)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_broker_that_asks_for_keys_is_ready_for_one_without(mongo_uri: str, database: str) -> None:
    config = {"broker": {"http": "127.0.0.1:0"}, "devices": [], "security": {"anonymous": "none"}}
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        address = broker.http.removeprefix("http://")
        said = ping(address)
        assert (said.exit_code, said.stdout) == (0, f"{address} is ready\n")


def test_what_is_missing_is_said_with_the_exit_code_of_a_store_that_is_away() -> None:
    with door(AWAY) as address:
        said = ping(address)
        assert said.exit_code == 4
        assert said.stdout == f"{address} is not ready: store: MongoDB has not answered for 4.2 s\n"
        assert json.loads(ping(address, "--json").stdout) == {"http": address, **AWAY}


def test_wait_is_over_when_the_broker_is_ready() -> None:
    with door(AWAY, AWAY, READY) as address:
        assert ping(address, "--wait", "60").exit_code == 0


def test_a_certificate_of_any_name_will_do_for_a_question_without_secrets(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).certificate("mq.example.com")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    with door(READY, tls=context) as address:
        assert ping(f"https://{address}").exit_code == 0
        assert ping(address, "--timeout", "60").exit_code == 3


@pytest.mark.parametrize("said", [b"<html>", b"[]", b""])
def test_something_else_than_a_broker_is_none(said: bytes) -> None:
    with door(said) as address:
        result = ping(address)
    assert result.exit_code == 3
    assert f"no broker answers at http://{address}/readyz" in result.stderr


def test_nobody_there_is_said_in_one_line() -> None:
    result = ping(f"127.0.0.1:{free_port()}", "--wait", "0.1")
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("address", ["", "127.0.0.1", "ftp://127.0.0.1:21", "a:b", "tcp://127.0.0.1:5550"])
def test_what_is_no_address_is_wrong_usage(address: str) -> None:
    assert ping(address).exit_code == 2
