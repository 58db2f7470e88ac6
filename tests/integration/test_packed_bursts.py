"""Bursts stay packed from push to done, and each of their jobs can fail alone."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from threading import Event, Semaphore
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from sluicemq import Job, Producer, Reject, Worker
from support.broker_under_test import BrokerUnderTest, serving
from support.own_queue import OwnQueue, own_queue
from support.waiting import wait_until

MANY = 2_000
PACKED = {"*": {"pack": True, "backoff": "none"}}


@pytest.fixture(scope="module")
def quick(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [], poll=0.5, lease=2.0, queues=PACKED) as broker:
        yield broker


@pytest.fixture
def jobs(quick: BrokerUnderTest) -> Iterator[OwnQueue]:
    with own_queue(quick) as queue:
        yield queue


def payloads(many: int = MANY) -> list[bytes]:
    return [b"%d" % number for number in range(many)]


def packs(jobs: OwnQueue) -> int:
    return jobs.collection.count_documents({"left": {"$exists": True}})


def test_a_burst_without_workers_lies_in_packs_and_is_drained_in_order(jobs: OwnQueue) -> None:
    for receipt in jobs.producer.push_many(jobs.queue, payloads()):
        receipt.wait(60)
    assert 0 < packs(jobs) <= jobs.collection.count_documents({}) < MANY / 4
    wait_until(lambda: jobs.counts()["ready"] == MANY, 60, "the count")
    done: list[bytes] = []
    with Worker(jobs.queue, lambda job: done.append(job.payload), endpoint=jobs.endpoint, prefetch=256):
        wait_until(lambda: jobs.collection.find_one() is None, 60, "all done")
    assert done == payloads()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("many", [MANY, pytest.param(100_000, marks=pytest.mark.full)])
def test_a_burst_beside_workers_is_done_once_and_each_hundredth_job_fails_alone(
    jobs: OwnQueue, many: int
) -> None:
    done: Counter[bytes] = Counter()
    begun = count()

    def handle(job: Job) -> None:
        next(begun)
        if int(job.payload) % 100 == 7:
            raise Reject("the seventh")
        if int(job.payload) % 100 == 8 and job.attempt == 1:
            raise ValueError("once more")
        done[job.payload] += 1

    with Worker(jobs.queue, handle, endpoint=jobs.endpoint, prefetch=64):
        for receipt in jobs.producer.push_many(jobs.queue, payloads(many)):
            receipt.wait(300)
        wait_until(lambda: len(done) == many * 99 // 100, 300, "all done")
        wait_until(lambda: not jobs.collection.find_one({"state": {"$ne": "dead"}}), 60, "no other left")
    failed = {b"%d" % number for number in range(7, many, 100)}
    assert done == Counter(set(payloads(many)) - failed)
    wait_until(lambda: jobs.counts()["dead"] == many // 100, 60, "the count")
    dead: list[Any] = list(jobs.collection.find({"state": "dead"}))
    assert {row["payload"] for row in dead} == failed
    assert {row["errors"][0]["reason"] for row in dead} == {"the seventh"}
    assert next(begun) == many + many // 100


def test_a_pack_that_a_worker_leaves_half_done_goes_on_with_the_next_one(jobs: OwnQueue) -> None:
    for receipt in jobs.producer.push_many(jobs.queue, payloads(100)):
        receipt.wait(60)
    with jobs.client.jobs.reserve(jobs.queue, 40, 60) as claim:
        first = [job.payload for job in claim]
        for job in claim.jobs[:30]:
            job.commit()
    rest: set[bytes] = set()
    with Worker(jobs.queue, lambda job: rest.add(job.payload), endpoint=jobs.endpoint):
        wait_until(lambda: jobs.collection.find_one() is None, 60, "all done")
    assert rest == set(payloads(100)) - set(first[:30])


@pytest.mark.parametrize("again", ["transaction", "handler"])
def test_a_job_that_a_transaction_ends_is_done_at_its_first_attempt(
    jobs: OwnQueue, mongo: MongoClient[dict[str, Any]], database: str, again: str
) -> None:
    paid = mongo[database].create_collection("paid")
    tries: Counter[str] = Counter()

    def pay(job: Job, session: ClientSession) -> None:
        paid.insert_one({"_id": job.id, "attempt": job.attempt}, session=session)
        job.commit_in(session)

    def handle(job: Job) -> None:
        tries[job.id] += 1
        with mongo.start_session() as session:
            if again == "transaction":
                session.with_transaction(lambda session: pay(job, session))
            else:
                with session.start_transaction():
                    pay(job, session)

    for receipt in jobs.producer.push_many(jobs.queue, payloads(64)):
        receipt.wait(60)
    # The first ones may have come in a message of their own
    [pack] = jobs.collection.find({"left": {"$exists": True}})
    with Worker(jobs.queue, handle, endpoint=jobs.endpoint):
        wait_until(lambda: jobs.collection.find_one() is None, 60, "all done")
    assert [row["attempt"] for row in paid.find()] == [1] * 64
    packed = {tried for job_id, tried in tries.items() if pack["first"] <= job_id <= pack["last"]}
    assert packed == {1 if again == "transaction" else 2}


def test_a_producer_of_small_messages_packs_nothing(jobs: OwnQueue) -> None:
    with Producer(endpoint=jobs.endpoint) as producer:
        for number in range(40):
            producer.push(jobs.queue, b"%d" % number).wait(60)
    assert packs(jobs) == 0


def test_of_one_pack_slow_workers_have_their_part(mongo_uri: str, quick: BrokerUnderTest) -> None:
    # Given a pack that one broker has claimed, for a worker that has taken one job of it
    with (
        serving(
            mongo_uri, [], database=quick.collection("any").database.name, poll=0.5, lease=2.0, queues=PACKED
        ) as other,
        own_queue(quick) as jobs,
    ):
        over = Event()
        here, elsewhere = Event(), Event()

        def wait_as(begun: Event) -> Callable[[Job], None]:
            return lambda _job: (begun.set(), over.wait(60))[0]

        try:
            for receipt in jobs.producer.push_many(jobs.queue, payloads(100)):
                receipt.wait(60)
            with Worker(jobs.queue, wait_as(here), endpoint=jobs.endpoint, prefetch=1):
                assert here.wait(60)
                # When, then
                with Worker(jobs.queue, wait_as(elsewhere), endpoint=other.doors["smq"], prefetch=1):
                    assert elsewhere.wait(60), "its worker is idle"
                    over.set()
        finally:
            over.set()


def test_slow_workers_are_busy_until_a_burst_is_done(mongo_uri: str, quick: BrokerUnderTest) -> None:
    # Given one worker here and four at another broker, each of which ends a job when it may
    begun, may_end = Semaphore(0), Semaphore(0)
    done: Counter[bytes] = Counter()

    def handle(job: Job) -> None:
        begun.release()
        assert may_end.acquire(timeout=60)
        done[job.payload] += 1

    with (
        serving(
            mongo_uri, [], database=quick.collection("any").database.name, poll=0.5, lease=2.0, queues=PACKED
        ) as other,
        own_queue(quick) as jobs,
        ExitStack() as workers,
    ):
        for receipt in jobs.producer.push_many(jobs.queue, payloads(300)):
            receipt.wait(60)
        for endpoint in (jobs.endpoint, *4 * [other.doors["smq"]]):
            workers.enter_context(Worker(jobs.queue, handle, endpoint=endpoint, prefetch=1))
        for _ in range(300 // 5):
            for number in range(5):
                assert begun.acquire(timeout=60), f"{5 - number} workers are idle, {len(done)} jobs are done"
            may_end.release(5)
        wait_until(lambda: jobs.collection.find_one() is None, 60, "all done")
    assert done == Counter(payloads(300))
