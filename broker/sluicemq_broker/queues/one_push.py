"""One push by hand, answered when it is stored."""

from __future__ import annotations

import gevent
from gevent.event import AsyncResult

from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push, Queue


def push_one(queue: Queue, job: Job) -> None:
    """Push one job and wait until it is stored; raises the reason for which it was refused."""
    outcome: AsyncResult[SluiceError | None] = AsyncResult()
    queue.intake.push(Push([job], lambda refused, _existing: outcome.set(refused.get(0))))
    try:
        error = outcome.get(timeout=15.0)  # seconds for which somebody waits for MongoDB
    except gevent.Timeout:
        raise UnavailableError(
            "MongoDB does not answer: the job may be pushed now or later, or not"
        ) from None
    if error:
        raise error
