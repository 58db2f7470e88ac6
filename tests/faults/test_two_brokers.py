"""Two brokers on one queue: each does its part, and neither keeps, frees or misjudges the other's jobs."""

from __future__ import annotations

import signal
import socket as sockets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import zmq
from pymongo import MongoClient

from faults.proxied import ProxiedBroker, RawClient, SharedQueue, shared_queue, wait_quiet
from faults.replica_set import ReplicaSet
from sluicemq import Client, Producer
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.long_forms import long
from support.raw_sockets import shake_hands
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

full = pytest.mark.full
LARGE, JOBS, DEAF = 48 * 2**10, 600, 2
MOST = 100_000
#: Counters of verdicts that changed nothing: known here to be late, or as MongoDB said.
TOO_LATE = ("late_verdicts", "uncommitted")


# ------------------------------------------------------------------ asked at one, worked on at the other


@pytest.mark.parametrize("headers", [b"", b'{"id": "asked"}'], ids=["without an id", "with an id"])
@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=full)])
def test_a_question_that_is_worked_on_at_another_broker_gets_its_result(
    mongo_uri: str, headers: bytes, rounds: int
) -> None:
    with shared_queue(mongo_uri, queue="default") as shared, zmq.Context() as context:
        worker = plain(context, zmq.REP, shared.b.process.doors["rep"])
        for number in range(rounds):
            question, answer = b"question %d" % number, b"answer %d" % number
            asker = plain(context, zmq.REQ, shared.a.process.doors["req"])
            named = headers.replace(b"asked", b"asked %d" % number)
            asker.send_multipart([b"", named, question] if headers else [question])
            assert worker.recv() == question
            worker.send(answer)
            assert asker.recv_multipart() == [answer]
            asker.close()
        worker.close()


def plain(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    made = context.socket(kind)
    made.linger = 0
    made.rcvtimeo = int(TIMEOUT * 1000)
    made.connect(address)
    return made


# ------------------------------------------------------------------ PULL workers that do not read


@pytest.mark.parametrize(("ack", "prefetch"), [long("received", 64), long("auto", 64), ("explicit", 4)])
def test_workers_that_do_not_read_keep_no_more_than_their_prefetch_from_another_broker(
    mongo_uri: str, ack: str, prefetch: int
) -> None:
    streamer = {"kind": "streamer", "frontend": ANY_PORT, "backend": ANY_PORT, "commit": ANY_PORT}
    config = {"devices": [{**streamer, "ack": ack, "prefetch": prefetch}]}
    with shared_queue(mongo_uri, queue="default", config=config) as shared, ExitStack() as stack:
        # Given workers that have shaken hands and read nothing more
        for _ in range(DEAF):
            stack.enter_context(deaf(shared.a.process.doors["pull"]))
        with Client(endpoint=shared.a.endpoint) as client:
            wait_until(lambda: client.queues.list()[0].workers == DEAF, what="the workers that don't read")
        # When
        with Producer(endpoint=shared.a.endpoint) as producer:
            for number in range(JOBS):
                producer.push("default", b"%d " % number + bytes(LARGE))
        # Then
        with shared.working(shared.b, prefetch=20) as handled:
            wait_until(lambda: shared.stored() <= DEAF * prefetch, what="all but what the deaf ones keep")
            assert set(handled.values()) == {1}
            if ack == "auto":  # what they were sent is not stored any more, and nothing else is held for them
                shared.wait_empty()
            else:
                wait_until(lambda: len(handled) == JOBS - shared.stored(), what="the others' last one")


@contextmanager
def deaf(address: str) -> Iterator[sockets.socket]:
    """A PULL socket that has shaken hands, with a small receive buffer."""
    with shake_hands(address, b"PULL") as worker:
        worker.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 2**17)
        yield worker


# ------------------------------------------------------------------ where leases lie, and are read


def test_brokers_with_other_databases_keep_off_each_others_jobs_of_a_shared_queue(
    mongo_uri: str, database: str
) -> None:
    shared = {"queues": {"shared": {"database": database}}}
    names = [f"{database}_{name}" for name in "ab"]
    with MongoClient[dict[str, Any]](mongo_uri) as mongo, ExitStack() as stack:
        for name in names:
            stack.callback(mongo.drop_database, name)
        settings = {"silence": 100.0, "heartbeat": 20.0, "poll": 0.5}
        brokers = [
            stack.enter_context(
                BrokerProcess(mongo_uri, name, config={**shared, "broker": {**settings, "lease": lease}})
            )
            for name, lease in zip(names, (30.0, 0.5), strict=True)
        ]
        holder, idle = (stack.enter_context(RawClient(broker.doors["smq"], "shared")) for broker in brokers)
        running_jobs_stay(holder, idle, seconds=3)


@full
@pytest.mark.timeout(300)
def test_a_secondary_that_lags_frees_no_jobs_whatever_the_uri_prefers(database: str) -> None:
    with ReplicaSet(3) as replica_set, ExitStack() as stack:
        primary = replica_set.primary()
        lagging = next(port for port in replica_set.ports if port != primary)
        preferring = f"{replica_set.uri}&readPreference=secondaryPreferred"
        settings = {"silence": 100.0, "heartbeat": 20.0, "poll": 0.5}
        lease = 1.0
        second = stack.enter_context(
            BrokerProcess(preferring, database, config={"broker": {**settings, "lease": lease}})
        )
        with RawClient(second.doors["smq"], "shared") as early:
            early.push(b"so that the queue is known")
            early.ready(1)
            early.commit(early.take()[0])
        replica_set.fail(lagging, "stopReplProducer", "alwaysOn")
        try:
            first = stack.enter_context(
                BrokerProcess(preferring, database, config={"broker": {**settings, "lease": 30.0}})
            )
            holder, idle = (
                stack.enter_context(RawClient(broker.doors["smq"], "shared")) for broker in (first, second)
            )
            running_jobs_stay(holder, idle, seconds=15)
        finally:
            replica_set.fail(lagging, "stopReplProducer", "off")


def running_jobs_stay(holder: RawClient, idle: RawClient, seconds: float) -> None:
    """Jobs at a live broker's worker are its own, for many sweeps of another broker with an idle worker."""
    holder.ready(3)
    for number in range(3):
        holder.push(b"%d" % number)
    jobs = holder.take(3)
    idle.ready(10)
    assert not idle.offered(seconds), "the jobs of a live broker were given to another"
    for job in jobs:
        holder.commit(job)
    assert not idle.offered(0.5)
    idle.ready(0)
    assert {job.attempt for job in jobs} == {1}


# ------------------------------------------------------------------ a broker that is stopped for two leases


@full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("after", [100, 150, 200])
def test_a_broker_that_is_stopped_until_it_is_dead_commits_nothing_that_others_have(
    mongo_uri: str, after: int
) -> None:
    prefetch, dead, answered = 50, threading.Event(), threading.Event()

    def work_at_first() -> None:
        if len(at_first) > after:
            dead.wait(4 * TIMEOUT)

    def work_at_second() -> None:
        answered.wait(4 * TIMEOUT)

    with (
        shared_queue(mongo_uri, queue="default", lease=3.0) as shared,
        shared.working(shared.a, prefetch, work=work_at_first) as at_first,
        Pushing(shared.b.endpoint) as pushing,
    ):
        # Given a broker that is stopped, whose worker is at a job and has been given more
        wait_until(lambda: len(at_first) > after, what="work at the first broker")
        wait_until(lambda: len(held_by(shared, shared.a)) >= prefetch, what="more than it can do at once")
        stop(shared.a.process)
        wait_quiet(lambda: len(held_by(shared, shared.a)), 0.5)  # a commit may have been on its way
        held = held_by(shared, shared.a)
        with shared.working(shared.b, MOST, work=work_at_second) as at_second:
            # When another has all that, and it goes on, as its worker has done it, too
            wait_until(lambda: held <= held_by(shared, shared.b), what="its end, and its jobs at the second")
            dead.set()
            wait_quiet(at_first.total, 1)
            given = set(at_first)
            shared.a.process.send_signal(signal.SIGCONT)
            wait_until(lambda: any(map(shared.a.counter, TOO_LATE)), what="the verdicts that come too late")
            # Then the other has it still, and commits it
            assert held <= held_by(shared, shared.b)
            answered.set()
            wait_until(lambda: held <= set(at_second), what="the jobs of the first at the second")
        assert not any(map(shared.b.counter, TOO_LATE))
        # and it works again, under another id
        before = len(at_first)
        wait_until(lambda: len(at_first) > before, what="work at the first broker again")
        pushing.stop()
        shared.wait_empty()
        together = at_first + at_second
        assert set(together) == set(pushing.pushed)
        # What its worker had been given when it was stopped was done twice, and nothing else.
        assert max(together.values()) == 2
        assert {payload for payload, count in together.items() if count > 1} == held & given


def stop(broker: BrokerProcess) -> None:
    """SIGSTOP, and wait until no thread of it runs."""
    broker.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{broker.pid}/task")
    wait_until(lambda: all(_stopped(each) for each in threads.iterdir()), what="the stop of a broker")


def _stopped(thread: Path) -> bool:
    # "pid (name) state ...", and the name may have spaces and brackets
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def held_by(shared: SharedQueue, broker: ProxiedBroker) -> set[bytes]:
    """The payloads of the jobs that lie reserved under the owner ids of this broker."""
    name = f"{sockets.gethostname()}:{broker.process.pid}"
    owners = [each["_id"] for each in shared.database["owners"].find({"name": name})]
    assert owners, f"no lease has the name {name}"
    return {
        bytes(each["payload"]) for each in shared.jobs.find({"state": "reserved", "owner": {"$in": owners}})
    }


class Pushing:
    """A producer that pushes without pause, until it is stopped and all is confirmed."""

    def __init__(self, endpoint: str) -> None:
        self.pushed: list[bytes] = []
        self._endpoint = endpoint
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def stop(self) -> None:
        self._enough.set()
        self._thread.join(60)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        with Producer(endpoint=self._endpoint) as producer:
            while not self._enough.wait(0.001):
                self.pushed.append(b"%d" % len(self.pushed))
                producer.push("default", self.pushed[-1])
