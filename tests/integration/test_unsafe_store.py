"""A MongoDB that can't keep a confirmed job is refused, unless the operator says that jobs may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from sluicemq import Producer
from sluicemq.protocol.errors import DuplicateError, UnavailableError
from sluicemq_broker.store import UnsafeStore, connect, require_safe, why_no_primary
from support.broker_process import BrokerProcess
from support.own_mongod import a_mongod
from support.ports import free_port
from support.waiting import wait_until


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a plain mongod without a replica set."""
    with a_mongod(tmp_path_factory.mktemp("standalone")) as port:
        yield f"mongodb://127.0.0.1:{port}/"


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
    uri = f"mongodb://127.0.0.1:{free_port()}/?serverSelectionTimeoutMS=100"
    with MongoClient[dict[str, Any]](uri) as client, pytest.raises(UnavailableError) as failure:
        require_safe(client, allow_unsafe=True)
    assert not isinstance(failure.value, UnsafeStore)


def test_a_broker_refuses_to_start_on_it(standalone: str, database: str, tmp_path: Path) -> None:
    broker = BrokerProcess(standalone, database, folder=tmp_path)
    try:
        broker.launch()
        code = broker.process.wait(60)
    finally:
        broker.close()
    assert code == 1
    assert "--allow-unsafe-store" in broker.log_text()
    assert "Traceback" not in broker.log_text()


def test_a_broker_starts_on_it_and_says_so_if_it_is_told_to(standalone: str, database: str) -> None:
    with BrokerProcess(standalone, database, args=["--allow-unsafe-store"]) as broker:
        wait_until(lambda: "confirmed jobs may be lost" in broker.log_text(), what="the warning")
        assert broker.doors["smq"].startswith("tcp://127.0.0.1:")


def test_what_is_wrong_with_a_replica_set_is_named_with_its_cure(tmp_path: Path) -> None:
    with a_mongod(tmp_path, "--replSet", "rs0") as port:
        # Given one that nobody has initiated
        host = f"127.0.0.1:{port}"
        told = f"has not been initiated: do so once, at one of its members: mongosh --host {host}"
        assert told in str(why_no_primary(f"mongodb://bob:secret@{host}/?replicaSet=rs0"))
        with connect(f"mongodb://{host}/?directConnection=true") as client:
            with pytest.raises(UnsafeStore, match="its replica set has not been initiated"):
                require_safe(client, allow_unsafe=False)
            # When somebody does
            members = [{"_id": 0, "host": host}]
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
            wait_until(lambda: client.admin.command("hello")["isWritablePrimary"], what="a primary")
            # Then a wrong name is told beside the right one
            told = f"the replica set of {host} is 'rs0', and the URI names 'other': write replicaSet=rs0"
            assert why_no_primary(f"mongodb://{host}/?replicaSet=other") == told
            # And members that nobody can reach from here
            config = client.admin.command("replSetGetConfig")["config"]
            config["members"][0]["host"] = f"localhost:{port}"
            config["version"] += 1
            client.admin.command("replSetReconfig", config, force=True)
            wait_until(lambda: client.admin.command("hello").get("isWritablePrimary"), what="a primary")
            told = f"but its replica set calls its members localhost:{port}, which this machine can't reach"
            assert told in str(why_no_primary(f"mongodb://{host}/?replicaSet=rs0"))


@pytest.mark.full
def test_a_member_that_has_just_started_does_not_hide_what_the_others_say(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    with (
        a_mongod(tmp_path / "new", "--replSet", "rs0") as new,
        a_mongod(tmp_path / "old", "--replSet", "rs0") as old,
    ):
        with connect(f"mongodb://127.0.0.1:{old}/?directConnection=true") as client:
            members = [{"_id": 0, "host": f"127.0.0.1:{old}"}]
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
        told = why_no_primary(f"mongodb://127.0.0.1:{new},127.0.0.1:{old}/?replicaSet=other")
        assert told == (
            f"the replica set of 127.0.0.1:{old} is 'rs0', and the URI names 'other': write replicaSet=rs0"
        )


def test_a_broker_that_finds_no_primary_says_why(standalone: str, database: str, tmp_path: Path) -> None:
    uri = f"{standalone}?replicaSet=rs0"
    broker = BrokerProcess(uri, database, folder=tmp_path)
    try:
        broker.launch()
        assert broker.process.wait(60) == 1
    finally:
        broker.close()
    [error] = [line for line in broker.log_text().splitlines() if "ERROR" in line]
    assert "is a stand-alone server, no member of a replica set 'rs0': start it with --replSet rs0" in error


def test_where_nobody_answers_there_is_no_more_to_say() -> None:
    assert why_no_primary(f"mongodb://127.0.0.1:{free_port()}/?replicaSet=rs0") is None
    assert why_no_primary("mongodb+srv://bob:secret@db.invalid/") is None


@pytest.mark.full
def test_duplicates_are_told_on_it_too(standalone: str, database: str) -> None:
    with (
        BrokerProcess(standalone, database, args=["--allow-unsafe-store"]) as broker,
        Producer(endpoint=broker.doors["smq"]) as producer,
    ):
        first = producer.push("mail", b"", dedupe_id="d")
        first.wait(60)  # of two that are on their way at once either may be stored first
        with pytest.raises(DuplicateError) as refusal:
            producer.push("mail", b"", dedupe_id="d").wait(60)
    assert refusal.value.id == first.id
