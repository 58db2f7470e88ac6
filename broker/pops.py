"""Jobs that were removed for a worker which left before they were sent: at most once, but not in vain."""

from __future__ import annotations

from collections.abc import Sequence

from broker.counters import Counters
from broker.intake import Push
from broker.job import Job
from broker.queue import Queue
from sluicemq.errors import SluiceError


def push_anew(queue: Queue, jobs: Sequence[Job], counters: Counters) -> None:
    """Push jobs again that were not sent; those that are remembered, and so still there, are taken back.

    ``kill -9`` before that is written: they are gone, as popped jobs may be.
    """

    def stored(refused: dict[int, SluiceError], _existing: Sequence[int]) -> None:
        if refused:
            counters.notice("popped_lost", f"{len(refused)} popped jobs could not be stored again")

    if jobs:
        counters.add("pushed_anew", len(jobs))
    queue.settle.take_back([job for job in jobs if job.owner])
    gone = [job for job in jobs if not job.owner]
    for job in gone:
        job.attempts = 0
    if gone:
        queue.push(Push(gone, stored))
