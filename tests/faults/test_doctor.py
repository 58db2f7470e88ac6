"""``sluicemq doctor``: set-ups that are broken, each in one way, and whether the cause is named."""

import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import tomli_w
import zmq
from bson.int64 import Int64
from click.testing import CliRunner
from pymongo import MongoClient

from sluicemq import Producer, Worker
from sluicemq.cli.app import app
from sluicemq.protocol.keys import KeyPair, decode, write_key_file
from sluicemq_broker.config import MongoUri
from sluicemq_broker.doctor import Examination, Host
from sluicemq_broker.job import Parent
from sluicemq_broker.store import Child, FanOutEntry, QueueStore, fan_out
from sluicemq_broker.store.jobs.index_models import INDEXES
from support.broker_process import BrokerProcess
from support.jobs import NOW, a_job
from support.own_mongod import a_mongod
from support.ports import free_port, tcp
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

GIB: Final = 1 << 30
#: A machine that lacks nothing.
FINE: Final = Host(None, None, None, 8 * GIB, 4 * GIB, 65_536)

WITH_DATA: Final = FINE._replace(folder=Path("/data"), disk_total=100 * GIB)


class Findings(list[dict[str, str]]):
    """The findings of one call; ``exit_code`` of the command."""

    exit_code = 0

    def said(self, level: str, subject: str = "") -> str:
        these = [row for row in self if row["level"] == level and subject in row["subject"]]
        return "\n".join(f"{row['what']} | {row['evidence']} | {row['to_do']}" for row in these)


def doctor(*words: str | Path, **environ: str) -> Findings:
    clean = dict.fromkeys((name for name in os.environ if name.startswith("SLUICEMQ_")), None)
    result = CliRunner().invoke(app, ["--json", "doctor", *map(str, words)], env={**clean, **environ})
    assert result.stdout, result
    return of_output(result.stdout, result.exit_code)


def of_output(text: str, exit_code: int) -> Findings:
    answer = json.loads(text)
    found = Findings(answer["findings"])
    found.exit_code = exit_code
    assert exit_code == answer["exit_code"]
    return found


def look(uri: str, database: str, host: Host = FINE, ahead: float = 0.0) -> Findings:
    """Look at a store without a broker; this machine and its clock are handed in."""
    examination = Examination(
        None, MongoUri.read(uri), database, {}, lambda: time.time() + ahead, lambda *_: host
    )
    answer = examination.run("", {})
    found = Findings(answer["findings"])
    found.exit_code = answer["exit_code"]
    return found


@pytest.fixture
def of_store(mongo_uri: str, database: str) -> Iterator[Any]:
    """The database of the test, as an administrator has it."""
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        yield client[database]


def written(folder: Path, **tables: Mapping[str, Any]) -> Path:
    """Write a configuration without devices."""
    broker = {"http": "", "data_dir": str(folder / "data"), **tables.pop("broker", {})}
    file = folder / "sluicemq.toml"
    file.write_text(tomli_w.dumps({"devices": [], "broker": broker, **tables}))
    return file


@contextmanager
def brokers(uri: str, database: str, *configs: Mapping[str, Any]) -> Iterator[list[BrokerProcess]]:
    """Run one broker for each configuration, on one database."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(BrokerProcess(uri, database, config={"devices": [], **config}))
            for config in configs
        ]


def test_a_set_up_that_is_well_has_no_error_and_all_of_it_is_looked_at(mongo_uri: str, database: str) -> None:
    with brokers(mongo_uri, database, {}) as [broker]:
        with Producer(endpoint=broker.doors["smq"]) as producer:
            producer.push("mail", b"x").wait(TIMEOUT)
        with Worker("mail", lambda _job: None, endpoint=broker.doors["smq"]):
            found = doctor("--config", broker.folder / "broker.toml")
    assert found.said("error") == ""
    said = found.said("ok")
    for text in (
        *("configuration is valid", "writes wait for a majority", "agree", " has schema "),
        *("all queues have their indexes", "brokers that have a lease: 1"),
        f"a broker answers at {broker.doors['smq']}",
    ):
        assert text in said


def test_a_database_that_is_not_there_yet_has_no_full_disk(mongo_uri: str, database: str) -> None:
    found = doctor(SLUICEMQ_MONGODB_URI=mongo_uri, SLUICEMQ_DATABASE=database)
    assert found.said("error") == ""
    assert "0 MiB" not in str(found)


def test_a_port_that_another_program_has_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = tcp(other.getsockname()[1])
        found = doctor("--config", written(tmp_path, broker={"endpoint": endpoint}), "--timeout", "0.5")
    assert f"{endpoint} is taken, and no broker answers there" in found.said("error", "config")
    assert f"something listens at {endpoint} and does not answer" in found.said("error", "brokers")
    assert found.exit_code == 2


def test_an_endpoint_where_nobody_listens_is_named(mongo_uri: str, database: str) -> None:
    nobody = tcp()
    with brokers(mongo_uri, database, {}) as [broker]:
        found = doctor("--config", broker.folder / "broker.toml", "--endpoint", nobody)
    assert f"no broker listens at {nobody}" in found.said("error", "brokers")
    assert "name the right --endpoint" in found.said("error", "brokers")


def test_a_configuration_that_is_wrong_is_named_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    found = doctor("--config", written(tmp_path, broker={"leese": 3}))
    assert "did you mean lease" in found.said("error", "config")
    assert "the configuration that names it is not valid" in found.said("info", "mongodb")


def test_a_mongodb_that_is_not_there_is_named_with_its_cause(tmp_path: Path) -> None:
    uri = f"mongodb://bob:swordfish@127.0.0.1:{free_port()}/?replicaSet=rs0"
    found = doctor("--config", written(tmp_path, broker={"endpoint": tcp(), "mongodb_uri": uri}))
    assert "MongoDB can't be used: " in found.said("error", "mongodb")
    assert "swordfish" not in json.dumps(found)
    assert "was not looked at" in found.said("info", "store")


def test_a_server_without_a_replica_set_is_named(tmp_path: Path) -> None:
    with a_mongod(tmp_path) as port:
        found = look(f"mongodb://127.0.0.1:{port}/", "sluicemq")
    assert "may lose confirmed jobs" in found.said("error", "mongodb")
    assert "rs.initiate()" in found.said("error", "mongodb")


def test_a_majority_without_a_journal_and_an_oplog_that_is_too_short_are_named(tmp_path: Path) -> None:
    with a_mongod(tmp_path, "--replSet", "rs0", "--oplogSize", "1") as port:
        host = f"127.0.0.1:{port}"
        with MongoClient[dict[str, Any]](f"mongodb://{host}/?directConnection=true") as client:
            members = [{"_id": 0, "host": host}]
            config = {"_id": "rs0", "members": members, "writeConcernMajorityJournalDefault": False}
            client.admin.command("replSetInitiate", config)
            wait_until(lambda: client.admin.command("hello")["isWritablePrimary"], what="a primary")
            for _ in range(4):
                client["full"]["jobs"].insert_many([{"payload": b"x" * 100_000} for _ in range(10)])
        found = look(f"mongodb://{host}/?replicaSet=rs0&w=1", "sluicemq")
    assert "writeConcernMajorityJournalDefault: false" in found.said("error", "mongodb")
    assert "the oplog is too short" in found.said("error", "mongodb")
    assert "the option w of the URI is not used" in found.said("info", "mongodb")
    assert "no spare member" in found.said("info", "mongodb")


@pytest.mark.parametrize("ahead", [200.0, -200.0])
def test_a_clock_that_is_wrong_is_named(mongo_uri: str, database: str, ahead: float) -> None:
    said = look(mongo_uri, database, ahead=ahead).said("warning", "mongodb")
    assert "the clocks of this machine and of MongoDB differ by " in said
    assert ("behind" in said) == (ahead > 0)
    assert "differ" not in look(mongo_uri, database).said("warning", "mongodb")


@pytest.mark.parametrize(
    ("host", "level", "said"),
    [
        (WITH_DATA._replace(disk_free=700 << 20), "warning", "disk of /data is nearly full"),
        (WITH_DATA._replace(disk_free=1 << 20), "error", "disk of /data is full"),
        (FINE._replace(open_files=256), "warning", "a process may open 256 files here"),
        (FINE._replace(memory=256 << 20), "warning", "256 MiB of memory"),
        (FINE._replace(memory_available=64 << 20), "warning", "only 64 MiB of memory are left"),
    ],
)  # fmt: skip
def test_what_is_scarce_on_this_machine_is_named(
    mongo_uri: str, database: str, host: Host, level: str, said: str
) -> None:
    assert said in look(mongo_uri, database, host).said(level, "host")
    assert look(mongo_uri, database).said(level, "host") == ""


def test_too_few_open_files_of_a_real_process_are_named(tmp_path: Path) -> None:
    file = written(tmp_path, broker={"endpoint": tcp()})
    command = f"ulimit -n 300; exec {sys.executable} -P -m sluicemq --json doctor --config {file}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    found = of_output(done.stdout, done.returncode)
    assert "a process may open 300 files here" in found.said("warning", "host")


def test_too_few_open_files_of_a_broker_are_named(mongo_uri: str, database: str) -> None:
    few = {resource.RLIMIT_NOFILE: 900}
    with BrokerProcess(mongo_uri, database, config={"devices": []}, rlimits=few) as broker:
        found = doctor("--config", broker.folder / "broker.toml")
    assert f"the broker (pid {broker.pid}) may open 900 files" in found.said("warning", "host")


def test_databases_of_single_queues_are_looked_at(mongo_uri: str, database: str, tmp_path: Path) -> None:
    other = f"{database}_2"
    file = written(
        tmp_path,
        broker={"endpoint": tcp(), "mongodb_uri": mongo_uri, "database": database},
        queues={"mail": {"database": other}},
    )
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        try:
            client[other]["queue.mail"].insert_one({"no": "index"})
            found = doctor("--config", file)
        finally:
            client.drop_database(other)
    assert "queue mail lacks the index dedupe and ended" in found.said("error", "store")


def test_a_missing_index_is_named(mongo_uri: str, database: str, of_store: Any) -> None:
    with brokers(mongo_uri, database, {}) as [broker], Producer(endpoint=broker.doors["smq"]) as producer:
        producer.push("mail", b"x").wait(TIMEOUT)
        producer.push("other", b"x").wait(TIMEOUT)
    of_store["queue.mail"].drop_index("ready")  # brokers would make it again
    said = look(mongo_uri, database).said("error", "store")
    assert "queue mail lacks the index ready" in said
    assert "other" not in said


@pytest.mark.parametrize(
    ("number", "level", "said"),
    [
        (99, "error", "was written by a newer SluiceMQ (schema 99"),
        (2, "warning", "stop all brokers of older versions"),
        (1, "warning", "has schema 1, which this version raises"),
    ],
)
def test_a_store_of_another_schema_is_named(
    mongo_uri: str, database: str, of_store: Any, number: int, level: str, said: str
) -> None:
    of_store["meta"].insert_one({"_id": "schema", "number": number})
    assert said in look(mongo_uri, database).said(level, "store")


def test_a_broker_that_hangs_is_named_by_its_door_and_by_its_lease(mongo_uri: str, database: str) -> None:
    with brokers(mongo_uri, database, {"broker": {"lease": 1.0}}) as [broker]:
        broker.send_signal(signal.SIGSTOP)
        file = broker.folder / "broker.toml"

        def silent() -> Findings | None:
            found = doctor("--config", file, "--timeout", "0.5")
            return found if "has not renewed its lease" in found.said("error", "brokers") else None

        found = wait_until(silent, what="a lease that is too old")
        broker.send_signal(signal.SIGCONT)
    assert f"something listens at {broker.doors['smq']} and does not answer" in found.said("error", "brokers")


@pytest.mark.parametrize(
    ("security", "level", "said"),
    [
        ({"mechanism": "curve"}, "error", "does not let this client in, or lets it see nothing"),
        ({"anonymous": "push=mail"}, "info", "does not answer all questions"),
    ],
)
def test_a_broker_that_shows_this_client_less_is_named(
    mongo_uri: str, database: str, tmp_path: Path, security: dict[str, str], level: str, said: str
) -> None:
    key = tmp_path / "broker.key"
    write_key_file(key, KeyPair(*[decode(key_text.decode()) for key_text in zmq.curve_keypair()]))
    with brokers(mongo_uri, database, {"security": {**security, "secret_key_file": str(key)}}) as [broker]:
        found = doctor("--config", broker.folder / "broker.toml")
    assert said in found.said(level, "brokers")
    assert "is taken" not in found.said("error", "config")
    assert "brokers that have a lease: 1" in found.said("ok", "brokers")


def test_brokers_without_an_event_bus_are_named(mongo_uri: str, database: str) -> None:
    off = {"broker": {"event_bus": "off"}}
    with brokers(mongo_uri, database, off, off) as [broker, _other]:
        found = doctor("--config", broker.folder / "broker.toml")
    assert "the event bus is off, and 2 brokers share the database" in found.said("warning", "brokers")


def test_a_job_that_waits_for_removed_children_is_named(mongo_uri: str, database: str, of_store: Any) -> None:
    # Given a parent whose child somebody has removed
    mail = QueueStore(of_store, "queue.mail")
    mail.prepare()
    mail.push([a_job("book")], NOW)
    [parent] = mail.reserve(1, NOW, "me", 1).jobs
    page = a_job("book.1")
    page.set_parent(Parent("mail", parent.id, parent.seq, parent.under))
    assert fan_out(mail, [FanOutEntry(parent, (Child(mail, page, inherits=False),), b"all")], NOW) == {}
    assert "no job waits for children" in look(mongo_uri, database).said("ok", "store")
    mail.jobs.delete_one({"_id": "book.1"})
    # When, Then
    said = look(mongo_uri, database).said("error", "store")
    assert "job book of queue mail waits for 1 children that are dead letters, or in no queue" in said


def test_a_bus_that_is_no_ring_is_named(mongo_uri: str, database: str, of_store: Any) -> None:
    of_store["bus"].insert_one({"made": "by hand"})
    assert "the collection bus is not capped" in look(mongo_uri, database).said("error", "brokers")


def test_dead_letters_that_are_removed_soon_are_named(mongo_uri: str, database: str, of_store: Any) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=88)
    queue = of_store["queue.mail"]
    queue.create_indexes(INDEXES)
    queue.insert_one({"_id": "m1", "state": "dead", "ended_at": long_ago})
    # When, Then
    said = look(mongo_uri, database).said("warning", "store")
    assert "the oldest dead letters of queue mail are removed in 2.0 days" in said


def test_a_stream_that_fills_its_disk_is_named(mongo_uri: str, database: str, of_store: Any) -> None:
    total = Int64(2**60)
    segment = {"count": 1, "at": datetime.now(UTC), "size": 1, "mark": "m"}
    of_store["stream.prices"].insert_many(
        [{"_id": Int64(1 + at), "total": 1 + at * total, **segment} for at in range(2)]
    )
    said = look(mongo_uri, database).said("warning", "store")
    assert "stream prices has no bound, and " in said


def test_a_task_that_stands_still_is_named(mongo_uri: str, database: str, of_store: Any) -> None:
    now, then = (datetime.fromtimestamp(time.time() - seconds, UTC) for seconds in (0, 600))
    task = {"kind": "purge", "queue": "mail", "state": "running", "done": 7, "owner": "gone", "broker": "a:1"}
    task |= {"order": {"state": "ready"}, "now": then.timestamp(), "total": 9}
    of_store["tasks"].insert_one({**task, "_id": "old", "changed_at": then, "started_at": then})
    of_store["tasks"].insert_one({**task, "_id": "new", "changed_at": now, "started_at": then})
    found = look(mongo_uri, database)
    assert "task old (purge of queue mail) is stuck: its broker has ended" in found.said("warning", "store")
    assert "task new (purge of queue mail) is under way" in found.said("info", "store")


def test_a_queue_without_workers_is_named(mongo_uri: str, database: str) -> None:
    with brokers(mongo_uri, database, {}) as [broker]:
        with Producer(endpoint=broker.doors["smq"]) as producer:
            producer.push("mail", b"x").wait(TIMEOUT)
        found = doctor("--endpoint", broker.doors["smq"], "--config", broker.folder / "broker.toml")
    assert "queue mail has 1 ready jobs, and no workers" in found.said("warning", "queues")
    assert found.exit_code == 1 or found.said("error", "host")


def test_brokers_that_disagree_are_named_with_what_each_says(mongo_uri: str, database: str) -> None:
    files = [{"queues": {"mail": {"max_running": number}}} for number in (3, 5)]
    with brokers(mongo_uri, database, *files) as [broker, _other]:

        def differs() -> str:
            return doctor("--config", broker.folder / "broker.toml").said("warning", "brokers")

        said = wait_until(lambda: "of queue mail" in differs() and differs(), what="what both files say")
    assert "max_running: 3 at " in said
    assert "5 at " in said


def test_a_changed_file_not_read_again_is_named(mongo_uri: str, database: str, tmp_path: Path) -> None:
    config = {"queues": {"mail": {"max_running": 3}}}
    with brokers(mongo_uri, database, config) as [broker]:
        changed = {**broker.config, "queues": {"mail": {"max_running": 4}}}
        (tmp_path / "changed.toml").write_text(tomli_w.dumps(changed))

        def said() -> str:
            return doctor("--config", tmp_path / "changed.toml").said("warning", "brokers")

        found = wait_until(lambda: "queue mail" in said() and said(), what="what the broker says of its file")
    assert "max_running: 4 at this file, 3 at the brokers" in found
    assert "SIGHUP" in found


def test_a_report_has_what_is_needed_and_no_job(mongo_uri: str, database: str, tmp_path: Path) -> None:
    config = {
        "queues": {"mail": {"max_attempts": 1}},
        "schedules": {"nightly": {"queue": "mail", "every": 9e6, "payload": "swordfish"}},
        "broker": {"history": True, "http": "127.0.0.1:0", "http_token": "swordfish-of-http"},
    }

    def fail(_job: object) -> None:
        raise ValueError("swordfish in a reason")

    with brokers(mongo_uri, database, config) as [broker]:
        endpoint = broker.doors["smq"]
        with Producer(endpoint=endpoint) as producer, Worker("mail", fail, endpoint=endpoint):
            producer.push("mail", b"swordfish", headers={"secret": "swordfish"}).wait(TIMEOUT)
            with MongoClient[dict[str, Any]](mongo_uri) as client:
                kinds = client[database]["incidents"]
                wait_until(lambda: kinds.find_one({"kind": "dead_letters"}), what="an incident")
        words = ["--config", str(broker.folder / "broker.toml"), "--report"]
        doctor(*words, tmp_path / "report.json")
        doctor(*words, tmp_path / "with-log.json", "--log", broker.folder / "broker.log")

    file = tmp_path / "report.json"
    found = json.loads(file.read_text())
    assert "swordfish" not in file.read_text()
    assert any("ready (pid" in line for line in json.loads((tmp_path / "with-log.json").read_text())["log"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert found["config"]["queues"]["mail"]["max_attempts"] == 1
    assert found["mongodb"]["version"]
    assert "dead_letters" in {row["kind"] for row in found["incidents"]}
    assert {row["name"] for row in found["answers"]["queues"]} == {"mail"}
    assert {"config", "host", "mongodb", "store", "brokers", "queues"} == {
        row["subject"] for row in found["findings"]
    }


def test_a_broker_that_runs_nowhere_yet_is_no_error(tmp_path: Path) -> None:
    found = doctor("--config", written(tmp_path, broker={"endpoint": tcp()}))
    assert "no broker listens" in found.said("warning", "brokers")
    assert found.said("error", "brokers") == ""


def test_people_read_what_is_wrong_and_what_to_do() -> None:
    nobody = tcp()
    result = CliRunner().invoke(app, ["--endpoint", nobody, "doctor"])
    assert f"ERROR    no broker listens at {nobody}" in result.stdout
    assert "-> start it (sluicemq serve)" in result.stdout
    assert result.exit_code == 2
