"""Commands with any standard stream closed, or any file in their folder, do what is installed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
import zmq

from sluicemq import Client, Producer
from sluicemq.cli.app import app
from sluicemq.protocol.wire import ShownState
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.http_reader import Web
from support.ports import free_port, tcp
from support.waiting import TIMEOUT, wait_until

#: How the shell is told, and what the command then says on stderr.
STDOUTS = {
    ">&-": "sluicemq: can't write to stdout: Bad file descriptor",
    ">/dev/full": "sluicemq: can't write to stdout: No space left on device",
    "| true": "",
}
#: All that print something, with ``q`` for a queue that has a job.
COMMANDS = """
    --help; --version; serve --help; serve --check-config; config check; device --help; completion bash
    ping; queues; --json queues; stats; --json stats; jobs list q; --json jobs list q; --json workers
    --json operations; --json dead-letters list q; --json jobs list q --state done; --json streams
    find first
    push q again; --json subscriptions; --json schedules; push q --help; streams publish s topic payload
    schedules add nightly q report --every 3600; key new; --json principals; audit
    --json queues purge q --state dead --yes; --json brokers; brokers upgrade; queues settings q
    queues set-settings q ttl 1h
    --json doctor; --json incidents
""".replace("\n", ";")


def words_of(commands: str) -> list[str]:
    return [command.strip() for command in commands.split(";") if command.strip()]


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(mongo_uri, f"streams-{free_port()}") as process:
        with Producer(endpoint=process.doors["smq"]) as producer:
            producer.push("q", "héllo → …".encode(), id="first").wait(TIMEOUT)
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(endpoint=broker.doors["smq"]) as client:
        yield client


def shell(
    broker: BrokerProcess, arguments: str, streams: str, **environ: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of ``sluicemq`` in a shell with these redirections; the code is that of the command."""
    command = f"{sys.executable} -P -m sluicemq {arguments} {streams}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={**os.environ, "SLUICEMQ_ENDPOINT": broker.doors["smq"], **environ},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip


def test_each_command_that_prints_and_ends_by_itself_is_tried() -> None:
    tried = {word for line in words_of(COMMANDS) for word in line.split()}
    others = "work pop call top events bench history kinds backup restore"
    assert set(app.list_commands(click.Context(app))) - tried == set(others.split())


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "commands",
    [
        pytest.param("--version; queues; --json jobs list q; serve --check-config", id="some"),
        pytest.param(COMMANDS, id="all", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("stdout", STDOUTS)
def test_a_stdout_that_takes_nothing_is_named(broker: BrokerProcess, stdout: str, commands: str) -> None:
    for arguments in words_of(commands):
        done = shell(broker, arguments, stdout)
        assert (done.returncode, done.stderr.decode().strip().partition(";")[0]) == (1, STDOUTS[stdout]), (
            arguments
        )


@pytest.mark.one_in(5)
@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "<&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"), [("queues", 0), ("nosuch", 2), ("show q nosuch", 1), ("push q x", 0)]
)
def test_a_full_stderr_is_done_without(broker: BrokerProcess, stderr: str, arguments: str, code: int) -> None:
    done = shell(broker, arguments, stderr)
    assert done.returncode == code
    assert bool(done.stdout) == (not code)
    assert done.stderr == b""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("arguments", ["push q --lines", "push q -", "call q -", "stream publish s t -"])
def test_a_closed_stdin_is_named_by_its_reader(broker: BrokerProcess, client: Client, arguments: str) -> None:
    before = client.queue("q")[ShownState.READY]
    done = shell(broker, arguments, "<&-")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().splitlines()[-1] == "sluicemq: can't read stdin: Bad file descriptor"
    assert client.queue("q")[ShownState.READY] == before


@pytest.mark.one_in(4)
@pytest.mark.parametrize("streams", [">&-", ">/dev/full", "<&- >&- 2>&-"])
@pytest.mark.parametrize("verb", ["work {} --print --drain", "pop {}"])
def test_one_that_can_not_print_lives(broker: BrokerProcess, client: Client, streams: str, verb: str) -> None:
    queue = re.sub(r"\W+", "", f"{verb}{streams.encode().hex()}")
    with Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push(queue, b"hello", id="one").wait(TIMEOUT)
    done = shell(broker, verb.format(queue), streams)
    assert (done.returncode, done.stdout) == (1, b"")
    wait_until(lambda: client.queue(queue)[ShownState.READY] == 1)
    assert client.jobs.get(queue, "one").attempts == 0


def test_a_push_whose_id_can_not_be_printed_says_that_the_job_is_stored(broker: BrokerProcess) -> None:
    done = shell(broker, "push other x --id mine", ">/dev/full")
    assert done.stderr.decode() == f"{STDOUTS['>/dev/full']}; the job is stored, as mine\n"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("program", ["sluicemq", "sluicemq_broker"])
def test_no_socket_of_a_broker_gets_the_number_of_a_stream_that_is_closed(
    mongo_uri: str, database: str, tmp_path: Path, program: str
) -> None:
    """What it logs would go to whoever is connected there."""
    serve = "serve" if program == "sluicemq" else ""
    ready = tmp_path / "ready.json"
    command = (
        f"exec {sys.executable} -P -m {program} {serve} --no-devices --endpoint {tcp()} --http '' "
        f"--database {database} --mongodb-uri '{mongo_uri}' --ready-file {ready} <&- >&- 2>&-"
    )
    process = subprocess.Popen(["bash", "-c", command])
    try:
        wait_until(ready.exists, what="the broker")
        pid = json.loads(ready.read_text())["pid"]
        files = [Path(f"/proc/{pid}/fd/{number}").readlink() for number in range(3)]
        assert files == [Path("/dev/null")] * 3
    finally:
        process.terminate()
        assert process.wait(TIMEOUT) == 0


def test_a_broker_that_can_not_say_that_it_is_ready_ends(mongo_uri: str, database: str) -> None:
    command = (
        f"{sys.executable} -P -m sluicemq_broker --json --no-devices --endpoint {tcp()} "
        f"--http '' --database {database} --mongodb-uri '{mongo_uri}' >/dev/full"
    )
    done = subprocess.run(
        ["bash", "-c", command], stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == STDOUTS[">/dev/full"]
    assert "Traceback" not in done.stderr


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", "h\\xe9llo -> ..."), ("latin-1", "héllo -> ..."), ("utf-8", "héllo → …")],
)
def test_a_table_in_any_encoding_shows_all(broker: BrokerProcess, encoding: str, shown: str) -> None:
    done = shell(broker, "jobs list q --limit 1", "", PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert shown in done.stdout.decode(encoding)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_json_on_a_stdout_of_any_encoding_is_json(broker: BrokerProcess, encoding: str) -> None:
    done = shell(broker, "--json jobs list q --limit 1", "", PYTHONIOENCODING=encoding)
    [job] = json.loads(done.stdout.decode(encoding))["jobs"]
    assert job["payload"] == "héllo → …"


def test_what_no_encoding_is_named_for_is_shown_in_the_c_locale(broker: BrokerProcess) -> None:
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    done = shell(broker, "jobs list q --limit 1", "", **plain)
    assert done.returncode == 0
    assert b"h\\xe9llo -> ..." in done.stdout


SAID = "a decoy was run"
DECOY = f"raise SystemExit('{SAID}')\n"
FILES = ["broker.py", "devices.py", "zmq.py", "config.py", "msgpack.py", "click.py", "logging.py"]
FOLDERS = ["broker", "devices", "gevent", "pymongo", "sluicemq", "store", "queue"]
#: What only a broker at work imports: for its HTTP door, its figures, its schedules.
LATE = ["falcon", "prometheus_client", "cronsim", "http", "dashboard"]
SCRIPT = [sys.executable, str(Path(sys.executable).parent / "sluicemq")]


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).write_text(DECOY)
    for name in FOLDERS + LATE:
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (tmp_path / name / file).write_text(DECOY)
    return tmp_path


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([*SCRIPT, "serve", "--check-config"], "lease"),
        ([*SCRIPT, "config", "check"], "lease"),
        ([*SCRIPT, "device", "--help"], "forwarder"),
        ([sys.executable, "-m", "sluicemq_broker", "--check-config"], "lease"),
        ([sys.executable, "-m", "sluicemq_devices", "--help"], "forwarder"),
    ],
    ids=lambda value: " ".join(value[1:]).rpartition("/")[2] if isinstance(value, list) else "",
)
def test_a_folder_full_of_decoys_changes_nothing(decoys: Path, command: list[str], said: str) -> None:
    ended = subprocess.run(command, cwd=decoys, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, SAID in ended.stdout + ended.stderr) == (0, False), ended.stderr
    assert said in ended.stdout


@pytest.mark.one_in(2)
@pytest.mark.parametrize("program", [["-m", "sluicemq_broker"], [SCRIPT[1], "serve"]], ids=["-m", "serve"])
def test_no_late_decoy_comes_in(decoys: Path, mongo_uri: str, database: str, program: Sequence[str]) -> None:
    # Given a broker that was started there, with its HTTP door
    broker = BrokerProcess(mongo_uri, database, config={"broker": {"http": "127.0.0.1:0"}}, folder=decoys)
    broker.program = program
    with (
        broker,
        Producer(endpoint=broker.doors["smq"]) as producer,
        Client(endpoint=broker.doors["smq"]) as client,
    ):
        # When it has all kinds of work
        client.schedules.add("hourly", "reports", b"work", cron="0 * * * *")
        producer.push("mail", b"work").wait(TIMEOUT)
        [job] = client.jobs.reserve("mail", 1, TIMEOUT)
        job.commit()
        web = Web(broker.http)
        answers = {path: web.get(path) for path in ("/healthz", "/metrics", "/")}
        # Then all of it is done
        assert job.payload == b"work"
        assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(answers, 200)
        assert b"sluicemq_" in answers["/metrics"].body
        assert broker.terminate() == 0
        assert SAID not in broker.log_text()


@pytest.fixture
def streamer(decoys: Path) -> Iterator[subprocess.Popen[str]]:
    command = [*SCRIPT, "device", "streamer", "--json", ANY_PORT, ANY_PORT]
    with subprocess.Popen(
        command, cwd=decoys, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_a_device_at_work_imports_no_decoy_however_late(streamer: subprocess.Popen[str]) -> None:
    assert streamer.stdout
    ends = json.loads(streamer.stdout.readline())
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.PULL) as pull:
        push.linger, pull.rcvtimeo = 0, int(TIMEOUT * 1000)
        push.connect(ends["frontend"])
        pull.connect(ends["backend"])
        push.send(b"work")
        assert pull.recv() == b"work"
    streamer.terminate()
    _, said = streamer.communicate(timeout=TIMEOUT)
    assert (streamer.returncode, SAID in said) == (0, False), said


def test_nothing_is_installed_under_a_name_that_can_be_anybody_s() -> None:
    names = {"broker", "devices", "clients", "config", "store", "queue_store"}
    found = [name for name in names if any((Path(entry) / name).is_dir() for entry in _site_packages())]
    assert found == []


def _site_packages() -> list[str]:
    return [entry for entry in sys.path if entry.endswith("site-packages")]
