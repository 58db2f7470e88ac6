"""What held under chaos, and must go on holding; and half a minute of it."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import Any

import psutil
import pytest
import zmq
from pymongo import MongoClient

from chaos.fault_kinds import FAULTS
from chaos.figures import packs
from chaos.run import run
from faults.load import Load
from faults.mongo_messages import Command
from faults.proxied import RawClient, shared_queue
from faults.replica_set import ReplicaSet
from sluicemq import DuplicateError, Producer
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.raw_sockets import shake_hands
from support.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

MIB = 2**20
SETTINGS = {"heartbeat": 20.0, "silence": 300.0, "poll": 0.2, "stop_timeout": 3.0, "lease": 15.0}
QUEUE = "chaos"


@contextmanager
def two_brokers(uri: str) -> Iterator[list[BrokerProcess]]:
    database = f"test_{token_hex(6)}"
    with ExitStack() as stack:
        yield [
            stack.enter_context(BrokerProcess(uri, database, config={"broker": SETTINGS})) for _ in range(2)
        ]


def jobs_of(mongo: MongoClient[dict[str, Any]], broker: BrokerProcess) -> Any:
    return mongo[broker.config["broker"]["database"]][f"queue.{QUEUE}"]


FAILURES: dict[str, dict[str, Any]] = {
    "connection closed": {"closeConnection": True},
    "NotWritablePrimary": {"errorCode": 10107},
    "InterruptedDueToReplStateChange": {"errorCode": 11602},
    "ExceededTimeLimit": {"errorCode": 262},
    "WriteConcernFailed": {"writeConcernError": {"code": 64, "errmsg": "injected by the test"}},
    "ShutdownInProgress": {"writeConcernError": {"code": 91, "errmsg": "injected by the test"}},
}
WRITES, READS = ("insert", "update", "delete"), ("find", "aggregate")
CASES = [
    (command, name, times)
    for command in (*WRITES, *READS)
    for name, failure in FAILURES.items()
    for times in (1, 3)
    if command in WRITES or "writeConcernError" not in failure
]


@pytest.mark.parametrize("seed", range(2))
def test_statements_that_fail_lose_nothing_and_run_nothing_again(seed: int) -> None:
    cases = Random(seed).sample(CASES, len(CASES))
    with ReplicaSet() as replica_set:
        port = replica_set.ports[0]
        uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
        with (
            two_brokers(uri) as brokers,
            MongoClient[dict[str, Any]](uri) as mongo,
            Load(brokers, QUEUE) as load,
        ):
            load.go_on(1000)
            for command, name, times in cases:
                print(f"{command}: {name} x {times}", flush=True)
                data = {"failCommands": [command], "appName": "sluicemq", **FAILURES[name]}
                replica_set.fail(port, "failCommand", {"times": times}, data)
                load.go_on(200)
                replica_set.fail(port, "failCommand", "off")
            load.finish(jobs_of(mongo, brokers[0]))


@pytest.mark.parametrize("seed", range(3))
def test_of_jobs_with_one_dedupe_id_at_two_brokers_one_is_stored(mongo_uri: str, seed: int) -> None:
    """600 ids, each pushed twice at each of two brokers whose replies are lost at random."""
    count = 600
    random = Random(seed)
    with (
        shared_queue(mongo_uri) as shared,
        shared.working(shared.a, 50) as at_a,
        shared.working(shared.b, 50) as at_b,
    ):
        for broker in shared.brokers:
            broker.proxy.cut(lambda command: is_insert(command) and random.random() < 0.3, 20)
        firsts: dict[str, list[str]] = {str(number): [] for number in range(count)}

        def push(endpoint: str, names: list[str]) -> None:
            with Producer(on_refused=lambda *_: None, endpoint=endpoint) as producer:
                receipts = [
                    (name, producer.push(shared.name, name.encode(), dedupe_id=name)) for name in names
                ]
                for name, receipt in receipts:
                    try:
                        receipt.wait(60)
                        firsts[name].append(receipt.id)
                    except DuplicateError as error:
                        firsts[name].append(error.id)

        pushing = [
            threading.Thread(target=push, args=(broker.endpoint, random.sample(list(firsts), count)))
            for broker in shared.brokers * 2
        ]
        for thread in pushing:
            thread.start()
        for thread in pushing:
            thread.join(90)
        assert {len(first) for first in firsts.values()} == {4}
        assert {len(set(first)) for first in firsts.values()} == {1}, "two were first"
        wait_until(lambda: len(at_a + at_b) == count, what="all jobs")
        wait_until(lambda: not shared.jobs.count_documents({"state": {"$ne": "done"}}), what="all commits")
        assert set((at_a + at_b).values()) == {1}


def is_insert(command: Command) -> bool:
    return command.name == "insert"


@pytest.mark.parametrize("seed", range(3))
def test_no_pop_comes_twice_when_replies_are_lost_at_random(mongo_uri: str, seed: int) -> None:
    count = 3000
    random = Random(seed)
    with shared_queue(mongo_uri) as shared:
        for broker in shared.brokers:
            broker.proxy.cut(lambda command: shared.on("delete")(command) and random.random() < 0.3, 20)
        poppers = [shared.client(broker) for broker in shared.brokers]
        with Producer(endpoint=shared.a.endpoint) as producer:
            for number in range(count):
                producer.push(shared.name, b"%d" % number)
        popped: Counter[bytes] = Counter()
        for popper in poppers:
            popper.ask(wire.READY, shared.name, count, {"pop": True})
        while popper_with_some := next((other for other in poppers if other.offered(3)), None):
            popped.update(job.payload for job in popper_with_some.take_all())
        shared.wait_empty()
        assert set(popped.values()) == {1}
        assert len(popped) == count


def test_connections_that_come_and_go_take_no_memory(mongo_uri: str) -> None:
    with serving(mongo_uri, spare(pop=1, ask=1, ack=1)) as broker:
        doors = {shape: broker.take(shape) for shape in ("pop", "ask", "ack")}
        addresses = [
            (doors["pop"].front, b"PUSH"),
            (doors["pop"].back, b"PULL"),
            (doors["ask"].front, b"REQ"),
            (doors["ask"].back, b"REP"),
            (doors["ack"].back, b"PULL"),
            (doors["ack"].commit, b"PUSH"),
            (broker.doors["smq"], b"DEALER"),
        ]
        come_and_go(broker, addresses, 10)
        before = psutil.Process(broker.process.pid).memory_info().rss
        come_and_go(broker, addresses, 60)
        assert psutil.Process(broker.process.pid).memory_info().rss - before < 10 * MIB


def come_and_go(broker: BrokerUnderTest, addresses: list[tuple[str, bytes]], rounds: int) -> None:
    for _ in range(rounds):
        for address, kind in addresses:
            strangers = [shake_hands(address, kind) for _ in range(20)]
            for stranger in strangers:
                stranger.close()
        with RawClient(broker.doors["smq"], "churn") as client:
            client.ready(1)
            client.push(bytes(10_000))
            client.commit(client.take()[0])
            with suppress(zmq.ZMQError):
                client.ask(wire.BYE)
        assert broker.serves()


SEED, SECONDS = 37, 30.0
FEW = (
    "kill -9 of a broker",
    "SIGSTOP of a broker beyond its lease",
    "SIGSTOP of a client",
    "kill -9 of a client",
    "kill -9 of a mongod",
    "partition",
    "lost replies",
)


def test_half_a_minute_of_faults_loses_nothing_and_leaves_nothing_stuck(tmp_path: Path) -> None:
    few = [fault for fault in FAULTS if fault.name in FEW]
    outcome = run(SEED, SECONDS, tmp_path / "run", few, pace=0.3)
    assert len(outcome.steps) >= 5
    assert "\n".join(map(str, outcome.breaches)) == ""
    assert packs(tmp_path / "run")["jobs"] > 0
