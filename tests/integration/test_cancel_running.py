"""Jobs that run are cancelled: their workers and waiters hear it, and no late verdict counts."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from secrets import token_hex
from typing import Any

import pytest
import zmq

from sluicemq import App, CancelledError, Client, FanOut, Forward, Job, NotFoundError, Producer, Worker, aio
from support.broker_process import BrokerProcess, check_balance
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.raw_sockets import receive
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[list[BrokerUnderTest]]:
    devices = [{**device, "cancels": True, "prefetch": 1} for device in spare(ack=2)]
    shared: dict[str, Any] = {"database": f"test_{token_hex(6)}", "poll": 0.5}
    with serving(mongo_uri, devices, **shared) as one, serving(mongo_uri, [], **shared) as other:
        yield [one, other]


@pytest.fixture
def brokers(shared: list[BrokerUnderTest]) -> list[BrokerProcess]:
    return [broker.process for broker in shared]


@pytest.fixture
def endpoint(brokers: list[BrokerProcess]) -> str:
    return brokers[0].doors["smq"]


class Handler:
    """Works on one job until the test lets it go on, and then calls ``after`` with the job."""

    def __init__(self, after: Callable[[Job], bytes | None]) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.ended: list[str] = []
        self.after = after

    def __call__(self, job: Job) -> bytes | None:
        self.begun.set()
        self.go_on.wait(TIMEOUT)
        try:
            return self.after(job)
        except CancelledError:
            self.ended.append("cancelled")
            raise
        finally:
            self.ended.append("ended")


def until_cancelled(job: Job) -> None:
    wait_until(lambda: job.is_cancelled)
    job.progress(1)


@pytest.mark.parametrize("at", [0, 1], ids=["at its broker", "at another broker"])
def test_a_handler_hears_it_at_its_progress(brokers: list[BrokerProcess], endpoint: str, at: int) -> None:
    queue, handler = f"progress-{at}", Handler(until_cancelled)
    handler.go_on.set()
    with (
        Producer(endpoint=endpoint) as producer,
        Client(endpoint=brokers[at].doors["smq"]) as client,
        Worker(queue, handler, endpoint=endpoint),
    ):
        job_id = producer.push(queue, b"x").id
        assert handler.begun.wait(TIMEOUT)
        # When a client cancels it; not by chance
        with pytest.raises(NotFoundError, match="reserved"):
            client.jobs.cancel(queue, job_id)
        client.jobs.cancel(queue, job_id, running=True)
        # Then its handler has ended, the job is gone, and the worker has the next one
        wait_until(lambda: handler.ended == ["cancelled", "ended"])
        with pytest.raises(NotFoundError):
            client.jobs.get(queue, job_id)
        handler.after = lambda _job: b"next"
        assert producer.call(queue, b"y", TIMEOUT) == b"next"
        wait_until(lambda: balanced(client))


def balanced(client: Client) -> bool:
    with suppress(AssertionError):
        about = client.counters()
        check_balance(
            {
                **about.counters,
                **{key: value for key, value in about.broker.items() if isinstance(value, int)},
            }
        )
        return True
    return False


def test_a_result_that_comes_later_is_dropped_and_who_waits_hears_it(endpoint: str) -> None:
    handler = Handler(lambda _job: b"late")
    with (
        Producer(endpoint=endpoint) as producer,
        Client(endpoint=endpoint) as client,
        Worker("late", handler, endpoint=endpoint),
    ):
        reply = producer.submit("late", b"x")
        assert handler.begun.wait(TIMEOUT)
        client.jobs.cancel("late", reply.receipt.id, running=True)
        assert isinstance(reply.exception(TIMEOUT), CancelledError)
        handler.go_on.set()
        wait_until(lambda: handler.ended == ["ended"])
        assert client.queues.get("late").done == 0
        assert producer.call("late", b"y", TIMEOUT) == b"late"


def test_a_coroutine_is_cancelled(endpoint: str) -> None:
    async def run() -> list[str]:
        begun, over, ended = asyncio.Event(), asyncio.Event(), list[str]()

        async def handle(job: aio.Job) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(job.id)
                over.set()
                raise

        async with (
            aio.Worker("coroutines", handle, endpoint=endpoint),
            aio.Producer(endpoint=endpoint) as producer,
            aio.Client(endpoint=endpoint) as client,
        ):
            receipt = await producer.push("coroutines", b"x")
            await asyncio.wait_for(begun.wait(), TIMEOUT)
            await client.jobs.cancel("coroutines", receipt.id, running=True)
            await over.wait()
            assert ended == [receipt.id]
            return ended

    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT))


def test_a_task_is_interrupted(endpoint: str) -> None:
    app, begun, over = App(endpoint=endpoint), threading.Event(), threading.Event()
    ended: list[str] = []

    @app.task(queue="tasks")
    def spin() -> None:
        begun.set()
        try:
            while not over.is_set():
                over.wait(0.005)  # an exception from outside is raised between two of these
        except CancelledError:
            ended.append("cancelled")
            raise

    with Client(endpoint=endpoint) as client, app.worker():
        receipt = spin.push()
        assert begun.wait(TIMEOUT)
        client.jobs.cancel("tasks", receipt.id, running=True)
        wait_until(lambda: ended == ["cancelled"])
    app.close()


def test_the_children_of_a_parent_go_with_it_where_that_is_wanted(endpoint: str) -> None:
    def fan_out(_job: Job) -> FanOut:
        return FanOut(Forward("pages", b"1"), Forward("pages", b"2"))

    handler = Handler(until_cancelled)
    handler.go_on.set()
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        with Worker("books", fan_out, endpoint=endpoint):
            book = producer.push("books", b"x").id
            wait_until(lambda: len(client.jobs.list("books", "waiting")) == 1)
        with Worker("pages", handler, endpoint=endpoint):
            assert handler.begun.wait(TIMEOUT)
            client.jobs.cancel("books", book, children=True)
            wait_until(lambda: "cancelled" in handler.ended)
        row = client.queues.get("pages")
        assert (row.ready, row.reserved, row.waiting, row.dead) == (0, 0, 0, 0)
        assert client.queues.get("books").waiting == 0


def test_a_future_that_is_cancelled_cancels_its_job_unless_a_worker_has_it(endpoint: str) -> None:
    handler = Handler(lambda _job: b"done")
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        waiting = producer.submit("futures", b"x")
        # When no worker has the job, nobody will
        assert waiting.cancel()
        assert waiting.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(TIMEOUT)
        with pytest.raises(NotFoundError):
            client.jobs.get("futures", waiting.receipt.id)
        with Worker("futures", handler, endpoint=endpoint):
            running = producer.submit("futures", b"y")
            assert handler.begun.wait(TIMEOUT)
            assert not running.cancel()
            handler.go_on.set()
            assert running.result(TIMEOUT) == b"done"
            assert not running.cancel()


def test_a_reply_of_asyncio_that_is_cancelled_cancels_its_job_unless_it_has_ended(endpoint: str) -> None:
    async def handle(_job: aio.Job) -> bytes:
        return b"done"

    async def run() -> None:
        async with aio.Producer(endpoint=endpoint) as producer, aio.Client(endpoint=endpoint) as client:
            waiting = await producer.submit("replies", b"x")
            assert await waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(NotFoundError):
                await client.jobs.get("replies", waiting.receipt.id)
            async with aio.Worker("replies", handle, endpoint=endpoint):
                ended = await producer.submit("replies", b"y")
                assert await ended == b"done"
                assert not await ended.cancel()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT))


@pytest.mark.parametrize("how", ["cancelled", "over its limit"])
def test_a_plain_worker_may_get_a_frame(shared: list[BrokerUnderTest], endpoint: str, how: str) -> None:
    doors = shared[0].take("ack")
    jobs, commits = shared[0].socket(zmq.PULL, doors.back), shared[0].socket(zmq.PUSH, doors.commit)
    with Producer(endpoint=endpoint) as producer, Client(endpoint=endpoint) as client:
        limit = None if how == "cancelled" else 0.1
        job_id = producer.push(doors.queue, b"x", hard_time_limit=limit, max_attempts=1).id
        receipt, _payload = receive(jobs)
        if how == "cancelled":
            client.jobs.cancel(doors.queue, job_id, running=True)
        why = b"it was cancelled" if how == "cancelled" else b"its hard_time_limit is over"
        assert receive(jobs) == [b"CANCEL", receipt, why]
        # Then it has no other job before it answers
        producer.push(doors.queue, b"next")
        commits.send_multipart([b"COMMIT", receipt])
        receipt, payload = receive(jobs)
        assert payload == b"next"
        commits.send_multipart([b"COMMIT", receipt])
        wait_until(lambda: client.queues.get(doors.queue).reserved == 0)
