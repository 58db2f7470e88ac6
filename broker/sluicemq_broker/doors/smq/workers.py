"""Workers of the library: those that settle their jobs, and those that pop them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from gevent.event import Event

from sluicemq.protocol import wire
from sluicemq.protocol.rows import WorkerJobRow
from sluicemq_broker.doors.popped_jobs import push_again
from sluicemq_broker.queue import Delivery, Queue, Worker
from sluicemq_broker.store import by_bytes

if TYPE_CHECKING:
    from sluicemq_broker.doors.smq.sessions import Session

#: Bytes of one DELIVER, at most, unless one job alone has more.
MOST_BYTES: Final = 2**20
_SIZE: Final = attrgetter("job.size")


class SessionWorker(Worker):
    """A library worker on one queue: its credit is its prefetch, and a message has many jobs."""

    door = "library"

    def __init__(self, session: Session, queue: Queue, credit: int) -> None:
        super().__init__(session.name, credit, session.caller, session.peer, reads=session.writable)
        self.queue = queue
        self.concurrency = session.concurrency
        self.process = session.process
        self._session = session
        self._number = 0

    def grant(self, credit: int) -> None:
        """Set how many unsettled jobs it may have."""
        self.prefetch = credit
        self.queue.offer(self)

    def await_supply(self, timeout: float) -> None:
        """Block until ready jobs have been sent, as far as its credit goes.

        Ready jobs include those that were claimed for a worker which has just left.
        """
        self.queue.search(lambda: not self.free, timeout)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send jobs, many in a message."""
        for part in by_bytes(deliveries, _SIZE, MOST_BYTES) if deliveries else ():
            self._number += 1
            # The number of a job is the microsecond in which it was accepted.
            jobs = [
                [delivery.receipt, job.id, job.payload, job.headers, job.attempts, job.priority,
                 job.seq / 1e6, job.max_attempts, job.visibility_timeout, *more_about(delivery)]
                for delivery in part
                for job in (delivery.job,)
            ]  # fmt: skip
            alone = (True,) if part[0].job.isolated else ()  # nothing else is in its message
            now = self.queue.clock.now()
            self._session.send(wire.DELIVER, self._number, self.queue.name, jobs, now, *alone)

    def cancelled(self, deliveries: Sequence[Delivery], why: str) -> None:
        """Notify the client that jobs were cancelled, or are over their limit, if it knows of that."""
        if wire.CANCELS in self._session.features:
            self._session.send(
                wire.CANCEL, 0, self.queue.name, [delivery.receipt for delivery in deliveries], why
            )

    def stuck(self) -> tuple[WorkerJobRow, ...]:
        """Return the jobs of former connections that the client's handlers have not ended."""
        found = self._session.assignments.stuck
        return tuple(row for (queue, _), row in found.items() if queue == self.queue.name)

    def stop(self) -> None:
        """Ask the client to end, if it knows of that."""
        if wire.STOPS in self._session.features:
            self._session.send(wire.STOP, 0, self.queue.name)

    def hang_up(self) -> None:
        """Close its session."""
        self._session.hang_up()


class PoppingWorker(SessionWorker):
    """A library worker whose jobs are removed from MongoDB before they are sent: it settles nothing.

    Its credit is how many more jobs it wants: each job that is sent takes one off, and only the client adds
    to it.
    """

    pops = True

    def __init__(self, session: Session, queue: Queue, credit: int) -> None:
        super().__init__(session, queue, credit)
        self._sent = Event()

    def grant(self, credit: int) -> None:
        """Add to the jobs it wants; 0: it wants none."""
        super().grant(self.prefetch + credit if credit else 0)

    def await_supply(self, timeout: float) -> None:
        """Block as other workers do, and until jobs that are being removed for it have been sent."""
        super().await_supply(timeout)
        while self.await_removals(timeout):
            super().await_supply(timeout)

    def await_removals(self, timeout: float) -> bool:
        """Block until jobs that are being removed have been sent; False if none are, or it takes too long."""
        if not self.in_flight:
            return False
        self._sent.clear()
        return bool(self._sent.wait(timeout))

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send jobs that are no longer in MongoDB; if the client has left they are pushed again."""
        if self.gone:
            push_again(self.queue, deliveries, self._session.counters)
        else:
            self.prefetch = max(0, self.prefetch - len(deliveries))
            super().deliver(deliveries)
        self._sent.set()


def more_about(delivery: Delivery) -> tuple[Any, ...]:
    """Return the tenth element of a job that is joined, and the eleventh of one with time limits."""
    joined, limits = delivery.job.joined, delivery.time_limits
    if joined is None:
        return () if limits is None else (None, limits)
    children = [[end.id, None if end.error else end.result, end.error or None] for end in joined]
    return (children,) if limits is None else (children, limits)
