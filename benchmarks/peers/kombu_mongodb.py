"""kombu's MongoDB transport, Celery's. It removes jobs when it reads them: a killed worker loses some."""

import contextlib
import os

from kombu import Connection, Consumer, Exchange, Queue
from pymongo import MongoClient
from worker import Run, main

PREFETCH = 100
URL = os.environ["MONGO_URL"].replace("/?", "/bench_kombu?")
# The default looks once a second; that would be all that its latency shows.
OPTIONS = {"polling_interval": 0.01}
queue = Queue("bench", Exchange("bench", type="direct", durable=True), routing_key="bench", durable=True)


def reset(_run: Run) -> None:
    MongoClient(URL).drop_database("bench_kombu")


def push_one(run: Run) -> None:
    """Also for many: each publish is one insert, and the transport pipelines nothing."""
    with Connection(URL, transport_options=OPTIONS) as connection:
        channel = connection.channel()
        queue(channel).declare()
        producer = connection.Producer(channel)
        run.go()
        for payload in run.payloads():
            producer.publish(payload.decode(), exchange="bench", routing_key="bench", serializer="json")


def work(run: Run) -> None:
    def settle(payload: str, message: object) -> None:
        run.took(payload)
        message.ack()
        run.done += 1

    with Connection(URL, transport_options=OPTIONS) as connection:
        channel = connection.channel()
        channel.basic_qos(0, PREFETCH, False)  # noqa: FBT003 - its signature
        with Consumer(channel, [queue], callbacks=[settle], accept=["json"]):
            run.go()
            while run.left > 0:
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=1)


main(reset=reset, push_one=push_one, push=push_one, work=work)
