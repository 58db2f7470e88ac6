"""Decides which job goes to which worker, in plain values."""

from __future__ import annotations

from collections import deque
from typing import Final

from sluicemq_broker.job import Job
from sluicemq_broker.queue.deliveries import Deliveries
from sluicemq_broker.queue.pace import Pace
from sluicemq_broker.queue.plans import WorkerMessage
from sluicemq_broker.queue.staging import Staging
from sluicemq_broker.queue.times import Expiries
from sluicemq_broker.queue.worker import Delivery, Worker

#: Jobs in one message to a worker, at most: the second message is under way while it works.
MESSAGE: Final = 256
#: Least jobs in one message to a worker that asks for many more: with hundreds of workers one job each
#: would go out alone (70 ms of CPU for 1,000 jobs instead of 22). A share of its prefetch, so that
#: workers of slow jobs, which ask for few, still get them evenly.
SHARE: Final = 16
SHARE_OF_PREFETCH: Final = 8
#: Bytes given to a worker at once, or one job: what its connection does not take lies in its outbox.
MESSAGE_BYTES: Final = 2**20


class HandOut:
    """The workers of one queue, in turn, and the messages that they get of what is staged.

    ``pace`` follows how fast they are. Times are monotonic seconds.
    """

    def __init__(self, staging: Staging, deliveries: Deliveries, pace: Pace, expiries: Expiries) -> None:
        self.staging = staging
        self.deliveries = deliveries
        self.pace = pace
        self.expiries = expiries
        self.takers = Takers()

    def offer(self, worker: Worker) -> None:
        """A worker may have become free."""
        self.deliveries.offer(worker)
        self.takers.add(worker)

    def offer_workers_of(self, deliveries: list[Delivery]) -> None:
        """Offer the workers of these deliveries, and of devices whose marks have room again."""
        for worker in {delivery.worker for delivery in deliveries}:
            self.offer(worker)
        if self.deliveries.reopened:
            reopened, self.deliveries.reopened = self.deliveries.reopened, set()
            for worker in self.deliveries.workers:
                if worker.marks in reopened:
                    self.offer(worker)

    def leave(self, worker: Worker) -> list[Delivery]:
        """A worker has gone; returns the deliveries it leaves unsettled, whose receipts are void now."""
        if worker not in self.deliveries.workers:
            return []
        self.takers.remove(worker)
        left = self.deliveries.leave(worker)
        self.offer_workers_of([])
        return left

    def settle(self, receipt: bytes, now: float) -> Delivery | None:
        """End a delivery by its receipt; None if it is not under way (any more).

        Then call :meth:`offer_workers_of`.
        """
        delivery = self.deliveries.settle(receipt)
        if delivery is None:
            if worker := self.deliveries.answered_late(receipt):
                self.offer(worker)
        elif not self.deliveries.in_flight:
            self.pace.rest(now)
        return delivery

    def time_out(self, now: float, since: float) -> list[Delivery]:
        """End the deliveries whose visibility timeout had passed at ``since``.

        Their workers get nothing more in their place, since they may still be at work on them.
        """
        late = self.deliveries.time_out(now, since)
        self.offer_workers_of(late)
        return late

    def over_limit(self, now: float, since: float) -> list[Delivery]:
        """End the deliveries whose hard time limit was over at ``since``, as :meth:`time_out` does."""
        late = self.deliveries.over_limit(now, since)
        self.offer_workers_of(late)
        return late

    def next_isolated(self, now: float) -> WorkerMessage | None:
        """Decide where the next isolated job goes: to a worker with nothing in flight.

        None: no worker is idle; one is let run empty.
        """
        if worker := self._next_idle():
            self.deliveries.isolate(worker)
            return self._message(worker, [self.staging.take_isolated()], now)
        return None

    def next_message(self, most_bytes: float, now: float) -> WorkerMessage | None:
        """Decide which jobs go out next, and to which worker; None: none do. Then call :meth:`sent`."""
        staging = self.staging
        if not len(staging):
            return None
        while worker := self.takers.next():
            free = worker.free
            if not free:  # what it was offered for has been filled since
                self.deliveries.recount(worker)
                continue
            least = min(SHARE, worker.prefetch // SHARE_OF_PREFETCH)
            share = max(1, least, len(staging) // (1 + len(self.takers)))
            jobs = staging.take(min(free, MESSAGE, share), min(most_bytes, MESSAGE_BYTES))
            return self._message(worker, jobs, now, more=free > len(jobs))
        return None

    def sent(self, message: WorkerMessage) -> None:
        """A message was sent: its worker may take more, or none if its connection is full now."""
        self.deliveries.recount(message.worker)
        if message.more:
            self.takers.add(message.worker)

    # --------------------------------------------------------------- helpers

    def _message(self, worker: Worker, jobs: list[Job], now: float, *, more: bool = False) -> WorkerMessage:
        if not self.deliveries.in_flight:
            self.pace.begin(now)
        if self.expiries:
            self.expiries.forget(jobs)
        size = sum([job.size for job in jobs])
        return WorkerMessage(worker, self.deliveries.open(worker, jobs, now), size, more)

    def _next_idle(self) -> Worker | None:
        """Return a worker with nothing in flight; if there is none, one is let run empty."""
        if worker := self.takers.next_idle():
            return worker
        # One with overdue jobs only can't run empty; one with nothing in flight would be among the takers.
        workers = self.deliveries.workers
        candidates = [
            worker for worker in workers if worker.in_flight and worker.prefetch > len(worker.overdue)
        ]
        if candidates and not any(candidate.alone for candidate in candidates):
            self.deliveries.isolate(min(candidates, key=lambda worker: len(worker.in_flight)))
        return None


class Takers:
    """The line of workers that can take more: those that have answered before come first, in turn."""

    def __init__(self) -> None:
        self._proven: deque[Worker] = deque()
        self._new: deque[Worker] = deque()
        self._lines = (self._proven, self._new)

    def __len__(self) -> int:
        return len(self._proven) + len(self._new)

    def add(self, worker: Worker) -> None:
        """Put a worker at the end, unless it stands in the line."""
        if not worker.waiting:
            worker.waiting = True
            (self._proven if worker.proven else self._new).append(worker)

    def remove(self, worker: Worker) -> None:
        """Take a worker out of the line."""
        if worker.waiting:  # in either line: it may have been proven since
            for line in self._lines:
                if worker in line:
                    line.remove(worker)
            worker.waiting = False

    def next(self) -> Worker | None:
        """Take out the first."""
        for line in self._lines:
            if line:
                worker = line.popleft()
                worker.waiting = False
                return worker
        return None

    def next_idle(self) -> Worker | None:
        """Take out the first that is free and has nothing in flight."""
        for line in self._lines:
            for worker in line:
                if worker.free and not worker.in_flight:
                    line.remove(worker)
                    worker.waiting = False
                    return worker
        return None
