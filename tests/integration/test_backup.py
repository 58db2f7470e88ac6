"""``sluicemq backup`` and ``restore``: what comes back of a store under load, and what is refused."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Self

import bson
import pytest
import tomli_w
from click.testing import CliRunner, Result
from pymongo import MongoClient
from pymongo.database import Database

from sluicemq import Client, Producer, Publisher, Reader, Worker
from sluicemq.cli.app import app
from sluicemq_broker.backup.archive import ArchiveWriter
from sluicemq_broker.embedded import EmbeddedMongo
from sluicemq_broker.store import (
    SCHEMA,
    BackupSnapshot,
    Description,
    Disturbed,
    HalfRestored,
    HistoryWindow,
    LeaseStore,
    LeftOut,
    RestoredDatabase,
    SchemaStore,
)
from sluicemq_broker.store.copies.history_window import PARAMETER, SnapshotOver
from support.broker_process import BrokerProcess
from support.long_forms import first_of
from support.own_mongod import a_mongod
from support.ports import free_port
from support.waiting import TIMEOUT, wait_until

Store = Database[dict[str, Any]]
#: Seconds of a lease: a broker finds soon that the one before is dead.
LEASE: Final = 2


def sluicemq(*words: str | Path, code: int = 0, **environ: str) -> Result:
    clean = dict.fromkeys((name for name in os.environ if name.startswith("SLUICEMQ_")), None)
    result = CliRunner().invoke(app, [*map(str, words)], env={**clean, **environ})
    assert result.exit_code == code, (words, result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def mongo_uri() -> Iterator[str]:
    """The URI of a MongoDB of this file's own: a copy changes a parameter of the whole server."""
    with tempfile.TemporaryDirectory(prefix="sluicemq-test-", ignore_cleanup_errors=True) as folder:
        store = EmbeddedMongo(Path(folder))
        try:
            yield store.start()
        finally:
            store.stop()


@pytest.fixture
def mongo(mongo_uri: str) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        yield client


@pytest.fixture
def other(mongo: MongoClient[dict[str, Any]]) -> Iterator[str]:
    name = f"test_{token_hex(6)}"
    yield name
    mongo.drop_database(name)


class Load:
    """A producer and a worker at a broker: which jobs were confirmed, and which were worked on."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.confirmed: set[str] = set()
        self.begun: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._push)
        self._worker = Worker("load", lambda job: self.begun.add(job.id), prefetch=20, endpoint=endpoint)

    def __enter__(self) -> Self:
        self._thread.start()
        self._worker.start()
        wait_until(lambda: len(self.begun) > 50, what="jobs that are worked on")
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._worker.close()

    def _push(self) -> None:
        with Producer(endpoint=self._endpoint) as producer:
            while not self._end.is_set():
                ids = {producer.push("load", b"x", delay=delay).id for delay in (0, 0, 0, 3600)}
                producer.flush(TIMEOUT)
                self.confirmed |= ids
                self._end.wait(0.002)


class Place:
    """A broker's MongoDB: of the session, or embedded; and one of the same kind into which is restored."""

    def __init__(self, uri: str | None, names: tuple[str, str], folder: Path) -> None:
        self.uri, self.names, self.folder = uri, names, folder

    def broker(self, number: int) -> BrokerProcess:
        own = {"data_dir": str(self.folder / str(number)), "lease": LEASE}
        config = {"devices": [], "broker": own}
        return BrokerProcess(self.uri, self.names[number] if self.uri else None, config=config)

    def options(self, number: int) -> list[str]:
        if self.uri:
            return ["--mongodb-uri-file", str(self.folder / "uri"), "--database", self.names[number]]
        return ["--data-dir", str(self.folder / str(number))]


@pytest.fixture
def place(request: pytest.FixtureRequest, database: str, other: str) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="sluicemq-test-", ignore_cleanup_errors=True) as folder:
        uri = request.getfixturevalue("mongo_uri") if request.param == "uri" else None
        written(Path(folder), uri or "")
        yield Place(uri, (database, other), Path(folder))


@pytest.mark.parametrize("place", first_of("uri", "embedded"), indirect=True)
def test_jobs_run_on_from_a_backup_that_was_made_under_load(place: Place) -> None:
    # Given jobs that are done, dead, reserved, delayed and in a group, a message, and jobs that come and go
    with place.broker(0) as broker, ExitStack() as stack:
        endpoint = broker.doors["smq"]
        producer, client = (
            stack.enter_context(Producer(endpoint=endpoint)),
            stack.enter_context(Client(endpoint=endpoint)),
        )
        mail = {receipt.id for receipt in producer.push_many("mail", [b"x"] * 20)}
        mail |= {producer.push("mail", b"x", group="a").id for _ in range(3)}
        producer.flush(TIMEOUT)
        done = client.reserve("mail", 5, wait=TIMEOUT)
        dead = client.reserve("mail", 1, wait=TIMEOUT)
        left = mail - {ended.id for ended in (*done.jobs, *dead.jobs)}
        done.commit()
        dead.jobs[0].reject("for a test")
        reserved = client.reserve("mail", 4, wait=TIMEOUT)
        with Publisher(endpoint=endpoint) as publisher:
            publisher.publish("news", "topic", b"message").wait(TIMEOUT)
        with Load(endpoint) as load:
            before = set(load.confirmed)
            answer = sluicemq("backup", *place.options(0), "--out", place.folder / "out", "--json")
            begun = set(load.begun)
        producer.push("mail", b"late").wait(TIMEOUT)
        broker.kill()
    assert len(reserved.jobs) == 4
    [file] = (place.folder / "out").iterdir()
    assert json.loads(answer.stdout)["file"] == str(file)
    # When it is restored elsewhere
    told = json.loads(sluicemq("restore", file, *place.options(1), "--yes", "--json").stdout)
    assert told["collections"] > 5
    # Then jobs run on there: those that were confirmed before the backup, and not done
    with place.broker(1) as broker, Client(endpoint=broker.doors["smq"]) as client:
        endpoint, ran, of_load = broker.doors["smq"], list[str](), set[str]()
        with (
            Worker("mail", lambda job: ran.append(job.id), endpoint=endpoint),
            Worker("load", lambda job: of_load.add(job.id), prefetch=20, endpoint=endpoint),
        ):
            wait_until(lambda: len(ran) >= len(left), 5 * TIMEOUT, "mail")
            wait_until(lambda: not client.queue("load")["ready"], 5 * TIMEOUT, "an empty queue")
        missing = before - begun - of_load
        assert {client.show("load", job_id)["state"] for job_id in missing} <= {"scheduled"}
        # and no other ones
        assert sorted(ran) == sorted(left)
        assert of_load <= load.confirmed
        assert client.counters()["counters"]["reclaimed"] >= len(reserved.jobs)
        assert [row["id"] for row in client.peek("mail", "dead")] == [dead.jobs[0].id]
        with Reader("news", endpoint=endpoint) as reader:
            assert [message.payload for message in reader.read_batch(1, TIMEOUT)] == [b"message"]


# ------------------------------------------------------------------ one moment


@pytest.fixture
def store(mongo: MongoClient[dict[str, Any]], database: str) -> Store:
    """A database with two queues, as brokers leave it."""
    found = mongo[database]
    SchemaStore(found).open()
    for name in ("queue.a", "queue.b"):
        found[name].insert_many([{"_id": f"{name} {number}"} for number in range(300)])
        found[name].create_index("state", name="ready", partialFilterExpression={"state": "ready"})
    found["meta"].insert_one({"_id": "a note"})
    found["owners"].insert_one({"_id": "gone", "state": "dead"})
    return found


@pytest.fixture
def taken(
    mongo: MongoClient[dict[str, Any]], store: Store
) -> Iterator[tuple[BackupSnapshot, list[Description]]]:
    """A snapshot of it, and its collections."""
    with HistoryWindow(mongo) as window:
        snapshot = BackupSnapshot(mongo, [store.name], window)
        with snapshot.taken() as collections:
            yield snapshot, list(collections)


def read(snapshot: BackupSnapshot, description: Description) -> list[str]:
    return [document["_id"] for batch in snapshot.batches(description) for document in bson.decode_all(batch)]


def test_all_is_of_one_moment(taken: tuple[BackupSnapshot, list[Description]], store: Store) -> None:
    snapshot, collections = taken
    queues = [collection for collection in collections if collection.name.startswith("queue.")]
    # Given a job that goes on to another queue while that is not read yet
    first = read(snapshot, queues[0])
    store["queue.a"].delete_many({})
    store["queue.b"].insert_many([{"_id": key} for key in first])
    # Then each job is there once
    second = read(snapshot, queues[1])
    assert len(first) == len(second) == len({*first, *second}) / 2 == 300


def test_leases_and_events_are_not_in_it(taken: tuple[BackupSnapshot, list[Description]]) -> None:
    assert [collection.name for collection in taken[1]] == ["meta", "queue.a", "queue.b"]


def test_a_deleted_queue_is_left_out(taken: tuple[BackupSnapshot, list[Description]], store: Store) -> None:
    snapshot, [_, a, b] = taken
    store.drop_collection("queue.a")
    with pytest.raises(LeftOut):
        read(snapshot, a)
    store.drop_collection("queue.b")
    store["queue.b"].insert_one({})
    with pytest.raises((LeftOut, Disturbed)):
        read(snapshot, b)


def test_a_queue_that_is_made_meanwhile_is_left_out(
    mongo: MongoClient[dict[str, Any]], taken: tuple[BackupSnapshot, list[Description]], store: Store
) -> None:
    store["queue.c"].insert_one({})
    entry = next(store.list_collections(filter={"name": "queue.c"}))
    with pytest.raises(LeftOut):
        read(taken[0], Description.listed(store.name, entry))


def test_a_copy_that_takes_too_long_names_why(mongo: MongoClient[dict[str, Any]], store: Store) -> None:
    # Given a MongoDB that keeps nothing of the past
    snapshot = BackupSnapshot(mongo, [store.name], HistoryWindow(mongo))

    def read_again_and_again(queue: Description) -> None:
        for number in range(10_000):
            store["queue.a"].update_many({}, {"$set": {"number": number}})
            read(snapshot, queue)

    with snapshot.taken() as collections, pytest.raises(SnapshotOver, match=f"{PARAMETER} is 0"):
        read_again_and_again(collections[1])


def test_the_embedded_mongodb_keeps_the_past_only_while_a_copy_is_made(
    mongo: MongoClient[dict[str, Any]], store: Store
) -> None:
    def kept() -> Any:
        return mongo.admin.command({"getParameter": 1, PARAMETER: 1})[PARAMETER]

    with HistoryWindow(mongo):
        assert kept() == 60
    assert kept() == 0


def test_a_copy_begins_again_if_another_one_has_ended_meanwhile(mongo: MongoClient[dict[str, Any]]) -> None:
    with HistoryWindow(mongo) as window:
        assert isinstance(window.over(), SnapshotOver)
        with HistoryWindow(mongo):
            pass
        assert isinstance(window.over(), Disturbed)


# ------------------------------------------------------------------ what is refused


def written(folder: Path, uri: str) -> Path:
    """Write a file with a URI."""
    file = folder / "uri"
    file.touch(0o600)
    file.write_text(uri)
    return file


@pytest.fixture
def uri_file(tmp_path: Path, mongo_uri: str) -> Path:
    return written(tmp_path, mongo_uri)


@pytest.fixture
def backup(tmp_path: Path, uri_file: Path, store: Store) -> Path:
    options = ["--mongodb-uri-file", str(uri_file), "--database", store.name]
    sluicemq("backup", *options, "--out", tmp_path / "out")
    return next((tmp_path / "out").iterdir())


def refused(*words: str | Path) -> str:
    return " ".join(sluicemq(*words, code=1).stderr.split())


def test_indexes_and_options_come_back(backup: Path, uri_file: Path, store: Store, other: str) -> None:
    sluicemq("restore", backup, "--mongodb-uri-file", uri_file, "--database", other, "--yes")
    restored = store.client[other]
    assert sorted(restored.list_collection_names()) == ["meta", "queue.a", "queue.b"]
    assert restored["queue.a"].index_information() == store["queue.a"].index_information()
    assert list(restored["queue.a"].find()) == list(store["queue.a"].find())
    assert list(restored["meta"].find().sort("_id")) == list(store["meta"].find().sort("_id"))


@pytest.mark.full
def test_a_store_can_be_restored_with_all_that_would_run_paused(
    tmp_path: Path, uri_file: Path, mongo_uri: str, store: Store, other: str
) -> None:
    # Given a store with jobs and a schedule
    at, out = ["--mongodb-uri-file", str(uri_file)], tmp_path / "out"
    with BrokerProcess(mongo_uri, store.name) as broker, Client(endpoint=broker.doors["smq"]) as client:
        client.add_schedule("often", "a", b"x", every=1.0)
    sluicemq("backup", *at, "--database", store.name, "--out", out)
    [file] = out.iterdir()
    told = sluicemq("restore", file, *at, "--database", other, "--yes", "--paused").stderr
    assert "3 queues and 1 schedules are paused: go on with sluicemq queues resume QUEUE" in told
    with BrokerProcess(mongo_uri, other) as broker, Client(endpoint=broker.doors["smq"]) as client:
        paused = {row["name"]: row["paused"] for row in client.queues()}
        assert paused == {"a": ["delivery"], "b": ["delivery"], "default": ["delivery"]}
        [schedule] = client.schedules()
        assert schedule["paused"]
        client.resume("a")
        assert client.resume_schedule("often")["paused"] is False


def test_without_that_it_says_what_will_run(backup: Path, uri_file: Path, other: str) -> None:
    told = sluicemq("restore", backup, "--mongodb-uri-file", uri_file, "--database", other, "--yes")
    assert "the jobs of 2 queues and 0 schedules run as soon as a broker starts there" in told.stderr


def test_a_database_with_jobs_is_left_alone(backup: Path, uri_file: Path, store: Store) -> None:
    told = refused("restore", backup, "--mongodb-uri-file", uri_file, "--database", store.name, "--yes")
    assert f"database '{store.name}' of" in told
    assert "is not empty: it has queue.a, queue.b" in told
    assert SchemaStore(store).read().number == SCHEMA


def test_a_database_in_use_is_left_alone(backup: Path, uri_file: Path, mongo_uri: str, other: str) -> None:
    with BrokerProcess(mongo_uri, other, config={"devices": [], "broker": {"lease": LEASE}}) as broker:
        told = refused("restore", backup, "--mongodb-uri-file", uri_file, "--database", other, "--yes")
        assert "brokers use database" in told
        with Client(endpoint=broker.doors["smq"]) as client:
            client.ping()
    # When it was killed, its lease says nothing more
    sluicemq("restore", backup, "--mongodb-uri-file", uri_file, "--database", other, "--yes")


def test_a_broker_that_came_just_before_the_mark_is_seen_by_its_lease(
    backup: Path, uri_file: Path, mongo: MongoClient[dict[str, Any]], other: str
) -> None:
    target, documents = RestoredDatabase(mongo[other], "token"), mongo[other]
    SchemaStore(documents).open()
    LeaseStore(documents).begin("owner", "host:1", 15.0, 0.0)
    target.close("a.tar", 0.0)
    assert target.live_brokers() == {"owner": "host:1"}
    assert target.live_brokers(dead=["owner"]) == {}
    target.open_again()
    assert SchemaStore(documents).read().number == SCHEMA


def test_a_backup_of_a_newer_schema_is_not(uri_file: Path, store: Store, tmp_path: Path, other: str) -> None:
    file = tmp_path / "newer.tar"
    with file.open("xb+") as out:
        writer = ArchiveWriter(out, 0.0)
        writer.end({"schemas": {"x": SCHEMA + 1}, "database": "x", "sluicemq": "9.9.9", "collections": []})
        writer.close()
    told = refused("restore", file, "--mongodb-uri-file", uri_file, "--database", other, "--yes")
    assert f"was made by SluiceMQ 9.9.9, and has schema {SCHEMA + 1}" in told


def test_a_damaged_backup_changes_nothing(
    backup: Path, uri_file: Path, mongo: MongoClient[dict[str, Any]], other: str
) -> None:
    data = bytearray(backup.read_bytes())
    at = data.index(b"queue.b.bson.gz") + 512
    data[at] ^= 1
    backup.write_bytes(data)
    told = refused("restore", backup, "--mongodb-uri-file", uri_file, "--database", other, "--yes")
    assert "queue.b.bson.gz is not as it was written" in told
    assert mongo[other].list_collection_names() == []


def test_a_store_of_a_newer_schema_and_one_that_is_not_there_are_not_backed_up(
    uri_file: Path, store: Store, other: str, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "out")]
    told = refused("backup", "--mongodb-uri-file", uri_file, "--database", other, *out)
    assert f"no broker has ever used database '{other}'" in told
    store["meta"].update_one({}, {"$set": {"number": SCHEMA + 1}})
    told = refused("backup", "--mongodb-uri-file", uri_file, "--database", store.name, *out)
    assert "was written by a newer SluiceMQ" in told
    assert list((tmp_path / "out").iterdir()) == []


# ------------------------------------------------------------------ half restored


def test_a_half_restored_database_is_refused_by_brokers_and_restored_again(
    backup: Path, uri_file: Path, mongo_uri: str, store: Store, other: str
) -> None:
    # Given what a restore leaves that is killed in the middle
    killed = RestoredDatabase(store.client[other], "token")
    killed.close("a.tar", 0.0)
    killed.clear()
    killed.insert("queue.a", [bson.encode({"_id": "half"})])
    options = ["--mongodb-uri-file", str(uri_file), "--database", other]
    with pytest.raises(AssertionError, match=r"half restored: the restore of a\.tar runs, or was killed"):
        BrokerProcess(mongo_uri, other, config={"devices": []}).start()
    with pytest.raises(HalfRestored):
        SchemaStore(store.client[other]).open()
    assert "is half restored" in refused("backup", *options, "--out", backup.parent)
    answer = sluicemq("restore", backup, *options, "--yes")
    assert "which is half restored" in answer.stderr
    assert list(store.client[other]["queue.a"].find()) == list(store["queue.a"].find())
    assert not killed.is_mine()
    with (
        BrokerProcess(mongo_uri, other, config={"devices": []}) as broker,
        Client(endpoint=broker.doors["smq"]) as client,
    ):
        assert {queue["name"] for queue in client.queues()} >= {"a", "b"}


# ------------------------------------------------------------------ the command


def test_it_takes_what_a_configuration_names_with_all_databases_of_its_queues(
    tmp_path: Path, uri_file: Path, store: Store, other: str
) -> None:
    SchemaStore(store.client[other]).open()
    store.client[other]["queue.elsewhere"].insert_one({"_id": "job"})
    file = tmp_path / "sluicemq.toml"
    broker = {"mongodb_uri_file": str(uri_file), "database": store.name}
    file.write_text(tomli_w.dumps({"broker": broker, "queues": {"elsewhere": {"database": other}}}))
    sluicemq("backup", "--config", file, "--out", tmp_path / "out")
    [backup] = (tmp_path / "out").iterdir()
    for name in (store.name, other):
        store.client.drop_database(name)
    sluicemq("restore", backup, "--config", file, "--yes")
    assert [document["_id"] for document in store.client[other]["queue.elsewhere"].find()] == ["job"]
    assert store["queue.a"].count_documents({}) == 300


def test_a_restore_has_to_be_told_where_and_asks(backup: Path, uri_file: Path, other: str) -> None:
    assert "say where" in sluicemq("restore", backup, "--yes", code=2).stderr
    options = ["--mongodb-uri-file", str(uri_file), "--database", other]
    assert "nobody can be asked here" in sluicemq("restore", backup, *options, code=2).stderr
    both = ["--data-dir", str(backup.parent), "--mongodb-uri-file", str(uri_file)]
    assert "give one of" in sluicemq("restore", backup, *both, code=2).stderr


def test_a_folder_without_a_mongodb_is_named_and_none_is_made(tmp_path: Path, mongo_uri: str) -> None:
    # Given an environment that names another MongoDB
    words = ["backup", "--out", str(tmp_path), "--data-dir", str(tmp_path / "nosuch")]
    told = sluicemq(*words, code=1, SLUICEMQ_MONGODB_URI=mongo_uri).stderr
    assert "has no data of an embedded MongoDB" in " ".join(told.split())
    assert not (tmp_path / "nosuch").exists()


@pytest.mark.full
def test_a_mongodb_that_is_no_replica_set_can_not_be_backed_up(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    with a_mongod(tmp_path / "alone") as port:
        uri = f"mongodb://127.0.0.1:{port}"
        with MongoClient[dict[str, Any]](uri) as client:
            SchemaStore(client["x"]).open()
        told = refused(
            "backup", "--out", tmp_path, "--mongodb-uri-file", written(tmp_path, uri), "--database", "x"
        )
    assert "that needs a replica set of MongoDB 5.0 or newer" in told


def test_a_uri_that_is_wrong_is_not_shown(tmp_path: Path) -> None:
    file = written(tmp_path, "mongodb://bob:12/34@a")
    told = sluicemq("backup", "--out", tmp_path, "--mongodb-uri-file", file, code=2).output
    assert "--mongodb-uri: expected a URI such as" in told
    assert "34" not in told


@pytest.mark.full
def test_a_password_is_in_no_output_and_not_on_the_command_line(tmp_path: Path) -> None:
    uri = f"mongodb://bob:swordfish@127.0.0.1:{free_port()}/?replicaSet=rs0"
    command = [sys.executable, "-P", "-m", "sluicemq", "backup", "--out", str(tmp_path), "--mongodb-uri", uri]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        shown = Path(f"/proc/{process.pid}/cmdline")
        wait_until(lambda: process.poll() is not None or b"***" in shown.read_bytes(), what="a hidden URI")
        assert process.poll() is None
        assert b"swordfish" not in shown.read_bytes()
        said = process.communicate(timeout=TIMEOUT)[0]
    assert process.returncode == 1
    assert "swordfish" not in said
    assert "bob" in said or "127.0.0.1" in said
