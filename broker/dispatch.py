"""Who gets which job: what is staged, which workers are free, what is under way, what to claim.

Nothing here blocks but the claim, which runs in a greenlet of its own that lives only while
workers want more than is staged.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import gevent
from gevent.event import Event

from broker.counters import Counters
from broker.job import Job
from broker.mongo import ServerClock, Unclear
from broker.owners import Owners
from broker.pace import Pace
from broker.patience import Patience
from broker.staging import Staging
from broker.store import Claim, QueueStore
from broker.worker import Delivery, Worker
from sluicemq.errors import SluiceError, Unavailable

#: Jobs in one claim, at most: 256 to 1000 at a time reach 25k to 39k/s, one by one 1k to 2k.
CLAIM: Final = 1000
#: Jobs in one message to a worker, at most: the second message is under way while it works.
MESSAGE: Final = 256
#: Jobs in one look for what other brokers have left; it must not stand in anybody's way.
LOOK: Final = 64
#: Payloads held so, at most (and what one claim brings beyond).
STAGED_BYTES: Final = 32 * 2**20
_NOTHING = -1
#: Delayed jobs are looked for on ticks of so many seconds, this far ahead: a bounded number of timers.
_TICK, _HORIZON = 0.05, 60.0


class Arrival:
    """A push under way: those of its jobs that are born reserved go out once they are durable.

    ``ready``: the highest priority of the others, which no claim finds before that; ``seq``: the
    first number of all.
    """

    __slots__ = ("finished", "jobs", "ready", "seq")

    def __init__(self, jobs: list[Job], ready: int, seq: int) -> None:
        self.jobs = jobs
        self.ready = ready
        self.seq = seq
        self.finished = False


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
        self._store = store
        self._owners = owners
        self._clock = clock
        self._patience = patience
        self._counters = counters
        self.pop: Callable[[Worker, list[Delivery]], None] = _no_pop
        self.give_back: Callable[[list[Job]], None] = _no_give_back
        self.held: dict[str, Job] = {}
        self.deliveries: dict[bytes, Delivery] = {}
        self.workers: set[Worker] = set()
        self._owed: dict[bytes, Delivery] = {}
        self.granting = True
        self._staged = Staging()
        self._takers: tuple[deque[Worker], deque[Worker]] = (deque(), deque())
        self._arrivals: deque[Arrival] = deque()
        self._expected = 0
        self._capacity = 0
        self.pace = Pace()
        self._ready = 255  # the highest priority that may lie ready in MongoDB; _NOTHING: none does
        self._withheld = _NOTHING  # the same, of jobs that wait for an earlier insert to be through
        self._last_seq = 0
        self._claiming = False
        self._behind = False  # a claim of what lies ready is under way: nothing may overtake it
        self._unclaimed = Event()
        self._unclaimed.set()
        self._ticks: set[int] = set()
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- supply

    def expect(self, jobs: Sequence[Job], now: float) -> Arrival:
        """Before a push is written: give an owner to those that can go straight to a free worker.

        A job is born reserved if a worker can take it and nothing that comes before it lies ready:
        no claim round trip. Call :meth:`arrived` with what became of it.
        """
        owner = self._owners.current if self.granting and self._owners.sure and not self._behind else ""
        room = self._room() if owner else 0
        before = max([self._ready, *(each.ready for each in self._arrivals if not each.finished)])
        born: list[Job] = []
        for job in jobs:
            if room > len(born) and job.priority > before and job.eligible_at <= now:
                job.owner, job.attempts = owner, 1
                born.append(job)
        ready = max(
            (job.priority for job in jobs if not job.owner and job.eligible_at <= now), default=_NOTHING
        )
        arrival = Arrival(born, ready, jobs[0].seq)
        self._expected += len(born)
        self._arrivals.append(arrival)
        self._ready = max(self._ready, ready)
        self._last_seq = jobs[-1].seq
        return arrival

    def arrived(self, arrival: Arrival, durable: list[Job]) -> None:
        """After a push was written: stage what it reserved, in the order of acceptance."""
        self._expected -= len(arrival.jobs)
        mine = set(self._owners.mine())
        arrival.jobs = durable = [job for job in durable if job.owner in mine]
        arrival.finished = True
        for job in durable:
            self.held[job.id] = job
        while self._arrivals and self._arrivals[0].finished:
            self._staged.add(self._arrivals.popleft().jobs)
        self._ready, self._withheld = max(self._ready, self._withheld), _NOTHING
        self.hand_out()

    def some_ready(self, priority: int = 255) -> None:
        """Jobs of this priority or below may lie ready: claim them when a worker wants them."""
        self._ready = max(self._ready, priority)
        self._refill()

    def due_later(self, times: Iterable[float]) -> None:
        """Jobs become due at these times: claim them then. What lies further ahead is found by the poll."""
        now = self._clock.now()
        for tick in {math.ceil(when / _TICK) for when in times if when - now < _HORIZON} - self._ticks:
            self._ticks.add(tick)
            gevent.spawn_later(max(0.0, tick * _TICK - now), self._due, tick)

    def _due(self, tick: int) -> None:
        self._ticks.discard(tick)
        self.some_ready()

    # ---------------------------------------------------------------- demand

    def attach(self, worker: Worker) -> None:
        """A worker has come."""
        self.workers.add(worker)
        self._capacity += worker.prefetch
        self.offer(worker)

    def resize(self, worker: Worker, prefetch: int) -> None:
        """A worker has changed how much it takes."""
        self._capacity += prefetch - worker.prefetch
        worker.prefetch = prefetch
        self.offer(worker)

    def detach(self, worker: Worker) -> list[Delivery]:
        """A worker has gone; returns the deliveries it leaves unsettled, whose receipts are void now."""
        if worker not in self.workers:
            return []
        self.workers.discard(worker)
        self._capacity -= worker.prefetch
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
        if not self.granting or not self._owners.sure:
            return
        if not self._capacity:
            self._give_back(self._staged.clear())  # nobody is here, others may have workers
            return
        while self._staged.suspects and (worker := self._next_idle()):
            self._give(worker, [self._staged.take_suspect()])
            worker.alone = True
        while len(self._staged) and (worker := self._next()):
            takers = 1 + len(self._takers[0]) + len(self._takers[1])
            share = max(1, len(self._staged) // takers)
            self._give(worker, self._staged.take(min(worker.free, MESSAGE, share)))
            self._queue_up(worker)
        self._refill()

    # -------------------------------------------------------------- delivery

    def take(self, receipt: bytes) -> Delivery | None:
        """End a delivery by its receipt; None if it is not under way (any more)."""
        delivery = self.deliveries.pop(receipt, None)
        if delivery:
            delivery.worker.settled(delivery)
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
        self.granting = False
        return bool(self._unclaimed.wait(timeout))

    def tick(self) -> None:
        """Every second or so: follow the pace of the workers, look for jobs of other brokers."""
        self.pace.tick(working=bool(self.deliveries))
        self.hand_out()
        free = max(0, self._capacity - len(self.deliveries))
        if self.pace.rate is not None:  # what workers won't come to within a second others may have
            beyond = len(self._staged) - free - int(self.pace.rate)
            self._give_back(self._staged.take_last(beyond))
        if self.granting and self._owners.sure and self._room() > 0:
            self._spawn_claims(self._look)

    # --------------------------------------------------------------- helpers

    def _give_back(self, jobs: list[Job]) -> None:
        if jobs:
            self.give_back(jobs)

    def _room(self) -> int:
        """How many more jobs to hold: what workers can take now, and a short queue for when they are done."""
        if not self._capacity or self._staged.bytes >= STAGED_BYTES:
            return 0
        free = max(0, self._capacity - len(self.deliveries))
        return free + self.pace.appetite - len(self._staged) - self._expected

    def _queue_up(self, worker: Worker) -> None:
        """Put a worker that can take more behind the others; those that have answered before come first."""
        if worker.free and not worker.waiting:
            worker.waiting = True
            self._takers[0 if worker.proven else 1].append(worker)

    def _next(self) -> Worker | None:
        for takers in self._takers:
            while takers:
                worker = takers.popleft()
                worker.waiting = False
                if worker.free:
                    return worker
        return None

    def _next_idle(self) -> Worker | None:
        """A worker with nothing in flight; if there is none, one is let run empty."""
        for takers in self._takers:
            for worker in takers:
                if worker.free and not worker.unsettled:
                    takers.remove(worker)
                    worker.waiting = False
                    return worker
        candidates = [worker for worker in self.workers if worker.prefetch]
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
            delivery = Delivery(job, receipt, worker, now + job.visibility_timeout)
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

    def _hungry(self) -> bool:
        wanted = self._ready > _NOTHING and self._capacity > 0 and self.granting and self._owners.sure
        return (
            wanted
            and len(self._staged) + self._expected <= self.pace.appetite // 2
            and self._room() > 0  # else the next tick would give back what is claimed
        )

    def _refill(self) -> None:
        if self._hungry():
            self._spawn_claims(self._catch_up)

    def _spawn_claims(self, claims: Callable[[], None]) -> None:
        """One claim at a time: two of one owner would take each other's jobs for their own."""
        if not self._claiming:
            self._claiming = True
            self._unclaimed.clear()
            gevent.spawn(self._run_claims, claims)

    def _run_claims(self, claims: Callable[[], None]) -> None:
        try:
            claims()
        except Unavailable:
            pass  # patience is over: the broker stops, and what may be claimed is swept
        except SluiceError as error:
            self._counters.notice("claims_refused", f"MongoDB refuses to hand out jobs: {error}")
        finally:
            self._claiming = self._behind = False
            self._unclaimed.set()
        self._refill()

    def _catch_up(self) -> None:
        """Claim what is known to lie ready, as long as workers want it."""
        self._behind = True
        while self._hungry():
            self._claim(max(1, min(CLAIM, self._room())))

    def _look(self) -> None:
        """Claim a little, to see whether other brokers or other times have left something ready."""
        self._take_in(self._patience.insist(lambda: self._reserve(min(LOOK, max(1, self._room())), [])), 255)

    def _claim(self, limit: int) -> None:
        bound, self._ready = self._ready, _NOTHING
        under_way = [each.seq for each in self._arrivals if each.ready > _NOTHING and not each.finished]
        claim = self._patience.insist(lambda: self._reserve(limit, under_way))
        if under_way:
            self._withheld = max(self._withheld, bound)
        self._take_in(claim, bound)

    def _take_in(self, claim: Claim, bound: int) -> None:
        if claim.owner not in self._owners.mine():
            return  # declared dead meanwhile: others have these jobs
        for job_id in claim.buried:
            self._counters.notice("dead", f"job {job_id} is dead: no attempt is left")
        if claim.more:
            self._ready = max(self._ready, claim.jobs[-1].priority if claim.jobs else bound)
        for job in claim.jobs:
            self.held[job.id] = job
        self._staged.add(claim.jobs)
        self.hand_out()

    def _reserve(self, limit: int, under_way: list[int]) -> Claim:
        self._store.prepare()
        owner = self._owners.use()
        try:
            now, brokers = self._clock.now(), 1 + self._owners.others
            # Of two inserts under way, or yet to come, the later may be through first: nothing that is
            # accepted here from now on is claimed, nor what comes after an insert under way.
            before = min([max(self._last_seq + 1, int(now * 1e6)), *under_way])
            return self._store.reserve(limit, now, owner, before=before, brokers=brokers)
        except Unclear:
            # What is reserved under this id without our knowledge is freed when the id is closed.
            self._owners.retire(owner)
            raise


def _no_give_back(_jobs: list[Job]) -> None:
    raise NotImplementedError


def _no_pop(_worker: Worker, _deliveries: list[Delivery]) -> None:
    raise NotImplementedError
