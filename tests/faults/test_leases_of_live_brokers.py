"""A broker that lives is not declared dead: not for a held reply, a full pool, or another's database."""

import threading
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
import zmq
from pymongo import MongoClient

from faults.mongo_messages import Command
from faults.mongo_proxy import CuttingProxy
from sluicemq import Job, Producer, Worker
from support.broker_process import BrokerProcess
from support.ports import tcp
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos everything at once.
pytestmark = pytest.mark.full

LEASE = 4.0
BEATS = 5  # in one lease
CONNECTIONS = 63  # of the client that all queues share, but the one on which the event bus waits
SETTINGS = {"lease": LEASE, "poll": 0.5, "silence": 30}

Mongo = MongoClient[dict[str, Any]]


@pytest.fixture
def mongo(mongo_uri: str) -> Iterator[Mongo]:
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        yield mongo


@pytest.fixture
def databases(mongo: Mongo) -> Iterator[list[str]]:
    names = [f"test_{token_hex(6)}" for _ in range(3)]
    yield names
    for name in names:
        mongo.drop_database(name)


class AtWork:
    """A handler that is at work until it is told to stop."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.enough = threading.Event()

    def __call__(self, job: Job) -> None:
        self.began.append(job.id)
        assert self.enough.wait(60)


def a_broker(uri: str, database: str, queues: dict[str, Any] | None = None) -> BrokerProcess:
    config = {"broker": SETTINGS, "devices": [], "queues": queues or {}}
    return BrokerProcess(uri, database, config=config)


def beats(mongo: Mongo, database: str) -> dict[str, int]:
    return {
        document["_id"]: document["beat"] for document in mongo[database]["owners"].find({"state": "live"})
    }


def wait_for_beats(mongo: Mongo, database: str, owner: str, count: int) -> None:
    begin = beats(mongo, database).get(owner, 0)
    wait_until(lambda: beats(mongo, database).get(owner, 0) >= begin + count, what="heartbeats")


def is_heartbeat(command: Command) -> bool:
    return command.body.get("update") == "owners" and any(
        "$inc" in statement["u"] for statement in command.statements
    )


@pytest.mark.parametrize(
    "held", ["update", *(pytest.param(name, marks=pytest.mark.full) for name in ("find", "hello"))]
)
def test_one_held_reply_is_no_silence(mongo: Mongo, mongo_uri: str, databases: list[str], held: str) -> None:
    database, handler = databases[0], AtWork()

    def chosen(command: Command) -> bool:
        body = command.body
        if held == "hello":
            return "hello" in body and body.get("$db") == "admin" and "topologyVersion" not in body
        return is_heartbeat(command) if held == "update" else body.get("find") == "owners"

    with (
        CuttingProxy(mongo_uri) as proxy,
        a_broker(proxy.uri, database) as broker,
        Worker("mail", handler, endpoint=broker.doors["smq"]),
        Producer(endpoint=broker.doors["smq"]) as producer,
    ):
        first = producer.push("mail", b"1").wait(60) or "1"
        wait_until(lambda: handler.began, what="a job at work")
        (ours,) = beats(mongo, database)
        with a_broker(mongo_uri, database) as other:
            (theirs,) = beats(mongo, database).keys() - {ours}

            proxy.hold(chosen).wait()
            wait_for_beats(mongo, database, theirs, BEATS + 2)  # longer than a lease

            assert beats(mongo, database).keys() == {ours, theirs}
            assert "declared dead" not in broker.log_text() + other.log_text()
            handler.enough.set()
            wait_until(lambda: not mongo[database]["queue.mail"].count_documents({}), what="the commit")
    assert len(handler.began) == 1, first


def test_heartbeats_wait_for_no_statements(mongo: Mongo, mongo_uri: str, databases: list[str]) -> None:
    database, devices = databases[0], [{"kind": "streamer", "frontend": tcp()}]
    with (
        CuttingProxy(mongo_uri) as proxy,
        BrokerProcess(proxy.uri, database, config={"broker": SETTINGS, "devices": devices}) as broker,
        zmq.Context() as context,
        context.socket(zmq.PUSH) as push,
    ):
        push.connect(broker.doors["push"])
        (ours,) = beats(mongo, database)
        indexes = proxy.hold(
            lambda message: str(message.body.get("createIndexes", "")).startswith("queue."), None
        )
        for number in range(CONNECTIONS + 6):
            push.send_multipart([b"q%d" % number, b"payload"])
        indexes.wait(CONNECTIONS)

        wait_for_beats(mongo, database, ours, BEATS)

        # The event bus's connection may be among them.
        assert len(indexes.met) <= CONNECTIONS + 1, "none was given up meanwhile, which would have made room"
        indexes.release()
        wait_until(lambda: mongo[database]["queue.q0"].count_documents({}) == 1, what="the job")


def test_brokers_of_two_databases_share_a_queue(mongo: Mongo, mongo_uri: str, databases: list[str]) -> None:
    one, two, shared = databases
    queues = {"shared": {"database": shared}}
    handler = AtWork()
    with (
        a_broker(mongo_uri, one, queues) as first,
        a_broker(mongo_uri, two, queues) as second,
        Worker("shared", handler, endpoint=first.doors["smq"]) as _,
        Producer(endpoint=second.doors["smq"]) as producer,
    ):
        receipt = producer.push("shared", b"x")
        receipt.wait(60)
        wait_until(lambda: handler.began, what="a job at work at the first broker")
        (ours,), (theirs,) = beats(mongo, one), beats(mongo, two)
        assert beats(mongo, shared).keys() == {ours, theirs}

        wait_for_beats(mongo, shared, theirs, 3 * BEATS)  # the second has swept twice at least
        document = mongo[shared]["queue.shared"].find_one({"_id": receipt.id}) or {}
        assert (document["owner"], document["attempts"], document.get("losses")) == (ours, 1, None)
        assert "gone owner" not in first.log_text() + second.log_text()

        first.kill()  # and the second, which never sees the first's own database, takes over
        again = AtWork()
        again.enough.set()
        with Worker("shared", again, endpoint=second.doors["smq"]):
            wait_until(lambda: again.began, what="the job of the dead broker")
        handler.enough.set()
