"""Popped jobs whose worker left before they were sent: these are pushed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.queue import Delivery, Push, Queue
from sluicemq_broker.runtime import Count, Counters


def push_again(queue: Queue, deliveries: Sequence[Delivery], counters: Counters) -> None:
    """Push again popped jobs that were not sent; those that MongoDB still remembers become ready again.

    After ``kill -9`` before this is written they are gone, as popped jobs may be.
    """

    def stored(refused: dict[int, SluiceError], existing: Mapping[int, str]) -> None:
        if refused or existing:  # somebody has pushed a job with its id meanwhile
            missing = len(refused) + len(existing)
            counters.notice(Count.POPPED_LOST, f"{missing} popped jobs could not be stored again")

    stored_jobs = [delivery.job for delivery in deliveries if delivery.kept]
    removed_jobs = [delivery.job for delivery in deliveries if not delivery.kept]
    if stored_jobs:
        counters.add(Count.POPS_UNDONE, len(stored_jobs))
        queue.settling.undo_pop(stored_jobs)
    if removed_jobs:
        counters.add(Count.PUSHED_ANEW, len(removed_jobs))
        for job in removed_jobs:
            job.reset()
        queue.intake.push(Push(removed_jobs, stored))
