"""What classes of the library promise, at a real broker: a worker of several queues, starts in a stream."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from sluicemq import Job, Message, Publisher, Reader, Start, Subscription, Worker
from support.own_queue import SECONDS, OwnQueue
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stream(jobs: OwnQueue) -> str:
    """A stream with the messages 1 to 3, and from a later time on 4 to 6."""
    name = token_hex(6)
    with Publisher(endpoint=jobs.endpoint) as publisher:
        for number in range(1, 4):
            publisher.publish(name, "prices", b"%d" % number).wait(SECONDS)
    return name


def published_later(jobs: OwnQueue, stream: str) -> float:
    """Publish three more; a time between."""
    time.sleep(0.05)  # the time of a message is the broker's, in milliseconds
    with Reader(stream, endpoint=jobs.endpoint) as reader:
        last = [message.time for message in reader][-1]
    with Publisher(endpoint=jobs.endpoint) as publisher:
        for number in range(4, 7):
            publisher.publish(stream, "prices", b"%d" % number).wait(SECONDS)
    return last + 0.01


def test_a_reader_begins_where_its_start_says(jobs: OwnQueue, stream: str) -> None:
    between = published_later(jobs, stream)
    for start, first in [(Start.oldest(), 1), (Start.at(3), 3), (Start.at(6), 6), (Start.since(between), 4)]:
        with Reader(stream, start=start, endpoint=jobs.endpoint) as reader:
            assert [message.sequence for message in reader] == list(range(first, 7)), start
    with Reader(stream, start=Start.new(), endpoint=jobs.endpoint) as reader:
        assert list(reader) == []


@pytest.mark.parametrize("name", ["start", "restart"])
def test_a_subscription_begins_where_its_start_says(jobs: OwnQueue, stream: str, name: str) -> None:
    between = published_later(jobs, stream)
    for start, first in [(Start.oldest(), 1), (Start.at(3), 3), (Start.since(between), 4), (Start.new(), 7)]:
        seen: list[Message] = []
        starts: dict[str, Any] = {name: start}
        handler = seen.extend
        Subscription(
            stream, token_hex(6), handler, follow=False, endpoint=jobs.endpoint, timeout=SECONDS, **starts
        ).run()
        assert [message.sequence for message in seen] == list(range(first, 7)), start


def test_one_worker_does_the_jobs_of_several_queues_over_one_connection(jobs: OwnQueue) -> None:
    queues = {f"{jobs.queue}-mail": 3, f"{jobs.queue}-bulk": 1}
    for queue in queues:
        for receipt in jobs.producer.push_many(queue, [b"%d" % at for at in range(60)]):
            receipt.wait(SECONDS)
    begun: list[str] = []
    lock = threading.Lock()

    def handler(job: Job) -> None:
        with lock:
            begun.append(job.queue)
        time.sleep(0.002)

    with Worker(queues, handler, endpoint=jobs.endpoint, prefetch=50, name="both") as worker:
        wait_until(lambda: len(begun) == 120)
        rows = jobs.client.workers()
    assert {row["queue"] for row in rows if "both" in row["name"]} <= set(queues)
    mail, bulk = queues
    first = begun[10:50]  # once both have come
    assert 2 <= first.count(mail) / first.count(bulk) <= 4, first
    assert worker.late == 0
    assert begun.count(mail) == begun.count(bulk) == 60


def test_the_program_that_is_written_from_the_types_runs(jobs: OwnQueue) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples/program/program.py"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"SLUICEMQ_ENDPOINT": jobs.endpoint},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "sent to dora False" in run.stdout
