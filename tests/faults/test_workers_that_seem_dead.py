"""Workers that seem dead, freeze or die: what is lost, and what looks first."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from time import monotonic
from types import MappingProxyType
from typing import Any

import psutil
import pytest
import zmq

from clients.scripted_broker import ScriptedBroker
from faults.fleet import Fleet, Program
from sluicemq import Client, Producer
from sluicemq.protocol import wire
from support.broker_under_test import AT_ONCE, BrokerUnderTest, Doors, serving, spare
from support.keyed_broker import keyed_broker
from support.raw_sockets import receive
from support.waiting import wait_until

SILENCE = 1.0

WORKER = """
import ctypes, os, sys
from sluicemq import Worker

def handle(job):
    print(job.payload.decode(), job.attempt, flush=True)
    if job.payload == b"holds":  # Python's lock, as a regular expression or a library of images may
        ctypes.PyDLL(None).usleep({microseconds})
    elif job.payload == b"waits":
        os.read(0, 1)

Worker(sys.argv[1], sys.argv[2], handle, prefetch=5).run()
"""


@contextmanager
def working(
    endpoint: str, queue: str, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    program = WORKER.format(microseconds=int(3 * SILENCE * 1e6))
    command = [sys.executable, "-c", program, endpoint, queue]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **variables}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


BEATS: dict[str, Any] = {"poll": 0.5, "heartbeat": 0.2, "silence": SILENCE}


@contextmanager
def reached(mongo_uri: str, database: str, folder: Path, *, keyed: bool) -> Iterator[tuple[str, Any, Any]]:
    """A broker with short signs of life: its endpoint, and keywords and variables that let in there."""
    if not keyed:
        with serving(mongo_uri, [], database=database, **BEATS) as open_to_all:
            yield open_to_all.doors["smq"], {}, {}
        return
    with keyed_broker(mongo_uri, database, folder, {"broker": BEATS}) as broker:
        yield broker.endpoint, broker.access(), broker.variables()


@pytest.mark.full
@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
def test_a_handler_that_holds_pythons_lock_for_longer_than_the_silence_keeps_its_job(
    mongo_uri: str, database: str, tmp_path: Path, *, keyed: bool
) -> None:
    with (
        reached(mongo_uri, database, tmp_path, keyed=keyed) as (endpoint, access, variables),
        Producer(**access, endpoint=endpoint) as producer,
        Client(**access, endpoint=endpoint) as client,
    ):
        # When: two such jobs, and one behind them
        producer.push_many("q", [b"holds", b"holds", b"ends"])
        with working(endpoint, "q", variables) as worker:
            assert worker.stdout
            # Then: each is done at its first attempt
            assert worker.stdout.readline() == "holds 1\n"
            wait_until(
                lambda: not any(client.queue("q")[state] for state in ("ready", "scheduled", "reserved"))
            )
            worker.send_signal(signal.SIGTERM)
            assert worker.stdout.read() == "holds 1\nends 1\n"


@pytest.mark.full
def test_a_worker_that_is_stopped_is_taken_for_dead_and_the_job_says_why(mongo_uri: str) -> None:
    queue = token_hex(6)
    with (
        serving(mongo_uri, [], **BEATS) as broker,
        Producer(endpoint=broker.doors["smq"]) as producer,
        Client(endpoint=broker.doors["smq"]) as client,
    ):
        pushed = producer.push(queue, b"waits", max_attempts=1)
        with working(broker.doors["smq"], queue) as worker:
            assert worker.stdout
            assert worker.stdout.readline() == "waits 1\n"
            wait_until(lambda: client.queues.get(queue).reserved == 1)
            worker.send_signal(signal.SIGSTOP)
            wait_until(lambda: client.queues.get(queue).dead == 1)
        assert client.show(queue, pushed.id)["errors"][-1]["reason"] == (
            "the worker is taken for dead: nothing heard for 1 s"
        )


@pytest.mark.full
def test_a_worker_that_was_stopped_begins_no_job_of_a_connection_that_has_ended_meanwhile() -> None:
    # Given: a worker with one job at work, and one behind it
    broker = ScriptedBroker(silence=0.5).start()
    with working(broker.endpoint, "q") as worker:
        assert worker.stdout
        assert worker.stdin
        peer = broker.wait_for(wire.READY)[0].peer
        broker.deliver(peer, "q", [b"waits", b"behind"])
        assert worker.stdout.readline() == "waits 1\n"
        # When: it is stopped for longer than a broker waits, which has closed the connection by then
        worker.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
        stopped_at = monotonic()
        wait_until(lambda: monotonic() > stopped_at + 0.5, what="the end of the silence")
        broker.stop()
        worker.stdin.write("\n")
        worker.stdin.flush()
        worker.send_signal(signal.SIGCONT)
        # Then: the next job that it begins is one of the new connection
        broker.start()
        ready = broker.wait_for(wire.READY, 2)[-1]
        broker.deliver(ready.peer, "q", [b"new"])
        assert worker.stdout.readline() == "new 1\n"
    broker.stop()


TAKEN = 10
#: Jobs on the way to one worker, at most.
PREFETCH = 256

Start = Callable[[Fleet, str, int, int], Program]


def python(fleet: Fleet, address: str, hwm: int, count: int) -> Program:
    return fleet.start("taker.py", address, hwm, count)


def node(fleet: Fleet, address: str, hwm: int, count: int) -> Program:
    return fleet.node("take", address, hwm, count)


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(received=12), queues=AT_ONCE, poll=0.5, lease=2.0) as broker:
        yield broker


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("start", "hwm", "count"),
    [
        (python, 1, 500),
        (python, 10, 500),
        (python, 1000, 2000),
        (node, 10, 500),
        pytest.param(python, 1000, 30_000, marks=pytest.mark.full),
        pytest.param(node, 1000, 30_000, marks=pytest.mark.full),
    ],
)
def test_a_killed_worker_loses_no_more_than_its_zeromq_held(
    broker: BrokerUnderTest, fleet: Fleet, start: Start, hwm: int, count: int
) -> None:
    # Given one that has taken a few of many, and has no room for more
    doors = broker.take("received")
    jobs = push(broker, doors, count)
    before = broker.counter("committed")
    worker = start(fleet, doors.back, hwm, TAKEN)
    worker.wait_said("full")
    wait_until(lambda: broker.counter("committed") - before > hwm - PREFETCH, what="a full worker")
    worker.end()
    # Then what had not arrived at it is there, and goes to another, once
    wait_until(lambda: not broker.workers(doors.queue), what="its end")
    wait_until(lambda: set(broker.counts(doors.queue)) == {"ready"}, what="the return of what it had not")
    left = broker.counts(doors.queue)["ready"]
    # A commit is counted once MongoDB has answered, which is a little after the job is gone.
    wait_until(lambda: broker.counter("committed") - before == count - left, what="the count of its commits")
    assert count - left <= TAKEN + hwm
    taken = [job.encode() for (job,) in worker.said("got")]
    rest = drain(broker, doors, left)
    assert len(set(rest)) == len(rest)
    assert len(set(jobs) - {*taken, *rest}) <= hwm
    assert len({*taken} & {*rest}) <= PREFETCH
    wait_until(lambda: broker.counter("committed") - before == count, what="each commit, once")


@pytest.mark.parametrize("hwm", [1, 1000])
def test_what_was_on_the_way_to_a_frozen_worker_goes_to_another_and_nothing_is_committed_twice(
    broker: BrokerUnderTest, fleet: Fleet, hwm: int
) -> None:
    doors = broker.take("received")
    before = broker.counter("committed")
    frozen = python(fleet, doors.back, hwm, 10_000)
    wait_until(lambda: broker.workers(doors.queue), what="the worker")
    frozen.freeze()
    jobs = push(broker, doors, 100, visibility_timeout=1)
    rest = drain(broker, doors, 100)
    assert sorted(rest) == sorted(jobs)
    frozen.thaw()
    push(broker, doors, 100, first=100)
    frozen.wait_said("got", 100)  # and it may have some of the others, which came to it too
    wait_until(lambda: not broker.counts(doors.queue), what="all commits")
    wait_until(lambda: broker.counter("committed") - before == 200, what="each commit, once")


def push(broker: BrokerUnderTest, doors: Doors, count: int, first: int = 0, **headers: float) -> list[bytes]:
    """So many jobs, which are stored when this returns."""
    before = broker.counter("pushed")
    producer = broker.socket(zmq.PUSH, doors.front)
    jobs = [b"%d" % number for number in range(first, first + count)]
    for job in jobs:
        producer.send_multipart([b"", json.dumps(headers).encode(), job])
    wait_until(lambda: broker.counter("pushed") - before == count, what="storing")
    return jobs


def drain(broker: BrokerUnderTest, doors: Doors, count: int) -> Sequence[bytes]:
    """What another worker gets, of so many jobs, until none is left."""
    worker = broker.socket(zmq.PULL, doors.back)
    jobs = [receive(worker)[0] for _ in range(count)]
    wait_until(lambda: not broker.counts(doors.queue), what="all commits")
    assert not worker.poll(0)
    worker.close()
    return jobs
