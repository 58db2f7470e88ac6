"""Mistakes that asyncio makes easy: each ends in an error that says what is wrong; none waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

import sluicemq
from clients.scripted_broker import SECONDS, SILENCE, ScriptedBroker
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
CLASSES: dict[str, Callable[[str], Any]] = {
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
def test_it_is_closed_again_or_before_its_start_without_an_error(broker: ScriptedBroker, kind: str) -> None:
    async def main() -> None:
        await CLASSES[kind](broker.endpoint).close()
        async with CLASSES[kind](broker.endpoint) as it:
            await it.close()
            await it.stop()
        await it.close()
        assert len(asyncio.all_tasks()) == 1

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


MISTAKES = {
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
