"""Workers that let their jobs go on to other queues, through every door."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from sluicemq import BadHeadersError, BadQueueError, Client, DuplicateError, Forward, Job, Producer, Reply
from sluicemq.protocol import wire
from support.broker_process import BrokerProcess
from support.broker_under_test import AT_ONCE, BrokerUnderTest, serving, spare
from support.own_queue import SECONDS, working
from support.raw_sockets import receive
from support.waiting import wait_until


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    devices = spare(ask=16, ack=2)
    with serving(mongo_uri, devices, queues=AT_ONCE, poll=0.5, http="127.0.0.1:0") as broker:
        yield broker


def test_a_chain_of_queues_and_who_asked_at_its_beginning_hears_its_end(endpoint: str, queue: str) -> None:
    first, second, third = (f"{queue}-{number}" for number in (1, 2, 3))
    seen: list[tuple[str, str, int]] = []

    def note(job: Job) -> None:
        seen.append((job.queue, job.id, job.attempt))

    def load(job: Job) -> Forward:
        note(job)
        return Forward(second, job.payload + b" loaded")

    def change(job: Job) -> Forward:
        note(job)
        if job.attempt == 1:
            raise ValueError("again")
        return Forward(third)

    def store(job: Job) -> bytes:
        note(job)
        return job.payload + b" stored"

    with (
        working(endpoint, {first: load, second: change, third: store}),
        Producer(endpoint=endpoint) as producer,
    ):
        result = producer.call(first, b"cat", SECONDS, id="cat", keep_done=60)
    assert result == b"cat loaded stored"
    assert seen == [(first, "cat", 1), (second, "cat", 1), (second, "cat", 2), (third, "cat", 1)]
    with Client(endpoint=endpoint) as client:
        shown = client.show(third, "cat")
        assert [(row["queue"], row["attempts"]) for row in shown["passed"]] == [(first, 1), (second, 2)]
        assert client.jobs.get(first, "cat").forwarded_to == second
        assert client.jobs.result(first, "cat") == b"cat loaded stored"  # asked for where it was pushed


def test_a_worker_chooses_where_a_job_goes_on(broker: BrokerUnderTest, endpoint: str, queue: str) -> None:
    for size in ("small", "large"):
        broker.make(f"{queue}-{size}")

    def sort(job: Job) -> Forward:
        size = "large" if len(job.payload) > 3 else "small"
        return Forward(f"{queue}-{size}", priority=9, headers={"size": size})

    with (
        Producer(endpoint=endpoint) as producer,
        working(endpoint, {queue: sort}),
        Client(endpoint=endpoint) as client,
    ):
        for payload in (b"cat", b"elephant", b"ox"):
            producer.push(queue, payload)
        for size, payloads in (("small", [b"cat", b"ox"]), ("large", [b"elephant"])):
            with client.jobs.reserve(f"{queue}-{size}", len(payloads), SECONDS) as claim:
                assert sorted(job.payload for job in claim) == sorted(payloads)
                assert {(job.priority, job.headers["size"]) for job in claim} == {(9, size)}
                claim.commit()


def test_a_claimed_job_goes_on_and_one_that_can_not_comes_back(endpoint: str, queue: str) -> None:
    other = f"{queue}-other"
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        for name in ("a", "b"):
            producer.push(queue, b"x", id=name)
        producer.push(other, b"its own", id="a")
        producer.flush()
        claim = client.jobs.reserve(queue, 2, SECONDS)
        jobs = {job.id: job for job in claim}
        with pytest.raises(DuplicateError, match="has a job 'a' already"):
            jobs["a"].forward(other)
        jobs["b"].forward(other, b"y")
        assert client.jobs.get(other, "b").payload == b"y"
        again = client.show(queue, "a")
        assert again["errors"][-1]["reason"][:9] == "DUPLICATE"
        assert again["attempts"] == 1


def test_a_queue_with_no_name_and_options_that_are_none_are_refused(endpoint: str, queue: str) -> None:
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        for _ in range(2):
            producer.push(queue, b"x")
        producer.flush()
        with client.jobs.reserve(queue, 2, SECONDS) as claim:
            with pytest.raises(BadQueueError, match="no queue name"):
                claim.jobs[0].forward("no name!")
            with pytest.raises(BadHeadersError, match="priority"):
                claim.jobs[1].forward("other", priority=1000)
        with pytest.raises(TypeError, match="dedupe_id"):
            Forward("other", dedupe_id="x")


def test_a_thousand_jobs_go_on_each_once(broker: BrokerUnderTest, endpoint: str, queue: str) -> None:
    forwarded = broker.counter("forwarded")
    came: list[bytes] = []
    ends = f"{queue}-end"
    with (
        working(
            endpoint, {queue: lambda _job: Forward(ends), ends: lambda job: came.append(job.payload)}, 200
        ),
        Producer(endpoint=endpoint) as producer,
    ):
        for number in range(1000):
            producer.push(queue, b"%d" % number)
        wait_until(lambda: len(came) >= 1000, SECONDS)
    assert sorted(came, key=int) == [b"%d" % number for number in range(1000)]
    wait_until(lambda: broker.counter("forwarded") == forwarded + 1000, what="the count of each, once")


@pytest.mark.parametrize(
    ("frames", "payload"),
    [([], b"work"), ([b"new"], b"new"), ([b""], b""), ([b"new", b'{"priority": 7}'], b"new")],
)
def test_a_rep_worker_forwards(broker: BrokerUnderTest, frames: list[bytes], payload: bytes) -> None:
    first, second = broker.take("ask"), broker.take("ask")
    asker = broker.socket(zmq.REQ, first.front)
    here, there = (broker.socket(zmq.REP, node.back) for node in (first, second))
    asker.send(b"work")
    receive(here)
    here.send_multipart([b"FORWARD", second.queue.encode(), *frames])
    assert receive(there) == [payload]
    there.send(b"done by the second")
    assert receive(asker) == [b"done by the second"]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "FORWARD has"),
        ([b"a", b"b", b"c", b"d"], "FORWARD has"),
        ([b"no name!"], "BAD_QUEUE"),
        ([b"next", b"x", b"{no json"], "headers"),
        ([b"next", b"x", b'{"id": "other"}'], "BAD_HEADERS"),
    ],
)
def test_a_forward_that_can_not_be_read_or_done_is_a_rollback_with_that_reason(
    broker: BrokerUnderTest, frames: list[bytes], reason: str
) -> None:
    doors = broker.take("ask")
    worker = broker.socket(zmq.REP, doors.back)
    broker.ask(doors.front, b"", b'{"reply": "accepted", "max_attempts": 1}', b"work")
    receive(worker)
    worker.send_multipart([b"FORWARD", *frames])
    assert reason in broker.dead_letter(doors.queue)["reason"]


def test_a_pull_worker_forwards_by_its_commit_door(broker: BrokerUnderTest, queue: str) -> None:
    doors = broker.take("ack")
    broker.make(queue)
    worker = broker.socket(zmq.PULL, doors.back)
    broker.push(doors.front, b"work")
    receipt, _ = receive(worker)
    broker.push(doors.commit, b"FORWARD", receipt, queue.encode(), b"new")
    broker.await_count(queue, "ready", 1)
    assert broker.admin.jobs.list(queue)[0].payload == b"new"


def test_a_verdict_that_comes_twice_moves_one_job_once(broker: BrokerUnderTest, queue: str) -> None:
    smq = broker.smq()
    smq.ask(wire.PUSH, queue, [["a", b"x", None]])
    assert smq.ask(wire.READY, queue, 1).verb == wire.OK
    receipt = smq.delivery()[0][0]
    row = [receipt, wire.FORWARD, None, None, [f"{queue}-2", None, None]]
    assert smq.ask(wire.SETTLE, [row]).fields == [[]]
    (problem,) = smq.ask(wire.SETTLE, [row]).fields[0]
    assert problem[:2] == [0, "LEASE_LOST"]
    assert broker.counts(f"{queue}-2")["ready"] == 1


def test_an_asker_elsewhere_follows_the_job(broker: BrokerUnderTest, mongo_uri: str, queue: str) -> None:
    # Given an asker at one broker, and all workers at another one
    database = broker.collection(queue).database.name
    other = BrokerProcess(mongo_uri, database, config={"broker": {"poll": 0.5}, "devices": []})
    first, second, third = (f"{queue}-{number}" for number in (1, 2, 3))
    began, go_on = threading.Event(), threading.Event()

    def hold(_job: Job) -> Forward:
        began.set()
        assert go_on.wait(SECONDS)
        return Forward(second)

    with other, Producer(endpoint=broker.doors["smq"]) as producer:
        handlers: dict[str, Callable[[Job], Any]] = {
            first: hold,
            second: lambda _job: Forward(third, b"third"),
            third: lambda job: job.payload,
        }
        with working(other.doors["smq"], handlers):
            reply: Reply = producer.submit(first, b"x")
            assert began.wait(SECONDS)
            go_on.set()
            assert reply.result(SECONDS) == b"third"
