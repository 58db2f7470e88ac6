"""Where jobs come from: pushes that are inserted reserved, and claims of what lies ready in MongoDB.

A job that is inserted reserved costs MongoDB an insert and a delete; one that lies ready first, a claim
between them, which doubles that. So pushes wait for workers that are about to have room
(:meth:`Supply.await_room`): both together do 45k jobs a second instead of 20k.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import SluiceError, Unavailable
from sluicemq_broker.bus import BusKind
from sluicemq_broker.context import Context
from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.queue.demand import Demand
from sluicemq_broker.queue.due_times import DueTimes
from sluicemq_broker.queue.held_back import HeldBack
from sluicemq_broker.queue.ledger import HIGHEST, NOTHING, Arrival, Bound, Claiming, Ledger
from sluicemq_broker.queue.limits import Limits
from sluicemq_broker.queue.reservations import Reservations
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Claim, QueueStore

#: Jobs in one claim, at most: 256 to 1000 at a time reach 25k to 39k/s, one by one 1k to 2k.
CLAIM: Final = 1000
#: Jobs in one look for what other brokers have left; it must not stand in anybody's way.
LOOK: Final = 64
#: A push waits so many seconds for workers, at most, if they are as fast as this, in jobs a second:
#: MongoDB has time to spare for slower ones. Of workers just begun, we know within the other time.
MOMENT: Final = 0.25
FAST: Final = 5000.0
_FIRST_MOMENT: Final = 0.05
#: Seconds that the clock of another broker may be ahead; a number beyond is none.
_AHEAD: Final = 1.0
#: Claims at once: a second one only where the first has had no answer for long.
_CLAIMS_AT_ONCE: Final = 2
#: A broker that is alone looks once in so many seconds, at most, for what nobody has told it of: with
#: hundreds of queues a look at each of them every second takes a fifth of a processor.
ALONE: Final = 5.0


class Supply:
    """The claims of one queue, and what its :class:`~.ledger.Ledger` says may go out.

    Nothing here blocks but :meth:`await_room`, :meth:`search`, :meth:`at_rest` and the claims, whose greenlet
    lives only while workers want more than is staged.
    """

    def __init__(
        self, store: QueueStore, context: Context, demand: Demand, reservations: Reservations, limits: Limits
    ) -> None:
        self._store = store
        self._limits = limits
        self._memory = context.memory
        self._owners = context.owners
        self._clock = context.clock
        self._timer = context.timer
        self._retry = context.retry
        self._counters = context.counters
        self._reservations = reservations
        self._demand = demand
        self._tell = context.notify_brokers
        self._ledger = Ledger()
        self._told = 0.0  # others have jobs ready, accepted up to then, that nothing here has looked for yet
        self._unanswered: set[tuple[str, int]] = set()  # owner and hold of claims whose answer was lost
        self._unclaimed = Event()
        self._unclaimed.set()
        self._changed = Event()
        self._due_times = DueTimes(context, lambda count: self.some_ready(count=count))
        self._looks_again = -math.inf
        self._claiming = 0  # jobs that the claims under way may bring
        self.held_back = HeldBack(context.timer, self._look_again)
        limits.follow(self._reserved, self.refill)

    # ---------------------------------------------------------------- pushes

    def await_room(self, count: int) -> None:
        """Before a push: wait for workers that will have come to so many jobs in a moment.

        Nothing is waited for if they are slow, or far behind: a push never gets slower than some
        thousands a second by it, and only while that brings the jobs to the workers sooner.
        """
        end = self._timer.now() + (_FIRST_MOMENT if self._demand.pace.rate is None else MOMENT)
        while self._worth_waiting(count):
            left = end - self._timer.now()
            self._changed.clear()
            if left <= 0 or not self._timer.wait(self._changed, left):
                return

    def expect(self, jobs: Sequence[Job], due: float) -> Arrival:
        """Before a push is written: give an owner to those that can go straight to a free worker.

        A job is inserted reserved if a worker can take it and nothing that comes before it lies ready:
        no claim round trip. None of a group is. ``due``: the server's time. Call :meth:`arrived` with what
        became of it.
        """
        now = self._timer.now()
        held = Reservation(self._owners.current, self._owners.new_reservation())
        born: list[Job] = []
        straight = self._demand.granting and not self._limits.of_tenants
        first = self._ledger.first_to_come(now) if straight else None
        if held.owner and first is not None and (room := self._room_at_once()) > 0:
            if first > NOTHING and self._store.defaults.fair:
                first = HIGHEST  # whose turn it is, MongoDB knows
            for job in jobs:
                if job.priority > first and job.eligible_at <= due and len(born) < room and job.group is None:
                    job.reserve(held)
                    born.append(job)
            self._limits.spend(len(born))
        self._reservations.begin(held.number)
        arrival = self._ledger.expect(jobs, born, held.number, due, now)
        if arrival.ready > NOTHING:
            self._tell(BusKind.COMING, self._ledger.last_seq)
        return arrival

    def arrived(self, arrival: Arrival, durable: list[Job]) -> None:
        """After a push was written: stage what it reserved, in the order of acceptance."""
        self._limits.spend(len(durable) - len(arrival.jobs))
        self._ledger.arrived(arrival, durable)
        self._pass_on()

    # ------------------------------------------------------ what lies ready

    def returning(self, count: int) -> None:
        """So many jobs are on their way back to ``ready``: nothing newer goes out before them."""
        self._ledger.returning(count, self._timer.now())

    def returned(self, count: int) -> None:
        """So many of them are ``ready`` again, or were not ours any more."""
        self._ledger.returned(count)

    def some_ready(self, priority: int = HIGHEST, count: float = math.inf) -> None:
        """So many jobs (by default nobody knows how many) of this priority or below may lie ready."""
        # If nobody knows how many, nor since when: those of a broker that has gone, say.
        self._store.on_ready(anywhere=count == math.inf)
        self._ledger.some_ready(priority, count)
        self._tell_others()

    def promoted(self, priority: int, count: int, seq: int) -> None:
        """So many jobs of groups, none of a higher number, are ``ready`` now, of whichever broker."""
        self._has_number(seq)
        self._store.on_ready(anywhere=True)
        self._ledger.promoted(priority, count, seq, self._timer.now())
        self._tell_others()

    def on_ready(self, seq: int) -> None:
        """Another broker has jobs ready, none of a higher number than this (0: nobody knows)."""
        self._told = max(self._told, self._clock.now(), self._has_number(seq))
        self.refill()

    def on_freed(self) -> None:
        """Jobs of tenants that are held back here have ended at another broker, perhaps."""
        self.held_back.ended_elsewhere()

    @property
    def last_seq(self) -> int:
        """What is accepted here from now on must have a higher number."""
        return self._ledger.last_seq

    def due_later(self, times: Iterable[float]) -> None:
        """Jobs become due at these times: claim them then. What lies further ahead is found by the poll."""
        self._due_times.watch(times)

    def refill(self) -> None:
        """What is staged, or who is there, has changed: claim if more is wanted."""
        self._changed.set()
        if self._hungry():
            self._spawn_claims(self._catch_up, catches_up=True)
        elif self._told:
            self._look_around()
        if self._limits.active:
            self._limits.share()

    def ended(self, jobs: Iterable[Job]) -> None:
        """These are reserved here no more: others may be, where jobs are limited."""
        self.held_back.ended(jobs)
        if self._limits.of_tenants:
            self._tell(BusKind.FREED, 0)
        self.refill()

    def tick(self) -> None:
        """Every second or so: wait no longer for what has had no answer for too long; look for more."""
        self._pass_on()
        self._store.tick(self._clock.now())
        self.refill()
        if self._owners.others or self._timer.now() >= self._looks_again:
            self._looks_again = self._timer.now() + ALONE * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            self._look_around()

    def search(self, enough: Callable[[], bool], timeout: float) -> None:
        """Claim what lies ready, whatever is known of that; blocks until it is staged, or there is enough."""
        end = self._timer.now() + timeout
        self._ledger.some_ready(HIGHEST, 0)
        self.refill()
        while self._ledger.claimers() and not enough() and (left := end - self._timer.now()) > 0:
            self._timer.wait(self._unclaimed, left)

    @property
    def under_way(self) -> bool:
        """True if a claim or a push that is inserted reserved will bring jobs."""
        return self._ledger.under_way(self._timer.now())

    def at_rest(self, timeout: float) -> bool:
        """Wait until no claim is under way; False if time ran out before."""
        return bool(self._unclaimed.wait(timeout))

    # --------------------------------------------------------------- helpers

    def _tell_others(self) -> None:
        self._tell(BusKind.READY, max(self._ledger.last_seq, int(self._clock.now() * 1e6)))
        self.refill()

    def _has_number(self, seq: int) -> float:
        """Such a job is there: when it was accepted, in the server's time.

        Another broker's clock may be ahead of ours, as far as each knows the server's: what is accepted here
        from now on has higher numbers, and so none of its jobs is taken for one that is yet to come.
        """
        if seq <= (self._clock.now() + _AHEAD) * 1e6:
            self._ledger.heard_of(seq)
            return seq / 1e6
        return 0.0

    def _pass_on(self) -> None:
        """Stage what is durable, but for what comes after an insert that is awaited."""
        passed = self._ledger.passed(self._timer.now())
        if not passed:
            self.refill()
            return
        mine = self._owners.mine()  # declared dead meanwhile: others have these jobs
        self._demand.stage([job for each in passed for job in each.jobs if job.owner in mine])
        for each in passed:
            self._reservations.end(each.hold)

    def _look_around(self) -> None:
        """Claim a little, to see whether other brokers have left something ready."""
        wanted = self._demand.granting and self._room() > 0 and not self._older_returning
        if wanted and (not self._limits.active or self._limits.may_grant):
            self._spawn_claims(self._look, catches_up=False)

    def _look_again(self) -> None:
        """Those that are held back may have jobs that can begin."""
        if not self._demand.granting:
            self.held_back.nobody_asks()
        self._ledger.some_ready(HIGHEST, 0)
        self.refill()

    def _room(self) -> int:
        return self._demand.room - self._ledger.expected

    def _room_at_once(self) -> float:
        """The same, of which the limits leave so many without a question to MongoDB."""
        room = self._room()
        return min(room, self._limits.free) if self._limits.active else room

    def _reserved(self) -> int:
        """How many jobs are reserved here, or may be by statements under way."""
        return len(self._reservations) + self._ledger.born + self._claiming

    @property
    def _older_returning(self) -> bool:
        return self._ledger.older_returning(self._timer.now())

    def _worth_waiting(self, count: int) -> bool:
        if not self._demand.granting or self._limits.active:
            return False
        room, behind = self._room(), self._ledger.behind(self._timer.now())
        if room >= count and not self._ledger.some_come_first and not behind:
            return False  # they will be inserted reserved
        rate = self._demand.pace.rate
        if rate is None:
            return behind or self._demand.pace.working
        return rate >= FAST and self._ledger.backlog + count - max(0, room) <= rate * MOMENT

    def _hungry(self) -> bool:
        return (
            self._ledger.may_lie_ready
            and self._demand.granting
            and not self._older_returning
            and self._room() > 0  # else the next tick would give back what is claimed
            and (self._is_low() or self._ledger.backlog <= self._room())
            and (not self._limits.active or self._limits.may_grant)
        )

    def _is_low(self) -> bool:
        """True if so little is staged that a claim is a large one."""
        return self._demand.staged + self._ledger.expected <= self._demand.pace.appetite // 2

    def _spawn_claims(self, claims: Callable[[Claiming], None], *, catches_up: bool) -> None:
        """One claim at a time, but for those whose answer is long in coming."""
        now = self._timer.now()
        if self._ledger.claimers() < _CLAIMS_AT_ONCE and not self._ledger.claims(now):
            self._unclaimed.clear()
            gevent.spawn(self._run_claims, self._ledger.begin(now, catches_up=catches_up), claims)

    def _run_claims(self, claiming: Claiming, claims: Callable[[Claiming], None]) -> None:
        try:
            claims(claiming)
        except Unavailable:
            pass  # nothing is tried again: the broker stops, and what may be claimed is swept
        except SluiceError as error:
            self._counters.notice(Count.CLAIMS_REFUSED, f"MongoDB refuses to hand out jobs: {error}")
        finally:
            self._ledger.end(claiming)
            if not self._ledger.claimers():
                self._unclaimed.set()
        self.refill()

    def _catch_up(self, claiming: Claiming) -> None:
        """Claim what is known to lie ready, as long as workers want it."""
        while self._hungry() and (limit := self._granted(CLAIM)):
            claiming.began = self._timer.now()
            due = self._due_now()
            bound = self._ledger.catch_up(due, claiming.began)
            self._claim(limit, bound, due, brokers=1 + self._owners.others)
            self._ledger.caught_up(bound)

    def _look(self, _claiming: Claiming) -> None:
        if limit := self._granted(1 if self._limits.active else LOOK):
            told = self._told > 0  # of one, mostly
            due = self._due_now()
            self._claim(limit, self._ledger.look(due), due, one_first=told)

    def _due_now(self) -> float:
        """The server's time for a claim that finds all that was told of until now."""
        told, self._told = self._told, 0.0
        return max(self._clock.now(), told)

    def _granted(self, most: int) -> int:
        """How many jobs to claim, as there is room, and the limits allow."""
        limit = max(1, min(most, self._room()))
        return self._limits.grant(limit) if self._limits.active else limit

    def _claim(
        self, limit: int, bound: Bound, due: float, brokers: int = 1, *, one_first: bool = False
    ) -> None:
        """One claim, until its outcome is known; with ``brokers`` of them, of a page that chance says."""
        self._claiming += limit
        self._limits.spend(limit)
        brought = 0
        hold = self._owners.new_reservation()
        self._reservations.begin(hold)
        most_bytes = self._demand.room_bytes
        self._memory.stage(most_bytes)
        try:
            reserve = partial(
                self._store.reserve,
                before=bound.before,
                brokers=brokers,
                most_bytes=most_bytes,
                one_first=one_first,
            )
            claim = self._retry.run(lambda: self._reserve(limit, hold, due, reserve))
            brought = len(claim.jobs)
            self._take_in(claim, bound)
        finally:
            self._claiming -= limit
            self._limits.spend(brought - limit)
            self._memory.stage(-most_bytes)
            self._reservations.end(hold)
            self._unanswered = {each for each in self._unanswered if each[1] != hold}

    def _take_in(self, claim: Claim, bound: Bound) -> None:
        if claim.owner not in self._owners.mine():
            return  # declared dead meanwhile: others have these jobs
        for job_id in claim.died:
            self._counters.notice(
                Count.DEAD, f"job {job_id} is dead: no attempt is left", about={"job": job_id}
            )
        self._demand.died(claim.died, claim.freed)
        self.held_back.found(claim.held, some_began=bool(claim.jobs))
        self._ledger.claimed(bound, claim.jobs, more=claim.more)
        self._demand.stage(claim.jobs)

    def _reserve(
        self, limit: int, hold: int, due: float, reserve: Callable[[int, float, str, int], Claim]
    ) -> Claim:
        """Claim; after an error, when it may have been applied, take what lies under its number."""
        self._store.prepare()
        owner = self._owners.use()
        if (owner, hold) in self._unanswered:
            return Claim(self._store.claimed(owner, hold), owner, more=True)
        if self._limits.active and not self._limits.covers_all:
            return Claim([], owner, more=True)  # the permits were those of a former id
        try:
            now = max(self._clock.now(), due)
            return reserve(limit, now, owner, hold)
        except Unavailable:
            self._unanswered.add((owner, hold))
            raise
