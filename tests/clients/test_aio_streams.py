"""Streams for asyncio: messages are published, read and worked through."""

from __future__ import annotations

import asyncio

import pytest

from clients.scripted_broker import SILENCE, ScriptedBroker
from sluicemq import BadStreamError, Batch, ConflictError, HeldError, Start, TimeoutError
from sluicemq import Subscription as SubscriptionOfThreads
from sluicemq.aio import Publisher, Reader, Subscription
from sluicemq.protocol import wire
from support.own_queue import SECONDS, OwnQueue
from support.waiting import wait_until


async def publish(jobs: OwnQueue, count: int) -> None:
    async with Publisher(endpoint=jobs.endpoint, window=3) as publisher:
        for number in range(1, count + 1):
            await publisher.publish(jobs.queue, "topic", b"%d" % number)


def test_an_awaited_receipt_is_the_number_of_a_durable_message(jobs: OwnQueue) -> None:
    async def main() -> None:
        async with Publisher(endpoint=jobs.endpoint) as publisher:
            assert await (await publisher.publish(jobs.queue, "a", b"")) == 1
            with pytest.raises(ConflictError):
                await (await publisher.publish(jobs.queue, "a", b"", expect=7))
            with pytest.raises(BadStreamError):
                await publisher.publish("no stream", "a", b"")

    asyncio.run(main())


def test_a_stream_is_read_to_its_end_or_followed(jobs: OwnQueue) -> None:
    async def main() -> None:
        await publish(jobs, 10)
        async with Reader(jobs.queue, endpoint=jobs.endpoint) as reader:
            assert [int(message.payload) async for message in reader] == list(range(1, 11))
            assert reader.ended
        start = Start.at(9)
        async with Reader(jobs.queue, start=start, follow=True, endpoint=jobs.endpoint) as reader:
            batch = await reader.read_batch(5, SECONDS)
            assert [message.sequence for message in batch] == [9, 10]
            assert await reader.read(0.01) is None
            waits = asyncio.create_task(reader.read())
            await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            await publish(jobs, 1)
            message = await reader.read(SECONDS)
            assert message is not None
            assert message.sequence == reader.position == 11
            waits = asyncio.create_task(anext(reader))
            await asyncio.sleep(0)
            await reader.close()
            with pytest.raises(StopAsyncIteration):
                await waits
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_reader_raises_what_the_broker_says(jobs: OwnQueue) -> None:
    async def main() -> None:
        async with Reader("no-stream", endpoint=jobs.endpoint) as reader:
            with pytest.raises(BadStreamError):
                await reader.read(SECONDS)

    asyncio.run(main())


def test_a_subscription_works_a_stream_through_by_an_async_handler(jobs: OwnQueue) -> None:
    seen: list[int] = []
    failures = [ValueError("once")]

    async def handle(batch: Batch) -> None:
        await asyncio.sleep(0)
        while failures:
            raise failures.pop()
        seen.extend(message.sequence for message in batch)

    async def main() -> None:
        await publish(jobs, 10)
        async with asyncio.timeout(SECONDS):
            await Subscription(jobs.queue, "s", handle, batch=3, follow=False, endpoint=jobs.endpoint).run()

    asyncio.run(main())
    assert seen == list(range(1, 11))
    (row,) = jobs.client.subscriptions.list(jobs.queue)
    assert row.watermark == 10


def test_a_subscription_stops_behind_its_batch_or_cancels_its_handler(jobs: OwnQueue) -> None:
    async def main(*, cancel: bool) -> bool:
        begun, may_end = asyncio.Event(), asyncio.Event()
        ended = False

        async def handle(_batch: Batch) -> None:
            nonlocal ended
            begun.set()
            await may_end.wait()
            ended = True

        subscription = Subscription(jobs.queue, "s", handle, endpoint=jobs.endpoint)
        run = asyncio.create_task(subscription.run())
        async with asyncio.timeout(SECONDS):
            await begun.wait()
            run.cancel()
            await asyncio.sleep(0)
            if cancel:
                await asyncio.sleep(0)
                run.cancel()
            else:
                may_end.set()
            await asyncio.wait([run])
        return ended

    asyncio.run(publish(jobs, 1))
    assert not asyncio.run(main(cancel=True))
    assert asyncio.run(main(cancel=False))


def test_a_subscription_is_stopped_by_its_handler(jobs: OwnQueue) -> None:
    async def main() -> None:
        async def handle(_batch: Batch) -> None:
            assert not await subscription.stop()

        subscription = Subscription(jobs.queue, "s", handle, endpoint=jobs.endpoint)
        async with asyncio.timeout(SECONDS):
            await subscription.run()
        assert subscription.position == 1

    asyncio.run(publish(jobs, 1))
    asyncio.run(main())


def test_the_error_that_ends_a_subscription_is_raised(jobs: OwnQueue) -> None:
    async def handle(_batch: Batch) -> None:
        raise AssertionError("it has nothing")

    async def main() -> None:
        subscription = Subscription(jobs.queue, "s", handle, wait=False, endpoint=jobs.endpoint)
        with pytest.raises(HeldError):
            await subscription.run()

    asyncio.run(publish(jobs, 1))
    with SubscriptionOfThreads(jobs.queue, "s", lambda _batch: None, endpoint=jobs.endpoint) as first:
        wait_until(lambda: first.position, SECONDS, "the first one holds it")
        asyncio.run(main())


def test_a_publish_waits_for_room_only_so_long(broker: ScriptedBroker) -> None:
    broker.on[wire.PUBLISH] = lambda _message: SILENCE

    async def main() -> None:
        publisher = await Publisher(endpoint=broker.endpoint, window=1, publish_timeout=0.01).start()
        receipt = await publisher.publish("s", "t", b"")
        with pytest.raises(TimeoutError, match="no room after"):
            await publisher.publish("s", "t", b"")
        with pytest.raises(TimeoutError, match="is not confirmed after"):
            await receipt.wait(0.01)
        assert not await publisher.stop(0.01)

    asyncio.run(main())
