"""A MongoDB that can't keep a confirmed job is refused, unless the operator says that jobs may be lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from launcher import BrokerProcess, wait_until
from sluicemq import Producer
from sluicemq.errors import Duplicate, Unavailable
from sluicemq_broker.embedded import mongod
from sluicemq_broker.store.connection import UnsafeStore, connect, require_safe


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a plain mongod without a replica set."""
    folder = tmp_path_factory.mktemp("standalone")
    port, log = mongod.free_port(), folder / "mongod.log"
    (folder / "db").mkdir()
    command = [str(mongod.find_mongod()), "--dbpath", str(folder / "db"), "--port", str(port)]
    command += ["--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25"]
    process = mongod.launch(command, log)
    try:
        assert mongod.wait_for_port(port, process, deadline=_in(30.0)), log.read_text()[-2000:]
        yield f"mongodb://127.0.0.1:{port}/"
    finally:
        mongod.end(process, 10.0)


def _in(seconds: float) -> float:
    return time.monotonic() + seconds


def test_a_stand_alone_server_is_refused_with_what_to_do(standalone: str) -> None:
    with connect(standalone) as client, pytest.raises(UnsafeStore) as refusal:
        require_safe(client, allow_unsafe=False)
    for fact in ("stand-alone", "rs.initiate()", "--allow-unsafe-store"):
        assert fact in str(refusal.value)


def test_a_stand_alone_server_is_taken_with_a_warning_if_that_is_allowed(standalone: str) -> None:
    with connect(standalone) as client:
        warning = require_safe(client, allow_unsafe=True)
    assert "may be lost" in str(warning)


def test_a_replica_set_is_safe(mongo: MongoClient[dict[str, Any]]) -> None:
    assert require_safe(mongo, allow_unsafe=False) is None


class Settings:
    """A replica set whose administrator has switched the journal off for majority writes."""

    class admin:  # noqa: N801 - the driver's name
        @staticmethod
        def command(name: str) -> dict[str, Any]:
            config = {"writeConcernMajorityJournalDefault": False}
            answers: dict[str, dict[str, Any]] = {
                "hello": {"setName": "rs0"},
                "replSetGetConfig": {"config": config},
            }
            return answers[name]


def test_a_replica_set_whose_majority_is_not_journaled_is_refused() -> None:
    with pytest.raises(UnsafeStore, match="writeConcernMajorityJournalDefault"):
        require_safe(Settings(), allow_unsafe=False)  # type: ignore[arg-type]


def test_no_mongodb_at_all_is_unavailable_and_not_unsafe() -> None:
    uri = f"mongodb://127.0.0.1:{mongod.free_port()}/?serverSelectionTimeoutMS=100"
    with MongoClient[dict[str, Any]](uri) as client, pytest.raises(Unavailable) as failure:
        require_safe(client, allow_unsafe=True)
    assert not isinstance(failure.value, UnsafeStore)


def test_a_broker_refuses_to_start_on_it(standalone: str, database: str, tmp_path: Path) -> None:
    # Given
    broker = BrokerProcess(standalone, database, folder=tmp_path)
    # When
    try:
        broker.launch()
        code = broker.process.wait(60)
    finally:
        broker.close()
    # Then
    assert code == 1
    assert "--allow-unsafe-store" in broker.log_text()
    assert "Traceback" not in broker.log_text()


def test_a_broker_starts_on_it_and_says_so_if_it_is_told_to(standalone: str, database: str) -> None:
    with BrokerProcess(standalone, database, args=["--allow-unsafe-store"]) as broker:
        wait_until(lambda: "confirmed jobs may be lost" in broker.log_text(), what="the warning")
        assert broker.doors["smq"].startswith("tcp://127.0.0.1:")


def test_duplicates_are_told_on_it_too(standalone: str, database: str) -> None:
    with (
        BrokerProcess(standalone, database, args=["--allow-unsafe-store"]) as broker,
        Producer(broker.doors["smq"]) as producer,
    ):
        first = producer.push("mail", b"", dedupe_id="d")
        with pytest.raises(Duplicate) as refusal:
            producer.push("mail", b"", dedupe_id="d").wait(60)
    assert refusal.value.id == first.id
