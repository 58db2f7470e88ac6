"""NATS JetStream: file storage, work queue, explicit acknowledgement. It confirms before its fsync."""

import contextlib
import os

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from nats_stream import connected, made_anew, publish_to
from worker import BATCH, Run, main


async def reset(_run: Run, stream: JetStreamContext) -> None:
    work_queue = StreamConfig(name="BENCH", subjects=["bench"], retention=RetentionPolicy.WORK_QUEUE)
    await made_anew(stream, work_queue)
    explicit = ConsumerConfig(durable_name="workers", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=20_000)
    await stream.add_consumer("BENCH", explicit)


async def push_one(run: Run, stream: JetStreamContext) -> None:
    run.go()
    for payload in run.payloads():
        await stream.publish("bench", payload)


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


push = publish_to("bench")
main(reset=connected(reset), push_one=connected(push_one), push=connected(push), work=connected(work))
