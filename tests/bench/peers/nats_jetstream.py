"""NATS JetStream: file storage, work queue, explicit acknowledgement. It confirms before its fsync."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError
from worker import BATCH, Run, main


def connected(role: Callable[[Run, JetStreamContext], Awaitable[None]]) -> Callable[[Run], None]:
    async def play(run: Run) -> None:
        connection = await nats.connect(f"nats://127.0.0.1:{os.environ['PORT']}")
        await role(run, connection.jetstream(publish_async_max_pending=100_000))
        await connection.flush()
        await connection.close()

    return lambda run: asyncio.run(play(run))


async def reset(_run: Run, stream: JetStreamContext) -> None:
    with contextlib.suppress(NotFoundError):
        await stream.delete_stream("BENCH")
    storage, retention = StorageType.FILE, RetentionPolicy.WORK_QUEUE
    await stream.add_stream(
        StreamConfig(name="BENCH", subjects=["bench"], storage=storage, retention=retention)
    )
    explicit = ConsumerConfig(durable_name="workers", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=20_000)
    await stream.add_consumer("BENCH", explicit)


async def push_one(run: Run, stream: JetStreamContext) -> None:
    run.go()
    for payload in run.payloads():
        await stream.publish("bench", payload)


async def push(run: Run, stream: JetStreamContext) -> None:
    run.go()
    for batch in run.batches(BATCH):
        await asyncio.gather(*[await stream.publish_async("bench", payload) for payload in batch])


async def work(run: Run, stream: JetStreamContext) -> None:
    subscription = await stream.pull_subscribe("bench", "workers", stream="BENCH")
    run.go()
    fetched = 1  # on an idle queue a fetch of many waits for many
    while run.left > 0:
        with contextlib.suppress(nats.errors.TimeoutError):
            messages = await subscription.fetch(min(fetched, run.left), timeout=1)
            for message in messages:
                run.took(message.data)
                await message.ack()
            run.done += len(messages)
            fetched = BATCH if len(messages) == fetched and not os.environ.get("IDLE") else 1


main(reset=connected(reset), push_one=connected(push_one), push=connected(push), work=connected(work))
