"""32 threads of one process that push to SluiceMQ one by one: through one Producer, or one each."""

import os
from contextlib import ExitStack

from worker import Run, main, one_by_one

from sluicemq import Client, Producer

THREADS = 32
QUEUE = "bench-crowd"
endpoint = os.environ["ENDPOINT"]


def reset(_run: Run) -> None:
    with Client(endpoint=endpoint) as client, Producer(endpoint=endpoint) as producer:
        if QUEUE in {queue.name for queue in client.queues.list()}:
            client.queues.delete(QUEUE).result()
        producer.push(QUEUE, b"").wait()
        client.queues.purge(QUEUE).result()


def together(run: Run) -> None:
    _push(run, 1)


def apart(run: Run) -> None:
    _push(run, THREADS)


def _push(run: Run, count: int) -> None:
    with ExitStack() as stack:
        producers = [stack.enter_context(Producer(endpoint=endpoint)) for _ in range(count)]
        for producer in producers:
            producer.push(QUEUE, b"").wait()  # connected
        run.go()
        one_by_one(run, THREADS, lambda at, payload: producers[at % count].push(QUEUE, payload).wait())


main(reset=reset, together=together, apart=apart)
