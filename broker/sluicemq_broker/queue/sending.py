"""Sends jobs to the workers that the scheduler has chosen."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.plans import WorkerMessage
from sluicemq_broker.queue.settler import Settler
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime import Alarm, Count, Timing


class JobSender:
    """Hands out jobs, as long as workers take them and there is room for what they have not read."""

    def __init__(self, core: QueueCore, settler: Settler, alarm: Alarm) -> None:
        self._core = core
        self._settler = settler
        self._alarm = alarm
        self._outgoing = core.memory.outgoing
        self._sent = self._outgoing.ration(None)
        self._waits_for_room = False

    def hand_out(self, now: float) -> None:
        """Send what is staged to the workers that are free."""
        scheduler, staging = self._core.scheduler, self._core.scheduler.staging
        while staging.isolated and self._room() and (message := scheduler.hand_out.next_isolated(now)):
            self._send(message)
        # Bytes that are handed out in one turn of the hub: each is copied twice, headers take longer.
        turn = 2 * 2**20
        takers = scheduler.hand_out.takers
        while len(takers) and len(staging) and (room := self._room()):
            if turn <= 0:  # others have their turn first
                self._alarm.set(now)
                return
            message = scheduler.hand_out.next_message(min(turn, room), now)
            if message is None:
                return
            turn -= message.size
            self._send(message)

    def _send(self, message: WorkerMessage) -> None:
        worker, deliveries = message.worker, message.deliveries
        self._count(message)
        if worker.pops:
            self._sent.take(message.size)
            self._core.scheduler.pace.ended(len(deliveries), self._core.timer.now())
            self._settler.pop(deliveries, partial(self._popped, worker, message))
        else:
            worker.deliver(deliveries)
            for delivery in deliveries:
                delivery.job.drop_payload()
        self._core.scheduler.hand_out.sent(message)

    def _count(self, message: WorkerMessage) -> None:
        deliveries, now = message.deliveries, self._core.clock.now()
        self._core.counters.add(Count.DELIVERED, len(deliveries))
        self._core.counters.took(
            Timing.TIME_IN_QUEUE, [now - delivery.job.seq / 1e6 for delivery in deliveries]
        )
        if self._core.events.wanted:
            name = message.worker.name
            about = (
                {"job": delivery.job.id, "attempt": delivery.job.attempts, "worker": name}
                for delivery in deliveries
            )
            self._core.events.emit(Count.DELIVERED, now, about)

    def _popped(self, worker: Worker, message: WorkerMessage, gone: Collection[Delivery]) -> None:
        """Send popped jobs, which are out of the queue now, but for those that were not ours any more."""
        deliveries = message.deliveries
        try:
            worker.deliver(
                [delivery for delivery in deliveries if delivery not in gone] if gone else deliveries
            )
        finally:
            self._sent.release(message.size)
            self._core.scheduler.deliveries.removed(worker, deliveries)
            if not worker.gone:
                self._core.scheduler.hand_out.offer(worker)
                self._core.dispatch()

    def _room(self) -> int:
        """Return the bytes that may go out beside what lies unread; 0: the next job waits for room."""
        if self._waits_for_room:
            return 0
        staging, room = self._core.scheduler.staging, self._outgoing.room
        if staging.bytes <= room or self._sent.fits(staging.first.size):
            return room
        self._waits_for_room = True
        size = staging.first.size
        self._sent.when_room(size, lambda _: self._room_came(size))
        return 0

    def _room_came(self, size: int) -> None:
        self._waits_for_room = False
        self._sent.release(size)
        self._core.dispatch()
