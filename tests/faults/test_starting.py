"""A broker that can't start, or lacks room, says why in one line."""

import json
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from faults.replica_set import ReplicaSet
from sluicemq import Client, Producer
from sluicemq_broker.command.serve import stop
from sluicemq_broker.embedded import shortage
from sluicemq_broker.embedded.mongod import why_it_ended
from support.broker_process import BrokerProcess
from support.long_forms import long
from support.ports import tcp
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full


def refusal(broker: BrokerProcess, code: int = 1) -> list[str]:
    """Start a broker that can't, and return the lines of its log from the first warning on."""
    broker.launch()
    try:
        assert broker.process.wait(60) == code
        return broker.log_text().splitlines()
    finally:
        broker.close()


def test_a_mongodb_uri_that_can_not_be_read_is_one_line_that_does_not_show_it(tmp_path: Path) -> None:
    lines = refusal(BrokerProcess("mongodb://user:p@ss@host", "none", folder=tmp_path), code=2)
    assert (
        "broker.toml: [broker] mongodb_uri: expected a URI such as mongodb://USER:PASSWORD@HOST" in lines[0]
    )
    assert len(lines) == 1
    assert "ss" not in lines[0].replace("password", "")


@pytest.mark.parametrize("form", [["--mongodb-uri", "db"], ["--mongodb-uri=db"]], ids=["two words", "one"])
def test_a_mongodb_uri_that_can_not_be_read_is_told_once_by_name(tmp_path: Path, form: list[str]) -> None:
    environ = {"SLUICEMQ_MONGODB_URI": "mongodb://fine"}
    lines = refusal(BrokerProcess(folder=tmp_path, args=form, env=environ), code=2)
    assert len(lines) == 1
    assert lines[0].startswith("sluicemq: --mongodb-uri: expected a URI that begins with mongodb://")


def test_an_option_of_a_mongodb_uri_that_can_not_be_used_is_one_line(tmp_path: Path) -> None:
    lines = refusal(BrokerProcess("mongodb://bob:s3cret@127.0.0.1:1/?tls=maybe", "none", folder=tmp_path))
    assert "mongodb_uri can't be used: option no. 1, tls=maybe: The value of tls must be" in lines[0]
    assert len(lines) == 2  # and that it has stopped
    assert "s3cret" not in "".join(lines)


def test_secrets_on_the_command_line_go_out_of_sight(tmp_path: Path) -> None:
    uri = "mongodb://bob:s3cret@127.0.0.1:1/?authMechanismProperties=AWS_SESSION_TOKEN:t0ken"
    others = ["--http-token", "s3cret-and-long-enough", "--event-bus=redis://:s3cret@127.0.0.1/0"]
    for words in (["--mongodb-uri", uri], [f"--mongodb-uri={uri}"]):
        broker = BrokerProcess(folder=tmp_path, args=["--log-level", "debug", *words, *others])
        broker.launch()
        try:
            seen = wait_until(lambda: shown_as(broker.pid, "***"), what="its command line without the URI")  # noqa: B023
            assert broker.process.wait(60) == 1
        finally:
            broker.close()
        told = broker.log_text()
        assert "no MongoDB primary: 127.0.0.1:1" in told
        for secret in ("s3cret", "t0ken"):
            assert secret not in seen + told


def test_a_uri_in_a_wrong_place_of_the_command_line_is_not_shown(tmp_path: Path) -> None:
    words = [
        "--mongodb_uri",
        "mongodb://bob:s3cret@h",
        "mongodb://bob:s3cret@h",
        "--log-level",
        "bob:s3cret@h",
    ]
    for wrong in (words[:2], words[2:3], words[3:]):
        broker = BrokerProcess(folder=tmp_path, args=wrong)
        assert "s3cret" not in "".join(refusal(broker, code=2))


def test_a_door_that_is_taken_is_told_before_mongodb_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        door = tcp(taken.getsockname()[1])
        lines = refusal(BrokerProcess(folder=tmp_path, config={"broker": {"endpoint": door}}))
    assert f"{door} is taken, perhaps by another broker; a second broker on this machine" in lines[0]
    assert len(lines) == 2


def test_doors_that_everybody_could_enter_are_refused_before_anything_is_started(tmp_path: Path) -> None:
    broker = BrokerProcess(folder=tmp_path, args=["--endpoint", "tcp://0.0.0.0:0"])
    broker.launch()
    try:
        assert broker.process.wait(60) == 2
        assert (
            "other machines can reach tcp://0.0.0.0:0, and everybody may do everything" in broker.log_text()
        )
        assert not (tmp_path / "data").exists()
    finally:
        broker.close()


def test_a_door_that_can_not_open_stops_the_others(mongo_uri: str, database: str, tmp_path: Path) -> None:
    here = {"kind": "streamer", "frontend": tcp(), "backend": tcp()}
    nowhere = {"kind": "streamer", "frontend": "tcp://192.0.2.1:5551", "backend": tcp()}
    config = {"broker": {"insecure": True}, "devices": [here, nowhere]}
    lines = refusal(BrokerProcess(mongo_uri, database, config=config, folder=tmp_path))
    assert "other machines can reach tcp://192.0.2.1:5551, and clients need no key there" in lines[0]
    assert "tcp://192.0.2.1:5551 can't be bound" in lines[1]
    assert [line.split()[2:] for line in lines[2:]] == [["INFO", "broker:", "stopped"]]


@pytest.mark.parametrize("verb", ["update", "find"])
def test_a_broker_starts_though_its_first_tries_to_write_or_read_leases_have_no_answer(
    mongo_uri: str, database: str, verb: str
) -> None:
    def of_leases(command: Command) -> bool:
        return command.body.get(verb) == "owners"

    with CuttingProxy(mongo_uri) as proxy:
        without = proxy.cut(of_leases, times=7)
        with (
            BrokerProcess(proxy.uri, database, config={"broker": {"lease": 1.0}}) as broker,
            Client(endpoint=broker.doors["smq"]) as client,
        ):
            without.wait(7)
            client.ping()


@pytest.fixture(scope="module")
def replica_set() -> Iterator[ReplicaSet]:
    with ReplicaSet() as mongo:
        yield mongo


#: PrimarySteppedDown, InterruptedDueToReplStateChange, NotWritablePrimary.
@pytest.mark.parametrize("code", [189, long(11602), long(10107)])
@pytest.mark.parametrize("command", ["update", "createIndexes", "find", "listCollections", "aggregate"])
def test_a_broker_starts_though_the_primary_steps_down_meanwhile(
    replica_set: ReplicaSet, database: str, command: str, code: int
) -> None:
    data = {"failCommands": [command], "appName": "sluicemq", "errorCode": code}
    replica_set.fail(replica_set.ports[0], "failCommand", {"times": 8}, data)
    queues = {"bounded": {"max_ready": 10}}
    schedules = {"nightly": {"queue": "bounded", "payload": "go", "every": 3600}}
    config = {"queues": queues, "schedules": schedules}
    try:
        with BrokerProcess(replica_set.uri, database, config=config) as broker:
            with Client(endpoint=broker.doors["smq"]) as client:
                client.ping()
            assert "it is tried again" in broker.log_text()
    finally:
        replica_set.fail(replica_set.ports[0], "failCommand", "off")


def test_a_broker_that_is_told_to_stop_while_it_starts_stops(tmp_path: Path) -> None:
    broker = BrokerProcess(folder=tmp_path)
    broker.launch()
    try:
        broker.wait_log("starting MongoDB")
        broker.send_signal(signal.SIGTERM)
        assert broker.process.wait(60) == 0
        assert "ready (pid" not in broker.log_text()
        assert mongods(tmp_path) == []
    finally:
        broker.close()


def test_a_broker_that_is_told_to_stop_while_it_waits_for_mongodb_stops(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"mongodb://127.0.0.1:{silent.getsockname()[1]}/?directConnection=true"
        broker = BrokerProcess(uri, "none", folder=tmp_path)
        broker.launch()
        try:
            silent.settimeout(60)
            with silent.accept()[0]:
                broker.send_signal(signal.SIGTERM)
                assert broker.process.wait(60) == 0
            told = [line.partition("broker: ")[2] for line in broker.log_text().splitlines()]
            assert told == ["stopping in the middle of the start", "stopped"]
        finally:
            broker.close()


def test_a_second_signal_ends_an_embedded_mongodb_that_does_not_stop(tmp_path: Path) -> None:
    with BrokerProcess(folder=tmp_path) as broker:
        store = psutil.Process(broker.mongod_pid)
        store.suspend()
        wait_until(
            lambda: "second signal" in broker.log_text() or broker.send_signal(signal.SIGTERM),
            60,
            "its hurry",
        )
        assert broker.process.wait(60) == 0
        assert not store.is_running()


def test_a_stop_that_fails_stops_mongodb_all_the_same() -> None:
    stopped: list[str] = []

    class Failing:
        def stop(self) -> None:
            raise ValueError("a mistake of ours")

    class Store:
        def stop(self) -> None:
            stopped.append("store")

    server: Any = Failing()
    store: Any = Store()
    with pytest.raises(ValueError, match="a mistake"):
        stop(server, store)
    assert stopped == ["store"]


def shown_as(pid: int, text: str) -> str:
    """The command line of a process, once this stands in it."""
    words = " ".join(psutil.Process(pid).cmdline())
    return words if text in words else ""


def mongods(folder: Path) -> list[psutil.Process]:
    """Those that run on a data folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or [])
    ]


#: What mongod 6 wrote as it ended on a full disk, and when its limit of open files was reached.
FULL = ("E", "WiredTiger error message", {"error": 28, "message": {"msg": "handle-write: pwrite: failed"}})
FEW_FILES = ("E", "WiredTiger error message", {"error": 24, "message": {"msg": "directory-list: opendir"}})
PANIC = ("E", "WiredTiger error message", {"error": -31804, "message": {"msg": "the process must exit"}})
CONSEQUENCES = [
    PANIC,
    ("F", "Fatal assertion", {"msgid": 50853}),
    ("F", "Writing fatal message", {"message": "Got signal: 6 (Aborted).\n"}),
    ("E", "Error collecting stack trace", {"error": "unw_get_proc_name: unspecified"}),
    ("I", "Frame", {"frame": {"a": "55A2B16ECF25"}}),
]


def logged(folder: Path, *entries: tuple[str, str, object], ago: float = 0.0) -> Path:
    """Append entries to a log of mongod."""
    at = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
    log = folder / "mongod.log"
    with log.open("a") as file:
        for severity, message, attributes in entries:
            entry = {"t": {"$date": at}, "s": severity, "msg": message, "attr": attributes}
            file.write(json.dumps(entry) + "\n")
    return log


@pytest.mark.parametrize(
    ("cause", "words"),
    [(FULL, "is full: make room there"), (FEW_FILES, "files: raise that, with `ulimit -n")],
)
def test_the_first_error_is_the_cause(tmp_path: Path, cause: tuple[str, str, object], words: str) -> None:
    log = logged(tmp_path, cause, *CONSEQUENCES)
    assert words in why_it_ended(-6, log)
    assert "signal" not in why_it_ended(-6, log)


def test_an_error_that_was_over_is_not_the_cause(tmp_path: Path) -> None:
    logged(tmp_path, FEW_FILES, ago=60)
    log = logged(tmp_path, *CONSEQUENCES)
    assert "the process must exit" in why_it_ended(-6, log)


def test_a_mongod_that_was_killed_blames_nothing_that_was_before(tmp_path: Path) -> None:
    assert "killed (signal 9)" in why_it_ended(-9, logged(tmp_path, FULL))


@pytest.mark.parametrize(
    ("free", "files", "told"),
    [(1 << 35, 64_000, 0), (1 << 22, 64_000, 1), (1 << 35, 1024, 1), (1 << 22, 1024, 2)],
)
def test_little_room_and_few_files_are_told_early(tmp_path: Path, free: int, files: int, told: int) -> None:
    assert len(list(shortage.shortages(tmp_path, free=free, files=files))) == told


def test_a_broker_with_too_few_files_for_its_mongodb_names_them(tmp_path: Path) -> None:
    broker = BrokerProcess(folder=tmp_path, rlimits={resource.RLIMIT_NOFILE: 40})
    try:
        broker.launch()
        assert broker.process.wait(TIMEOUT) == 1
        assert "may open 40 files each: that is little" in broker.log_text()
        assert "ERROR   broker: mongod ended with code " in broker.log_text()
        assert "it may open no more than 40 files: raise that, with `ulimit -n 64000`" in broker.log_text()
    finally:
        broker.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """One of 40 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip(f"no disk can be mounted here: {mounting.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_is_named_and_what_was_confirmed_is_there(small_disk: Path, tmp_path: Path) -> None:
    # Given a broker whose MongoDB lies on a small disk
    filler = small_disk / "filler"
    with BrokerProcess(config={"broker": {"data_dir": str(small_disk / "data")}}) as broker:
        assert "MiB are free on the disk of" in broker.log_text()
        # When something else fills it
        with Producer(close_timeout=0.0, endpoint=broker.doors["smq"]) as producer:
            producer.push("q", b"confirmed", id="first").wait(TIMEOUT)
            subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=1M"], capture_output=True, check=False)
            receipt = producer.push("q", bytes(4_000_000))
            # Then it says so
            broker.wait_log(f"the disk of {small_disk}/data is full: make room there")
            assert "Got signal" not in broker.log_text()
            # To those who ask, too
            with Client(endpoint=broker.doors["smq"]) as client:
                wait_until(lambda: "is full: make room there" in client.health().store)
            # And goes on when there is room again
            filler.unlink()
            receipt.wait(TIMEOUT)


def test_a_folder_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    broker = BrokerProcess(folder=tmp_path)
    try:
        broker.launch()
        assert broker.process.wait(TIMEOUT) == 1
        assert f"the data folder {tmp_path}/data can't be used: " in broker.log_text()
    finally:
        broker.close()
