"""The one table of deliveries: which job is at which worker, and how many more each worker can take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable
from typing import Any, ClassVar, Final

from sluicemq_broker.job import Job
from sluicemq_broker.queue.time_limits import QueueTimeLimits
from sluicemq_broker.queue.worker import Delivery, DeliveryState, LimitedDelivery, Marks, Worker

#: A name here, since it is needed once for each job, and a member of an enum is looked up each time.
_SETTLED: Final = DeliveryState.SETTLED


class Deliveries:
    """Every delivery of one queue that has not ended, and the credit of its workers.

    Nothing else changes the state of a delivery (drawn in :class:`DeliveryState`), what a worker has, whether
    it is ``alone``, or what is counted at the marks of its device. Nothing here calls anybody. A door may
    change how much its worker takes; that is recounted when the worker is offered. ``reopened`` are marks
    that were full, and have room again.
    ``in_flight`` are those whose verdicts are awaited, by their receipts. ``capacity`` is the prefetch of
    all workers that read what they are sent, ``free`` how much of that nobody has filled. Times are
    monotonic seconds.
    """

    #: One count for all queues of this process: a worker of two queues has no receipt twice.
    _numbers: ClassVar = itertools.count(1)

    def __init__(self) -> None:
        self.in_flight: dict[bytes, Delivery] = {}
        self.workers: set[Worker] = set()
        self.capacity = 0
        self.free = 0
        self.reopened: set[Marks] = set()
        self.time_limits = QueueTimeLimits()
        self._overdue: dict[bytes, Delivery] = {}
        self._limited: list[Delivery] = []
        """Deliveries with a hard time limit; some have ended since the last look at them."""

    def attach(self, worker: Worker, now: float) -> None:
        """A worker has come; it is counted when it is offered."""
        worker.since = now
        self.workers.add(worker)

    def isolate(self, worker: Worker) -> None:
        """Give a worker nothing beside an isolated job, which it gets, or for which it runs empty."""
        worker.alone = True
        self.recount(worker)

    def offer(self, worker: Worker) -> None:
        """Recount what a worker takes; one that has nothing left is no longer isolated."""
        if not worker.in_flight:
            worker.alone = False
        self.recount(worker)

    def open(self, worker: Worker, jobs: Iterable[Job], now: float) -> list[Delivery]:
        """Open deliveries of jobs to a worker; of one that pops the jobs leave the queue first."""
        state = DeliveryState.REMOVING if worker.pops else DeliveryState.IN_FLIGHT
        opened: dict[bytes, Delivery] = {}
        owner, prefix, limited = "", b"", bool(self.time_limits)
        for job in jobs:
            if job.reservation.owner != owner:
                owner = job.reservation.owner
                prefix = b"%s-%s" % (owner.encode(), worker.proof)
            receipt = b"%s-%x" % (prefix, next(self._numbers))
            if limited or not (job.soft_time_limit is job.hard_time_limit is None):
                opened[receipt] = self._limited_delivery(job, receipt, worker, now, state)
            else:
                opened[receipt] = Delivery(job, receipt, worker, now, state)
        worker.in_flight.update(opened)
        if not worker.pops:
            self.in_flight.update(opened)
            if worker.marks:
                worker.marks.take([delivery.job for delivery in opened.values()])
        return list(opened.values())

    def has_receipt(self, receipt: bytes) -> bool:
        """Return whether a delivery that is in flight, or overdue, has this receipt."""
        return receipt in self.in_flight or receipt in self._overdue

    def settle(self, receipt: bytes) -> Delivery | None:
        """Return the delivery that a verdict ends; None if it has ended before."""
        delivery = self.in_flight.pop(receipt, None)
        if delivery is None:
            return None
        worker = delivery.worker
        del worker.in_flight[receipt]
        worker.proven = True
        delivery.state = _SETTLED
        if worker.marks:
            self._free_marks(worker.marks, delivery)
        return delivery

    def answered_late(self, receipt: bytes) -> Worker | None:
        """Return the worker of an overdue delivery, whose verdict has come; None if it is not overdue."""
        delivery = self._overdue.get(receipt)
        if delivery is None:
            return None
        self._void(delivery)
        return delivery.worker

    def removed(self, worker: Worker, deliveries: Iterable[Delivery]) -> None:
        """Popped jobs are out of the queue: the credit of their worker is free."""
        for delivery in deliveries:
            if worker.in_flight.pop(delivery.receipt, None):
                delivery.state = DeliveryState.SETTLED
        worker.proven = True

    def at(self, receipt: bytes, worker: Worker) -> Delivery | None:
        """Return the delivery that is under way at this worker; None if it has ended, or is another's."""
        delivery = self.in_flight.get(receipt)
        return delivery if delivery is not None and delivery.worker is worker else None

    def worker_of(self, receipt: bytes) -> Worker | None:
        """Return the worker that has this delivery, in time or not."""
        delivery = self.in_flight.get(receipt) or self._overdue.get(receipt)
        return delivery.worker if delivery else None

    def worker_with(self, job_id: str) -> Worker | None:
        """Return the worker that has this job, if one has."""
        return next(
            (delivery.worker for delivery in self.in_flight.values() if delivery.job.id == job_id), None
        )

    def extend(self, receipt: bytes, worker: Worker, until: float) -> bool:
        """Give a delivery more time; False if this worker does not have it (any more)."""
        delivery = self.at(receipt, worker)
        if delivery is None:
            return False
        delivery.overdue_at = until
        return True

    def time_out(self, now: float, since: float) -> list[Delivery]:
        """Make deliveries overdue whose visibility timeout had passed at ``since``, and return them."""
        late = [delivery for delivery in self.in_flight.values() if delivery.overdue_at <= since]
        for worker in {delivery.worker for delivery in late}:
            worker.note_begun()
        self._make_overdue(late, now)
        return late

    def over_limit(self, now: float, since: float) -> list[Delivery]:
        """Make deliveries overdue whose hard time limit was over at ``since``, and return them."""
        self.begin_limits(now)
        late = [delivery for delivery in self._limited if delivery.limit_at <= since]
        self._make_overdue(late, now)
        return late

    def begin_limits(self, now: float) -> None:
        """Let the hard time limits count of what is at work: what waits at its worker begins later."""
        self._limited = [delivery for delivery in self._limited if delivery.state is DeliveryState.IN_FLIGHT]
        for worker in {delivery.worker for delivery in self._limited}:
            for delivery in worker.under_way():
                if delivery.limit_at == math.inf:
                    delivery.limit_at = now + delivery.hard_limit

    def never_answered(self, since: float) -> list[Delivery]:
        """Void deliveries that were overdue for another timeout at ``since``; the credit stays taken."""
        late = [delivery for delivery in self._overdue.values() if delivery.overdue_at <= since]
        for delivery in late:
            del self._overdue[delivery.receipt]
            delivery.state = DeliveryState.VOID
        return late

    def lose(self, owner: str, now: float) -> list[Delivery]:
        """Make deliveries overdue whose jobs another broker has taken over, and return them."""
        lost = [delivery for delivery in self.in_flight.values() if delivery.job.owner == owner]
        self._make_overdue(lost, now)
        return lost

    def cancel(self, removed: Container[tuple[str, int | None]], now: float) -> list[Delivery]:
        """Make deliveries overdue whose jobs, by id and number, were cancelled, and return them."""
        cancelled = [
            delivery for delivery in self.in_flight.values() if (delivery.job.id, delivery.job.seq) in removed
        ]
        self._make_overdue(cancelled, now)
        return cancelled

    def leave(self, worker: Worker) -> list[Delivery]:
        """A worker has gone: void its deliveries; returns those that were in flight."""
        self.workers.discard(worker)
        worker.gone = True
        left = [
            delivery for delivery in worker.in_flight.values() if self.in_flight.pop(delivery.receipt, None)
        ]
        for delivery in worker.in_flight.values():
            delivery.state = DeliveryState.VOID
        worker.in_flight.clear()
        for delivery in list(worker.overdue.values()):
            self._void(delivery)
        self.recount(worker)
        if worker.marks:
            for delivery in left:
                self._free_marks(worker.marks, delivery)
        return left

    def withdraw(self, now: float) -> list[Delivery]:
        """The broker stops: no verdict counts any more; returns the deliveries that were in flight."""
        withdrawn = list(self.in_flight.values())
        self._make_overdue(withdrawn, now)
        return withdrawn

    def recount(self, worker: Worker) -> None:
        """Recount what a worker takes; nothing is held for a worker that does not read what it is sent."""
        counted = worker.takes
        self.capacity += counted.at_most - worker.counted.at_most
        self.free += counted.now - worker.counted.now
        worker.counted = counted

    def _limited_delivery(self, job: Job, *given: Any) -> Delivery:
        limits = self.time_limits.of_job(job)
        delivery = LimitedDelivery(job, *given, limits=limits) if any(limits) else Delivery(job, *given)
        if delivery.hard_limit < math.inf:
            self._limited.append(delivery)
        return delivery

    def _make_overdue(self, deliveries: list[Delivery], now: float) -> None:
        """Void the receipts; the workers may be at work on the jobs, and have another timeout to answer."""
        for delivery in deliveries:
            worker, receipt = delivery.worker, delivery.receipt
            del self.in_flight[receipt]
            worker.in_flight.pop(receipt, None)
            worker.overdue[receipt] = self._overdue[receipt] = delivery
            delivery.overdue_at = now + delivery.job.visibility_timeout
            delivery.state = DeliveryState.OVERDUE
            if worker.marks:
                self._free_marks(worker.marks, delivery)

    def _free_marks(self, marks: Marks, delivery: Delivery) -> None:
        if marks.give(delivery.job):
            self.reopened.add(marks)

    def _void(self, delivery: Delivery) -> None:
        self._overdue.pop(delivery.receipt, None)
        delivery.worker.overdue.pop(delivery.receipt, None)
        delivery.state = DeliveryState.VOID
