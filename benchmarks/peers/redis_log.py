"""A Redis stream as a log, appendfsync always: XADD and XRANGE, in pipelines and pages."""

import os

import redis
from worker import Run, main

PIPELINE, PAGE = 100, 1000
client = redis.Redis("127.0.0.1", int(os.environ["PORT"]))


def reset(_run: Run) -> None:
    client.delete("log")


def publish(run: Run) -> None:
    client.ping()
    run.go()
    for batch in run.batches(PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for payload in batch:
            pipeline.xadd("log", {"topic": "a.topic", "payload": payload})
        pipeline.execute()


def replay(run: Run) -> None:
    client.ping()
    run.go()
    after = "-"
    while run.left > 0:
        page = client.xrange("log", after, count=PAGE)
        run.done += len(page)
        after = b"(" + page[-1][0]


main(reset=reset, publish=publish, replay=replay)
