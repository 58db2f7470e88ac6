"""A broker in memory, as tests of programs use it: its clock, its assertions, its workers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pymongo import MongoClient

from sluicemq import (
    App,
    BadVerbError,
    Client,
    DeadError,
    Job,
    LeaseLostError,
    Producer,
    Reject,
    TimeoutError,
    Worker,
    aio,
)
from sluicemq.testing import MemoryBroker
from support.waiting import wait_until


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        yield broker


@pytest.fixture
def app(memory: MemoryBroker) -> Iterator[App]:
    app = App("shop")
    app.task(queue="mail", retries=2)(send)
    app.task(queue="mail", retries=2)(fail)
    app.task(queue="mail")(count_down)
    with memory.connect(app):
        yield app


sent: list[tuple[str, str]] = []


def send(to: str, subject: str = "") -> str:
    sent.append((to, subject))
    return to


def fail() -> None:
    raise ValueError("no such address")


async def count_down(count: int) -> int:
    await asyncio.sleep(0)
    return count - 1


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


# ---------------------------------------------------------------------- pushes


def test_a_pushed_task_is_found_by_its_arguments(memory: MemoryBroker, app: App) -> None:
    app.tasks["send"].options(delay="60s", priority=3).push("a@b", subject="hi")
    found = memory.assert_pushed(app.tasks["send"], "a@b", subject="hi")
    assert (found.queue, found.delay, found.priority) == ("mail", 60.0, 3)
    assert memory.assert_pushed(app.tasks["send"]) == found
    memory.assert_not_pushed(app.tasks["send"], "a@b")
    memory.assert_not_pushed(app.tasks["fail"])
    with pytest.raises(AssertionError, match=r"no job of send was pushed with .*'x@y'.*'a@b'"):
        memory.assert_pushed(app.tasks["send"], "x@y")
    with pytest.raises(AssertionError, match="this was pushed"):
        memory.assert_not_pushed(app.tasks["send"])


def test_a_pushed_value_is_found_in_its_queue(memory: MemoryBroker) -> None:
    with Producer(endpoint=memory.endpoint) as producer:
        producer.push_json("orders", {"id": 7}).wait()
        producer.push("orders", b"raw").wait()
    assert memory.assert_pushed("orders", {"id": 7}).value() == {"id": 7}
    assert memory.assert_pushed("orders", b"raw").payload == b"raw"
    memory.assert_not_pushed("mail")


# ---------------------------------------------------------------------- time


def test_time_passes_only_when_the_test_says_so(memory: MemoryBroker, app: App) -> None:
    app.tasks["send"].options(delay="60s").push("a@b")
    assert memory.run_pending() == 0
    memory.advance("59s")
    assert memory.run_pending() == 0
    memory.advance("1s")
    assert memory.run_pending() == 1
    assert sent == [("a@b", "")]


def test_retries_wait_by_the_queues_back_off_and_end_dead(memory: MemoryBroker, app: App) -> None:
    memory.configure("mail", backoff_base="10s", backoff="exponential")
    app.tasks["fail"].push()
    runs = []
    for _ in range(40):
        runs.append(memory.run_pending())
        memory.advance("1s")
    assert [at for at, count in enumerate(runs) if count] == [0, 10, 30]
    (dead,) = memory.client.dead_letters.list("mail")
    assert dead.errors is not None
    assert [error.reason for error in dead.errors] == ["ValueError: no such address"] * 3


def test_first_exception_is_raised_in_the_test_that_wants_it(memory: MemoryBroker, app: App) -> None:
    app.tasks["fail"].push()
    with pytest.raises(ValueError, match="no such address"):
        memory.run_pending(raises=True)
    assert memory.client.queues.get("mail").scheduled == 1


def test_jobs_that_handlers_push_are_run_too(memory: MemoryBroker) -> None:
    app = App()

    @app.task
    def push_next(count: int) -> None:
        if count:
            push_next.push(count - 1)

    with memory.connect(app):
        push_next.push(30)
        assert memory.run_pending() == 31
        push_next.push(30)
        assert asyncio.run(memory.arun_pending()) == 31


def test_schedules_run_when_their_time_has_come() -> None:
    app = App("shop")
    app.schedule(cron="0 3 * * *")(app.task(send_report))
    night = datetime(2030, 1, 1, 2, 59, tzinfo=UTC).timestamp()
    with MemoryBroker(now=night) as memory, memory.connect(app):
        assert memory.run_pending() == 0
        memory.advance("1m")
        assert memory.run_pending() == 1
        memory.advance("72h")
        assert memory.run_pending() == 3
        assert memory.client.schedules.get("shop.send_report").pushed == 4
        memory.client.schedules.pause("shop.send_report")
        memory.advance("72h")
        assert memory.run_pending() == 0


def send_report() -> None:
    sent.append(("boss", "report"))


def test_a_paused_queue_does_not_hold_the_clock(memory: MemoryBroker) -> None:
    memory.client.schedules.add("hourly", "mail", b"", every=3600)
    with Producer(endpoint=memory.endpoint) as producer:
        producer.push("mail", b"", ttl=5).wait()
    memory.client.queues.pause("mail", "intake")
    memory.advance("3h")
    assert memory.client.queues.get("mail").ready == 0
    memory.client.queues.resume("mail", "intake")
    memory.advance("1s")
    assert memory.client.queues.get("mail").ready == 1


def test_a_job_whose_time_is_over_goes_to_another_worker(memory: MemoryBroker) -> None:
    with Producer(endpoint=memory.endpoint) as producer:
        producer.push("mail", b"", visibility_timeout=30).wait()
    claim = memory.client.jobs.reserve("mail", 1)
    memory.advance("31s")
    seen: list[int] = []
    assert memory.run_pending({"mail": lambda job: seen.append(job.attempt)}) == 1
    with pytest.raises(LeaseLostError):
        claim.jobs[0].commit()
    assert seen == [2]


def test_a_setting_without_effect_is_refused(memory: MemoryBroker) -> None:
    with pytest.raises(ValueError, match="does not keep to max_running"):
        memory.configure("mail", max_running=1)
    with pytest.raises(ValueError, match="max_attempts"):
        memory.configure("mail", max_attempts="many")


# ---------------------------------------------------------------------- workers


def test_jobs_that_handlers_push_run_too(memory: MemoryBroker, app: App) -> None:
    def begin(_job: Job) -> None:
        app.tasks["send"].push("from a handler").wait()

    with Producer(endpoint=memory.endpoint) as producer:
        producer.push("begin", b"").wait()
    assert memory.run_pending(app, {"begin": begin}) == 2
    assert sent == [("from a handler", "")]


def test_handlers_run_in_the_thread_of_the_test(memory: MemoryBroker) -> None:
    threads: list[int] = []
    with Producer(endpoint=memory.endpoint) as producer:
        producer.push("mail", b"").wait()
    memory.run_pending({"mail": lambda _job: threads.append(threading.get_ident())})
    assert threads == [threading.get_ident()]


def test_coroutines_are_awaited_in_the_loop_of_the_test(memory: MemoryBroker, app: App) -> None:
    async def handler(job: aio.Job) -> bytes:
        await job.extend("5m")
        job.progress(1, 2)
        loops.append(asyncio.get_running_loop())
        return job.payload

    async def test() -> None:
        await app.tasks["count_down"].apush(3)
        await app.tasks["send"].apush("a@b")
        async with aio.Producer(endpoint=memory.endpoint) as producer:
            await producer.push("own", b"x")
        assert await memory.arun_pending(app, {"own": handler}) == 3
        assert loops == [asyncio.get_running_loop()]

    loops: list[asyncio.AbstractEventLoop] = []
    asyncio.run(test())
    assert sent == [("a@b", "")]


def test_workers_that_are_connected_are_waited_for(memory: MemoryBroker) -> None:
    done: list[bytes] = []
    with Worker("mail", lambda job: done.append(job.payload), endpoint=memory.endpoint):
        with Producer(endpoint=memory.endpoint) as producer:
            for payload in (b"1", b"2", b"3"):
                producer.push("mail", payload).wait()
        assert memory.run_pending() == 0
    assert done == [b"1", b"2", b"3"]


def test_a_job_in_memory_ends_in_no_transaction(memory: MemoryBroker) -> None:
    refused: list[str] = []

    def handle(job: Job) -> None:
        with (  # no statement is sent, so no MongoDB is needed
            MongoClient[dict[str, object]](connect=False) as mongo,
            mongo.start_session() as session,
            session.start_transaction(),
        ):
            try:
                job.commit_in(session)
            except BadVerbError as error:
                refused.append(str(error))
                raise

    with Producer(endpoint=memory.endpoint) as producer:
        receipt = producer.push("mail", b"")
        receipt.wait()
        with Worker("mail", handle, endpoint=memory.endpoint):
            wait_until(lambda: memory.client.jobs.get("mail", receipt.id).errors)
    (said,) = refused
    assert "no COMMITIN: use a real one, as of the fixture sluicemq_broker" in said


def test_due_jobs_that_nobody_takes_are_named(memory: MemoryBroker) -> None:
    with Producer(endpoint=memory.endpoint) as producer:
        producer.push("mail", b"").wait()
    with pytest.raises(TimeoutError, match=r"\{'mail': 1\}"):
        memory.run_pending(timeout=0.0)


def test_a_call_in_eager_mode_waits_for_no_clock_that_stands(memory: MemoryBroker, app: App) -> None:
    with (
        memory.connect(app, eager=True),
        pytest.raises(TimeoutError, match=r"of queue mail waits, after ValueError: no such address: advance"),
    ):
        app.tasks["fail"].s().call(timeout=None)
    with memory.connect(app, eager=True), pytest.raises(DeadError, match="no such address"):
        app.tasks["fail"].options(retries=0).call()


def test_an_eager_app_runs_each_push_at_once(memory: MemoryBroker, app: App) -> None:
    with memory.connect(app, eager=True):
        app.tasks["send"].push("a@b")
        assert sent == [("a@b", "")]
        assert app.tasks["count_down"].call(3) == 2
        app.tasks["fail"].push()
        assert memory.client.queues.get("mail").scheduled == 1
    app.tasks["send"].push("later")
    assert sent == [("a@b", "")]


def test_a_job_of_a_worker_that_dies_is_delivered_alone(memory: MemoryBroker) -> None:
    begun, end = threading.Event(), threading.Event()

    def hang(_job: Job) -> None:
        begun.set()
        end.wait(60)

    with Producer(endpoint=memory.endpoint) as producer:
        job_id = producer.push("mail", b"").id
        with Worker("mail", hang, endpoint=memory.endpoint):
            assert begun.wait(60)
            memory.disconnect()
            wait_until(lambda: memory.client.jobs.get("mail", job_id).errors)
            end.set()
    found = memory.client.jobs.get("mail", job_id)
    assert found.errors is not None
    assert (found.errors[0].reason, found.errors[0].attempt) == ("the worker died", 1)


def test_rejected_job_has_no_result(memory: MemoryBroker) -> None:
    def reject(_job: Job) -> None:
        raise Reject("bad address")

    with Producer(endpoint=memory.endpoint) as producer:
        reply = producer.submit("mail", b"")
        reply.receipt.wait()
        memory.run_pending({"mail": reject})
        with pytest.raises(DeadError, match="bad address"):
            reply.result(60)


def test_nothing_listens_at_a_broker_that_has_ended() -> None:
    with MemoryBroker() as memory:
        endpoint = memory.endpoint
    with pytest.raises(TimeoutError, match="memory://"), Client(endpoint=endpoint, timeout=0.1) as client:
        client.ping()


# ---------------------------------------------------------------------- pytest


def test_plugin_loads_nothing_of_the_broker() -> None:
    program = "import sys, sluicemq.testing_plugin; print([*sys.modules])"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert "'pytest'" in loaded
    assert "sluicemq_broker" not in loaded
    assert "gevent" not in loaded
