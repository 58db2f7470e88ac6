"""A job whose end is a part of its handler's transaction: both are there, or neither."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bson import decode
from pymongo import AsyncMongoClient, MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure

from sluicemq import Client, DifferentStoreError, FanOut, Forward, Job, LeaseLostError, Worker, aio
from sluicemq.protocol import wire
from support.own_queue import SECONDS, OwnQueue, working
from support.waiting import wait_until


class Shop:
    """The data of an application, in the MongoDB of the broker."""

    def __init__(self, mongo: MongoClient[dict[str, Any]], name: str) -> None:
        self.mongo = mongo
        self.paid = mongo[name]["paid"]

    def pay(self, job: Job, session: ClientSession, result: bytes | None = None) -> None:
        """Note a payment, and that its job is done."""
        self.paid.insert_one({"job": job.id, "attempt": job.attempt}, session=session)
        job.commit_in(session, result)

    @contextmanager
    def transaction(self) -> Iterator[ClientSession]:
        with self.mongo.start_session() as session, session.start_transaction():
            yield session

    def payments(self, job_id: str) -> list[int]:
        """Return the attempts at which a job was paid."""
        return [row["attempt"] for row in self.paid.find({"job": job_id})]


@pytest.fixture
def shop(mongo: MongoClient[dict[str, Any]], database: str) -> Shop:
    mongo[database].create_collection("paid")
    return Shop(mongo, database)


def counted(jobs: OwnQueue, counter: str) -> int:
    """Return how often its broker has counted this, for all queues."""
    return jobs.client.counters().counters.get(counter, 0)


def ends_at(jobs: OwnQueue, job_id: str, state: str) -> None:
    wait_until(lambda: jobs.state(job_id) == state, SECONDS, f"{job_id} {state}")


def test_the_job_is_done_with_the_transaction_and_tells_who_waits(jobs: OwnQueue, shop: Shop) -> None:
    def handle(job: Job) -> None:
        with shop.mongo.start_session() as session:
            session.with_transaction(lambda session: shop.pay(job, session, b"receipt"))

    before = counted(jobs, "committed")

    with working(jobs.endpoint, {jobs.queue: handle}):
        reply = jobs.producer.submit(jobs.queue, b"pay", id="one")
        plain, kept = jobs.push(id="plain"), jobs.push(id="kept", keep_done=3600)
        assert reply.result(SECONDS) == b"receipt"
        ends_at(jobs, kept, "done")

        ends_at(jobs, plain, "gone")
    assert shop.payments("one") == shop.payments("kept") == shop.payments("plain") == [1]
    done = jobs.show(kept)
    assert (done["result"], done["payload"], done["attempts"]) == (b"receipt", b"job", 1)
    assert counted(jobs, "committed") == before + 3


def test_the_job_comes_again_if_the_transaction_is_aborted_or_left_open(jobs: OwnQueue, shop: Shop) -> None:
    before = counted(jobs, "rolled_back")

    def handle(job: Job) -> None:
        if job.attempt == 1:
            with shop.transaction() as session:
                shop.pay(job, session)
                raise ZeroDivisionError
        if job.attempt == 2:
            session = shop.mongo.start_session()
            session.start_transaction()
            shop.pay(job, session)
            session.abort_transaction()
            session.end_session()
            return
        with shop.transaction() as session:
            shop.pay(job, session)

    with working(jobs.endpoint, {jobs.queue: handle}):
        job_id = jobs.push(keep_done=3600)
        ends_at(jobs, job_id, "done")

    assert shop.payments(job_id) == [3]
    reasons = [row["reason"] for row in jobs.show(job_id)["errors"]]
    assert reasons[0].startswith("ZeroDivisionError")
    assert "its transaction has not committed" in reasons[1]
    assert counted(jobs, "rolled_back") == before + 2


def test_a_handler_that_fails_after_its_transaction_has_done_the_job(jobs: OwnQueue, shop: Shop) -> None:
    def handle(job: Job) -> bytes:
        with shop.transaction() as session:
            shop.pay(job, session, b"paid")
        raise ZeroDivisionError

    with working(jobs.endpoint, {jobs.queue: handle}):
        reply = jobs.producer.submit(jobs.queue, b"pay", id="failed")
        assert reply.result(SECONDS) == b"paid"
        job_id = jobs.push()
        ends_at(jobs, job_id, "gone")
    assert shop.payments("failed") == shop.payments(job_id) == [1]


@pytest.mark.parametrize("committed", [True, False])
def test_a_worker_that_dies_has_done_the_job_exactly_if_its_transaction_has_committed(
    jobs: OwnQueue, shop: Shop, *, committed: bool
) -> None:
    before = counted(jobs, "committed")
    job_id = jobs.push(keep_done=3600)
    claim = jobs.reserve()
    with shop.mongo.start_session() as session:
        session.start_transaction()
        shop.pay(claim.jobs[0], session)
        claim.requeue()  # its connection has gone, and its broker can't say what became of the job
        other = jobs.push(id="other")
        wait_until(lambda: other in jobs.ids("ready"), SECONDS)  # nothing else waits for it
        (session.commit_transaction if committed else session.abort_transaction)()
    ends_at(jobs, job_id, "done" if committed else "ready")
    assert shop.payments(job_id) == ([1] if committed else [])
    assert counted(jobs, "committed") == before + committed


def test_a_late_holder_is_refused_by_the_broker_and_by_the_document(jobs: OwnQueue, shop: Shop) -> None:
    jobs.push(id="late")
    first = jobs.reserve()
    (late,) = first.jobs
    answer = first.statements_of_end(late, 0)
    first.requeue()
    second = jobs.take()
    with pytest.raises(LeaseLostError), shop.transaction() as session:
        shop.pay(late, session)  # it asks its broker
    (statement,) = decode(answer)["statements"]  # it had asked before
    with shop.transaction() as session:
        collection = shop.mongo[statement["database"]][statement["collection"]]
        written = collection.update_one(statement["filter"], statement["update"], session=session)
        assert written.matched_count == 0
    with shop.transaction() as session:
        shop.pay(second, session)
    second.commit()
    assert shop.payments("late") == [1]


def test_a_job_that_is_taken_back_meanwhile_ends_the_transaction(jobs: OwnQueue, shop: Shop) -> None:
    jobs.push(id="slow")
    claim = jobs.reserve()
    with pytest.raises(OperationFailure) as conflict, shop.transaction() as session:  # noqa: PT012
        shop.paid.find_one({}, session=session)  # its snapshot
        jobs.collection.update_one({"_id": "slow"}, {"$set": {"priority": 1}})  # as a progress report does
        shop.pay(claim.jobs[0], session)
    assert conflict.value.has_error_label("TransientTransactionError")  # with_transaction tries again
    with pytest.raises(LeaseLostError), shop.transaction() as session:  # noqa: PT012
        shop.paid.find_one({}, session=session)
        claim.requeue()
        jobs.await_ready("slow")
        shop.pay(claim.jobs[0], session)
    assert shop.payments("slow") == []


def test_a_group_goes_on_behind_a_transaction(jobs: OwnQueue, shop: Shop) -> None:
    def handle(job: Job) -> None:
        with shop.transaction() as session:
            shop.pay(job, session)

    pushed = [jobs.push(group="account") for _ in range(5)]
    with working(jobs.endpoint, {jobs.queue: handle}):
        wait_until(lambda: shop.paid.count_documents({}) == 5, SECONDS, "the group")
    assert [row["job"] for row in shop.paid.find().sort("_id", 1)] == pushed


@pytest.mark.parametrize("join", [False, True])
def test_a_child_is_counted_in_the_transaction(jobs: OwnQueue, shop: Shop, *, join: bool) -> None:
    pages = f"{jobs.queue}.pages"
    jobs.broker.make(pages)

    kept: dict[str, Any] = {"join": True} if join else {"result": b"fixed"}

    def book(job: Job) -> FanOut | bytes:
        if job.children is not None:
            return b"+".join(child.result or b"" for child in job.children)
        return FanOut(*(Forward(pages, b"%d" % n) for n in range(6)), **kept)

    def draw(job: Job) -> None:
        with shop.mongo.start_session() as session:
            session.with_transaction(lambda session: shop.pay(job, session, job.payload))

    def chapter(job: Job) -> FanOut | bytes:
        return FanOut(Forward(jobs.queue), **kept) if job.children is None else job.children[0].result or b""

    chapters = f"{jobs.queue}.chapters"
    with working(jobs.endpoint, {jobs.queue: book, chapters: chapter}):
        reply = jobs.producer.submit(chapters, b"chapter", id="c")
        with Worker(pages, draw, concurrency=3, endpoint=jobs.endpoint):
            assert reply.result(SECONDS) == (b"0+1+2+3+4+5" if join else b"fixed")
    assert sorted(row["job"] for row in shop.paid.find()) == [f"c.1.{n}" for n in range(1, 7)]


def test_an_async_handler_commits_in_a_session_of_its_own(jobs: OwnQueue, shop: Shop, mongo_uri: str) -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def handle(job: aio.Job) -> None:
            with pytest.raises(TypeError, match="AsyncMongoClient"), shop.transaction() as wrong:
                await job.commit_in(wrong)
            with pytest.raises(RuntimeError, match="within a transaction"):
                async with mongo.start_session() as session:
                    await job.commit_in(session)
            async with mongo.start_session() as session, await session.start_transaction():
                paid = mongo[shop.paid.database.name]["paid"]
                await paid.insert_one({"job": job.id, "attempt": job.attempt}, session=session)
                await job.commit_in(session, b"paid")
            ended.set()

        async with (
            AsyncMongoClient[dict[str, Any]](mongo_uri) as mongo,
            aio.Worker(jobs.queue, handle, endpoint=jobs.endpoint),
        ):
            await asyncio.wait_for(ended.wait(), SECONDS)

    reply = jobs.producer.submit(jobs.queue, b"pay", id="async")
    asyncio.run(run())
    assert reply.result(SECONDS) == b"paid"
    assert shop.payments("async") == [1]


def test_what_is_no_transaction_of_the_brokers_mongodb_is_refused(jobs: OwnQueue, shop: Shop) -> None:
    jobs.push(id="refused")
    job = jobs.take()
    with shop.mongo.start_session() as session, pytest.raises(RuntimeError, match="within a transaction"):
        job.commit_in(session)
    with pytest.raises(DifferentStoreError), shop.transaction() as session:  # noqa: PT012
        jobs.collection.update_one({"_id": "refused"}, {"$set": {"owner": "another store's"}})
        job.commit_in(session)
    with shop.transaction() as session:
        made = Job(b"by a test")
        made.commit_in(session, b"result")
        assert made.committed == b"result"
    with Client(endpoint=jobs.endpoint) as client:
        jobs.push(id="popped")
        (popped,) = client.jobs.pop(jobs.queue, 1, wait=SECONDS)
        with pytest.raises(LeaseLostError, match="popped"), shop.transaction() as session:
            popped.commit_in(session)


def test_the_answer_is_for_who_has_the_job(jobs: OwnQueue) -> None:
    jobs.push(id="held")
    worker, (receipt, *_) = jobs.stranger()
    statements = decode(worker.ask(wire.COMMITIN, receipt, 0).fields[0])["statements"]
    assert [statement["collection"] for statement in statements] == [jobs.collection.name]
    other = jobs.broker.smq()
    assert other.ask(wire.COMMITIN, receipt, 0).fields[0] == "LEASE_LOST"
    for wrong in ((receipt, -1), (receipt,), ("text", 0), (receipt, 2**40)):
        assert worker.ask(wire.COMMITIN, *wrong).verb == wire.ERROR
