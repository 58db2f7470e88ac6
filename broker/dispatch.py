"""Who gets which job: what is staged, which workers are free, what is under way. Nothing here blocks."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from broker.counters import Counters
from broker.job import Job
from broker.mongo import ServerClock
from broker.owners import Owners
from broker.pace import UNKNOWN, Pace
from broker.patience import Patience
from broker.staging import Staging
from broker.store import QueueStore
from broker.supply import Supply
from broker.worker import Delivery, Worker

#: Jobs in one message to a worker, at most: the second message is under way while it works.
MESSAGE: Final = 256
#: Least jobs in one message to a worker that asks for many more: with hundreds of workers one job each
#: would go out alone (70 ms of CPU for 1,000 jobs instead of 22). A share of its prefetch, so that
#: workers of slow jobs, which ask for few, still get them evenly.
SHARE: Final = 16
SHARE_OF_PREFETCH: Final = 8
#: Payloads held so, at most (and what one claim brings beyond).
STAGED_BYTES: Final = 32 * 2**20


class Dispatch:
    """One queue's jobs in this broker's memory, and its workers."""

    def __init__(
        self,
        store: QueueStore,
        owners: Owners,
        clock: ServerClock,
        patience: Patience,
        counters: Counters,
    ) -> None:
        self._owners = owners
        self._counters = counters
        self.supply = Supply(store, owners, clock, patience, counters, self)
        self.pop: Callable[[Worker, list[Delivery]], None] = _no_pop
        self.give_back: Callable[[list[Job]], None] = _no_give_back
        self.held: dict[str, Job] = {}
        self.deliveries: dict[bytes, Delivery] = {}
        self.workers: set[Worker] = set()
        self._owed: dict[bytes, Delivery] = {}
        self._stopping = False
        self._paused = False
        self._staged = Staging()
        self._takers: tuple[deque[Worker], deque[Worker]] = (deque(), deque())
        self._capacity = 0
        self._beyond = 0  # deliveries of workers that take fewer now than they have
        self.pace = Pace()
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- supply

    @property
    def granting(self) -> bool:
        """Whether jobs may be handed out, and somebody is there to take them."""
        return self._capacity > 0 and not self._stopping and not self._paused and self._owners.sure

    @property
    def staged(self) -> int:
        """How many jobs are held for workers."""
        return len(self._staged)

    @property
    def room(self) -> int:
        """How many more jobs to hold: what workers can take now, and a short queue for when they are done."""
        if not self._capacity or self._staged.bytes >= STAGED_BYTES:
            return 0
        return self._free + self.pace.appetite - len(self._staged)

    def stage(self, jobs: list[Job]) -> None:
        """Hold jobs that this broker has reserved, and hand out what can be."""
        for job in jobs:
            self.held[job.id] = job
        self._staged.add(jobs)
        self.hand_out()

    # ---------------------------------------------------------------- demand

    def attach(self, worker: Worker) -> None:
        """A worker has come."""
        self.workers.add(worker)
        self._capacity += worker.prefetch
        self.offer(worker)

    def resize(self, worker: Worker, prefetch: int) -> None:
        """A worker has changed how much it takes."""
        self._capacity += prefetch - worker.prefetch
        self._beyond -= worker.beyond
        worker.prefetch = prefetch
        self._beyond += worker.beyond
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
        self._capacity -= worker.prefetch
        self._beyond -= worker.beyond
        worker.gone = True
        left = list(worker.unsettled.values())
        worker.unsettled.clear()
        for receipt in worker.owed:
            self._owed.pop(receipt, None)
        self.hand_out()
        return [delivery for delivery in left if self.deliveries.pop(delivery.receipt, None)]

    def offer(self, worker: Worker) -> None:
        """A worker may have become free."""
        if not worker.unsettled:
            worker.alone = False
        self._queue_up(worker)
        self.hand_out()

    def hand_out(self) -> None:
        """Give what is staged to who is free, then see to more."""
        if self._stopping or not self._owners.sure:
            return
        if self._paused or not self._capacity:
            self._give_back(self._staged.clear())  # nobody is here, others may have workers
            return
        while self._staged.suspects and (worker := self._next_idle()):
            self._give(worker, [self._staged.take_suspect()])
            worker.alone = True
        while len(self._staged) and (taker := self._next()):
            worker, free = taker
            takers = 1 + len(self._takers[0]) + len(self._takers[1])
            least = min(SHARE, worker.prefetch // SHARE_OF_PREFETCH)
            share = max(1, least, len(self._staged) // takers)
            jobs = self._staged.take(min(free, MESSAGE, share))
            self._give(worker, jobs)
            if free > len(jobs):
                self._queue_up(worker)
        self.supply.refill()

    # -------------------------------------------------------------- delivery

    def take(self, receipt: bytes) -> Delivery | None:
        """End a delivery by its receipt; None if it is not under way (any more)."""
        delivery = self.deliveries.pop(receipt, None)
        if delivery:
            self._beyond -= delivery.worker.beyond > 0
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
        for delivery in late:
            self._let_go(delivery)
        for delivery in [each for each in self._owed.values() if each.overdue_at <= now]:
            del self._owed[delivery.receipt]
            self._counters.notice(
                "workers_hung_up", f"worker {delivery.worker.name} never answered job {delivery.job.id}"
            )
            delivery.worker.hang_up()
        return late

    def _let_go(self, delivery: Delivery) -> None:
        """Void a receipt; its worker owes an answer still."""
        del self.deliveries[delivery.receipt]
        self._beyond -= delivery.worker.beyond > 0
        delivery.worker.overdue(delivery)
        delivery.overdue_at = time.monotonic() + delivery.job.visibility_timeout
        self._owed[delivery.receipt] = delivery

    def extend(self, receipt: bytes, worker: Worker, seconds: float) -> bool:
        """Give a delivery more time, from now; False if this worker does not have it (any more)."""
        delivery = worker.unsettled.get(receipt)
        if delivery is None or receipt not in self.deliveries:
            return False
        delivery.overdue_at = time.monotonic() + seconds
        return True

    def forget(self, jobs: Iterable[Job]) -> None:
        """These jobs are no longer held by this broker."""
        for job in jobs:
            if self.held.get(job.id) is job:
                del self.held[job.id]

    def keeps(self, owner: str) -> bool:
        """Whether what is held under this owner id has been this broker's all the time; may ask MongoDB."""
        return self._owners.keeps(owner)

    def retire(self, owner: str) -> None:
        """Claim nothing more under this owner id."""
        self._owners.retire(owner)

    def drop(self, owner: str) -> None:
        """Another broker has taken what was held under this owner id: forget it, void its receipts."""
        self._staged.drop(owner)
        self.forget([job for job in self.held.values() if job.owner == owner])
        for delivery in [each for each in self.deliveries.values() if each.job.owner == owner]:
            self._let_go(delivery)

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
        self.supply.look()

    # --------------------------------------------------------------- helpers

    def _give_back(self, jobs: list[Job]) -> None:
        if jobs:
            self.give_back(jobs)

    @property
    def _free(self) -> int:
        return max(0, self._capacity + self._beyond - len(self.deliveries))

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
            min(candidates, key=lambda worker: len(worker.unsettled)).alone = True
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
        self._counters.add("delivered", len(jobs))
        if worker.pops:
            self.pace.ended(len(jobs))
            self.pop(worker, deliveries)
            return
        for delivery in deliveries:
            self.deliveries[delivery.receipt] = delivery
        worker.deliver(deliveries)
        for job in jobs:
            job.payload = b""  # it lies in MongoDB, should it be needed again


def _no_give_back(_jobs: list[Job]) -> None:
    raise NotImplementedError


def _no_pop(_worker: Worker, _deliveries: list[Delivery]) -> None:
    raise NotImplementedError
