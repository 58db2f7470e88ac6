"""RabbitMQ: durable queue, classic or quorum; persistent, confirmed; prefetch 200, each acknowledged."""

import os

import pika
from worker import BATCH, Run, main

PARAMETERS = pika.ConnectionParameters("127.0.0.1", int(os.environ["PORT"]), heartbeat=0)
PERSISTENT = pika.BasicProperties(delivery_mode=2)
KIND = os.environ.get("QUEUE_KIND", "classic")
QUEUE = f"bench-{KIND}"


def reset(_run: Run) -> None:
    connection = pika.BlockingConnection(PARAMETERS)
    channel = connection.channel()
    channel.queue_delete(QUEUE)
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": KIND})
    connection.close()


def push_one(run: Run) -> None:
    connection = pika.BlockingConnection(PARAMETERS)
    channel = connection.channel()
    channel.confirm_delivery()
    run.go()
    for payload in run.payloads():
        channel.basic_publish("", QUEUE, payload, PERSISTENT)


def push(run: Run) -> None:
    Pipelined(run).push()


def work(run: Run) -> None:
    connection = pika.BlockingConnection(PARAMETERS)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=BATCH)
    run.go()
    for method, _properties, payload in channel.consume(QUEUE, inactivity_timeout=1.0):
        if method is None:
            continue
        run.took(payload)
        channel.basic_ack(method.delivery_tag)
        run.done += 1
        if run.left <= 0:
            break
    connection.process_data_events(0)
    connection.close()


class Pipelined:
    """Publishes with so many unconfirmed; pika's blocking connection can't."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._sent = self._confirmed_to = 0
        self._apart: set[int] = set()

    def push(self) -> None:
        self._connection = pika.SelectConnection(PARAMETERS, on_open_callback=self._opened)
        self._connection.ioloop.start()

    def _opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._ready)

    def _ready(self, channel: pika.channel.Channel) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=self._begin)

    def _begin(self, _frame: object) -> None:
        self._run.go()
        self._payloads = self._run.payloads()
        self._fill()

    def _fill(self) -> None:
        while self._sent - self._confirmations() < BATCH and self._sent < self._run.jobs:
            self._channel.basic_publish("", QUEUE, next(self._payloads), PERSISTENT)
            self._sent += 1

    def _confirmed(self, frame: object) -> None:
        tag, many = frame.method.delivery_tag, frame.method.multiple
        self._apart.add(tag)
        if many:
            self._confirmed_to = max(self._confirmed_to, tag)
            self._apart = {receipt for receipt in self._apart if receipt > tag}
        while self._confirmed_to + 1 in self._apart:
            self._confirmed_to += 1
            self._apart.discard(self._confirmed_to)
        if self._confirmations() >= self._run.jobs:
            self._connection.ioloop.stop()
        elif self._sent - self._confirmations() <= BATCH // 2:
            self._fill()

    def _confirmations(self) -> int:
        return self._confirmed_to + len(self._apart)


main(reset=reset, push_one=push_one, push=push, work=work)
