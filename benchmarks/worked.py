"""Jobs that are pushed, and worked on by one worker of the library that keeps a book: what benches share."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sluicemq import Job, Producer, Worker
from support.broker_process import BrokerProcess

#: Seconds for all of a bench's jobs.
WAIT = 600.0

#: What is pushed as a job of this number: keywords of ``Producer.push``.
Made = Callable[[int], dict[str, Any]]


class Book:
    """Counts what is done; what else is noted of a job its heirs say."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.done = 0
        self._over = threading.Event()

    def note(self, job: Job) -> None:
        """Called before it counts."""

    def handle(self, job: Job) -> None:
        """The worker's handler."""
        self.note(job)
        self.done += 1
        if self.done == self.jobs:
            self._over.set()

    def wait(self) -> None:
        """Until all are done."""
        if not self._over.wait(WAIT):
            sys.exit(f"{self.done} of {self.jobs} done after {WAIT} s")


def push(broker: BrokerProcess, queue: str, jobs: int, made: Made) -> float:
    """Seconds until so many are confirmed."""
    began = time.monotonic()
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for number in range(jobs):
            producer.push(queue, **made(number))
    return time.monotonic() - began


def work(broker: BrokerProcess, queue: str, book: Book) -> float:
    """Seconds until they are handled."""
    began = time.monotonic()
    with Worker(queue, book.handle, prefetch=1000, endpoint=broker.doors["smq"]):
        book.wait()
        return time.monotonic() - began


def push_and_work(broker: BrokerProcess, queue: str, book: Book, made: Made) -> float:
    """Seconds from the first push to the last job handled, both beside each other."""
    began = time.monotonic()
    pushing = threading.Thread(target=push, args=(broker, queue, book.jobs, made))
    pushing.start()
    work(broker, queue, book)
    took = time.monotonic() - began
    pushing.join()
    return took
