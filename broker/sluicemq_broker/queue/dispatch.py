"""Who gets which job: what is staged, which workers are free, what is under way. Nothing here blocks."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import gevent

from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.holdings import Holdings
from sluicemq_broker.queue.memory import Memory
from sluicemq_broker.queue.owners import Owners
from sluicemq_broker.queue.pace import UNKNOWN, Pace
from sluicemq_broker.queue.patience import Patience
from sluicemq_broker.queue.staging import Staging
from sluicemq_broker.queue.supply import Supply
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.runtime.counts import Count
from sluicemq_broker.store.connection import ServerClock
from sluicemq_broker.store.queue_store import QueueStore

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
_MOMENT: Final = 1e-9  # seconds


class Dispatch:
    """One queue's jobs in this broker's memory, and its workers."""

    def __init__(
        self,
        store: QueueStore,
        owners: Owners,
        clock: ServerClock,
        patience: Patience,
        counters: Counters,
        memory: Memory | None = None,
    ) -> None:
        self._owners = owners
        self._counters = counters
        self._memory = memory or Memory()
        self.held = Holdings()
        self.supply = Supply(store, owners, clock, patience, counters, self, self.held, self._memory)
        self.pop: Callable[[Worker, list[Delivery]], None] = _no_pop
        self.give_back: Callable[[list[Job]], None] = _no_give_back
        self.deliveries: dict[bytes, Delivery] = {}
        self.workers: set[Worker] = set()
        self._owed: dict[bytes, Delivery] = {}
        self._stopping = False
        self._later = False  # the rest of what is staged is handed out in the next turn
        self._paused = False
        self._staged = Staging(self._memory)
        self._takers: tuple[deque[Worker], deque[Worker]] = (deque(), deque())
        self._capacity = 0  # the prefetch of all workers that read what they are sent
        self._free = 0  # how much of that nobody has filled
        self.pace = Pace()
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- supply

    @property
    def granting(self) -> bool:
        """Whether jobs may be handed out, and somebody is there to take them."""
        return self._capacity > 0 and not self._paused and self._may_give

    @property
    def _may_give(self) -> bool:
        """Not while it stops, others may take us for dead, or too much has no answer from MongoDB."""
        return not self._stopping and self._owners.sure and not self._memory.verdicts.is_full(self)

    @property
    def staged(self) -> int:
        """How many jobs are held for workers."""
        return len(self._staged)

    @property
    def room(self) -> int:
        """How many more jobs to hold: what workers can take now, and a short queue for when they are done."""
        held = self._staged.bytes
        if not self._capacity or held >= STAGED_BYTES or (held and self._memory.stages_no_more):
            return 0
        return self._free + self.pace.appetite - len(self._staged)

    @property
    def room_bytes(self) -> int:
        """The same in bytes of payloads and headers."""
        return min(self._memory.claim, max(1, STAGED_BYTES - self._staged.bytes))

    def stage(self, jobs: list[Job]) -> None:
        """Hold jobs that this broker has reserved, and hand out what can be."""
        self.held.add(jobs)
        self._staged.add(jobs)
        self.hand_out()

    # ---------------------------------------------------------------- demand

    def attach(self, worker: Worker) -> None:
        """A worker has come."""
        self.workers.add(worker)
        self.offer(worker)

    def resize(self, worker: Worker, prefetch: int) -> None:
        """A worker has changed how much it takes."""
        worker.prefetch = prefetch
        self.offer(worker)

    def detach(self, worker: Worker) -> list[Delivery]:
        """A worker has gone; returns the deliveries it leaves unsettled, whose receipts are void now."""
        if worker not in self.workers:
            return []
        self.workers.discard(worker)
        if worker.waiting:  # in either: it may have been proven since
            for takers in self._takers:
                if worker in takers:
                    takers.remove(worker)
            worker.waiting = False
        worker.gone = True
        left = list(worker.unsettled.values())
        worker.unsettled.clear()
        self._recount(worker)
        for receipt in worker.owed:
            self._owed.pop(receipt, None)
        self.hand_out()
        return [delivery for delivery in left if self.deliveries.pop(delivery.receipt, None)]

    def offer(self, worker: Worker) -> None:
        """A worker may have become free."""
        if not worker.unsettled:
            worker.alone = False
        self._recount(worker)
        self._queue_up(worker)
        self.hand_out()

    def hand_out(self) -> None:
        """Give what is staged to who is free, then see to more."""
        if not self._may_give:
            return
        if self._paused or not self._capacity:
            self._give_back(self._staged.clear())  # nobody is here, others may have workers
            return
        while self._staged.suspects and (worker := self._next_idle()):
            worker.alone = True
            self._give(worker, [self._staged.take_suspect()])
        room = TURN_BYTES
        while len(self._staged) and (taker := self._next()):
            worker, free = taker
            if room <= 0:
                self._queue_up(worker)
                self._go_on_later()
                break
            takers = 1 + len(self._takers[0]) + len(self._takers[1])
            least = min(SHARE, worker.prefetch // SHARE_OF_PREFETCH)
            share = max(1, least, len(self._staged) // takers)
            before = self._staged.bytes
            jobs = self._staged.take(min(free, MESSAGE, share), min(room, MESSAGE_BYTES))
            room -= before - self._staged.bytes
            self._give(worker, jobs)
            if free > len(jobs):
                self._queue_up(worker)
        self.supply.refill()

    def _go_on_later(self) -> None:
        """What is staged is too much for one turn of the hub: others have theirs first."""
        if not self._later:
            self._later = True
            gevent.spawn_later(_MOMENT, self._go_on)

    def _go_on(self) -> None:
        self._later = False
        self.hand_out()

    # -------------------------------------------------------------- delivery

    def take(self, receipt: bytes) -> Delivery | None:
        """End a delivery by its receipt; None if it is not under way (any more).

        Then :meth:`offer` its worker.
        """
        delivery = self.deliveries.pop(receipt, None)
        if delivery:
            delivery.worker.settled(delivery)
            if not self.deliveries:
                self.pace.rest()
        elif owed := self._owed.pop(receipt, None):
            owed.worker.owed.discard(receipt)
            self.offer(owed.worker)
        return delivery

    def overdue(self) -> list[Delivery]:
        """End the deliveries whose visibility timeout has passed.

        Their workers get nothing more in their place, since they may still be at work on them; one
        that has not answered after as long again is hung up on.
        """
        now = time.monotonic()
        late = [each for each in self.deliveries.values() if each.overdue_at <= now]
        self._let_go(late)
        for delivery in [each for each in self._owed.values() if each.overdue_at <= now]:
            del self._owed[delivery.receipt]
            self._counters.notice(
                Count.WORKERS_HUNG_UP, f"worker {delivery.worker.name} never answered job {delivery.job.id}"
            )
            delivery.worker.hang_up()
        return late

    def _let_go(self, deliveries: list[Delivery]) -> None:
        """Void receipts; their workers owe answers still."""
        for delivery in deliveries:
            del self.deliveries[delivery.receipt]
            delivery.worker.overdue(delivery)
            delivery.overdue_at = time.monotonic() + delivery.job.visibility_timeout
            self._owed[delivery.receipt] = delivery
        for worker in {each.worker for each in deliveries}:
            self.offer(worker)  # one that had a suspect, and nothing beside it, takes others

    def extend(self, receipt: bytes, worker: Worker, seconds: float) -> bool:
        """Give a delivery more time, from now; False if this worker does not have it (any more)."""
        delivery = worker.unsettled.get(receipt)
        if delivery is None or receipt not in self.deliveries:
            return False
        delivery.overdue_at = time.monotonic() + seconds
        return True

    def forget(self, jobs: Iterable[Job]) -> None:
        """These jobs are no longer held by this broker."""
        self.held.remove(jobs)

    def keeps(self, owner: str) -> bool:
        """Whether what is held under this owner id has been this broker's all the time; may ask MongoDB."""
        return self._owners.keeps(owner)

    def drop(self, owner: str) -> None:
        """Another broker has taken what was held under this owner id: forget it, void its receipts."""
        self._staged.drop(owner)
        self.forget(self.held.under(owner))
        self._let_go([each for each in self.deliveries.values() if each.job.owner == owner])

    # -------------------------------------------------------------- stopping

    def withdraw(self) -> list[Job]:
        """Take back everything staged; what is at workers stays with them."""
        return self._staged.clear()

    def stop_granting(self, timeout: float) -> bool:
        """Hand out and claim no more; returns when no claim is under way, False if time ran out before."""
        self._stopping = True
        self.supply.refill()
        return self.supply.at_rest(timeout)

    def pause(self, *, paused: bool) -> None:
        """Hand out nothing, and give back what is staged, until it is resumed; who has jobs goes on."""
        self._paused = paused
        self.hand_out()

    def tick(self) -> None:
        """Every second or so: follow the pace of the workers, look for jobs of other brokers."""
        self.pace.tick(working=bool(self.deliveries))
        self.hand_out()
        if not self.supply.under_way:
            # What workers won't come to within a second others may have; not while later jobs are on
            # their way here, which would overtake those.
            ahead = UNKNOWN if self.pace.rate is None else int(self.pace.rate)
            self._give_back(self._staged.take_last(len(self._staged) - self._free - ahead))
        self.supply.tick()

    # --------------------------------------------------------------- helpers

    def _give_back(self, jobs: list[Job]) -> None:
        if jobs:
            self.give_back(jobs)

    def _recount(self, worker: Worker) -> None:
        """Count anew what a worker takes; nothing is held for one that does not read what it is sent."""
        counted = worker.takes
        self._capacity += counted.at_most - worker.counted.at_most
        self._free += counted.now - worker.counted.now
        worker.counted = counted

    def _queue_up(self, worker: Worker) -> None:
        """Put a worker that can take more behind the others; those that have answered before come first."""
        if not worker.waiting:
            worker.waiting = True
            self._takers[0 if worker.proven else 1].append(worker)

    def _next(self) -> tuple[Worker, int] | None:
        for takers in self._takers:
            while takers:
                worker = takers.popleft()
                worker.waiting = False
                free = worker.free  # asks its socket: once is enough
                if free:
                    return worker, free
                self._recount(worker)  # its connection may have been filled by something else
        return None

    def _next_idle(self) -> Worker | None:
        """A worker with nothing in flight; if there is none, one is let run empty."""
        for takers in self._takers:
            for worker in takers:
                if worker.free and not worker.unsettled:
                    takers.remove(worker)
                    worker.waiting = False
                    return worker
        # One that only owes answers can't run empty; one with nothing in flight would be among the takers.
        candidates = [each for each in self.workers if each.unsettled and each.prefetch > len(each.owed)]
        if candidates and not any(worker.alone for worker in candidates):
            chosen = min(candidates, key=lambda worker: len(worker.unsettled))
            chosen.alone = True
            self._recount(chosen)
        return None

    def _give(self, worker: Worker, jobs: list[Job]) -> None:
        if not self.deliveries:
            self.pace.begin()
        now = time.monotonic()
        deliveries = []
        for job in jobs:
            receipt = b"%s-%x" % (job.owner.encode(), next(self._numbers))
            delivery = Delivery(job, receipt, worker, now)
            worker.unsettled[receipt] = delivery
            deliveries.append(delivery)
        self._counters.add(Count.DELIVERED, len(jobs))
        if worker.pops:
            self.pace.ended(len(jobs))
            self.pop(worker, deliveries)
            self._recount(worker)
            return
        for delivery in deliveries:
            self.deliveries[delivery.receipt] = delivery
        worker.deliver(deliveries)
        for job in jobs:
            job.payload = b""  # it lies in MongoDB, should it be needed again
        self._recount(worker)


def _no_give_back(_jobs: list[Job]) -> None:
    raise NotImplementedError


def _no_pop(_worker: Worker, _deliveries: list[Delivery]) -> None:
    raise NotImplementedError
