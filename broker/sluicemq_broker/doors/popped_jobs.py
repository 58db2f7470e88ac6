"""Jobs that were removed for a worker which left before they were sent: at most once, but not in vain."""

from __future__ import annotations

from collections.abc import Sequence

from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.queue import Delivery, Push, Queue
from sluicemq_broker.runtime import Count, Counters


def push_again(queue: Queue, deliveries: Sequence[Delivery], counters: Counters) -> None:
    """Push jobs again that were not sent; those that are remembered, and so still there, are ready again.

    ``kill -9`` before that is written: they are gone, as popped jobs may be.
    """

    def stored(refused: dict[int, SluiceError], existing: Sequence[int]) -> None:
        if refused or existing:  # of an id that was pushed again meanwhile there can be one only
            lost = len(refused) + len(existing)
            counters.notice(Count.POPPED_LOST, f"{lost} popped jobs could not be stored again")

    there = [each.job for each in deliveries if each.kept]
    gone = [each.job for each in deliveries if not each.kept]
    if there:
        counters.add(Count.POPS_UNDONE, len(there))
        queue.undo_pop(there)
    if gone:
        counters.add(Count.PUSHED_ANEW, len(gone))
        for job in gone:
            job.reset()
        queue.push(Push(gone, stored))
