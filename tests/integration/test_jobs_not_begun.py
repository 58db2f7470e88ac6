"""Jobs that no handler has begun: they cost no attempt, whatever becomes of the worker that has them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import pytest

from sluicemq import Client, Job, Producer, Worker
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.broker_under_test import BrokerUnderTest, serving
from support.waiting import wait_until

SECONDS = 60.0


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [], poll=0.5, silence=2, heartbeat=0.5) as broker:
        yield broker


@pytest.fixture
def queue(broker: BrokerUnderTest) -> str:
    name = token_hex(6)
    broker.make(name)
    return name


class Hanging:
    """A handler that hangs at the first job, until it is let go."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, job: Job) -> None:
        self.seen.append(job.payload)
        if len(self.seen) == 1:
            self.hangs.set()
            assert self.let_go.wait(SECONDS)


def push(endpoint: str, queue: str, *payloads: bytes, **options: Any) -> None:
    with Producer(endpoint=endpoint) as producer:
        for payload in payloads:
            producer.push(queue, payload, **options)


def test_what_waits_behind_a_handler_that_hangs_is_done_by_another_worker_within_half_its_time(
    broker: BrokerUnderTest, client: Client, queue: str
) -> None:
    # Given: one attempt each; a worker with five jobs, whose only thread hangs at the first
    endpoint, stuck = broker.doors["smq"], Hanging()
    done: dict[bytes, int] = {}

    def work(job: Job) -> None:
        done[job.payload] = job.attempt

    with Worker(queue, stuck, prefetch=5, endpoint=endpoint) as worker:
        push(endpoint, queue, b"A", max_attempts=1)
        assert stuck.hangs.wait(SECONDS)
        push(endpoint, queue, b"B", b"C", b"D", b"E", max_attempts=1, visibility_timeout=4.0)
        broker.await_count(queue, "reserved", 5)
        with Worker(queue, work, endpoint=endpoint):
            wait_until(lambda: len(done) == 4, what="the others' jobs")
        assert done == dict.fromkeys([b"B", b"C", b"D", b"E"], 1)
        assert stuck.seen == [b"A"]
        wait_until(lambda: broker.counts(queue) == {"reserved": 1}, what="their commits")
        stuck.let_go.set()
        wait_until(lambda: not broker.counts(queue), what="the first one's commit")
        assert worker.late == 0


def test_a_worker_that_is_cut_while_its_handler_hangs_takes_no_job_until_it_is_through(
    broker: BrokerUnderTest, client: Client, queue: str
) -> None:
    # Given: a handler that outlives its job's time twice, so that its worker is cut, and connects again
    endpoint, stuck = broker.doors["smq"], Hanging()
    with Worker(queue, stuck, prefetch=5, endpoint=endpoint):
        push(endpoint, queue, b"A", max_attempts=1, visibility_timeout=0.3)
        assert stuck.hangs.wait(SECONDS)
        wait_until(lambda: broker.counts(queue) == {"dead": 1}, what="the end of its only attempt")
        wait_until(
            lambda: [worker.prefetch for worker in client.workers.list(queue)] == [0], what="its return"
        )
        push(endpoint, queue, b"B", b"C", b"D", max_attempts=1, visibility_timeout=0.3)
        # Then: they stay with the broker
        assert broker.counts(queue) == {"dead": 1, "ready": 3}
        stuck.let_go.set()
        wait_until(lambda: broker.counts(queue) == {"dead": 1}, what="the other jobs")
    assert sorted(stuck.seen) == [b"A", b"B", b"C", b"D"]


def test_after_a_restart_no_job_waits_behind_its_own_void_run(mongo_uri: str, database: str) -> None:
    stuck = Hanging()
    done = threading.Event()
    with BrokerProcess(mongo_uri, database, config={"broker": {"lease": 2.0, "poll": 0.5}}) as broker:
        endpoint = broker.doors["smq"]
        with Worker("default", stuck, endpoint=endpoint):
            push(endpoint, "default", b"A")
            assert stuck.hangs.wait(SECONDS)
            broker.kill()
            broker.restart()
            with Client(endpoint=endpoint) as client:
                wait_until(
                    lambda: [worker.prefetch for worker in client.workers.list("default")] == [0],
                    what="the worker's return",
                )
                # Then: whoever is free has it
                with Worker("default", lambda _job: done.set(), endpoint=endpoint):
                    assert done.wait(SECONDS)
            stuck.let_go.set()
    assert stuck.seen == [b"A"]


PROGRAM = """
import os
import sys
from sluicemq import Worker

def handler(job):
    os.write(1, job.payload + b"\\n")
    sys.stdin.read()

Worker(sys.argv[1], sys.argv[2], handler, prefetch=5, concurrency=2).run()
"""


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_stands_still_costs_an_attempt_of_what_it_had_begun_alone(
    broker: BrokerUnderTest, client: Client, queue: str, how: signal.Signals
) -> None:
    # Given: five jobs with one attempt each, at a worker of two threads
    with program(broker.doors["smq"], queue) as process:
        push(broker.doors["smq"], queue, b"A", b"B", b"C", b"D", b"E", max_attempts=1)
        assert process.stdout
        begun = {process.stdout.readline().strip(), process.stdout.readline().strip()}
        broker.await_count(queue, "reserved", 5)
        os.kill(process.pid, how)
        wait_until(lambda: broker.counts(queue) == {"dead": 2, "ready": 3}, what="its end")
    assert {job["payload"].decode() for job in client.peek(queue, "dead")} == begun
    assert [job["attempts"] for job in client.peek(queue)] == [0, 0, 0]


def test_jobs_that_time_out_at_a_client_that_says_how_many_it_begins_count_those_alone(
    broker: BrokerUnderTest, client: Client, queue: str
) -> None:
    # Given: a client that begins one job at a time, and never says a word of any
    library = broker.smq()
    library.ask(wire.HELLO, {"client": "slow", "version": "1", "concurrency": 1})
    library.ask(wire.READY, queue, 3)
    entry = {"max_attempts": 1, "visibility_timeout": 0.2}
    library.ask(wire.PUSH, queue, [[name, b"", entry] for name in ("a", "b", "c")])
    wait_until(lambda: broker.counts(queue) == {"dead": 1, "ready": 2}, what="the end of their time")
    assert [job.id for job in client.jobs.list(queue, "dead")] == ["a"]


def test_a_claims_time_begins_at_its_handover(broker: BrokerUnderTest, client: Client, queue: str) -> None:
    # Given: a job whose time is shorter than the claim waits for others
    push(broker.doors["smq"], queue, b"A", max_attempts=1, visibility_timeout=0.5)
    with client.jobs.reserve(queue, 2, wait=1.5) as claim:
        (job,) = claim.jobs
        job.commit()
    assert not broker.counts(queue)
