"""Jobs in groups: how many a second, beside a plain queue, on one broker with an embedded MongoDB.

    .venv-test/bin/python tests/bench/groups.py [--jobs 40000] [--groups 1000]

Pushed first, then worked on by one worker: what each job takes is its claim, its commit, and the promotion of
the next of its group. Also pushed while they are worked on, from end to end.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from launcher import BrokerProcess
from sluicemq import Job, Producer, Worker

WAIT = 600.0


class Book:
    """Counts what is done, and holds each group to its order."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.done = 0
        self.last: dict[str, int] = defaultdict(lambda: -1)
        self.over = threading.Event()

    def handle(self, job: Job) -> None:
        group, _, number = job.payload.partition(b" ")[0].decode().rpartition("-")
        if group and int(number) <= self.last[group]:
            sys.exit(f"{job.payload!r} came behind {self.last[group]}")
        self.last[group] = int(number)
        self.done += 1
        if self.done == self.jobs:
            self.over.set()


def push(broker: BrokerProcess, queue: str, jobs: int, groups: int) -> float:
    """Seconds until so many are confirmed."""
    began = time.monotonic()
    with Producer(broker.doors["smq"]) as producer:
        for number in range(jobs):
            name = f"g{number % groups}" if groups else None
            payload = f"{name or ''}-{number} ".encode().ljust(200, b".")
            producer.push(queue, payload, group=name)
    return time.monotonic() - began


def work(broker: BrokerProcess, queue: str, book: Book) -> float:
    """Seconds until they are handled."""
    began = time.monotonic()
    with Worker(broker.doors["smq"], queue, book.handle, prefetch=1000):
        if not book.over.wait(WAIT):
            sys.exit(f"{book.done} of {book.jobs} done after {WAIT} s")
        return time.monotonic() - began


def measure(broker: BrokerProcess, name: str, jobs: int, groups: int) -> None:
    """One line of figures."""
    pushed = push(broker, f"{name}-first", jobs, groups)
    worked = work(broker, f"{name}-first", Book(jobs))
    queue, began = f"{name}-beside", time.monotonic()
    pushing = threading.Thread(target=push, args=(broker, queue, jobs, groups))
    pushing.start()
    work(broker, queue, Book(jobs))
    both = time.monotonic() - began
    pushing.join()
    print(
        f"{name:10} push {jobs / pushed:8.0f}/s   claim, commit, promote {jobs / worked:8.0f}/s   "
        f"end to end {jobs / both:8.0f}/s",
        flush=True,
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--groups", type=int, default=1000)
    given = parser.parse_args()
    with BrokerProcess() as broker:
        measure(broker, "plain", given.jobs, 0)
        measure(broker, "grouped", given.jobs, given.groups)


if __name__ == "__main__":
    main()
