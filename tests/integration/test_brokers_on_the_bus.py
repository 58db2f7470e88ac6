"""What is done at one broker is acted on at the others at once: their polls are ten minutes apart here."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq
from pymongo import MongoClient

from sluicemq import Client, Producer, Publisher, Reader, Worker
from sluicemq.protocol.errors import PausedError
from support.broker_process import BrokerProcess
from support.broker_under_test import ANY_PORT
from support.raw_sockets import receive
from support.waiting import TIMEOUT, wait_until

NEVER = {"poll": 600.0}
DEVICES = [
    {"kind": "queue", "queue": "ask", "frontend": ANY_PORT, "backend": ANY_PORT},
    {"kind": "forwarder", "stream": "prices", "frontend": ANY_PORT, "backend": ANY_PORT},
]


class Pair:
    def __init__(self, one: BrokerProcess, other: BrokerProcess) -> None:
        self.one, self.other = one.doors["smq"], other.doors["smq"]
        self.doors = one.doors, other.doors


@pytest.fixture(scope="module", params=["mongodb", "redis"])
def pair(request: pytest.FixtureRequest, mongo_uri: str) -> Iterator[Pair]:
    """Each tells the other over what the parameter says."""
    form = "auto" if request.param == "mongodb" else request.getfixturevalue("redis_url")
    database = f"test_bus_{request.param}"
    config = {"broker": {**NEVER, "event_bus": form}, "devices": DEVICES}
    with MongoClient[dict[str, Any]](mongo_uri) as mongo, ExitStack() as stack:
        mongo.drop_database(database)
        stack.callback(mongo.drop_database, database)
        brokers = [stack.enter_context(BrokerProcess(mongo_uri, database, config=config)) for _ in "12"]
        yield Pair(*brokers)


class Waiting:
    """A worker that waits; ``got`` has the payloads that came."""

    def __init__(self, endpoint: str, queue: str) -> None:
        self.got: list[bytes] = []
        self.worker = Worker(queue, lambda job: self.got.append(job.payload), prefetch=10, endpoint=endpoint)

    def wait(self, count: int) -> None:
        wait_until(lambda: len(self.got) >= count, what=f"job {count} at the other broker")


@pytest.fixture
def waiting() -> Iterator[Callable[[str, str], Waiting]]:
    with ExitStack() as stack:

        def begin(endpoint: str, queue: str) -> Waiting:
            waiting = Waiting(endpoint, queue)
            stack.enter_context(waiting.worker)
            with Client(endpoint=endpoint) as client:
                wait_until(lambda: workers(client, queue) == 1, what="the worker")
            return waiting

        yield begin


def workers(client: Client, queue: str) -> int:
    return sum(listed.workers for listed in client.queues.list() if listed.name == queue)


def test_a_push_here_reaches_a_worker_there(pair: Pair, waiting: Callable[[str, str], Waiting]) -> None:
    with Producer(endpoint=pair.one) as producer:
        producer.push("there", b"so that the queue is known").wait(TIMEOUT)
        there = waiting(pair.other, "there")
        there.wait(1)
        for number in range(2, 7):
            producer.push("there", b"%d" % number).wait(TIMEOUT)
            there.wait(number)


def test_so_does_a_job_when_it_is_due(pair: Pair, waiting: Callable[[str, str], Waiting]) -> None:
    with Producer(endpoint=pair.one) as producer:
        producer.push("due", b"now").wait(TIMEOUT)
        there = waiting(pair.other, "due")
        there.wait(1)
        producer.push("due", b"later", delay=0.3).wait(TIMEOUT)
        there.wait(2)


def test_and_what_a_leaving_worker_gives_back(pair: Pair, waiting: Callable[[str, str], Waiting]) -> None:
    holds, go = threading.Event(), threading.Event()

    def handler(_job: object) -> None:
        holds.set()
        go.wait(TIMEOUT)

    with (
        Producer(endpoint=pair.one) as producer,
        Worker("back", handler, prefetch=3, endpoint=pair.one) as leaving,
    ):
        for number in range(3):
            producer.push("back", b"%d" % number).wait(TIMEOUT)
        assert holds.wait(TIMEOUT)
        there = waiting(pair.other, "back")
        leaving.stop(0)
        there.wait(2)
        go.set()


def test_a_worker_waits_for_a_queue_that_is_made_at_another_broker(pair: Pair) -> None:
    got = threading.Event()
    with Worker("made", lambda _job: got.set(), endpoint=pair.other), Producer(endpoint=pair.one) as producer:
        with Client(endpoint=pair.other) as client:
            client.ping()
        threading.Event().wait(0.2)  # it waits by then, or finds the queue there: both are right
        producer.push("made", b"1").wait(TIMEOUT)
        assert got.wait(TIMEOUT)


def test_a_pause_here_holds_there(pair: Pair) -> None:
    with (
        Client(endpoint=pair.one) as one,
        Client(endpoint=pair.other) as other,
        Producer(endpoint=pair.other) as producer,
    ):
        producer.push("paused", b"1").wait(TIMEOUT)
        one.pause("paused", "intake")
        wait_until(lambda: paused(other, "paused"), what="the pause")
        with pytest.raises(PausedError):
            producer.push("paused", b"2").wait(TIMEOUT)
        one.resume("paused", "intake")
        wait_until(lambda: not paused(other, "paused"), what="its end")


def paused(client: Client, queue: str) -> list[str]:
    (row,) = [entry for entry in client.queues() if entry["name"] == queue]
    found: list[str] = row["paused"]
    return found


def test_who_asks_here_is_answered_by_who_works_there(pair: Pair) -> None:
    with zmq.Context() as context:
        asker, worker = context.socket(zmq.REQ), context.socket(zmq.REP)
        with asker, worker:
            worker.connect(pair.doors[1]["rep"])
            with Client(endpoint=pair.other) as client:  # it has looked, so it waits to be told
                wait_until(lambda: workers(client, "ask") == 1, what="the worker")
            asker.connect(pair.doors[0]["req"])
            for number in range(3):
                asker.send(b"%d" % number)
                assert receive(worker) == [b"%d" % number]
                worker.send(b"done")
                assert receive(asker) == [b"done"]


def test_what_is_published_here_is_read_there(pair: Pair) -> None:
    with Publisher(endpoint=pair.one) as publisher:
        publisher.publish("orders", "a", b"0").wait(TIMEOUT)
        with Reader("orders", follow=True, endpoint=pair.other) as reader:
            for number in range(5):
                message = reader.read(TIMEOUT)
                assert message is not None
                assert message.payload == b"%d" % number
                publisher.publish("orders", "a", b"%d" % (number + 1)).wait(TIMEOUT)


def test_what_a_pub_sends_here_comes_to_a_sub_there(pair: Pair) -> None:
    with zmq.Context() as context:
        pub, sub = context.socket(zmq.PUB), context.socket(zmq.SUB)
        with pub, sub:
            pub.connect(pair.doors[0]["pub"])
            sub.connect(pair.doors[1]["sub"])
            sub.subscribe(b"")
            wait_until(lambda: (pub.send_multipart([b"probe", b""]), sub.poll(50))[1], what="a first message")
            pub.send_multipart([b"a", b"1"])
            wait_until(lambda: receive(sub) == [b"a", b"1"], what="the message")


def test_both_count_what_they_tell_and_hear(pair: Pair) -> None:
    with (
        Producer(endpoint=pair.one) as producer,
        Client(endpoint=pair.one) as one,
        Client(endpoint=pair.other) as other,
    ):
        producer.push("counted", b"x").wait(TIMEOUT)
        wait_until(lambda: one.counters()["counters"].get("bus_told"), what="the count of what is told")
        wait_until(lambda: other.counters()["counters"].get("bus_heard"), what="the count of what is heard")


def test_a_broker_that_is_alone_tells_nobody_anything(mongo_uri: str, database: str) -> None:
    with (
        BrokerProcess(mongo_uri, database) as broker,
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        Producer(endpoint=broker.doors["smq"]) as producer,
    ):
        for _ in range(20):
            producer.push("mail", b"x").wait(TIMEOUT)
        with Publisher(endpoint=broker.doors["smq"]) as publisher:
            publisher.publish("orders", "a", b"x").wait(TIMEOUT)
        # It has greeted whoever may be there, and no more.
        assert [row["lines"] for row in mongo[database]["bus"].find()] == [["hello  0"]]


@pytest.mark.full
def test_without_a_bus_the_poll_finds_what_others_have_done(
    mongo_uri: str, database: str, waiting: Callable[[str, str], Waiting]
) -> None:
    config = {"broker": {"poll": 0.1, "event_bus": "off"}, "devices": []}
    with (
        BrokerProcess(mongo_uri, database, config=config) as one,
        BrokerProcess(mongo_uri, database, config=config) as other,
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        Producer(endpoint=one.doors["smq"]) as producer,
    ):
        producer.push("mail", b"1").wait(TIMEOUT)
        there = waiting(other.doors["smq"], "mail")
        producer.push("mail", b"2").wait(TIMEOUT)
        there.wait(2)
        assert "bus" not in mongo[database].list_collection_names()
