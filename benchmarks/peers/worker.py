"""One process of a peer's run, for all peers in Python: ready, go, one line of JSON.

``python PEER.py ROLE --jobs N [--rate R]``. ROLE is one of

* reset: an empty queue, whatever was there before;
* push_one: push one by one, each confirmed before the next; with a rate, on that schedule;
* together, apart: the same from 32 threads at once, with one connection, or one each;
* push: push with many unconfirmed, until the last is confirmed;
* work: take and settle jobs until there were so many; at least once, so never settled on delivery.

Each peer's file has a function for each role and hands them to ``main``. A job is 200 bytes and
begins with the time at which it was due, so that ``work`` can tell how long it took.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator

SIZE = 200
BATCH = 200


class Run:
    """The part of this process, and its clock."""

    def __init__(self, jobs: int, rate: float | None) -> None:
        self.jobs = jobs
        self.done = 0
        self._rate = rate
        self._times = array("q")
        self._began = 0

    def go(self) -> None:
        """Say that all is ready, and wait for the start."""
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        self._began = int(sys.stdin.readline())
        _sleep_until(self._began)

    def payloads(self) -> Iterator[bytes]:
        """All jobs; with a rate, each at the time when it is due, late ones at once."""
        for number in range(self.jobs):
            due = time.monotonic_ns()
            if self._rate:
                due = self._began + int(number / self._rate * 1e9)
                _sleep_until(due)
            yield b"%020d " % due + b"x" * (SIZE - 21)

    def batches(self, size: int = BATCH) -> Iterator[list[bytes]]:
        """All jobs, so many at a time."""
        batch = []
        for payload in self.payloads():
            batch.append(payload)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    @property
    def left(self) -> int:
        """Jobs that are still to be done."""
        return self.jobs - self.done

    def took(self, payload: bytes | str) -> None:
        """A job is in the worker's hands."""
        self._times.append(time.monotonic_ns() - int(payload[:20]))

    def report(self) -> None:
        """Tell when it was through, and how long each job took, in ms."""
        ended = time.monotonic_ns()
        times = [value / 1e6 for value in self._times]
        print(json.dumps({"ended": ended, "done": self.done or self.jobs, "times": times}), flush=True)


def one_by_one(run: Run, threads: int, push: Callable[[int, bytes], object]) -> None:
    """Each of the threads pushes its share of the jobs, one after the other; returns when all have."""
    waiting = [list(run.payloads())[at::threads] for at in range(threads)]

    def push_all(at: int) -> None:
        for payload in waiting[at]:
            push(at, payload)

    pushing = [threading.Thread(target=push_all, args=(at,)) for at in range(threads)]
    for thread in pushing:
        thread.start()
    for thread in pushing:
        thread.join()


def main(**roles: Callable[[Run], None]) -> None:
    """Play the role that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["reset", *roles])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    run = Run(options.jobs, options.rate)
    roles[options.role](run)
    if options.role != "reset":
        run.report()


def _sleep_until(due: int) -> None:
    if (left := due - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
