"""Workers with plain sockets: how each kind gets its jobs, and how its verdict is known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import gevent

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.config import Envelope
from sluicemq_broker.doors.frames import PROBE
from sluicemq_broker.doors.popped_jobs import push_again
from sluicemq_broker.doors.worker_frames import answer, body, charge_jobs, unreadable
from sluicemq_broker.queue import Delivery, Settlement, Verdict, Worker
from sluicemq_broker.runtime import Count
from sluicemq_devices.sockets import Lane

if TYPE_CHECKING:
    from sluicemq_broker.doors.backends import Backend

#: Seconds of work, at most, on the way to a worker that acknowledges nothing.
TRANSIT: Final = 0.25
#: Jobs on the way to it, at most, with any prefetch: one PONG may commit all of them, in one turn of the hub.
MOST_IN_TRANSIT: Final = 1000


class LaneWorker(Worker):
    """A worker on a connection of its own."""

    def __init__(self, backend: Backend, lane: Lane) -> None:
        super().__init__(lane.peer, backend.prefetch, lane.who, marks=backend.marks, reads=lane.writable)
        self._backend = backend
        self._queue = backend.queue
        self._lane = lane
        self._full = backend.settings.envelope == Envelope.FULL
        lane.on(
            receive=self._receive,
            closed=self._closed,
            blocked=partial(self._queue.stalled, self),
            unblocked=partial(self._queue.offer, self, reads=True),
        )

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Count and send jobs."""
        self._backend.sent += len(deliveries)
        self._lane.post([self._frames(delivery) for delivery in deliveries])

    def hang_up(self) -> None:
        """Close its connection."""
        self._lane.close()

    def _frames(self, delivery: Delivery) -> list[bytes]:
        return body(delivery.job, full=self._full)

    def _receive(self, messages: list[list[bytes]]) -> None:
        """Ignore messages: a PULL socket sends none."""

    def _closed(self) -> None:
        self._queue.settling.worker_gone(self, seen=self._lane.cut_for)


class RepWorker(LaneWorker):
    """A REP socket: it has one job or none.

    A REP socket gives back the frames before the empty one, so the receipt goes there and the answer names
    its job. libzmq sends an answer to a question of a connection that has ended on the next connection.
    Sockets of other kinds, and answers without a receipt, are about the job that the worker has::

        [receipt][empty][payload]  ──▶  REP  ──▶  [receipt][empty][result]
                 [empty][payload]  ──▶  DEALER, ROUTER  ──▶  [empty][result]
    """

    door = "REP"
    _has_answered = False

    def __init__(self, backend: Backend, lane: Lane) -> None:
        super().__init__(backend, lane)
        self._returns_receipt = lane.zmtp.peer_kind == b"REP"

    def _frames(self, delivery: Delivery) -> list[bytes]:
        frames = [b"", *super()._frames(delivery)]
        return [delivery.receipt, *frames] if self._returns_receipt else frames

    def _receive(self, messages: list[list[bytes]]) -> None:
        for frames in messages:
            if frames == PROBE and not self._has_answered:
                self._backend.counters.add(Count.PROBES)
                continue
            self._has_answered = True
            receipt = frames[0] if self._returns_receipt else b""
            verdict = self._answer(receipt, frames[2:] if receipt else frames[1:])
            if verdict is not None:
                charge_jobs(self._lane.who, [verdict])
                self._queue.settling.settle([verdict], Settlement())

    def _answer(self, receipt: bytes, frames: list[bytes]) -> Verdict | None:
        """Return the verdict in an answer; None where no job of this worker is meant."""
        known = {**self.in_flight, **self.overdue}
        delivery = known.get(receipt or next(iter(known), b""))
        if receipt and delivery is None:
            self._backend.counters.add(Count.LATE_VERDICTS)
            return None
        if delivery is None:
            self._lane.blame()
            self._bad_verdict(f"worker {self.name} answered without a job")
            return None
        return self._verdict(delivery, frames)

    def _verdict(self, delivery: Delivery, frames: list[bytes]) -> Verdict:
        try:
            return answer(delivery.receipt, frames)
        except SluiceError as error:
            self._bad_verdict(f"worker {self.name}, job {delivery.job.id}: {error}")
            return unreadable(delivery.receipt, error)

    def _bad_verdict(self, text: str) -> None:
        self._backend.counters.notice(Count.BAD_VERDICTS, text)


class PullWorker(LaneWorker):
    """A PULL socket that commits: it gets ``[receipt][payload]`` or ``[receipt][id][headers][payload]``.

    With the setting ``cancels`` it also gets ``[CANCEL][receipt][why]``. No receipt is that word.
    """

    door = "PULL"

    def cancelled(self, deliveries: Sequence[Delivery], why: str) -> None:
        """Notify it, if its device says that it knows of that."""
        if self._backend.settings.cancels:
            self._lane.post([[wire.CANCEL, delivery.receipt, why.encode()] for delivery in deliveries])

    def _frames(self, delivery: Delivery) -> list[bytes]:
        return [delivery.receipt, *super()._frames(delivery)]

    def _closed(self) -> None:
        self.gone = True
        # Seconds after the end of a worker's connection in which its last commits are read at the commit
        # door.
        gevent.spawn_later(0.020, super()._closed)


class ArrivalWorker(LaneWorker):
    """A PULL socket that acknowledges nothing: a job is committed when its ZeroMQ has read it.

    Jobs that are not committed when its connection ends go to other workers. It gets as many jobs at a time
    as arrive within :data:`TRANSIT`, at first one: a slow worker, with its RCVHWM full already, keeps few
    jobs from the others.
    """

    door = "PULL"

    commits_on_arrival = True

    def __init__(self, backend: Backend, lane: Lane) -> None:
        super().__init__(backend, lane)
        self._window = Window(self.prefetch)
        self.prefetch = self._window.size

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Count and send jobs, and ask for their arrival."""
        self._backend.sent += len(deliveries)
        arrived = partial(
            self._arrived,
            [delivery.receipt for delivery in deliveries],
            len(self.in_flight),
            deliveries[0].handed_at,
        )
        self._lane.post([self._frames(delivery) for delivery in deliveries], arrived)

    def _arrived(self, receipts: list[bytes], in_transit: int, sent: float) -> None:
        self._window.arrived(in_transit, self._backend.now() - sent)
        self.prefetch = self._window.size
        self._queue.settling.settle([Verdict(receipt, wire.COMMIT) for receipt in receipts], Settlement())


class Window:
    """How many jobs may be on the way to one worker: as many as arrive within :data:`TRANSIT`."""

    def __init__(self, most: int) -> None:
        self.size = 1
        self._most = min(most, MOST_IN_TRANSIT)

    def arrived(self, in_transit: int, seconds: float) -> None:
        """Note how long the last of some jobs took to arrive; the window at most doubles."""
        within = in_transit * TRANSIT / max(seconds, 1e-6)
        self.size = max(1, min(self._most, 2 * self.size, int(within)))


class PopWorker(LaneWorker):
    """A PULL socket without acknowledgement: its jobs are removed from MongoDB before they are sent.

    Jobs that the kernel has not taken when the connection ends are pushed again. Only those on the wire
    are lost.
    """

    door = "PULL"

    pops = True

    def __init__(self, backend: Backend, lane: Lane) -> None:
        super().__init__(backend, lane)
        self._popped: list[Delivery] = []
        self._posted: list[Delivery] = []  # the lane has these; its backlog says how many are not sent
        lane.on(unblocked=self._flush)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send jobs that are no longer in MongoDB."""
        self._popped.extend(deliveries)
        self._flush()

    def _flush(self) -> None:
        if self.gone:
            self._push_again()
            return
        if self._popped and self._lane.writable:
            self._posted, self._popped = self._popped, []
            self._backend.sent += len(self._posted)
            self._lane.post([self._frames(delivery) for delivery in self._posted])
        if self._lane.writable:
            self._posted = []
        self._queue.offer(self, reads=self._lane.writable)

    def _closed(self) -> None:
        # Jobs that are being removed for it now come to `deliver`, and are pushed again there.
        super()._closed()
        self._push_again()

    def _push_again(self) -> None:
        unsent = self._posted[len(self._posted) - self._lane.backlog :] + self._popped
        self._posted, self._popped = [], []
        push_again(self._queue, unsent, self._backend.counters)
