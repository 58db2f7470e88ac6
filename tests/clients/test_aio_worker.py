"""Workers for asyncio: each job is a task, which ends, is cancelled, or goes back."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
import signal
import threading
import time
from typing import Any

import pytest

from clients.scripted_broker import ScriptedBroker
from sluicemq import Forward, Reject, Requeue, Retry
from sluicemq import Job as JobOfThreads
from sluicemq.aio import Job, Producer, Worker
from sluicemq.protocol import wire
from support.own_queue import SECONDS, OwnQueue
from support.traces import id_of, parent_of, traced
from support.waiting import wait_until


async def until_set(event: asyncio.Event) -> None:
    async with asyncio.timeout(SECONDS):
        await event.wait()


class Held:
    """A handler that says that it has begun, and waits."""

    def __init__(self, count: int = 1) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.cancelled = 0
        self._count = count

    async def __call__(self, job: Job) -> bytes:
        self._count -= 1
        if self._count == 0:
            self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return job.payload


# ------------------------------------------------------------------------ how a handler ends


ENDS: dict[bytes, Any] = {
    b"result": b"done",
    b"reject": Reject("no"),
    b"retry": Retry("later", delay=0),
    b"requeue": Requeue(delay=3600),
    b"fails": ValueError("it fails"),
    b"exit": SystemExit(),
}


def test_verdicts_of_handlers_that_end_together_travel_together(broker: ScriptedBroker) -> None:
    ready = threading.Event()
    broker.on[wire.READY] = lambda _message: ready.set()

    async def main() -> None:
        async with Worker("q", end, endpoint=broker.endpoint):
            await asyncio.to_thread(ready.wait, SECONDS)
            (first, *_) = broker.of(wire.READY)
            broker.deliver(first.peer, "q", [b"%d" % number for number in range(100)])
            await asyncio.to_thread(broker.wait_until, all_are_settled)

    async def end(_job: Job) -> None:
        """Do nothing."""

    def settled() -> list[int]:
        return [len(message.fields[0]) for message in broker.received if message.verb == wire.SETTLE]

    def all_are_settled() -> bool:
        return sum(settled()) == 100

    asyncio.run(main())
    assert len(settled()) <= 2, "a heartbeat may send some before"


def test_a_handlers_end_settles_its_job(jobs: OwnQueue) -> None:
    async def handle(job: Job) -> Any:
        if job.attempt > 1:
            return b"again"
        end = ENDS[job.payload]
        if isinstance(end, BaseException):
            raise end
        return end

    ENDS[b"forward"] = Forward(f"{jobs.queue}-next")

    async def main() -> list[bytes]:
        async with (
            Producer(endpoint=jobs.endpoint) as producer,
            Worker(jobs.queue, handle, endpoint=jobs.endpoint),
        ):
            for what in (b"reject", b"requeue", b"forward"):
                await producer.push(jobs.queue, what, id=what.decode())
            asked = (b"result", b"retry", b"fails", b"exit")
            replies = [await producer.submit(jobs.queue, what, backoff="none") for what in asked]
            return [await reply.result(SECONDS) for reply in replies]

    results = asyncio.run(main())
    assert results == [b"done", b"again", b"again", b"again"]
    assert jobs.state("reject") == "dead"
    assert jobs.state("requeue") == "scheduled"
    assert jobs.client.jobs.get(f"{jobs.queue}-next", "forward").payload == b"forward"


def test_as_many_handlers_as_concurrency_allows_wait_at_one_time(jobs: OwnQueue) -> None:
    async def main() -> None:
        handler = Held(20)
        async with (
            Producer(endpoint=jobs.endpoint) as producer,
            Worker(jobs.queue, handler, concurrency=20, endpoint=jobs.endpoint),
        ):
            replies = [await producer.submit(jobs.queue, b"%d" % number) for number in range(40)]
            await until_set(handler.begun)
            handler.may_end.set()
            assert [await reply.result(SECONDS) for reply in replies] == [
                b"%d" % number for number in range(40)
            ]

    asyncio.run(main())


def test_a_job_is_extended_and_tells_its_progress(jobs: OwnQueue) -> None:
    async def main() -> None:
        async def handle(job: Job) -> bytes:
            await job.extend("2m")
            job.progress(1, 2)
            job.keep_extending()
            return b"extended"

        async with (
            Producer(endpoint=jobs.endpoint) as producer,
            Worker(jobs.queue, handle, endpoint=jobs.endpoint),
        ):
            assert await producer.call(jobs.queue, b"", SECONDS) == b"extended"

    asyncio.run(main())


def test_plain_handlers_run_in_threads_by_wish(jobs: OwnQueue) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def handle(job: JobOfThreads) -> bytes:
            job.extend(60)
            return asyncio.run_coroutine_threadsafe(asyncio.sleep(0, b"from a thread"), loop).result()

        async with (
            Producer(endpoint=jobs.endpoint) as producer,
            Worker(jobs.queue, handle, in_threads=True, endpoint=jobs.endpoint),
        ):
            assert await producer.call(jobs.queue, b"", SECONDS) == b"from a thread"

    asyncio.run(main())


def test_popped_jobs_are_worked_off_before_the_end(jobs: OwnQueue) -> None:
    for _ in range(5):
        jobs.push()

    async def main() -> None:
        handler = Held(5)
        async with Worker(jobs.queue, handler, pop=True, endpoint=jobs.endpoint) as worker:
            await until_set(handler.begun)
            stop = asyncio.create_task(worker.stop())
            handler.may_end.set()
            assert await stop
            assert worker.failed == 0
            assert handler.cancelled == 0

    asyncio.run(main())
    assert not jobs.ready()


# ------------------------------------------------------------------------ context and spans

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST")


def test_handlers_have_the_context_variables_of_the_start_each_its_own_copy(jobs: OwnQueue) -> None:
    async def handle(_job: Job) -> bytes:
        seen = REQUEST.get()
        REQUEST.set("changed")
        return seen.encode()

    async def main() -> None:
        REQUEST.set("mine")
        async with (
            Producer(endpoint=jobs.endpoint) as producer,
            Worker(jobs.queue, handle, endpoint=jobs.endpoint),
        ):
            for _ in range(2):
                assert await producer.call(jobs.queue, b"", SECONDS) == b"mine"

    asyncio.run(main())


def test_a_push_and_its_handler_are_of_one_trace(jobs: OwnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    with traced(monkeypatch) as spans:

        async def handle(_job: Job) -> bytes:
            with spans.tracer.start_as_current_span("inside"):
                await asyncio.sleep(0)
            return b""

        async def main() -> None:
            async with (
                Producer(endpoint=jobs.endpoint) as producer,
                Worker(jobs.queue, handle, endpoint=jobs.endpoint),
            ):
                await producer.call(jobs.queue, b"", SECONDS)

        asyncio.run(main())
        send, process = (spans.one(f"{what} {jobs.queue}") for what in ("send", "process"))
        assert parent_of(process) == id_of(send)
        assert parent_of(spans.one("inside")) == id_of(process)
        assert parent_of(spans.one(f"commit {jobs.queue}")) == id_of(process)


# ------------------------------------------------------------------------ ends and cancels


def test_a_stop_waits_for_handlers_and_gives_back_what_none_has_begun(jobs: OwnQueue) -> None:
    ids = [jobs.push() for _ in range(3)]

    async def main() -> None:
        handler = Held()
        async with Worker(jobs.queue, handler, concurrency=1, prefetch=3, endpoint=jobs.endpoint) as worker:
            await until_set(handler.begun)
            stop = asyncio.create_task(worker.stop())
            await asyncio.sleep(0)
            handler.may_end.set()
            assert await stop
            assert await worker.stop()

    asyncio.run(main())
    jobs.await_ready(*ids[1:])
    assert jobs.show(ids[1])["attempts"] == 0


@pytest.mark.parametrize("how", ["time", "cancel", "signal"])
def test_a_handler_that_goes_on_is_cancelled_and_its_job_returns_uncounted(jobs: OwnQueue, how: str) -> None:
    mine = jobs.push()

    async def main() -> None:
        handler = Held()
        worker = Worker(
            jobs.queue, handler, stop_timeout=0.01 if how == "time" else 3600, endpoint=jobs.endpoint
        )
        run = asyncio.create_task(worker.run())
        await until_set(handler.begun)
        if how == "signal":
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0)
                await asyncio.sleep(0.01)
        else:
            run.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if how == "cancel":
                run.cancel()
        async with asyncio.timeout(SECONDS):
            await asyncio.wait([run])
        assert run.cancelled() == (how != "signal")
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        assert handler.cancelled == 1

    asyncio.run(main())
    jobs.await_ready(mine)
    assert jobs.show(mine)["attempts"] == 0


def test_a_handler_that_is_cancelled_by_others_has_failed(jobs: OwnQueue) -> None:
    async def handle(job: Job) -> bytes:
        if job.attempt == 1:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)
        return b"%d" % job.attempt

    async def main() -> None:
        async with (
            Producer(endpoint=jobs.endpoint) as producer,
            Worker(jobs.queue, handle, endpoint=jobs.endpoint),
        ):
            reply = await producer.submit(jobs.queue, b"", backoff="none")
            assert await reply.result(SECONDS) == b"2"

    asyncio.run(main())


def test_a_worker_in_a_group_of_tasks_ends_when_another_fails(jobs: OwnQueue) -> None:
    async def main() -> None:
        handler = Held()

        async def fail() -> None:
            await until_set(handler.begun)
            raise LookupError

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Worker(jobs.queue, handler, stop_timeout=0, endpoint=jobs.endpoint).run())
            tasks.create_task(fail())

    mine = jobs.push()
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(main())
    assert [type(exception) for exception in raised.value.exceptions] == [LookupError]
    jobs.await_ready(mine)


def test_a_worker_is_stopped_by_its_handler(jobs: OwnQueue) -> None:
    jobs.push(id="mine")

    async def main() -> None:
        async def handle(_job: Job) -> None:
            assert not await worker.stop()

        worker = Worker(jobs.queue, handle, endpoint=jobs.endpoint)
        async with asyncio.timeout(SECONDS):
            await worker.run()

    asyncio.run(main())
    wait_until(lambda: jobs.state("mine") == "gone", SECONDS, "the commit")


def test_a_handler_that_returns_a_coroutine_stops_the_worker(jobs: OwnQueue) -> None:
    mine = jobs.push()

    async def handle(_job: Job) -> Any:
        return asyncio.sleep(0)

    with pytest.raises(TypeError, match="returned a coroutine, which nobody awaits: write 'return await"):
        asyncio.run(Worker(jobs.queue, handle, endpoint=jobs.endpoint).run())
    jobs.await_ready(mine)


def test_a_handler_that_blocks_the_loop_is_named(jobs: OwnQueue, caplog: pytest.LogCaptureFixture) -> None:
    async def resize(_job: Job) -> None:
        wait_until(lambda: "blocks the event loop" in caplog.text, SECONDS, "the warning")

    async def main() -> None:
        async with (
            Producer(endpoint=jobs.endpoint) as producer,
            Worker(jobs.queue, resize, endpoint=jobs.endpoint),
        ):
            await producer.call(jobs.queue, b"", SECONDS)

    with caplog.at_level(logging.WARNING, "sluicemq"):
        asyncio.run(main())
    assert "resize of job" in caplog.text


# ------------------------------------------------------------------------ mistakes


def test_a_worker_whose_loop_closes_leaves_its_jobs(jobs: OwnQueue, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        handler = Held()
        await Worker(jobs.queue, handler, concurrency=1, endpoint=jobs.endpoint).start()
        await until_set(handler.begun)

    jobs.push(max_attempts=3, backoff="none")
    with caplog.at_level(logging.ERROR, "sluicemq"):
        asyncio.run(main())
        wait_until(lambda: "was closed before the worker" in caplog.text, SECONDS, "the message")
    assert jobs.take().attempt >= 1


def plain(_job: Any) -> None:
    time.sleep(0)


@pytest.mark.parametrize(
    ("handler", "name"),
    [
        (plain, "plain"),
        (functools.partial(plain), "plain"),
        (lambda _job: None, "<lambda>"),
        (Reject, "Reject"),
    ],
)
def test_a_handler_that_is_no_coroutine_is_refused_by_its_name(handler: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"handler .*{name} is no async def"):
        Worker("q", handler)
