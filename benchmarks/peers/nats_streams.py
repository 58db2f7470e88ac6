"""NATS JetStream as a log: file storage, kept messages, fetched by a pull consumer that acknowledges none."""

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats_stream import connected, made_anew, publish_to
from worker import Run, main

#: Messages in one fetch: as many as it is quickest with.
FETCH = 1000


async def reset(_run: Run, stream: JetStreamContext) -> None:
    await made_anew(stream, StreamConfig(name="LOG", subjects=["log.>"]))


async def replay(run: Run, stream: JetStreamContext) -> None:
    unacknowledged = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await stream.pull_subscribe("log.>", durable=None, stream="LOG", config=unacknowledged)
    run.go()
    while run.left > 0:
        run.done += len(await subscription.fetch(min(FETCH, run.left), timeout=5))


main(reset=connected(reset), publish=connected(publish_to("log.topic")), replay=connected(replay))
