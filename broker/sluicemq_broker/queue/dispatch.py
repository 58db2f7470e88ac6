"""Who gets which job: what is staged, which workers are free. Nothing here blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from sluicemq_broker.context import Context
from sluicemq_broker.job import Job
from sluicemq_broker.queue.deliveries import Deliveries
from sluicemq_broker.queue.expiries import Expiries
from sluicemq_broker.queue.gate import Gate
from sluicemq_broker.queue.groups import Groups
from sluicemq_broker.queue.limits import Limits
from sluicemq_broker.queue.order import order_of
from sluicemq_broker.queue.pace import UNKNOWN, Pace
from sluicemq_broker.queue.reservations import Reservations
from sluicemq_broker.queue.staging import Staging
from sluicemq_broker.queue.supply import Supply
from sluicemq_broker.queue.takers import Takers
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime import Count, Timing
from sluicemq_broker.store import QueueStore
from sluicemq_devices.hub import NEXT_TURN

#: Jobs in one message to a worker, at most: the second message is under way while it works.
MESSAGE: Final = 256
#: Least jobs in one message to a worker that asks for many more: with hundreds of workers one job each
#: would go out alone (70 ms of CPU for 1,000 jobs instead of 22). A share of its prefetch, so that
#: workers of slow jobs, which ask for few, still get them evenly.
SHARE: Final = 16
SHARE_OF_PREFETCH: Final = 8
#: Bytes given to a worker at once, or one job: what its connection does not take lies in its outbox.
MESSAGE_BYTES: Final = 2**20
#: Bytes of jobs held for the workers of one queue, at most (and what one claim brings beyond).
STAGED_BYTES: Final = 32 * 2**20
#: Bytes that are handed out in one turn of the hub: each is copied twice, headers take longer.
TURN_BYTES: Final = 2 * 2**20


class Outlet(Protocol):
    """What a queue does with jobs that are not handed to a worker: give them back, pop, end them."""

    def pop(self, worker: Worker, deliveries: list[Delivery]) -> None:
        """Remove these durably, then deliver them."""

    def release(self, jobs: list[Job]) -> None:
        """No worker has started these: they go back to ``ready``."""

    def claimed(self) -> None:
        """Jobs were reserved: the queue may have room for others."""

    def died(self, ids: Iterable[str]) -> None:
        """These became dead letters when they were claimed."""

    def time_is_over(self, ids: Iterable[str]) -> None:
        """The time to live of these is over: end those that lie ready."""


class Dispatch:
    """One queue's jobs in this broker's memory, and its workers.

    ``held`` is what is reserved here, ``deliveries`` what of that is at workers, ``supply`` whence it comes,
    ``expiries`` when what waits has waited too long, ``groups`` whose turn it is.
    """

    def __init__(self, store: QueueStore, context: Context, outlet: Outlet, limits: Limits) -> None:
        self._clock = context.clock
        self._counters = context.counters
        self._events = context.events
        self._memory = context.memory
        self._timer = context.timer
        self._outlet = outlet
        self.held = Reservations()
        self.deliveries = Deliveries()
        self.pace = Pace(context.timer)
        self.supply = Supply(store, context, self, self.held, limits)
        self._limits = limits
        self.expiries = Expiries(context, self._end)
        self.groups = Groups(store, context, self.supply, self._end)
        self.gate = Gate(context, self)
        self._store = store
        self._staged = Staging(self._memory, order_of(store.defaults))
        self._takers = Takers(self.deliveries.recount)
        self._outgoing = context.memory.outgoing
        self._sent = self._outgoing.ration(None)
        self._waits_for_room = False
        self._later = False  # the rest of what is staged is handed out in the next turn

    # ---------------------------------------------------------------- supply

    @property
    def granting(self) -> bool:
        """True if jobs may be handed out, and somebody is there to take them."""
        return self.deliveries.capacity > 0 and self.gate.open

    @property
    def staged(self) -> int:
        """How many jobs are held for workers."""
        return len(self._staged)

    @property
    def room(self) -> int:
        """How many more jobs to hold: what workers can take now, and a short queue for when they are done.

        Without that queue where jobs are limited: what waits here would keep others from running.
        """
        held = self._staged.bytes
        if not self.deliveries.capacity or held >= STAGED_BYTES or (held and self._memory.stages_no_more):
            return 0
        ahead = 0 if self._limits.active else self.pace.appetite
        return self.deliveries.free + ahead - len(self._staged)

    @property
    def room_bytes(self) -> int:
        """The same in bytes of payloads and headers."""
        return min(self._memory.claim, max(1, STAGED_BYTES - self._staged.bytes))

    def stage(self, jobs: list[Job]) -> None:
        """Hold jobs that this broker has reserved, and hand out what can be."""
        self.held.add(jobs)
        self._staged.add(jobs)
        self.expiries.watch(jobs)
        self._outlet.claimed()
        self.hand_out()

    def died(self, ids: Iterable[str], groups: Iterable[str]) -> None:
        """These became dead letters when they were claimed, and were the first of their groups."""
        self.groups.freed(groups)
        self._outlet.died(ids)

    # ---------------------------------------------------------------- demand

    def attach(self, worker: Worker) -> None:
        """A worker has come."""
        self.deliveries.attach(worker, self._timer.now())
        self.offer(worker)

    def resize(self, worker: Worker, prefetch: int) -> None:
        """A worker has changed how much it takes."""
        worker.prefetch = prefetch
        self.offer(worker)

    def detach(self, worker: Worker) -> list[Delivery]:
        """A worker has gone; returns the deliveries it leaves unsettled, whose receipts are void now."""
        if worker not in self.deliveries.workers:
            return []
        self._takers.remove(worker)
        left = self.deliveries.leave(worker)
        self.hand_out()
        return left

    def offer(self, worker: Worker) -> None:
        """A worker may have become free."""
        self.deliveries.offer(worker)
        self._takers.add(worker)
        self.hand_out()

    def hand_out(self) -> None:
        """Give what is staged to who is free, then see to more."""
        if self.gate.closed:
            return
        if self.gate.paused or not self.deliveries.capacity:
            self._release(self._staged.clear())  # nobody is here, others may have workers
            return
        if self._staged.soonest < math.inf:
            self._release(self._staged.take_expired(self._clock.now()))
        while self._staged.isolated and self._room() and (worker := self._next_idle()):
            self.deliveries.isolate(worker)
            self._give(worker, [self._staged.take_isolated()])
        self._hand_out_in_order()
        self.supply.refill()

    def _hand_out_in_order(self) -> None:
        """The next jobs to the next workers, as many at a time as make a good message."""
        room = TURN_BYTES
        while len(self._staged) and (most := self._room()) and (taker := self._takers.next()):
            worker, free = taker
            if room <= 0:
                self._takers.add(worker)
                self._go_on_later()
                return
            least = min(SHARE, worker.prefetch // SHARE_OF_PREFETCH)
            share = max(1, least, len(self._staged) // (1 + len(self._takers)))
            before = self._staged.bytes
            jobs = self._staged.take(min(free, MESSAGE, share), min(room, MESSAGE_BYTES, most))
            room -= before - self._staged.bytes
            self._give(worker, jobs)
            if free > len(jobs):
                self._takers.add(worker)

    def _room(self) -> int:
        """Return the bytes that may go out beside what lies unread; 0: the next job waits for room."""
        if self._waits_for_room:
            return 0
        room = self._outgoing.room
        if self._staged.bytes <= room or self._sent.fits(self._staged.first.size):
            return room
        self._waits_for_room = True
        size = self._staged.first.size
        self._sent.when_room(size, lambda _: self._room_came(size))
        return 0

    def _room_came(self, size: int) -> None:
        self._waits_for_room = False
        self._sent.release(size)
        self.hand_out()

    def _go_on_later(self) -> None:
        """What is staged is too much for one turn of the hub: others have theirs first."""
        if not self._later:
            self._later = True
            self._timer.after(NEXT_TURN, self._go_on)

    def _go_on(self) -> None:
        self._later = False
        self.hand_out()

    # -------------------------------------------------------------- delivery

    def settle(self, receipt: bytes) -> Delivery | None:
        """End a delivery by its receipt; None if it is not under way (any more).

        Then :meth:`offer` its worker.
        """
        delivery = self.deliveries.settle(receipt)
        if delivery is None:
            if worker := self.deliveries.answered_late(receipt):
                self.offer(worker)
        elif not self.deliveries.in_flight:
            self.pace.rest()
        return delivery

    def popped(self, worker: Worker, deliveries: list[Delivery], gone: Collection[Delivery]) -> None:
        """What a worker pops is out of the queue: send it, but what was not ours any more (``gone``)."""
        try:
            worker.deliver([each for each in deliveries if each not in gone] if gone else deliveries)
        finally:
            self._sent.release(sum([each.job.size for each in deliveries]))
            self.deliveries.removed(worker, deliveries)
            if not worker.gone:
                self.offer(worker)

    def time_out(self) -> list[Delivery]:
        """End the deliveries whose visibility timeout has passed.

        Their workers get nothing more in their place, since they may still be at work on them; one
        that has not answered after as long again is hung up on.
        """
        now = self._timer.now()
        for delivery in self.deliveries.never_answered(now):
            job, worker = delivery.job, delivery.worker.name
            text = f"worker {worker} never answered job {job.id}"
            about = {"job": job.id, "worker": worker, "attempt": job.attempts}
            self._counters.notice(Count.WORKERS_HUNG_UP, text, about=about)
            delivery.worker.hang_up()
        late = self.deliveries.time_out(now)
        self._offer_workers_of(late)
        return late

    def extend(self, receipt: bytes, worker: Worker, seconds: float) -> bool:
        """Give a delivery more time, from now; False if this worker does not have it (any more)."""
        return self.deliveries.extend(receipt, worker, self._timer.now() + seconds)

    def forget(self, jobs: Iterable[Job]) -> None:
        """These jobs are no longer held by this broker."""
        gone = list(jobs)
        self.held.remove(gone)
        if self._limits.active:
            self.supply.ended(gone)

    def drop(self, owner: str) -> None:
        """Another broker has taken what was held under this owner id: forget it, void its receipts."""
        self._staged.drop(owner)
        self.forget(self.held.under(owner))
        lost = self.deliveries.lose(owner, self._timer.now())
        self._counters.add(Count.TAKEN_AWAY, len(lost))
        self._offer_workers_of(lost)

    def follow_order(self) -> None:
        """The queue's settings say another order."""
        self._staged.follow(order_of(self._store.defaults))

    # -------------------------------------------------------------- stopping

    def withdraw(self) -> list[Job]:
        """Take everything out of staging; what is at workers stays with them."""
        return self._staged.clear()

    def stop_granting(self, timeout: float) -> bool:
        """Hand out and claim no more; returns when no claim is under way, False if time ran out before."""
        self.gate.stop()
        self.supply.refill()
        return self.supply.at_rest(timeout)

    def pause(self, *, paused: bool) -> None:
        """Hand out nothing, and give back what is staged, until it is resumed; who has jobs goes on."""
        self.gate.pause(paused=paused)
        self.hand_out()

    def tick(self) -> None:
        """Every second or so: follow the pace of the workers, look for jobs of other brokers."""
        self.pace.tick(working=bool(self.deliveries.in_flight))
        self.hand_out()
        if not self.supply.under_way:
            # What workers won't come to within a second others may have; not while later jobs are on
            # their way here, which would overtake those.
            ahead = UNKNOWN if self.pace.rate is None else int(self.pace.rate)
            self._release(self._staged.take_last(len(self._staged) - self.deliveries.free - ahead))
        self.supply.tick()

    # --------------------------------------------------------------- helpers

    def _release(self, jobs: list[Job]) -> None:
        if jobs:
            self._outlet.release(jobs)

    def _end(self, ids: list[str]) -> None:
        """End what has expired; what is staged goes back first, for nothing expires that is reserved."""
        self._release(self._staged.take_expired(self._clock.now()))
        self._outlet.time_is_over(ids)

    def _offer_workers_of(self, deliveries: list[Delivery]) -> None:
        for worker in {each.worker for each in deliveries}:
            self.offer(worker)

    def _next_idle(self) -> Worker | None:
        """A worker with nothing in flight; if there is none, one is let run empty."""
        if worker := self._takers.next_idle():
            return worker
        # One with overdue jobs only can't run empty; one with nothing in flight would be among the takers.
        workers = self.deliveries.workers
        candidates = [each for each in workers if each.in_flight and each.prefetch > len(each.overdue)]
        if candidates and not any(each.alone for each in candidates):
            self.deliveries.isolate(min(candidates, key=lambda each: len(each.in_flight)))
        return None

    def _give(self, worker: Worker, jobs: list[Job]) -> None:
        if not self.deliveries.in_flight:
            self.pace.begin()
        if self.expiries:
            self.expiries.forget(jobs)
        deliveries = self.deliveries.open(worker, jobs, self._timer.now())
        self._counters.add(Count.DELIVERED, len(jobs))
        accepted_before = self._clock.now()
        if self._events.wanted:
            given = ({"job": job.id, "attempt": job.attempts, "worker": worker.name} for job in jobs)
            self._events.emit(Count.DELIVERED, accepted_before, given)
        self._counters.took(Timing.TIME_IN_QUEUE, [accepted_before - job.seq / 1e6 for job in jobs])
        if worker.pops:
            self._sent.take(sum([job.size for job in jobs]))
            self.pace.ended(len(jobs))
            self._outlet.pop(worker, deliveries)
        else:
            worker.deliver(deliveries)
            for job in jobs:
                job.drop_payload()
        self.deliveries.recount(worker)
