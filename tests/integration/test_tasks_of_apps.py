"""Tasks at a real broker: pushed, called, retried, in flows and by schedules, from threads and coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sluicemq import (
    PREVIOUS,
    App,
    Client,
    DeadError,
    Job,
    Middleware,
    PausedError,
    Reject,
    TaskRun,
    aio,
    chain,
    group,
)
from support.broker_process import BrokerProcess
from support.ports import free_port
from support.waiting import TIMEOUT, wait_until


@pytest.fixture(scope="module")
def endpoint(mongo_uri: str) -> Iterator[str]:
    with BrokerProcess(
        mongo_uri, f"tasks-{free_port()}", config={"devices": [], "queues": {"*": {"backoff": "none"}}}
    ) as broker:
        yield broker.doors["smq"]


@pytest.fixture(scope="module")
def shop(endpoint: str) -> Iterator[App]:
    """An app whose worker runs."""
    app = App(endpoint=endpoint)

    @app.task(queue="sums", retries=1)
    def add(a: int, b: int = 1) -> int:
        return a + b

    @app.task(queue="texts")
    async def shout(text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    @app.task(queue="sums", retries=2, bind=True)
    def flaky(job: Job, fails: int) -> int:
        if job.attempt <= fails:
            raise ValueError(f"attempt {job.attempt}")
        return job.attempt

    @app.task(queue="texts")
    def refuse(text: str) -> None:
        raise Reject(f"no {text}")

    @app.task(queue="sums")
    def total(numbers: list[Any]) -> int:
        return sum(number for number in numbers if isinstance(number, int))

    with app, app.worker(concurrency=4):
        yield app


@pytest.fixture
def client(endpoint: str) -> Iterator[Client]:
    with Client(endpoint=endpoint) as client:
        yield client


def test_a_task_is_pushed_and_called(shop: App, client: Client) -> None:
    add: Any = shop.tasks["add"]
    receipt = add.push(1, b=2)
    receipt.wait(TIMEOUT)
    assert add.call(40, 2) == 42
    assert add.options(id="known").call(1) == 2
    assert client.jobs.result("sums", "known") == b"2"


def test_a_task_is_pushed_and_called_by_coroutines(shop: App) -> None:
    async def several() -> list[Any]:
        shout: Any = shop.tasks["shout"]
        await shout.apush("x")
        return await asyncio.gather(*(shout.acall(text) for text in "abc"))

    assert asyncio.run(several()) == ["A", "B", "C"]


def test_many_coroutines_push_at_once_and_a_refusal_is_raised(endpoint: str, client: Client) -> None:
    async def push_many() -> int:
        receipts = await asyncio.gather(*(task.apush() for _ in range(1000)))
        return sum(receipt.done and receipt.error is None for receipt in receipts)

    with App(endpoint=endpoint) as app:
        task: Any = app.task(queue="many", kind="many")(lambda: None)
        assert asyncio.run(push_many()) == 1000
        client.queues.pause("many", "intake")
        with pytest.raises(PausedError):
            asyncio.run(task.apush())
        assert client.queues.get("many").ready == 1000


def test_a_push_that_is_cancelled_leaves_nothing_that_waits(endpoint: str) -> None:
    async def cancel() -> None:
        pushing = asyncio.create_task(task.apush())
        await asyncio.sleep(0)  # it has pushed, and waits
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        assert len(asyncio.all_tasks()) == 1

    with App(endpoint=endpoint) as app:
        task: Any = app.task(queue="others", kind="cancelled")(lambda: None)
        asyncio.run(cancel())


def test_a_call_in_a_coroutine_that_nobody_answers_ends_in_time(endpoint: str) -> None:
    with App(endpoint=endpoint) as app:
        nobody = app.task(queue="nobody")(lambda: None)

        async def call() -> None:
            await nobody.s().acall(timeout=0.1)

        with pytest.raises(TimeoutError):
            asyncio.run(call())


def test_a_task_that_fails_runs_again_until_its_retries_are_used(shop: App) -> None:
    flaky: Any = shop.tasks["flaky"]
    assert flaky.call(2) == 3
    with pytest.raises(DeadError, match="attempt 3"):
        flaky.call(3)


def test_a_job_that_can_not_be_called_is_a_dead_letter(shop: App, client: Client) -> None:
    receipt = shop.get_producer().push_json("sums", {"a": "x"}, headers={"kind": "add"})
    receipt.wait(TIMEOUT)
    wait_until(lambda: client.jobs.get("sums", receipt.id).state == "dead")
    dead = client.jobs.get("sums", receipt.id)
    assert dead.attempts == 1
    assert "the job can't be called: argument 'a': Expected `int`" in (dead.errors or ())[-1].reason


def test_a_chain_goes_from_queue_to_queue(shop: App) -> None:
    add: Any = shop.tasks["add"]
    shout: Any = shop.tasks["shout"]
    assert chain(add.s(1), add.s(PREVIOUS, b=5), add.s(b=PREVIOUS, a=10)).call() == 17
    assert chain(add.s(1), shout.s("then")).call() == "THEN"


def test_a_group_is_done_when_its_steps_are(shop: App, client: Client) -> None:
    add: Any = shop.tasks["add"]
    refuse: Any = shop.tasks["refuse"]
    inner = chain(add.s(1), add.s(PREVIOUS))
    receipt = group(add.s(1), inner, group(add.s(2), add.s(3))).push(reply="result")
    receipt.wait(TIMEOUT)
    assert client.jobs.result("sums", receipt.id, wait=TIMEOUT) == b""
    assert chain(add.s(1), group(add.s(2))).call() is None
    with pytest.raises(DeadError, match="no cups"):
        group(add.s(1), refuse.s("cups")).call()


def test_a_group_goes_on_with_the_results_of_its_steps(shop: App) -> None:
    add: Any = shop.tasks["add"]
    total: Any = shop.tasks["total"]
    refuse: Any = shop.tasks["refuse"]
    inner = group(add.s(2), add.s(3)).then(total.s(PREVIOUS))
    assert group(add.s(1), inner, chain(add.s(1), add.s(PREVIOUS))).then(total.s(PREVIOUS)).call() == 12
    middle = chain(add.s(1), group(add.s(4), add.s(5)), total.s(PREVIOUS), add.s(PREVIOUS, b=100))
    assert middle.call() == 111
    assert group(add.s(1), refuse.s("cups"), allow_failures=True).then(total.s(PREVIOUS)).call() == 2
    with pytest.raises(DeadError, match="no cups"):
        group(add.s(1), refuse.s("cups")).then(total.s(PREVIOUS)).call()


def test_tasks_run_in_an_event_loop(endpoint: str, client: Client) -> None:
    app = App("looped", endpoint=endpoint)
    began, stopped = 0, asyncio.Event()

    @app.schedule(every="1h")
    @app.task(queue="loops")
    async def meet(count: int = 1) -> int:
        nonlocal began
        began += 1
        if began == count:
            stopped.set()
        await stopped.wait()
        return count

    @app.task(queue="loops")
    def plain(a: int) -> int:
        return a + 1

    @app.task(queue="loops")
    async def many(numbers: list[int]) -> int:
        return len(numbers)

    @app.task(queue="loops", timeout=0.1, retries=0)
    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    async def work() -> None:
        async with app.aworker(concurrency=300):
            # When: none ends before all of them run
            met = await asyncio.gather(*(meet.acall(count=300) for _ in range(300)))
            assert met == [300] * 300
            assert await chain(plain.s(1), plain.s(PREVIOUS)).acall() == 3
            assert await group(plain.s(1), plain.s(2)).then(many.s(PREVIOUS)).acall() == 2
            with pytest.raises(DeadError, match="stuck ran for longer than"):
                await stuck.acall()
            await asyncio.to_thread(wait_until, has_schedule)

    def has_schedule() -> bool:
        return "looped.meet" in [schedule.name for schedule in client.schedules.list()]

    with app:
        asyncio.run(work())


def test_a_job_is_extended_as_its_task_is_run(endpoint: str) -> None:
    """A plain function of an event loop runs in a thread with its middleware, where ``extend`` blocks."""
    seen: list[str] = []

    class Seen(Middleware):
        def before(self, run: TaskRun) -> None:
            seen.append(threading.current_thread().name)

    app = App(endpoint=endpoint, middleware=[Seen()])

    @app.task(queue="extended", bind=True)
    def plain(job: Job) -> str:
        job.extend(60)
        return threading.current_thread().name

    @app.task(queue="extended", bind=True)
    async def awaited(job: aio.Job) -> str:
        await job.extend(60)
        return threading.current_thread().name

    async def work() -> tuple[str, str]:
        async with app.aworker():
            return await plain.acall(), await awaited.acall()

    with app:
        named, here = asyncio.run(work())
    assert seen == [named, here]
    assert named != here == threading.current_thread().name


# ------------------------------------------------------------------------ schedules


def scheduled(endpoint: str, *kinds: str, every: str = "1h", name: str = "shop") -> App:
    app = App(name, endpoint=endpoint)
    for kind in kinds:
        task = app.task(queue="reports", kind=kind)(lambda day: None)
        app.schedule(every=every, arguments={"day": 1})(task)
    return app


def test_schedules_are_at_the_broker_as_they_are_in_the_code(endpoint: str, client: Client) -> None:
    def names() -> list[str]:
        return [
            schedule.name for schedule in client.schedules.list() if not schedule.name.startswith("looped")
        ]

    client.schedules.add("by-hand", "reports", b"x", every="1h")
    scheduled(endpoint, "nightly", name="other").declare_schedules()
    scheduled(endpoint, "hourly", "nightly").declare_schedules()
    client.schedules.pause("shop.nightly")
    first = client.schedules.get("shop.hourly")
    # Then: to declare them again resets nothing
    scheduled(endpoint, "hourly", "nightly").declare_schedules()
    assert client.schedules.get("shop.hourly") == first
    assert client.schedules.get("shop.nightly").paused
    # And: one that is changed has its new times; what is no more in the code goes
    scheduled(endpoint, "hourly", every="2h").declare_schedules()
    assert client.schedules.get("shop.hourly").every == 7200
    assert names() == ["by-hand", "other.nightly", "shop.hourly"]
    # And: one that another has made stays
    app = App("shop", endpoint=endpoint)
    app.schedule(every="3h", name="by-hand")(app.task(queue="reports", kind="mine")(lambda: None))
    app.declare_schedules()
    assert client.schedules.get("by-hand").every == 3600
    assert names() == ["by-hand", "other.nightly"]


def test_a_worker_declares_schedules_at_its_start_and_runs_them(endpoint: str, client: Client) -> None:
    ran = threading.Event()
    app = App("clock", endpoint=endpoint)

    @app.schedule(cron="0 3 * * *", timezone="Europe/Berlin", arguments={"day": 5})
    @app.task(queue="days")
    def day(day: int) -> None:
        if day == 5:
            ran.set()

    with app.worker():
        wait_until(lambda: "clock.day" in [schedule.name for schedule in client.schedules.list()])
        client.schedules.run("clock.day")
        assert ran.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("", {"every": "1h"}, "has a name of its own"),
        ("shop", {}, "either cron or every"),
        ("shop", {"every": "1h", "name": "a b"}, "no name of a schedule"),
        ("shop", {"every": "1h", "arguments": {"b": 1}}, "missing a required argument"),
    ],
)
def test_wrong_schedules_are_refused_where_they_stand(name: str, options: Any, why: str) -> None:
    app = App(name)
    with pytest.raises((TypeError, ValueError), match=why):
        app.schedule(**options)(app.task(kind="a")(lambda a: None))
