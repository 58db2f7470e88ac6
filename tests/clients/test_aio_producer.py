"""Producers for asyncio: pushes, receipts and results are awaited, and cancelled, without a trace left."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from clients.scripted_broker import SECONDS, SILENCE, Received, ScriptedBroker
from sluicemq import BadQueueError, QueueFullError, TimeoutError, Worker
from sluicemq.aio import Producer
from sluicemq.protocol import wire
from support.own_queue import OwnQueue


def ids(message: Received) -> list[str]:
    return [row[0] for row in message.fields[1]]


def test_an_awaited_receipt_is_of_a_job_that_is_stored(jobs: OwnQueue) -> None:
    async def main() -> None:
        async with Producer(endpoint=jobs.endpoint) as producer:
            receipt = await producer.push(jobs.queue, b"one", id="mine")
            await receipt
            assert receipt.done
            again = await producer.push(jobs.queue, b"one", id="mine")
            await again.wait(SECONDS)
            assert again.existed

    asyncio.run(main())
    assert jobs.client.queues.get(jobs.queue).ready == 1


def test_many_tasks_push_at_one_time_and_each_awaits_its_own(jobs: OwnQueue) -> None:
    async def main() -> None:
        async with Producer(endpoint=jobs.endpoint, window=10) as producer, asyncio.TaskGroup() as tasks:

            async def push(number: int) -> None:
                await (await producer.push(jobs.queue, b"%d" % number))

            for number in range(100):
                tasks.create_task(push(number))

    asyncio.run(main())
    assert jobs.client.queues.get(jobs.queue).ready == 100


def test_jobs_of_a_block_are_stored_when_it_ends_in_the_order_of_their_pushes(jobs: OwnQueue) -> None:
    async def main() -> None:
        async with Producer(endpoint=jobs.endpoint, window=7) as producer:
            await producer.push_many(jobs.queue, [b"%d" % number for number in range(20)])
            await producer.push_json(jobs.queue, {"last": True})

    asyncio.run(main())
    popped = jobs.client.jobs.pop(jobs.queue, 100, wait=SECONDS / 60)
    assert [job.payload for job in popped[:-1]] == [b"%d" % number for number in range(20)]
    assert popped[-1].value() == {"last": True}


def test_a_result_is_awaited(jobs: OwnQueue) -> None:
    async def main() -> list[bytes]:
        async with Producer(endpoint=jobs.endpoint) as producer:
            replies = [await producer.submit(jobs.queue, b"%d" % number) for number in range(3)]
            results = [await reply for reply in replies]
            return [*results, await producer.call(jobs.queue, b"last", SECONDS)]

    with Worker(jobs.queue, lambda job: job.payload * 2, endpoint=jobs.endpoint):
        assert asyncio.run(main()) == [b"00", b"11", b"22", b"lastlast"]


def refuse(message: Received) -> object:
    return [(position, "QUEUE_FULL", "no") for position, _ in enumerate(message.fields[1])]


def test_no_refusal_is_lost(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = refuse
    heard: list[str] = []

    async def main() -> None:
        async with Producer(endpoint=broker.endpoint) as producer:
            with pytest.raises(QueueFullError):
                await (await producer.push("q", b"seen"))
        with pytest.raises(QueueFullError, match="1 jobs were refused"):
            async with Producer(endpoint=broker.endpoint) as producer:
                await producer.push("q", b"unseen")
        async with Producer(
            endpoint=broker.endpoint, on_refused=lambda receipt, _: heard.append(receipt.id)
        ) as producer:
            await producer.push("q", b"heard", id="heard")

    asyncio.run(main())
    assert heard == ["heard"]


def test_a_wait_ends_after_its_time_and_its_receipt_can_be_awaited_again(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE

    async def main() -> None:
        producer = await Producer(endpoint=broker.endpoint).start()
        receipt = await producer.push("q", b"")
        with pytest.raises(TimeoutError, match="is not confirmed after"):
            await receipt.wait(0.01)
        waits = asyncio.create_task(receipt.wait())
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert not receipt.done
        with pytest.raises(TimeoutError, match="1 jobs are not confirmed"):
            await producer.close(0.01)

    asyncio.run(main())


def test_a_push_that_is_cancelled_while_it_waits_for_room_pushes_nothing(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE

    async def main() -> None:
        producer = await Producer(endpoint=broker.endpoint, window=1, push_timeout=SECONDS).start()
        await producer.push("q", b"", id="first")
        second, third = (asyncio.create_task(producer.push("q", b"", id=name)) for name in ("2nd", "3rd"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert producer.unconfirmed == 1
        closing = asyncio.create_task(producer.close(0.01))
        with pytest.raises(ValueError, match="push to a closed producer"):
            await third
        with pytest.raises(TimeoutError):
            await closing

    asyncio.run(main())
    assert [job_id for message in broker.of(wire.PUSH) for job_id in ids(message)] == ["first"]


def test_a_push_without_room_raises_after_its_time(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE

    async def main() -> None:
        producer = await Producer(endpoint=broker.endpoint, window=1, push_timeout=0.01).start()
        await producer.push("q", b"")
        with pytest.raises(TimeoutError, match="no room after"):
            await producer.push("q", b"")
        assert not await producer.stop(0.01)

    asyncio.run(main())


def test_a_call_that_is_cancelled_asks_for_no_result(broker: ScriptedBroker) -> None:
    broker.on[wire.PUSH] = lambda _message: SILENCE

    async def main() -> None:
        producer = await Producer(endpoint=broker.endpoint).start()
        call = asyncio.create_task(producer.call("q", b"", SECONDS))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(TimeoutError, match="has no result after"):
            await producer.call("q", b"", 0.01)
        await producer.stop(0.01)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_leaving_a_block_by_a_cancel_still_waits_for_confirmations(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with Producer(endpoint=broker.endpoint) as producer:
            await producer.push("q", b"", id="mine")
            await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.create_task(main())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert [job_id for message in broker.of(wire.PUSH) for job_id in ids(message)] == ["mine"]


def test_a_producer_whose_loop_was_closed_is_flushed_when_it_is_closed(broker: ScriptedBroker) -> None:
    async def main() -> Producer:
        producer = await Producer(endpoint=broker.endpoint).start()
        await producer.push("q", b"")
        return producer

    producer = asyncio.run(main())
    core = producer._core  # noqa: SLF001 - what is closed at the program's end
    core.close(SECONDS)
    assert core.unconfirmed == 0


def test_a_wrong_argument_raises_at_the_push(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with Producer(endpoint=broker.endpoint) as producer:
            with pytest.raises(BadQueueError):
                await producer.push("no queue", b"")
            with pytest.raises(TypeError, match="payload is bytes"):
                await producer.push("q", "text")  # type: ignore[arg-type]
            receipts = await producer.push_many("q", [b"right", "wrong"])  # type: ignore[list-item]
            await receipts[0]
            with pytest.raises(Exception, match="payload"):
                await receipts[1]

    asyncio.run(main())


def test_a_push_that_nobody_awaits_warns(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with Producer(endpoint=broker.endpoint) as producer:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                producer.push("q", b"")  # type: ignore[unused-coroutine]
                gc.collect()
            assert "coroutine 'Producer.push' was never awaited" in str(seen[0].message)

    asyncio.run(main())
