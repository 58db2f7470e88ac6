"""What an operator orders over the library, at real brokers with real workers: seen by all, and at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import pytest
import zmq
from pymongo import MongoClient

from sluicemq import (
    BadFramesError,
    BadHeadersError,
    BadQueueError,
    Client,
    Job,
    NotFoundError,
    PausedError,
    Producer,
    Reject,
    Worker,
)
from sluicemq.protocol import wire
from sluicemq.protocol.rows import plain
from support.broker_process import BrokerProcess
from support.waiting import wait_until

CONFIG = {"broker": {"poll": 0.5, "lease": 6.0}}


class QueueAtTwoBrokers:
    """A queue that nobody else uses, at two brokers on one database; each has a client."""

    def __init__(self, first: BrokerProcess, second: BrokerProcess, name: str) -> None:
        self.name = name
        self.first = first
        self.second = second
        self.here = Client(endpoint=first.doors["smq"])
        self.elsewhere = Client(endpoint=second.doors["smq"])

    def push(self, *payloads: bytes, **settings: Any) -> list[str]:
        with Producer(endpoint=self.first.doors["smq"]) as producer:
            receipts = [producer.push(self.name, payload, **settings) for payload in payloads]
        return [receipt.id for receipt in receipts]

    def counts(self, client: Client | None = None) -> dict[str, Any]:
        found: dict[str, Any] = plain((client or self.here).queues.get(self.name))
        return found

    def close(self) -> None:
        self.here.close()
        self.elsewhere.close()


@pytest.fixture(scope="module")
def brokers(mongo_uri: str) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    name = f"test_{token_hex(6)}"
    with (
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        BrokerProcess(mongo_uri, name, config=CONFIG) as first,
        BrokerProcess(mongo_uri, name, config=CONFIG) as second,
    ):
        yield first, second
        mongo.drop_database(name)


@pytest.fixture
def queue(brokers: tuple[BrokerProcess, BrokerProcess]) -> Iterator[QueueAtTwoBrokers]:
    queue = QueueAtTwoBrokers(*brokers, f"q{token_hex(4)}")
    yield queue
    queue.close()


class RecordingWorker:
    """A library worker in a thread; ``seen`` are the payloads it has had."""

    def __init__(self, endpoint: str, queue: str, *, fails: bool = False, prefetch: int = 1) -> None:
        self.seen: list[bytes] = []
        self.attempts: list[int] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.fails = fails
        self.worker = Worker(queue, self._work, prefetch=prefetch, endpoint=endpoint)

    def _work(self, job: Job) -> None:
        self.seen.append(job.payload)
        self.attempts.append(job.attempt)
        assert self.may_end.wait(60)
        if self.fails:
            raise Reject("disk full")


@contextmanager
def working(
    broker: BrokerProcess, queue: str, *, fails: bool = False, prefetch: int = 1
) -> Iterator[RecordingWorker]:
    works = RecordingWorker(broker.doors["smq"], queue, fails=fails, prefetch=prefetch)
    thread = threading.Thread(target=works.worker.run)
    thread.start()
    try:
        yield works
    finally:
        works.may_end.set()
        works.worker.stop()
        thread.join(60)


# --------------------------------------------------------- show, promote, change


def test_a_promoted_job_is_worked_on_at_once_wherever_the_worker_is(queue: QueueAtTwoBrokers) -> None:
    first, second = queue.push(b"one", b"two", delay=3600)
    with working(queue.first, queue.name) as near:
        queue.here.jobs.promote(queue.name, first)
        wait_until(lambda: near.seen == [b"one"], what="the promoted job")
    with working(queue.second, queue.name) as far:
        queue.here.jobs.promote(queue.name, second)
        wait_until(lambda: far.seen == [b"two"], what="the promoted job at the other broker")


def test_a_changed_delay_is_kept_to_and_a_priority_decides_the_order(queue: QueueAtTwoBrokers) -> None:
    low, high, _late = queue.push(b"low", b"high", b"late", delay=3600)
    queue.here.jobs.change(queue.name, high, priority=5, delay=0.3)
    queue.here.jobs.change(queue.name, low, delay=0.3)
    with working(queue.first, queue.name) as works:
        wait_until(lambda: len(works.seen) == 2, what="both changed jobs")
    assert works.seen == [b"high", b"low"]


def test_a_job_worked_on_is_shown_with_its_worker_and_is_not_changed(queue: QueueAtTwoBrokers) -> None:
    with working(queue.first, queue.name) as works:
        works.may_end.clear()
        [job_id] = queue.push(b"x", headers={"k": "v"})
        wait_until(lambda: works.seen, what="the job")
        shown = queue.here.show(queue.name, job_id)
        assert (shown["state"], shown["payload"], shown["headers"]) == ("reserved", b"x", {"k": "v"})
        assert (shown["max_attempts"], shown["visibility_timeout"]) == (13, 1800.0)
        assert "python" in shown["worker"]
        for order in (queue.here.cancel, queue.here.promote):
            with pytest.raises(NotFoundError, match="is reserved"):
                order(queue.name, job_id)
        with pytest.raises(NotFoundError, match="is reserved"):
            queue.here.jobs.change(queue.name, job_id, priority=1)


def test_who_waits_for_the_result_of_a_cancelled_job_is_told(queue: QueueAtTwoBrokers) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as asker:
        asker.linger = 0
        asker.connect(queue.first.doors["req"])
        headers = json.dumps({"id": "asked", "delay": 3600}).encode()
        asker.send_multipart([queue.name.encode(), headers, b"x"])
        wait_until(lambda: "asked" in [row["id"] for row in scheduled(queue)], what="the job")
        queue.here.jobs.cancel(queue.name, "asked")
        assert asker.poll(60_000)
        error, text = asker.recv_multipart()
    assert (error, json.loads(text)["code"]) == (b"ERROR", "CANCELLED")


def scheduled(queue: QueueAtTwoBrokers) -> list[dict[str, Any]]:
    known = [row.name for row in queue.here.queues.list()]
    return queue.here.peek(queue.name, "scheduled") if queue.name in known else []


# ----------------------------------------------------------------------- redrive


def test_redriven_jobs_are_worked_on_at_once_here_and_in_another_queue(queue: QueueAtTwoBrokers) -> None:
    with working(queue.first, queue.name, fails=True) as failing:
        first, _second = queue.push(b"one", b"two")
        wait_until(lambda: queue.counts()["dead"] == 2, what="two dead letters")
    assert failing.seen == [b"one", b"two"]
    other = f"{queue.name}-late"
    with Producer(endpoint=queue.first.doors["smq"]) as producer:
        producer.push(other, b"makes it")
    with working(queue.first, queue.name) as works, working(queue.first, other) as late:
        here = queue.here.redrive(queue.name, [first])
        wait_until(lambda: works.seen == [b"one"], what="the redriven job")
        there = queue.here.redrive(queue.name, reason="disk full", to=other)
        wait_until(lambda: late.seen == [b"makes it", b"two"], what="the job in the other queue")
    nothing = {"moved": 0, "left": 0, "refused": []}
    assert here == there == {"moved": 1, "left": 0, "refused": []}
    assert (works.attempts, late.attempts) == ([1], [1, 1])
    assert queue.here.redrive(queue.name) == nothing
    assert queue.counts()["dead"] == 0


def test_some_dead_letters_are_removed_by_id_by_reason_and_by_time(queue: QueueAtTwoBrokers) -> None:
    with working(queue.first, queue.name, fails=True):
        ids = queue.push(b"0", b"1", b"2", b"3")
        wait_until(lambda: queue.counts()["dead"] == 4, what="dead letters")
    assert queue.here.dead_letters.discard(queue.name, until=1.0).result() == 0
    assert queue.here.dead_letters.discard(queue.name, reason="no such reason").result() == 0
    assert queue.elsewhere.dead_letters.discard(queue.name, ids[:1]).result() == 1
    assert queue.here.dead_letters.discard(queue.name, since=1.0, limit=1).result() == 1
    left = {job.id for job in queue.here.jobs.list(queue.name, "dead")}
    assert (len(left), left < set(ids[1:])) == (2, True)
    assert queue.here.dead_letters.discard(queue.name, reason="disk full").result() == 2


def test_what_is_ordered_here_is_done_here_before_the_next_look(mongo_uri: str, database: str) -> None:
    seldom = {"broker": {"poll": 600.0}}
    with (
        BrokerProcess(mongo_uri, database, config=seldom) as broker,
        Client(endpoint=broker.doors["smq"]) as client,
    ):
        with working(broker, "mail", fails=True), Producer(endpoint=broker.doors["smq"]) as producer:
            promoted, changed, _dead = (
                producer.push("mail", b"1", delay=3600),
                producer.push("mail", b"2", delay=3600),
                producer.push("mail", b"3"),
            )
            wait_until(lambda: client.queues.list()[-1].dead == 1, what="a dead letter")
        with working(broker, "mail") as works:
            client.jobs.promote("mail", promoted.id)
            wait_until(lambda: works.seen == [b"1"], what="the promoted job")
            client.jobs.change("mail", changed.id, delay=0.2)
            wait_until(lambda: works.seen[1:] == [b"2"], what="the changed job")
            client.dead_letters.redrive("mail").result()
            wait_until(lambda: works.seen[2:] == [b"3"], what="the redriven job")
            client.queues.pause("mail")
            with Producer(endpoint=broker.doors["smq"]) as producer:
                producer.push("mail", b"4").wait(60)
            assert client.queues.list()[-1].ready == 1
            client.queues.resume("mail")
            wait_until(lambda: works.seen[3:] == [b"4"], what="the job after the pause")


@pytest.mark.parametrize(
    ("verb", "fields", "error", "said"),
    [
        (wire.CHANGE, ["a", {}], BadFramesError, "a map of priority, delay, or both"),
        (wire.CHANGE, ["a", {"priority": 1, "ttl": 5}], BadFramesError, "a map of priority, delay, or both"),
        (wire.CHANGE, ["a", {"priority": 256}], BadHeadersError, "header 'priority' is 256"),
        (wire.CHANGE, ["a", {"delay": -1}], BadHeadersError, "header 'delay' is -1"),
        (wire.CHANGE, ["a", "priority"], BadFramesError, "field 3 after the number is a str"),
        (wire.REDRIVE, [{"id": "a"}, None], BadFramesError, "it has ids, reason, limit, since, until"),
        (wire.REDRIVE, [{"ids": "a"}, None], BadFramesError, "up to 1000 strings"),
        (wire.REDRIVE, [{"ids": ["a"] * 1001}, None], BadFramesError, "up to 1000 strings"),
        (wire.REDRIVE, [{"reason": 5}, None], BadFramesError, "expected a string, a part of"),
        (wire.REDRIVE, [{"limit": 2**31}, None], BadFramesError, "expected a whole number, 1 to 2147483647"),
        (
            wire.REDRIVE,
            [{"limit": True}, None],
            BadFramesError,
            "limit of a choice of dead letters is .True.",
        ),
        (wire.REDRIVE, [{}, "no name!"], BadQueueError, "is no queue name"),
        (wire.PAUSE, ["everything"], BadFramesError, "only delivery or intake"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_it_is_said_why(
    queue: QueueAtTwoBrokers, verb: bytes, fields: list[Any], error: type[Exception], said: str
) -> None:
    queue.push(b"x")
    with pytest.raises(error, match=said):
        queue.here._asker.ask(verb, queue.name, *fields)


def test_letters_go_to_no_queue_that_takes_no_jobs_and_not_to_their_own(queue: QueueAtTwoBrokers) -> None:
    other = f"{queue.name}-late"
    with working(queue.first, queue.name, fails=True):
        queue.push(b"x")
        wait_until(lambda: queue.counts()["dead"] == 1, what="the dead letter")
    with Producer(endpoint=queue.first.doors["smq"]) as producer:
        producer.push(other, b"y")
    queue.here.queues.pause(other, wire.INTAKE)
    for to, error in ((other, PausedError), (queue.name, BadQueueError)):
        with pytest.raises(error):
            queue.here.dead_letters.redrive(queue.name, to=to).result()
    assert queue.counts()["dead"] == 1


# ------------------------------------------------------------------------- pause


def test_a_pause_of_the_delivery_holds_for_all_brokers_and_over_restarts(queue: QueueAtTwoBrokers) -> None:
    with working(queue.first, queue.name) as near, working(queue.second, queue.name) as far:
        # Given both at work, and more staged for them
        near.may_end.clear()
        far.may_end.clear()
        queue.push(*[b"%d" % number for number in range(20)])
        wait_until(lambda: near.seen and far.seen, what="both at work")
        assert queue.here.queues.pause(queue.name) == ["delivery"]
        wait_until(lambda: queue.counts(queue.elsewhere)["paused"] == ("delivery",), what="the other to hear")
        near.may_end.set()
        far.may_end.set()
        # Then running jobs end, nothing else goes out, and nothing is held back
        wait_until(lambda: queue.counts()["reserved"] == 0, what="the running ones to end")
        assert len(near.seen) == len(far.seen) == 1
        assert queue.counts()["ready"] == 18
        assert [job["attempts"] for job in queue.here.peek(queue.name, limit=20)] == [0] * 18
        # When one broker is restarted
        queue.here.close()
        assert queue.first.terminate() == 0
        queue.first.restart()
        queue.here = Client(endpoint=queue.first.doors["smq"])
        assert queue.counts()["paused"] == ("delivery",)
        queue.push(b"more")
        wait_until(lambda: queue.counts()["workers"] == 1, what="the worker to be back")
        assert (queue.counts()["ready"], queue.counts()["reserved"]) == (19, 0)
        assert queue.elsewhere.queues.resume(queue.name) == []
        wait_until(lambda: len(near.seen) + len(far.seen) == 21, what="all jobs")
        assert {*near.attempts, *far.attempts} == {1}


def test_paused_intake_refuses_the_library_at_every_broker_and_resumes(queue: QueueAtTwoBrokers) -> None:
    queue.push(b"before")
    queue.here.queues.pause(queue.name, "intake")
    wait_until(lambda: queue.counts(queue.elsewhere)["paused"], what="the other to hear")
    for broker in (queue.first, queue.second):
        with Producer(endpoint=broker.doors["smq"]) as producer:
            receipt = producer.push(queue.name, b"no")
            with pytest.raises(PausedError, match="resume it with: sluicemq queues resume"):
                receipt.wait(60)
    with working(queue.first, queue.name) as works:
        wait_until(lambda: works.seen == [b"before"], what="the job from before")
    queue.here.queues.resume(queue.name, "intake")
    queue.push(b"after")
    assert queue.counts()["ready"] == 1


def test_a_queue_that_was_made_at_one_broker_is_known_at_the_other(queue: QueueAtTwoBrokers) -> None:
    [job_id] = queue.push(b"x", delay=3600)
    assert queue.elsewhere.jobs.get(queue.name, job_id).payload == b"x"
    assert queue.counts(queue.elsewhere)["scheduled"] == 1


def test_a_queue_that_is_deleted_and_made_anew_is_not_paused(queue: QueueAtTwoBrokers) -> None:
    queue.push(b"x")
    queue.here.queues.pause(queue.name)
    queue.here.queues.pause(queue.name, "intake")
    queue.here.queues.delete(queue.name).result()
    queue.push(b"y")
    assert queue.counts()["paused"] == ()


def test_plain_doors_of_a_paused_queue_refuse_askers_and_block_others(mongo_uri: str, database: str) -> None:
    count = 3000
    with BrokerProcess(mongo_uri, database, config=CONFIG) as broker, zmq.Context() as context:
        # Given a broker that was started with the intake of its devices' queue paused
        with Client(endpoint=broker.doors["smq"]) as client:
            client.queues.pause("default", "intake")
        assert broker.terminate() == 0
        broker.restart()
        client = Client(endpoint=broker.doors["smq"])
        push = context.socket(zmq.PUSH)
        push.linger, push.sndhwm = 10_000, 100
        push.connect(broker.doors["push"])
        sent = blocked_after(push, count)
        # Then the producer is stopped by its own mark, and an asker is refused
        assert sent <= 200
        with context.socket(zmq.REQ) as asker:
            asker.linger = 0
            asker.connect(broker.doors["req"])
            asker.send(b"x")
            assert asker.poll(60_000)
            assert json.loads(asker.recv_multipart()[1])["code"] == "PAUSED"
        assert client.queues.list()[0].ready == 0
        client.queues.resume("default", "intake")
        wait_until(lambda: client.queues.list()[0].ready == sent, what="all that was sent")
        # When it is stopped while it is paused and a producer's messages lie in all the buffers
        client.queues.pause("default", "intake")
        sent += blocked_after(push, count, size=100_000)
        client.close()
        push.close()
        assert broker.terminate() == 0
        # Then they are stored
        with MongoClient[dict[str, Any]](mongo_uri) as mongo:
            assert (
                sum(document.get("left", 1) for document in mongo[database]["queue.default"].find()) == sent
            )


def blocked_after(push: zmq.Socket[bytes], most: int, size: int = 100) -> int:
    """Send until the socket takes no more for a second; how many went."""
    for sent in range(most):
        if not push.poll(1000, zmq.POLLOUT):
            return sent
        push.send(bytes(size))
    return most


# ------------------------------------------------------------------------- stats


def test_the_statistics_tell_how_long_the_oldest_waits_and_how_fast_it_goes(queue: QueueAtTwoBrokers) -> None:
    with working(queue.first, queue.name):
        queue.push(*[b"x"] * 30)
        wait_until(lambda: queue.counts()["rates"]["committed"] > 0, what="a rate")
        wait_until(lambda: (now := queue.counts())["reserved"] == now["ready"] == 0, what="an empty queue")
    assert queue.counts()["oldest_ready_age"] is None
    queue.push(b"y")
    counts = queue.counts()
    assert counts["exact"] is True
    assert 0 <= counts["oldest_ready_age"] < 60
    rates = counts["rates"]
    assert rates["pushed"] >= rates["delivered"] >= rates["committed"] > 0


def test_the_counters_are_the_statistics_without_the_queues(queue: QueueAtTwoBrokers) -> None:
    queue.push(b"x")
    stats, told = queue.here.stats(), queue.here.counters()
    assert queue.name in {listed.name for listed in stats.queues}
    assert told.counters["pushed"] == stats.counters["pushed"] >= 1
    assert told.broker.keys() == stats.broker.keys()
