"""A program that is written from the types alone: jobs, results, claims, streams and administration.

``mypy --strict`` and pyright read it without a word. ``python program.py`` runs it, with a broker here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from sluicemq import (
    Batch,
    Client,
    DuplicateError,
    FanOut,
    Forward,
    Job,
    JobState,
    NotFoundError,
    Producer,
    Publisher,
    PushReceipt,
    Reader,
    Reject,
    Requeue,
    Retry,
    SluiceError,
    Start,
    Subscription,
    TimeoutError,
    Worker,
)


class Mail(TypedDict):
    """A payload of the queue ``mail``."""

    to: str
    text: str


def send(job: Job) -> bytes | Forward:
    """Send a mail; each way to end is another verdict on the job."""
    mail: Mail = job.json()
    if not mail["to"]:
        raise Reject("nobody to send it to")
    if mail["to"] == "later":
        raise Retry("the server is busy", delay=timedelta(minutes=5))
    if job.attempt > 3:
        return Forward("letters", priority=9)
    return f"sent to {mail['to']}".encode()


def split(job: Job) -> FanOut:
    """Make a job of each line."""
    if not job.payload:
        raise Requeue(delay="30s")
    lines = job.text().splitlines()
    return FanOut(*(Forward("mail", line.encode()) for line in lines), result=b"%d mails" % len(lines))


def add_up(batch: Batch) -> None:
    """Add the prices of a batch up."""
    total = sum(float(message.payload) for message in batch)
    print(f"prices {batch.first} to {batch.last}: {total}")


def push(producer: Producer) -> list[str]:
    """Push some mails; their ids."""
    refused: list[PushReceipt] = []
    receipts = producer.push_many_values("mail", [Mail(to="ann", text="hello"), Mail(to="bob", text="hello")])
    receipts.append(producer.push_json("mail", Mail(to="cleo", text="hi"), priority=7, ttl="1h30m"))
    for receipt in receipts:
        try:
            receipt.wait(10)
        except DuplicateError as error:
            print(f"{error.id} was there before")
            refused.append(receipt)
        except TimeoutError as error:
            print(f"{error.id} is still on its way")
    return [receipt.id for receipt in receipts if receipt not in refused]


def inspect(client: Client) -> None:
    """Look at the queues, and put right what is wrong."""
    for queue in client.queues.list():
        print(queue.name, queue.ready, queue.dead)
        if queue.dead and client.jobs.list(queue.name, JobState.DEAD, limit=1):
            client.dead_letters.redrive(queue.name, limit=100)
    try:
        print(client.jobs.get("mail", "no-such-job").state)
    except NotFoundError as error:
        print(error)
    with client.jobs.reserve("mail", 10, wait=1) as claim:
        for job in claim:
            job.retry("by hand", delay=60)


def main() -> None:
    """Do all of it."""
    with (
        Worker({"mail": 3, "bulk": 1}, send, concurrency=4),
        Worker(["urgent", "lists"], split, order="strict"),
        Producer() as producer,
        Client(timeout=5) as client,
    ):
        print(push(producer))
        reply = producer.submit_value("mail", Mail(to="dora", text="result?"))
        print(reply.text(10), reply.receipt.existed)
        inspect(client)
    with Publisher() as publisher:
        print(publisher.publish("prices", "eur", b"1.25").wait(10))
    Subscription("prices", "sums", add_up, start=Start.since("2026-01-31T12:00:00Z"), follow=False).run()
    with Reader("prices", start=Start.at(1)) as reader:
        print([message.sequence for message in reader])


if __name__ == "__main__":
    try:
        main()
    except SluiceError as error:
        raise SystemExit(f"{error.code}: {error}") from error
