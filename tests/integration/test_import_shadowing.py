"""The commands run what is installed, whatever lies in the folder in which they are started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zmq

from sluicemq import Client, Producer
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.http_reader import Web
from support.waiting import TIMEOUT

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
def test_a_broker_at_work_imports_no_decoy_however_late(
    decoys: Path, mongo_uri: str, database: str, program: Sequence[str]
) -> None:
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
