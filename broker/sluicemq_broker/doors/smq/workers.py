"""Workers of the library: what a session takes from a queue, to settle it or at most once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from gevent.event import Event

from sluicemq.protocol import wire
from sluicemq_broker.doors.popped_jobs import push_again
from sluicemq_broker.queue import Delivery, Queue, Worker
from sluicemq_broker.runtime import Counters

#: Bytes of one DELIVER, at most, unless one job alone has more.
MOST_BYTES: Final = 2**20


class Connection(Protocol):
    """The connection through which a worker works."""

    name: str
    peer: str
    counters: Counters
    begins: float
    """How many jobs it works on at once, in the order in which it was given them."""

    @property
    def writable(self) -> bool:
        """True if the client reads what it is sent."""

    def send(self, verb: bytes, number: int, *fields: Any) -> None:
        """Send a message."""

    def hang_up(self) -> None:
        """Close the connection."""


class SessionWorker(Worker):
    """A library worker on one queue: credit is its prefetch, many jobs a message."""

    door = "library"

    def __init__(self, session: Connection, queue: Queue, credit: int) -> None:
        super().__init__(session.name, credit, session.peer)
        self.queue = queue
        self.begins = session.begins
        self._session = session
        self._number = 0

    @property
    def free(self) -> int:
        """Nothing while the client does not read."""
        return super().free if self._session.writable else 0

    @property
    def reads(self) -> bool:
        """False while the client does not read."""
        return self._session.writable

    def grant(self, credit: int) -> None:
        """It wants so many unsettled jobs at most."""
        self.queue.resize(self, credit)

    def await_supply(self, timeout: float) -> None:
        """Block until what lies ready has been sent, as far as its credit goes.

        Also what was claimed beyond the credit of one that took its jobs and left a moment ago.
        """
        self.queue.search(lambda: not self.free, timeout)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send jobs, many in a message."""
        for part in _by_bytes(deliveries):
            self._number += 1
            # What numbers a job among the accepted is the microsecond in which it was.
            jobs = [
                [each.receipt, job.id, job.payload, job.headers, job.attempts, job.priority, job.seq / 1e6,
                 job.max_attempts, job.visibility_timeout]
                for each in part
                for job in (each.job,)
            ]  # fmt: skip
            self._session.send(wire.DELIVER, self._number, self.queue.name, jobs, self.queue.now())

    def hang_up(self) -> None:
        """Close its session."""
        self._session.hang_up()


class PoppingWorker(SessionWorker):
    """A library worker whose jobs are removed before they are sent: it settles nothing.

    So its credit is not what it may have, but how many more it wants: each job that is sent takes
    one off, and only the client adds some.
    """

    pops = True

    def __init__(self, session: Connection, queue: Queue, credit: int) -> None:
        super().__init__(session, queue, credit)
        self._sent = Event()

    @property
    def free(self) -> int:
        """Nothing while jobs are being removed for it: one batch after the other, in order."""
        return 0 if self.in_flight else super().free

    def grant(self, credit: int) -> None:
        """It wants so many jobs more; 0: none at all."""
        self.queue.resize(self, self.prefetch + credit if credit else 0)

    def await_supply(self, timeout: float) -> None:
        """The same; and what is being removed for it has been sent too."""
        super().await_supply(timeout)
        while self.await_removals(timeout):
            super().await_supply(timeout)

    def await_removals(self, timeout: float) -> bool:
        """Block until what is being removed for it has been sent; False if nothing is, or time ran out."""
        if not self.in_flight:
            return False
        self._sent.clear()
        return bool(self._sent.wait(timeout))

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send jobs that are no longer in MongoDB; if the client has left they are pushed anew."""
        if self.gone:
            push_again(self.queue, deliveries, self._session.counters)
        else:
            self.prefetch = max(0, self.prefetch - len(deliveries))
            super().deliver(deliveries)
        self._sent.set()


def _by_bytes(deliveries: Sequence[Delivery]) -> Iterator[list[Delivery]]:
    """In their order, in parts of :data:`MOST_BYTES` at most, or of one."""
    part: list[Delivery] = []
    size = 0
    for delivery in deliveries:
        if part and size + delivery.job.size > MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(delivery)
        size += delivery.job.size
    if part:
        yield part
