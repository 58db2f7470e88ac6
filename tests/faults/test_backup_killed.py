"""Backups and restores that are killed, or lose their primary: the next one works."""

import gzip
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import bson
import pytest
from pymongo import MongoClient

from faults.replica_set import ReplicaSet
from sluicemq import Client, Forward, Job, Producer, Worker
from sluicemq_broker.backup.archive import ArchiveReader
from sluicemq_broker.store import HalfRestored, SchemaStore
from support.broker_process import BrokerProcess
from support.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.full

#: Jobs of a store whose copy takes long enough to be killed in it.
MANY: Final = 120_000
SOURCE: Final = "source"
TARGET: Final = "target"
LARGE: Final = "large"
QUEUE: Final = "queue.mail"


@pytest.fixture(scope="module")
def replica_set() -> Iterator[ReplicaSet]:
    with ReplicaSet(3) as nodes:
        with MongoClient[dict[str, Any]](nodes.uri) as client:
            SchemaStore(client[SOURCE]).open()
            for at in range(0, MANY, 10_000):
                client[SOURCE][QUEUE].insert_many(
                    [{"_id": f"job {at + n}", "payload": os.urandom(150)} for n in range(10_000)]
                )
            client[SOURCE][QUEUE].create_index("payload", name="payload")
        yield nodes


@pytest.fixture
def mongo(replica_set: ReplicaSet) -> Iterator[MongoClient[dict[str, Any]]]:
    replica_set.primary()
    with MongoClient[dict[str, Any]](replica_set.uri) as client:
        yield client
        client.drop_database(TARGET)


@pytest.fixture
def options(replica_set: ReplicaSet, tmp_path: Path) -> list[str]:
    file = tmp_path / "uri"
    file.touch(0o600)
    file.write_text(replica_set.uri)
    return ["--mongodb-uri-file", str(file)]


def started(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "sluicemq", *map(str, words)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    said = process.communicate(timeout=10 * TIMEOUT)[0]
    assert process.returncode == code, said
    return said


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=TIMEOUT)


def parts(folder: Path) -> list[Path]:
    return list(folder.glob("*.part")) if folder.exists() else []


def wait_for_part(backup: subprocess.Popen[str], out: Path, size: int) -> None:
    """Wait until so many bytes of a backup are written; one that has ended before says why."""
    wait_until(
        lambda: backup.poll() is not None or any(part.stat().st_size >= size for part in parts(out)),
        what="a part",
    )
    assert backup.poll() is None, backup.communicate()[0]


def require_whole(file: Path, jobs: int = MANY) -> None:
    with ArchiveReader(file) as reader:
        assert (
            sum(problem.documents for problem in reader.check()) == jobs + 1
        )  # and the number of the schema


@pytest.mark.parametrize("size", [0, 1])
def test_a_backup_that_is_killed_leaves_a_part_which_the_next_one_removes(
    mongo: MongoClient[dict[str, Any]], options: Sequence[str], tmp_path: Path, size: int
) -> None:
    out = tmp_path / "out"
    backup = started("backup", *options, "--database", SOURCE, "--out", out)
    wait_for_part(backup, out, size)
    kill(backup)
    [left] = out.iterdir()
    assert left.suffix == ".part"
    ended(started("backup", *options, "--database", SOURCE, "--out", out, "--keep", "1"))
    [file] = out.iterdir()
    require_whole(file)


def test_a_backup_begins_again(replica_set: ReplicaSet, options: Sequence[str], tmp_path: Path) -> None:
    # Given so much that most of it is still to be read when the first batches are written
    with MongoClient[dict[str, Any]](replica_set.uri) as client:
        SchemaStore(client[LARGE]).open()
        for _ in range(100):
            client[LARGE][QUEUE].insert_many([{"payload": os.urandom(2000)} for _ in range(1000)])
    primary = replica_set.primary()
    out = tmp_path / "out"
    backup = started("backup", *options, "--database", LARGE, "--out", out)
    wait_for_part(backup, out, 1_000_000)
    replica_set.kill(primary)
    said = ended(backup)
    replica_set.launch(primary)
    replica_set.wait_member(primary)
    assert "the copy begins again" in said
    [file] = out.iterdir()
    require_whole(file, 100_000)


@pytest.fixture
def file(mongo: MongoClient[dict[str, Any]], options: Sequence[str], tmp_path: Path) -> Path:
    ended(started("backup", *options, "--database", SOURCE, "--out", tmp_path / "out"))
    return next((tmp_path / "out").iterdir())


def test_a_step_down_does_not_disturb_a_backup(
    mongo: MongoClient[dict[str, Any]], options: Sequence[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    backup = started("backup", *options, "--database", SOURCE, "--out", out)
    wait_for_part(backup, out, 1)  # on a quiet machine the rest is there before the next look
    mongo.admin.command({"replSetStepDown": 10, "force": True})
    ended(backup)
    [file] = out.iterdir()
    require_whole(file)


def same(mongo: MongoClient[dict[str, Any]]) -> bool:
    found, wanted = (
        list(mongo[name][QUEUE].aggregate([{"$sort": {"_id": 1}}], allowDiskUse=True))
        for name in (TARGET, SOURCE)
    )
    return found == wanted and "payload" in mongo[TARGET][QUEUE].index_information()


@pytest.mark.parametrize("documents", [1, MANY // 2, MANY])
def test_a_restore_that_is_killed_is_known_and_begins_again(
    replica_set: ReplicaSet,
    mongo: MongoClient[dict[str, Any]],
    options: Sequence[str],
    file: Path,
    documents: int,
) -> None:
    words = ["restore", str(file), *options, "--database", TARGET, "--yes"]
    restore = started(*words)
    copied = mongo[TARGET][QUEUE]
    wait_until(lambda: copied.estimated_document_count() >= documents, 5 * TIMEOUT, "documents")
    kill(restore)
    # Then no broker starts
    with pytest.raises(HalfRestored):
        SchemaStore(mongo[TARGET]).open()
    broker = BrokerProcess(replica_set.uri, TARGET, config={"devices": []})
    with pytest.raises(AssertionError, match="is half restored: the restore of"):
        broker.start()
    broker.close()
    said = ended(started(*words))
    assert "half restored" in said
    assert same(mongo)
    assert SchemaStore(mongo[TARGET]).open() == SchemaStore(mongo[SOURCE]).read()


def test_of_two_restores_at_once_the_later_one_wins(
    mongo: MongoClient[dict[str, Any]], options: Sequence[str], file: Path
) -> None:
    words = ["restore", str(file), *options, "--database", TARGET, "--yes"]
    first = started(*words)
    wait_until(lambda: mongo[TARGET][QUEUE].estimated_document_count() > 0, 5 * TIMEOUT, "documents")
    second = started(*words)
    said = ended(first, 1)
    assert "half restored" in said
    if second.wait(10 * TIMEOUT):  # what the first one wrote at the end was in its way
        second = started(*words)
    ended(second)
    assert same(mongo)


def test_a_restore_that_loses_its_primary_is_repeated(
    mongo: MongoClient[dict[str, Any]], options: Sequence[str], file: Path
) -> None:
    words = ["restore", str(file), *options, "--database", TARGET, "--yes"]
    restore = started(*words)
    wait_until(lambda: mongo[TARGET][QUEUE].estimated_document_count() > 0, 5 * TIMEOUT, "documents")
    mongo.admin.command({"replSetStepDown": 10, "force": True})
    said = restore.communicate(timeout=10 * TIMEOUT)[0]
    if restore.returncode:
        assert "is half restored now: repeat sluicemq restore" in said
        ended(started(*words))
    assert same(mongo)


def documents_of(file: Path, collection: str) -> list[dict[str, Any]]:
    """Read a backup by hand."""
    with tarfile.open(file) as tar:
        stored = tar.extractfile(f"dump/moves/{collection}.bson.gz")
        assert stored
        return bson.decode_all(gzip.decompress(stored.read()))


def test_a_job_on_its_way_is_in_one(replica_set: ReplicaSet, options: Sequence[str], tmp_path: Path) -> None:
    # Given jobs that go from queue to queue, and back
    pushed = 400
    moves = threading.Semaphore(0)

    def onward(job: Job) -> Forward:
        moves.release()
        return Forward("b" if job.queue == "a" else "a")

    with BrokerProcess(replica_set.uri, "moves", config={"devices": []}) as broker:
        endpoint = broker.doors["smq"]
        with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
            producer.push_many("a", [b"x"] * pushed)
            producer.push("b", b"x")
            producer.flush(TIMEOUT)
            with (
                Worker("a", onward, prefetch=50, endpoint=endpoint),
                Worker("b", onward, prefetch=50, endpoint=endpoint),
            ):
                for number in range(3):
                    for _ in range(100):
                        assert moves.acquire(timeout=TIMEOUT)
                    out = tmp_path / str(number)
                    ended(started("backup", *options, "--database", "moves", "--out", out))
            assert client.ping() > 0
    for number in range(3):
        [file] = (tmp_path / str(number)).iterdir()
        ids = [document["_id"] for name in ("queue.a", "queue.b") for document in documents_of(file, name)]
        assert len(ids) == len(set(ids)) == pushed + 1
