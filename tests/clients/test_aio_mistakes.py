"""Mistakes that asyncio makes easy: each ends in an error that says what is wrong; none waits for ever."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest

import sluicemq
from clients.scripted_broker import SECONDS, SILENCE, ScriptedBroker
from sluicemq import App
from sluicemq.aio import Client, Producer, Publisher, Reader, Subscription, Worker
from sluicemq.protocol import wire


async def handle(_job: Any) -> None:
    """Do nothing."""


def plain(_job: Any) -> None:
    """Do nothing."""


class Mistake(NamedTuple):
    """What a program does with the endpoint of a broker, and what it is told."""

    does: Callable[[str], Awaitable[Any]]
    raises: type[BaseException]
    says: str


#: Each class, made in the same way.
CLASSES: dict[str, Callable[[str | None], Any]] = {
    "producer": lambda endpoint: Producer(endpoint=endpoint),
    "client": lambda endpoint: Client(endpoint=endpoint),
    "worker": lambda endpoint: Worker("q", handle, endpoint=endpoint),
    "publisher": lambda endpoint: Publisher(endpoint=endpoint),
    "reader": lambda endpoint: Reader("s", endpoint=endpoint),
    "subscription": lambda endpoint: Subscription("s", "mine", handle, endpoint=endpoint),
}

#: What first uses each.
USES: dict[str, Callable[[Any], Any]] = {
    "producer": lambda it: it.push("q", b""),
    "client": lambda it: it.queues.list(),
    "publisher": lambda it: it.publish("s", "t", b""),
    "reader": lambda it: it.read(),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_it_is_started_once(broker: ScriptedBroker, kind: str) -> None:
    async def main() -> None:
        async with CLASSES[kind](broker.endpoint) as it:
            with pytest.raises(RuntimeError, match=f"this {kind} was started before"):
                await it.start()
            with pytest.raises(RuntimeError, match=f"this {kind} was started before"):
                async with it:
                    pass
        with pytest.raises(RuntimeError, match=f"this {kind} was started before: make a new one"):
            await it.start()

    asyncio.run(main())


@pytest.mark.parametrize("kind", USES)
def test_it_is_started_before_it_is_used(broker: ScriptedBroker, kind: str) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=f"this {kind} is not started: use 'async with'"):
            await USES[kind](CLASSES[kind](broker.endpoint))

    asyncio.run(main())


@pytest.mark.parametrize("kind", USES)
def test_it_is_of_one_loop_which_may_be_closed(broker: ScriptedBroker, kind: str) -> None:
    async def begin() -> Any:
        return await CLASSES[kind](broker.endpoint).start()

    async def use() -> None:
        with pytest.raises(RuntimeError, match=f"this {kind} belongs to another event loop, which {state}"):
            await USES[kind](it)

    with asyncio.Runner() as first:
        it, state = first.run(begin()), "runs elsewhere"
        asyncio.run(use())
    state = "is closed"
    asyncio.run(use())
    if kind != "reader":
        with pytest.raises(RuntimeError, match="no event loop runs here"):
            USES[kind](it).send(None)


@pytest.mark.parametrize("kind", CLASSES)
def test_one_of_a_module_connects_where_the_environment_says_at_its_start(
    broker: ScriptedBroker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = CLASSES[kind](None)

    async def main() -> None:
        async with it:
            await asyncio.to_thread(broker.wait_for, wire.HELLO)

    monkeypatch.setenv("SLUICEMQ_ENDPOINT", broker.endpoint)
    asyncio.run(main())


@pytest.mark.parametrize("kind", CLASSES)
def test_it_is_closed_again_or_before_its_start_without_an_error(broker: ScriptedBroker, kind: str) -> None:
    async def main() -> None:
        await CLASSES[kind](broker.endpoint).close()
        async with CLASSES[kind](broker.endpoint) as it:
            await it.close()
            await it.stop()
        await it.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


#: Those for threads.
THREADED: dict[str, Callable[[str], Any]] = {
    "producer": lambda endpoint: sluicemq.Producer(endpoint=endpoint),
    "client": lambda endpoint: sluicemq.Client(endpoint=endpoint),
    "publisher": lambda endpoint: sluicemq.Publisher(endpoint=endpoint),
    "reader": lambda endpoint: sluicemq.Reader("s", endpoint=endpoint),
}


@pytest.mark.parametrize("kind", THREADED)
def test_those_for_threads_refuse_the_block_for_asyncio(broker: ScriptedBroker, kind: str) -> None:
    async def main() -> None:
        it = THREADED[kind](broker.endpoint)
        try:
            with pytest.raises(TypeError, match="asynchronous context manager protocol"):
                async with it:
                    pass
        finally:
            it.stop()

    asyncio.run(main())


@pytest.mark.parametrize("kind", CLASSES)
def test_the_block_for_threads_is_refused(broker: ScriptedBroker, kind: str) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="context manager protocol"), CLASSES[kind](broker.endpoint):
            pass

    asyncio.run(main())


async def awaited_elsewhere(endpoint: str) -> None:
    async with Producer(endpoint=endpoint, close_timeout=0.01) as producer:
        receipt = await producer.push("silent", b"")

        async def other() -> None:
            await receipt

        await asyncio.to_thread(asyncio.run, other())


async def used_when_closed(endpoint: str) -> None:
    async with Producer(endpoint=endpoint) as producer:
        pass
    await producer.push("q", b"")


async def asked_when_closed(endpoint: str) -> None:
    async with Client(endpoint=endpoint) as client:
        pass
    await client.queues.list()


async def a_coroutine_for_a_payload(endpoint: str) -> None:
    async with Producer(endpoint=endpoint) as producer:
        await producer.push("q", asyncio.sleep(0))  # type: ignore[arg-type]


async def async_handler_of_threads(_endpoint: str) -> None:
    sluicemq.Worker("q", handle)  # type: ignore[arg-type]


async def handler_called(_endpoint: str) -> None:
    coroutine = handle(None)
    try:
        Worker("q", coroutine)  # type: ignore[arg-type]
    finally:
        coroutine.close()


async def async_handler_in_threads(_endpoint: str) -> None:
    Worker("q", handle, in_threads=True)


async def generator(_job: Any) -> AsyncIterator[bytes]:
    yield b"part"


async def async_generator_as_handler(_endpoint: str) -> None:
    Worker("q", generator)  # type: ignore[arg-type]


async def lambda_as_handler(_endpoint: str) -> None:
    Worker("q", lambda _job: handle(None))


async def async_handler_of_refusals(endpoint: str) -> None:
    async with Producer(on_refused=handle, endpoint=endpoint):  # type: ignore[arg-type]
        pass


async def async_handler_of_gaps(endpoint: str) -> None:
    async with Reader("s", on_gap=handle, endpoint=endpoint):  # type: ignore[arg-type]
        pass


async def async_generator_as_task(_endpoint: str) -> None:
    App().task(generator)


async def call_that_blocks_the_loop(endpoint: str) -> None:
    with App(endpoint=endpoint) as app:
        app.task(handle).call(None)


async def receipt_of_a_task_awaited(endpoint: str) -> None:
    with App(endpoint=endpoint) as app:
        await app.task(handle).push(None)  # type: ignore[misc]


async def verb_not_called(endpoint: str) -> None:
    async with Client(endpoint=endpoint) as client:
        await client.queues.list  # type: ignore[misc]


async def events_without_async_for(endpoint: str) -> None:
    async with Client(endpoint=endpoint) as client:
        for _ in client.events.follow():  # type: ignore[attr-defined]
            pass


async def answer_iterated_without_await(endpoint: str) -> None:
    async with Client(endpoint=endpoint) as client:
        async for _ in client.queues.list():  # type: ignore[attr-defined]
            pass


async def claim_without_async_with(endpoint: str) -> None:
    async with Client(endpoint=endpoint) as client:
        with client.jobs.reserve("q", 1):  # type: ignore[attr-defined]
            pass


async def claim_iterated_without_await(endpoint: str) -> None:
    async with Client(endpoint=endpoint) as client:
        for _ in client.jobs.reserve("q", 1):  # type: ignore[attr-defined]
            pass


async def messages_without_async_for(endpoint: str) -> None:
    async with Reader("s", endpoint=endpoint) as reader:
        for _ in reader:  # type: ignore[attr-defined]
            pass


async def loop_within_the_loop(endpoint: str) -> None:
    worker = Worker("q", handle, endpoint=endpoint)
    run = worker.run()
    try:
        asyncio.run(run)
    finally:
        run.close()


async def nothing_at_a_time(endpoint: str) -> None:
    await Worker("q", handle, concurrency=0, endpoint=endpoint).run()


async def call_with_too_little_time(endpoint: str) -> None:
    async with Producer(endpoint=endpoint, close_timeout=0.01) as producer:
        await producer.call("silent", b"", timeout=0.01)


async def call_cut_off(endpoint: str) -> None:
    async with Producer(endpoint=endpoint, close_timeout=0.01) as producer:
        async with asyncio.timeout(0.01):
            await producer.call("silent", b"")


async def forgotten(use: Callable[[], Any]) -> None:
    """Raise what Python warns of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        use()
        gc.collect()
    raise seen[0].category(seen[0].message)


async def push_not_awaited(endpoint: str) -> None:
    async with Producer(endpoint=endpoint) as producer:
        await forgotten(lambda: producer.push("q", b""))


async def wait_not_awaited(endpoint: str) -> None:
    async with Producer(endpoint=endpoint) as producer:
        receipt = await producer.push("q", b"")
        await forgotten(lambda: receipt.wait(5))


async def verb_not_awaited(endpoint: str) -> None:
    async with Client(endpoint=endpoint) as client:
        await forgotten(lambda: client.queues.pause("q"))


async def claim_not_awaited(endpoint: str) -> None:
    async with Client(endpoint=endpoint) as client:
        await forgotten(lambda: client.jobs.reserve("q", 1))


async def task_not_awaited(endpoint: str) -> None:
    with App(endpoint=endpoint) as app:
        await forgotten(lambda: app.task(handle).apush(None))


MISTAKES = {
    "a handler is an async generator": Mistake(
        async_generator_as_handler, TypeError, "generator yields, and a job has one result"
    ),
    "a handler is a lambda": Mistake(lambda_as_handler, TypeError, "<lambda> is no async def"),
    "on_refused is an async def": Mistake(async_handler_of_refusals, TypeError, "on_refused is an async def"),
    "on_gap is an async def": Mistake(async_handler_of_gaps, TypeError, "on_gap is an async def"),
    "a task is an async generator": Mistake(
        async_generator_as_task, TypeError, "generator yields, and a job has one result"
    ),
    "a task is called in the loop": Mistake(call_that_blocks_the_loop, RuntimeError, "await acall"),
    "a task's push is awaited": Mistake(receipt_of_a_task_awaited, TypeError, "PushReceipt"),
    "a verb is not called": Mistake(verb_not_called, TypeError, "method can't be used in 'await'"),
    "events are followed without async": Mistake(events_without_async_for, TypeError, "not iterable"),
    "an answer is iterated over": Mistake(answer_iterated_without_await, TypeError, "__aiter__.*coroutine"),
    "messages are read without async": Mistake(messages_without_async_for, TypeError, "not iterable"),
    "a claim is entered without async": Mistake(
        claim_without_async_with, TypeError, "context manager protocol"
    ),
    "a claim is iterated over before it is here": Mistake(
        claim_iterated_without_await, TypeError, "not iterable"
    ),
    "a loop is run in the loop": Mistake(loop_within_the_loop, RuntimeError, "from a running event loop"),
    "nothing runs at a time": Mistake(nothing_at_a_time, ValueError, "concurrency"),
    "a call has too little time": Mistake(call_with_too_little_time, sluicemq.TimeoutError, "job .* queue"),
    "a call is cut off": Mistake(call_cut_off, TimeoutError, "^$"),
    "a push is not awaited": Mistake(
        push_not_awaited, RuntimeWarning, "coroutine 'Producer.push' was never awaited"
    ),
    "a wait is not awaited": Mistake(wait_not_awaited, RuntimeWarning, "wait' was never awaited"),
    "a verb is not awaited": Mistake(verb_not_awaited, RuntimeWarning, "'Queues.pause' was never awaited"),
    "a claim is not awaited": Mistake(claim_not_awaited, RuntimeWarning, "'Jobs.reserve' was never awaited"),
    "a task is not awaited": Mistake(task_not_awaited, RuntimeWarning, "'Task.apush' was never awaited"),
    "a receipt is awaited in another loop": Mistake(
        awaited_elsewhere, RuntimeError, "this receipt belongs to another event loop, which runs elsewhere"
    ),
    "a closed producer pushes": Mistake(used_when_closed, ValueError, "push to a closed producer"),
    "a closed client asks": Mistake(asked_when_closed, sluicemq.UnavailableError, "is closed"),
    "a payload is a coroutine": Mistake(
        a_coroutine_for_a_payload, TypeError, "payload is bytes, not coroutine"
    ),
    "a worker of threads gets an async def": Mistake(
        async_handler_of_threads, TypeError, "sluicemq.aio.Worker"
    ),
    "a handler is called, not given": Mistake(handler_called, TypeError, "coroutine can't be called"),
    "an async def is to run in threads": Mistake(async_handler_in_threads, TypeError, "without in_threads"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_mistake_is_told(broker: ScriptedBroker, name: str) -> None:
    mistake = MISTAKES[name]
    broker.on[wire.PUSH] = lambda message: SILENCE if message.fields[0] == "silent" else None

    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            await mistake.does(broker.endpoint)

    with pytest.raises(mistake.raises, match=mistake.says):
        asyncio.run(main())
