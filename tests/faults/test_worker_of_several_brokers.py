"""A worker of three brokers outlives each of them: nothing is lost, and little runs twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from sluicemq import Client, Job, Producer, Worker
from support.broker_process import BrokerProcess
from support.ports import free_port
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

PREFETCH = 6
JOBS = 120
Fault = Callable[[BrokerProcess], None]


@pytest.fixture
def brokers(mongo_uri: str) -> Iterator[list[BrokerProcess]]:
    config = {
        "broker": {"lease": 5.0, "heartbeat": 0.5, "silence": 3.0, "stop_timeout": 10.0},
        "devices": [],
        "queues": {"q": {}},
    }
    three = [BrokerProcess(mongo_uri, f"workers-{free_port()}", config=config)]
    three += [
        BrokerProcess(mongo_uri, three[0].config["broker"]["database"], config=config) for _ in range(2)
    ]
    with three[0], three[1], three[2]:
        yield three


class Handler:
    """A handler that notes what it has begun, and waits for a word at one job."""

    def __init__(self, at: int) -> None:
        self.begun: Counter[int] = Counter()
        self.most_at_once = 0
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._at = at
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> None:
        number = int(job.payload)
        with self._lock:
            self.begun[number] += 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        if number >= self._at:
            self.reached.set()
            assert self.go_on.wait(TIMEOUT)
        with self._lock:
            self._now -= 1


def kill(broker: BrokerProcess) -> None:
    broker.kill()


def freeze(broker: BrokerProcess) -> None:
    broker.send_signal(signal.SIGSTOP)


def terminate(broker: BrokerProcess) -> None:
    broker.process.terminate()


@pytest.mark.parametrize("fault", [kill, freeze, terminate])
def test_jobs_go_on_at_the_other_brokers(brokers: list[BrokerProcess], fault: Fault) -> None:
    doors = [each.doors["smq"] for each in brokers]
    handler = Handler(at=JOBS // 2)
    with Worker("q", handler, prefetch=PREFETCH, concurrency=PREFETCH, endpoint=doors) as worker:
        wait_until(lambda: all(_workers(each) == 1 for each in brokers), what="a worker at each broker")
        with Producer(endpoint=doors[1]) as producer:
            for number in range(JOBS):
                producer.push("q", b"%d" % number)
            # Given: a worker that has jobs in hand
            assert handler.reached.wait(TIMEOUT)
            # When: one of three brokers is lost
            fault(brokers[0])
            handler.go_on.set()
            # Then: all jobs are done, and only what it had given may run twice: jobs in hand, and those of
            # verdicts that it had not answered
            wait_until(lambda: len(handler.begun) == JOBS, what="all jobs")
            with Client(endpoint=doors[1]) as client:
                wait_until(lambda: not _left(client), what="all verdicts")
    again = sum(handler.begun.values()) - JOBS
    assert again <= (0 if fault is terminate else 2 * PREFETCH)
    assert handler.most_at_once <= PREFETCH
    assert worker.late <= again


def test_no_job_runs_twice_while_brokers_are_restarted_one_after_the_other(
    brokers: list[BrokerProcess],
) -> None:
    doors = [each.doors["smq"] for each in brokers]
    handler = Handler(at=10**9)
    pushed, stop = 0, threading.Event()

    def push() -> None:
        nonlocal pushed
        with Producer(endpoint=doors) as producer:
            while not stop.is_set():
                producer.push("q", b"%d" % pushed).wait(TIMEOUT)
                pushed += 1

    pushing = threading.Thread(target=push)
    with Worker("q", handler, prefetch=PREFETCH, concurrency=2, endpoint=doors) as worker:
        pushing.start()
        try:
            for each in brokers:
                assert each.terminate() == 0
                each.restart()
                wait_until(lambda each=each: _workers(each) == 1, what="its worker")  # type: ignore[misc]
        finally:
            stop.set()
            pushing.join(TIMEOUT)
        wait_until(lambda: len(handler.begun) == pushed, what="all jobs")
    assert set(handler.begun.values()) == {1}
    assert worker.late == 0


#: A worker of all brokers whose jobs called "abort" end the process.
_ABORTS = """
import os, sys, time
from sluicemq import Worker

def handle(job):
    time.sleep(0.01)
    if job.payload == b"abort":
        os._exit(1)

Worker(sys.argv[1:], "q", handle, prefetch=16, concurrency=8).run()
"""


class Restarted:
    """A worker process that begins again whenever it ends."""

    def __init__(self, doors: list[str]) -> None:
        self._doors = doors
        self._over = False
        self._process = self._begun()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _begun(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", _ABORTS, *self._doors])

    def _run(self) -> None:
        while True:
            self._process.wait()
            if self._over:
                return
            self._process = self._begun()

    def end(self) -> None:
        self._over = True
        while self._thread.is_alive():  # it may begin another one just now
            self._process.kill()
            self._thread.join(0.1)


@pytest.mark.full  # its short forms are in clients/test_worker_at_several_brokers.py
def test_no_job_dies_of_another_one_that_its_process_has_from_another_broker(
    brokers: list[BrokerProcess],
) -> None:
    # Given jobs that end their process, among others
    aborting, honest, processes = 60, 300, 3
    doors = [each.doors["smq"] for each in brokers]
    payloads = [b"%d" % number for number in range(honest)]
    for number in range(aborting):
        payloads.insert(number * len(payloads) // aborting, b"abort")
    with ExitStack() as stack:
        client = stack.enter_context(Client(endpoint=doors[0]))
        with Producer(endpoint=doors[0]) as producer:
            receipts = producer.push_many("q", payloads, max_attempts=3, backoff="none", keep_done=3600)
            for receipt in receipts:
                receipt.wait(TIMEOUT)
        # When processes work on them that are connected to all brokers
        for _ in range(processes):
            stack.callback(Restarted(doors).end)
        wait_until(lambda: not _left(client), 10 * TIMEOUT, "the end of all jobs")
        # Then no other is a dead letter
        dead = [each["payload"] for each in client.peek("q", "dead", limit=1000)]
    assert {bytes(each) for each in dead} == {b"abort"}
    assert len(dead) == aborting


def _workers(broker: BrokerProcess) -> int:
    with Client(endpoint=broker.doors["smq"]) as client:
        return sum(int(each["workers"]) for each in client.queues() if each["name"] == "q")


def _left(client: Client) -> int:
    return sum(each["ready"] + each["reserved"] for each in client.queues() if each["name"] == "q")
