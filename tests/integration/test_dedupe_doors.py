"""Two brokers, doors of every kind, one dedupe_id: one job, and everybody hears of the same first one."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from secrets import token_hex
from typing import Any

import pytest
import zmq
from pymongo import MongoClient

from sluicemq import Client, DuplicateError, Job, Producer, Reject, Worker
from sluicemq.protocol.enums import JobState
from sluicemq.protocol.rows import plain
from support.broker_process import BrokerProcess
from support.waiting import wait_until

SECONDS = 60.0
CONFIG = {"broker": {"poll": 0.5, "stop_timeout": 3}, "queues": {"*": {"dedupe_window": 60.0}}}


@pytest.fixture(scope="module")
def brokers(mongo_uri: str) -> Iterator[list[BrokerProcess]]:
    database = f"test_{token_hex(6)}"
    with ExitStack() as stack:
        yield [stack.enter_context(BrokerProcess(mongo_uri, database, config=CONFIG)) for _ in range(2)]
    with MongoClient[dict[str, Any]](mongo_uri) as mongo:
        mongo.drop_database(database)


@pytest.fixture
def queue() -> str:
    return f"q{token_hex(4)}"


def peek(broker: BrokerProcess, queue: str, state: str) -> list[dict[str, Any]]:
    with Client(endpoint=broker.doors["smq"]) as client:
        found: list[dict[str, Any]] = plain(client.jobs.list(queue, JobState(state), 100))
        return found


def counter(broker: BrokerProcess, name: str) -> int:
    with Client(endpoint=broker.doors["smq"]) as client:
        return int(client.counters().counters.get(name, 0))


def ask(broker: BrokerProcess, queue: str, payload: bytes, **headers: Any) -> list[bytes]:
    with zmq.Context() as context, context.socket(zmq.REQ) as asker:
        asker.linger, asker.rcvtimeo = 0, int(SECONDS * 1000)
        asker.connect(broker.doors["req"])
        asker.send_multipart([queue.encode(), json.dumps(headers).encode(), payload])
        return asker.recv_multipart()


def push_once(producer: Producer, queue: str, dedupe_id: str, **options: Any) -> tuple[str, str]:
    """The id of the job, and that of the job which it repeats."""
    receipt = producer.push(queue, b"work", dedupe_id=dedupe_id, **options)
    try:
        receipt.wait(SECONDS)
    except DuplicateError as error:
        return receipt.id, error.id
    return receipt.id, ""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("working", [False, True], ids=["nobody works", "workers wait"])
def test_of_many_producers_at_two_brokers_one_is_first_and_its_job_is_done_once(
    brokers: list[BrokerProcess], queue: str, *, working: bool
) -> None:
    names = [f"d{number}" for number in range(20)]
    handled: list[str] = []
    with ExitStack() as stack:
        if working:
            for broker in brokers:
                worker = Worker(
                    queue, lambda job: handled.append(job.id), prefetch=50, endpoint=broker.doors["smq"]
                )
                stack.enter_context(worker)
        producers = [
            stack.enter_context(Producer(endpoint=broker.doors["smq"]))
            for broker in brokers
            for _ in range(4)
        ]

        def push_all(producer: Producer) -> list[tuple[str, str]]:
            return [push_once(producer, queue, name) for name in names]

        with ThreadPoolExecutor(len(producers)) as threads:
            answers = [
                list(answers_of_one) for answers_of_one in zip(*threads.map(push_all, producers), strict=True)
            ]
        winners = []
        for answer in answers:
            [first] = [job_id for job_id, other in answer if not other]
            assert {other for job_id, other in answer if job_id != first} == {first}
            winners.append(first)
        if working:
            wait_until(lambda: len(peek(brokers[0], queue, "done")) == len(names), what="all jobs done")
            assert sorted(handled) == sorted(winners)
        else:
            assert {job["id"] for job in peek(brokers[0], queue, "ready")} == set(winners)


@pytest.mark.parametrize("end", ["done", "dead"])
def test_a_job_that_has_ended_is_remembered_until_its_window_is_over(
    brokers: list[BrokerProcess], mongo: MongoClient[dict[str, Any]], queue: str, end: str
) -> None:
    def handle(_job: Job) -> bytes:
        if end == "dead":
            raise Reject("no")
        return b"result"

    with (
        Producer(endpoint=brokers[0].doors["smq"]) as here,
        Producer(endpoint=brokers[1].doors["smq"]) as there,
    ):
        first, _ = push_once(here, queue, "d", dedupe_window=1000.0)
        with Worker(queue, handle, endpoint=brokers[1].doors["smq"]):
            [ended] = wait_until(lambda: peek(brokers[0], queue, end), what="its end")
        _, known = push_once(there, queue, "d")
        assert (ended["id"], known) == (first, first)
        # When its window is over
        jobs = mongo[brokers[0].config["broker"]["database"]][f"queue.{queue}"]
        a_minute_ago = {"$subtract": ["$$NOW", 60_000]}  # the brokers' clocks are some ms beside MongoDB's
        jobs.update_one({"_id": first}, [{"$set": {"dedupe_until": a_minute_ago}}])
        second, known = push_once(there, queue, "d")
        assert known == ""
        assert push_once(here, queue, "d")[1] == second


def test_a_duplicate_is_answered_with_the_first_ones_id(brokers: list[BrokerProcess], queue: str) -> None:
    [first] = ask(brokers[0], queue, b"work", dedupe_id="d", reply="accepted")
    waiting = ask(brokers[1], queue, b"work", dedupe_id="d")
    accepted = ask(brokers[1], queue, b"work", dedupe_id="d", reply="accepted", id="mine")
    for error, problem in (waiting, accepted):
        told = json.loads(problem)
        assert error == b"ERROR"
        assert (told["code"], told["id"]) == ("DUPLICATE", first.decode())
        assert first.decode() in told["message"]


def test_a_request_repeated_with_its_id_is_no_duplicate(brokers: list[BrokerProcess], queue: str) -> None:
    for broker in brokers:
        assert ask(broker, queue, b"work", id="mine", dedupe_id="d", reply="accepted") == [b"mine"]


def test_plain_duplicates_are_counted_and_not_kept(brokers: list[BrokerProcess], queue: str) -> None:
    broker = brokers[0]
    before = counter(broker, "duplicates")
    headers = json.dumps({"dedupe_id": "d"}).encode()
    with zmq.Context() as context, context.socket(zmq.PUSH) as plain:
        plain.linger = 10_000
        plain.connect(broker.doors["push"])
        for number in range(5):
            plain.send_multipart([queue.encode(), headers, b"%d" % number])
        wait_until(lambda: counter(broker, "duplicates") == before + 4, what="the count of duplicates")
    assert [job["payload"] for job in peek(broker, queue, "ready")] == [b"0"]
    assert peek(broker, queue, "dead") == []
    assert counter(broker, "refused") == 0


def test_who_flushes_hears_the_first_ones_id_too(brokers: list[BrokerProcess], queue: str) -> None:
    producer = Producer(endpoint=brokers[0].doors["smq"])
    first = producer.push(queue, b"work", dedupe_id="d")
    producer.push(queue, b"work", dedupe_id="d")
    with pytest.raises(DuplicateError) as refusal:
        producer.close(SECONDS)
    assert refusal.value.id == first.id
