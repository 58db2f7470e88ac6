"""The client for asyncio: the verbs of the one for threads, awaited."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from typing import assert_type

import pytest

from clients.scripted_broker import SECONDS, SILENCE, ScriptedBroker
from sluicemq import Client as ClientOfThreads
from sluicemq import NotFoundError, TimeoutError, UnavailableError, Worker
from sluicemq.aio import Client, Producer
from sluicemq.namespaces.namespace import Namespace
from sluicemq.protocol import wire
from sluicemq.protocol.rows import OperationRow, QueueRow
from support.own_queue import OwnQueue


def verbs(client: object) -> set[str]:
    public = {name: getattr(client, name) for name in dir(client) if not name.startswith("_")}
    return {name for name, verb in public.items() if callable(verb) and not isinstance(verb, Namespace)}


def test_each_verb_of_the_client_for_threads_is_here(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with Client(endpoint=broker.endpoint) as client:
            assert verbs(of_threads) - {"run"} - verbs(client) == set()  # it has nothing to run
            for name, namespace in vars(of_threads).items():
                if isinstance(namespace, Namespace):
                    assert verbs(namespace) - verbs(getattr(client, name)) == set()

    with ClientOfThreads(endpoint=broker.endpoint) as of_threads:
        asyncio.run(main())


def test_a_verb_has_the_signature_and_the_words_of_the_one_for_threads(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with Client(endpoint=broker.endpoint) as client:
            assert inspect.signature(client.queues.pause) == inspect.signature(of_threads.queues.pause)
            assert client.queues.pause.__doc__ == of_threads.queues.pause.__doc__
            with pytest.raises(TypeError, match="queue is a str"):
                await client.queues.pause(7)  # type: ignore[arg-type]

    with ClientOfThreads(endpoint=broker.endpoint) as of_threads:
        asyncio.run(main())


def test_verbs_answer(jobs: OwnQueue) -> None:
    async def main() -> None:
        async with Client(endpoint=jobs.endpoint) as client:
            row = await client.queues.get(jobs.queue)
            assert_type(row, QueueRow)
            assert row.ready == 3
            assert await client.queues.pause(jobs.queue) == ["delivery"]
            assert await client.ping() > 0
            assert (await client.health()).store == "ok"
            assert any(queue.name == jobs.queue for queue in await client.queues.list())
            await client.schedules.add("mine", jobs.queue, b"", every="1h")
            assert (await client.schedules.get("mine")).queue == jobs.queue
            with pytest.raises(NotFoundError):
                await client.schedules.get("other")
            operation = await client.queues.purge(jobs.queue)
            assert await operation.result(SECONDS) == 3
            progress = [shown async for shown in operation]
            assert_type(progress, list[OperationRow])
            async with asyncio.timeout(SECONDS):
                await client.queues.wait_until_empty(jobs.queue)
            assert [entry.name async for entry in client.audit.iterate(action="purge", name=jobs.queue)] == [
                jobs.queue
            ]
            assert len(await client.audit.list(limit=1)) == 1

    for _ in range(3):
        jobs.push()
    asyncio.run(main())


def test_events_are_followed_and_results_awaited(jobs: OwnQueue) -> None:
    async def main() -> None:
        async with (
            Client(endpoint=jobs.endpoint) as client,
            Producer(endpoint=jobs.endpoint) as producer,
            asyncio.timeout(SECONDS),
        ):
            first = await client.events.read(jobs.queue)
            receipt = await producer.push(jobs.queue, b"job", reply="result")
            await receipt
            results = [client.jobs.result(jobs.queue, receipt.id, wait=SECONDS) for _ in range(50)]
            assert await asyncio.gather(*results) == [b"job"] * 50
            page = await client.events.read(jobs.queue, first.after)
            assert receipt.id in {event.job for event in page.events}

    with Worker(jobs.queue, lambda job: job.payload, endpoint=jobs.endpoint):
        asyncio.run(main())


def test_a_verb_takes_no_longer_than_its_time_and_can_be_cancelled(broker: ScriptedBroker) -> None:
    broker.on[wire.QUEUES] = lambda _message: SILENCE

    async def main() -> None:
        async with Client(endpoint=broker.endpoint, timeout=0.01) as client:
            await client.ping(SECONDS)
            with pytest.raises(TimeoutError, match="no answer to QUEUES"):
                await client.queues.list()
            verb = asyncio.create_task(client.queues.list())
            await asyncio.sleep(0)
            verb.cancel()
            with pytest.raises(asyncio.CancelledError):
                await verb
            assert await client.ping(SECONDS) > 0
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_nobody_waits_for_a_broker_that_is_not_there() -> None:
    async def main() -> None:
        async with Client(endpoint="tcp://127.0.0.1:1", wait=False) as client:
            with pytest.raises(UnavailableError):
                await client.queues.list()

    asyncio.run(main())


def test_a_verb_that_nobody_awaits_is_named(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with Client(endpoint=broker.endpoint) as client:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                client.queues.pause("mail")  # type: ignore[unused-coroutine]
                gc.collect()
            assert "coroutine 'Queues.pause' was never awaited" in str(seen[0].message)

    asyncio.run(main())
