"""NATS JetStream as a log: file storage, kept messages, fetched by a pull consumer that acknowledges none."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig
from nats.js.errors import NotFoundError
from worker import BATCH, Run, main

#: Messages in one fetch: as many as it is quickest with.
FETCH = 1000


def connected(role: Callable[[Run, JetStreamContext], Awaitable[None]]) -> Callable[[Run], None]:
    async def play(run: Run) -> None:
        connection = await nats.connect(f"nats://127.0.0.1:{os.environ['PORT']}")
        await role(run, connection.jetstream(publish_async_max_pending=100_000))
        await connection.flush()
        await connection.close()

    return lambda run: asyncio.run(play(run))


async def reset(_run: Run, stream: JetStreamContext) -> None:
    with contextlib.suppress(NotFoundError):
        await stream.delete_stream("LOG")
    await stream.add_stream(StreamConfig(name="LOG", subjects=["log.>"], storage=StorageType.FILE))


async def publish(run: Run, stream: JetStreamContext) -> None:
    run.go()
    for batch in run.batches(BATCH):
        await asyncio.gather(*[await stream.publish_async("log.topic", payload) for payload in batch])


async def replay(run: Run, stream: JetStreamContext) -> None:
    unacknowledged = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await stream.pull_subscribe("log.>", durable=None, stream="LOG", config=unacknowledged)
    run.go()
    while run.left > 0:
        run.done += len(await subscription.fetch(min(FETCH, run.left), timeout=5))


main(reset=connected(reset), publish=connected(publish), replay=connected(replay))
