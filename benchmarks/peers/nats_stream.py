"""What both drivers of NATS JetStream do alike: connect, make the stream anew, publish batch by batch."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

import nats
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig
from nats.js.errors import NotFoundError
from worker import BATCH, Run

Role = Callable[[Run, JetStreamContext], Awaitable[None]]


def connected(role: Role) -> Callable[[Run], None]:
    """The role with a connection of its own, for ``worker.main``."""

    async def play(run: Run) -> None:
        connection = await nats.connect(f"nats://127.0.0.1:{os.environ['PORT']}")
        await role(run, connection.jetstream(publish_async_max_pending=100_000))
        await connection.flush()
        await connection.close()

    return lambda run: asyncio.run(play(run))


async def made_anew(stream: JetStreamContext, config: StreamConfig) -> None:
    """An empty stream on files."""
    with contextlib.suppress(NotFoundError):
        await stream.delete_stream(config.name)
    await stream.add_stream(config.evolve(storage=StorageType.FILE))


def publish_to(subject: str) -> Role:
    """The role of who publishes, a batch at a time, each confirmed before the next."""

    async def publish(run: Run, stream: JetStreamContext) -> None:
        run.go()
        for batch in run.batches(BATCH):
            await asyncio.gather(*[await stream.publish_async(subject, payload) for payload in batch])

    return publish
