"""Plain sockets with several connects outlive a broker: docs/many-brokers.md, in Python, C and Node."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

from faults.fleet import Program
from sluicemq import Client, Job, Producer, Publisher, Worker
from support.broker_process import BrokerProcess
from support.ports import free_port, tcp
from support.raw_sockets import receive
from support.samples import block
from support.waiting import TIMEOUT, wait_until

#: Takes many processes, or minutes, for what seldom changes.
pytestmark = pytest.mark.full

CLIENTS = Path(__file__).parents[2] / "clients"
LANGUAGES = ["Python", "C", "Node"]
BLOCKS = {
    "push": "many: push",
    "ask": "many: ask",
    "work": "many: rep",
    "commit": "many: commits",
    "subscribe": "many: subscribe",
}
DEVICES = [
    {"kind": "queue", "queue": "asked"},
    {"kind": "streamer", "queue": "pushed"},
    {"kind": "streamer", "queue": "committed", "ack": "explicit"},
    {"kind": "forwarder", "stream": "prices", "envelope": "full"},
]

Start = Callable[..., Program]


class Pair:
    """Two brokers on one database, with the same devices on ports of their own."""

    def __init__(self, mongo_uri: str) -> None:
        database = f"many-{free_port()}"
        self.brokers = [_broker(mongo_uri, database) for _ in range(2)]

    def doors(self, queue: str, end: str) -> list[str]:
        """The addresses of one end of a device at both brokers."""
        found = [
            device
            for broker in self.brokers
            for device in broker.devices
            if queue in (device.get("queue"), device.get("stream"))
        ]
        return [str(device[end][0]) for device in found]

    def ready(self, queue: str, at: int = 0) -> int:
        """How many jobs of a queue are ready."""
        with Client(endpoint=self.brokers[at].doors["smq"]) as client:
            return sum(listed.ready for listed in client.queues.list() if listed.name == queue)

    def wait_workers(self, queue: str, count: int) -> None:
        """Wait until each broker has this many workers of the queue."""
        for broker in self.brokers:
            wait_until(partial(_has_workers, broker, queue, count), what=f"{count} workers of {queue}")


def _has_workers(broker: BrokerProcess, queue: str, count: int) -> bool:
    with Client(endpoint=broker.doors["smq"]) as client:
        return any(listed.name == queue and listed.workers == count for listed in client.queues.list())


def _broker(mongo_uri: str, database: str) -> BrokerProcess:
    ends: dict[str, dict[str, Any]] = {"explicit": {"commit": tcp()}}
    devices = [
        {**device, "frontend": tcp(), "backend": tcp(), **ends.get(device.get("ack", ""), {})}
        for device in DEVICES
    ]
    return BrokerProcess(mongo_uri, database, config={"devices": devices, "broker": {"lease": 5.0}})


@pytest.fixture
def pair(mongo_uri: str) -> Iterator[Pair]:
    pair = Pair(mongo_uri)
    with pair.brokers[0], pair.brokers[1]:
        yield pair


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("many") / "many"
    subprocess.run(
        ["gcc", "-O2", "-Wall", "-Werror", CLIENTS / "c" / "many.c", "-o", built, "-lzmq"], check=True
    )
    return built


@pytest.fixture
def start(built: Path) -> Iterator[Start]:
    running: list[Program] = []

    def begin(language: str, role: str, *endpoints: str) -> Program:
        command: dict[str, list[object]] = {
            "Python": [sys.executable, "-u", "-c", block(BLOCKS[role])],
            "C": [built, role],
            "Node": ["node", CLIENTS / "node" / "many.js", role],
        }
        running.append(Program(*command[language], *endpoints))
        return running[-1]

    yield begin
    for program in running:
        program.end()


def tell(program: Program, *lines: str) -> None:
    assert program.process.stdin
    program.process.stdin.write("".join(f"{line}\n" for line in lines))
    program.process.stdin.flush()


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_job_is_queued_for_a_broker_that_is_gone(pair: Pair, start: Start, language: str) -> None:
    # Given: a PUSH socket that both brokers have heard of
    pushing = start(language, "push", *pair.doors("pushed", "frontend"))
    tell(pushing, *map(str, range(20)))
    wait_until(lambda: pair.ready("pushed") == 20, what="the first jobs")
    # When: one of them is killed, and the socket has noticed
    pair.brokers[1].kill()
    sent = 0
    while pair.ready("pushed") < 30:
        sent += 1
        assert sent < 1000
        tell(pushing, "probe")
    before = pair.ready("pushed")
    wait_until(lambda: pair.ready("pushed") == before, what="quiet")
    # Then: nothing that is sent from now on is missing, and the program ends
    tell(pushing, *map(str, range(60)))
    assert pushing.process.stdin
    pushing.process.stdin.close()
    assert pushing.process.wait(TIMEOUT) == 0
    wait_until(lambda: pair.ready("pushed") >= before + 60, what="all later jobs")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_question_outlives_the_broker_where_it_was_asked(pair: Pair, start: Start, language: str) -> None:
    begun: list[str] = []
    go_on = threading.Event()

    def work(job: Job) -> bytes:
        begun.append(job.payload.decode())
        assert go_on.wait(TIMEOUT)
        return b"result-of-" + job.payload

    # Given: a question that was asked at the second broker, as the first was not there
    first, second = pair.brokers
    first.terminate()
    asking = start(language, "ask", *pair.doors("asked", "frontend"))
    with Producer(endpoint=second.doors["smq"]) as producer:
        producer.push("asked", b"made first").wait(TIMEOUT)
    tell(asking, "question")
    wait_until(lambda: pair.ready("asked", at=1) == 2, what="the question")
    first.restart()
    # When: that broker dies while a worker at the first one is at work
    with Worker("asked", work, prefetch=2, concurrency=2, endpoint=first.doors["smq"]):
        wait_until(lambda: "question" in begun, what="the job")
        second.kill()
        go_on.set()
        # Then: the answer comes, of one run
        asking.wait_said("result-of-question")
        # And: later questions are answered, too, though that broker stays away
        tell(asking, *map(str, range(10)))
        for number in range(10):
            asking.wait_said(f"result-of-{number}")
    assert sorted(begun) == sorted({*begun})


def test_a_frozen_broker_costs_a_question_its_time(pair: Pair, start: Start) -> None:
    # Given: a REQ socket that has asked both brokers
    asking = start("Python", "ask", *pair.doors("asked", "frontend"))
    working = start("Python", "work", *pair.doors("asked", "backend"))
    tell(asking, *map(str, range(4)))
    asking.wait_said("done", 4)
    # When: one of them is frozen
    pair.brokers[1].send_signal(signal.SIGSTOP)
    # Then: all questions are answered
    tell(asking, *map(str, range(4, 14)))
    asking.wait_said("done", 14)
    assert {number for number in range(14) if working.said(str(number))} == set(range(14))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_rep_worker_of_two_brokers_goes_on_with_one(pair: Pair, start: Start, language: str) -> None:
    # Given: a worker that both brokers have
    working = start(language, "work", *pair.doors("asked", "backend"))
    pair.wait_workers("asked", 1)
    # When: one of them is killed
    pair.brokers[1].kill()
    # Then: it works for the other
    with Producer(endpoint=pair.brokers[0].doors["smq"]) as producer:
        assert producer.call("asked", b"first", timeout=TIMEOUT) == b"done"
        # And: when the broker is back, for both
        pair.brokers[1].restart()
        pair.wait_workers("asked", 1)
    with Producer(endpoint=pair.brokers[1].doors["smq"]) as producer:
        assert producer.call("asked", b"second", timeout=TIMEOUT) == b"done"
    working.wait_said("second")


def test_a_pull_worker_commits_each_job_at_the_broker_that_sent_it(pair: Pair, start: Start) -> None:
    # Given: a worker with a pair of sockets for each broker
    doors = zip(pair.doors("committed", "backend"), pair.doors("committed", "commit"), strict=True)
    working = start("Python", "commit", *map(",".join, doors))
    pair.wait_workers("committed", 1)
    # When: jobs are pushed until it has had some of each broker
    pushed = 0

    def both_have_committed() -> bool:
        return all(_counters(broker).get("committed", 0) for broker in pair.brokers)

    while not both_have_committed():
        for broker in pair.brokers:
            with Producer(endpoint=broker.doors["smq"]) as producer:
                producer.push("committed", b"%d" % pushed).wait(TIMEOUT)
            pushed += 1
            assert pushed < 200
    # Then: each runs once, none of the commits is late
    wait_until(
        lambda: sum(_counters(broker)["committed"] for broker in pair.brokers) == pushed, what="all commits"
    )
    assert [len(working.said(str(number))) for number in range(pushed)] == [1] * pushed
    assert [_counters(broker).get("late_verdicts", 0) for broker in pair.brokers] == [0, 0]


def test_a_receipt_changes_nothing_at_another_broker(pair: Pair) -> None:
    context = zmq.Context()
    jobs, here, there = (context.socket(kind) for kind in (zmq.PULL, zmq.PUSH, zmq.PUSH))
    jobs.connect(pair.doors("committed", "backend")[0])
    for socket, endpoint in zip((here, there), pair.doors("committed", "commit"), strict=True):
        socket.connect(endpoint)
    try:
        with Producer(endpoint=pair.brokers[0].doors["smq"]) as producer:
            producer.push("committed", b"job").wait(TIMEOUT)
        receipt, _payload = receive(jobs)
        there.send_multipart([b"COMMIT", receipt])
        wait_until(lambda: _counters(pair.brokers[1]).get("late_verdicts") == 1, what="a late verdict")
        here.send_multipart([b"COMMIT", receipt])
        wait_until(lambda: _counters(pair.brokers[0]).get("committed") == 1, what="the commit")
    finally:
        context.destroy(linger=0)


def test_a_subscriber_of_two_brokers_hears_a_stream_once_and_whole(pair: Pair, start: Start) -> None:
    listening = start("Python", "subscribe", *pair.doors("prices", "backend"))
    first, second = pair.brokers
    context = zmq.Context()
    beside = context.socket(zmq.SUB)
    beside.subscribe(b"")
    beside.connect(pair.doors("prices", "backend")[1])
    try:
        # Given: a subscriber that both brokers have
        for broker, count in zip(pair.brokers, (1, 2), strict=True):
            wait_until(partial(_has_subscribers, broker, count), what="subscribers")
        # When: one of them is killed while it sends
        with Publisher(endpoint=first.doors["smq"]) as publisher:
            for number in range(100):
                publisher.publish("prices", "eur", b"%d" % number)
            for _ in range(10):
                receive(beside)
            second.kill()
            for number in range(100, 200):
                publisher.publish("prices", "eur", b"%d" % number)
            publisher.flush(TIMEOUT)
        # Then: nothing is missing, nothing comes twice
        listening.wait_said("200")
        assert [len(listening.said(str(number + 1))) for number in range(200)] == [1] * 200
    finally:
        context.destroy(linger=0)


def _has_subscribers(broker: BrokerProcess, count: int) -> bool:
    with Client(endpoint=broker.doors["smq"]) as client:
        return sum(len(forwarder.subscribers) for forwarder in client.stats().forwarders) == count


def _counters(broker: BrokerProcess) -> dict[str, int]:
    with Client(endpoint=broker.doors["smq"]) as client:
        return dict(client.counters().counters)
