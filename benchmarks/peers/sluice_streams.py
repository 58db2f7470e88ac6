"""A stream of SluiceMQ: published by one library publisher, replayed by one reader."""

import os
from secrets import token_hex

from worker import Run, main

from sluicemq import Client, Publisher, Reader

NAME = "bench-peers"
endpoint = os.environ["ENDPOINT"]


def reset(_run: Run) -> None:
    with Publisher(endpoint=endpoint) as publisher, Client(endpoint=endpoint) as client:
        publisher.publish(NAME, token_hex(4), b"").wait()
        client.streams.erase(NAME)


def publish(run: Run) -> None:
    with Publisher(endpoint=endpoint) as publisher:
        publisher.publish("bench-other", "a", b"").wait()  # connected
        run.go()
        for payload in run.payloads():
            publisher.publish(NAME, "a.topic", payload)
        publisher.flush()


def replay(run: Run) -> None:
    with Reader(NAME, endpoint=endpoint) as reader:
        run.go()
        run.done = sum(1 for _ in reader)
    assert run.done == run.jobs, run.done


main(reset=reset, publish=publish, replay=replay)
