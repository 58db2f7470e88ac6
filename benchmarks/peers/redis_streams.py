"""Redis streams with a consumer group, appendfsync always; push and work in pipelines of 100."""

import os

import redis
from worker import Run, main

PIPELINE = 100
client = redis.Redis("127.0.0.1", int(os.environ["PORT"]))


def reset(_run: Run) -> None:
    client.delete("bench")
    client.xgroup_create("bench", "workers", id="0", mkstream=True)


def push_one(run: Run) -> None:
    client.ping()
    run.go()
    for payload in run.payloads():
        client.xadd("bench", {"payload": payload})


def push(run: Run) -> None:
    client.ping()
    run.go()
    for batch in run.batches(PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for payload in batch:
            pipeline.xadd("bench", {"payload": payload})
        pipeline.execute()


def work(run: Run) -> None:
    client.ping()
    run.go()
    while run.left > 0:
        found = client.xreadgroup("workers", "me", {"bench": ">"}, count=min(PIPELINE, run.left), block=1000)
        entries = _entries(found)
        for _id, fields in entries:
            run.took(fields[b"payload"])
        if entries:
            _settle([entry[0] for entry in entries])
        run.done += len(entries)


def _entries(found: object) -> list:
    """Of the one stream; how it is wrapped depends on the version of the client."""
    if not found:
        return []
    entries = found[0][1] if isinstance(found, list) else next(iter(found.values()))
    return entries[0] if entries and isinstance(entries[0], list) else entries


def _settle(ids: list) -> None:
    pipeline = client.pipeline(transaction=False)
    pipeline.xack("bench", "workers", *ids)
    pipeline.xdel("bench", *ids)
    pipeline.execute()


main(reset=reset, push_one=push_one, push=push, work=work)
