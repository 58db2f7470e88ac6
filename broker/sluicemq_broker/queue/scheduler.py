"""Decides which job goes to which worker, what is claimed, and what goes back: all in plain values.

The queue says what has happened, asks what to do, and does it (``queue.py``). Nothing here has a clock, a
greenlet, a socket or MongoDB: how things stand comes as :class:`Conditions`. So every order of events can be
tried in a test.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sluicemq_broker.job import Job, Reservation, StagedOrder
from sluicemq_broker.queue.deliveries import Deliveries
from sluicemq_broker.queue.handout import HandOut
from sluicemq_broker.queue.ledger import HIGHEST, NOTHING, Arrival, Claiming, Ledger
from sluicemq_broker.queue.limits import QueueLimits
from sluicemq_broker.queue.pace import UNKNOWN, Pace
from sluicemq_broker.queue.plans import ClaimPlan, Conditions, News
from sluicemq_broker.queue.reservations import Reservations
from sluicemq_broker.queue.staging import Staging
from sluicemq_broker.queue.times import DueTimes, Expiries, HeldBack
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.runtime import Budget

#: Jobs in one claim, at most: 256 to 1000 at a time reach 25k to 39k/s, one by one 1k to 2k.
CLAIM: Final = 1000
#: Jobs in one look for what other brokers have left; it must not stand in anybody's way.
LOOK: Final = 64
#: A claim may always bring this many bytes: a few hundred small jobs, or one large one.
LEAST_CLAIM: Final = 64 * 2**10

#: Bytes of jobs held for the workers of one queue, at most (and what one claim brings beyond).
STAGED_BYTES: Final = 32 * 2**20

#: A push waits for workers for this many seconds, at most, if they end this many jobs a second or more:
#: MongoDB has time to spare for slower ones. Whether workers that just began are fast is known within the
#: other time.
MOMENT: Final = 0.25
FAST: Final = 5000.0
_FIRST_MOMENT: Final = 0.05
#: A broker that is alone looks once in this many seconds, at most, for jobs that nobody has announced: with
#: hundreds of queues a look at each of them every second takes a fifth of a processor.
ALONE: Final = 5.0
#: Where more brokers share the jobs each looks as seldom as one that is alone: together they look often.
CROWD: Final = 8
#: Seconds to the next look at the server's clock, at most: it may be set.
_LONGEST: Final = 1.0


_NOTHING_NEW: Final = News()


class Scheduler:
    """All that is known of the jobs and the workers of one queue at this broker; it decides what follows.

    Its parts are public: an event that concerns one part goes to that part. After any event the queue asks,
    in this order: :meth:`wake`, :meth:`unwanted`, the messages of ``hand_out`` until there is none,
    :meth:`take_news`, :meth:`next_claiming`, :meth:`next_time`.
    """

    def __init__(self, limits: QueueLimits, order: StagedOrder, staged: Budget, expiries: Budget) -> None:
        self.limits = limits
        self.staging = Staging(staged, order)
        self.reservations = Reservations()
        self.deliveries = Deliveries()
        self.pace = Pace()
        self.ledger = Ledger()
        self.due_times = DueTimes()
        self.expiries = Expiries(expiries)
        self.held_back = HeldBack()
        self.hand_out = HandOut(self.staging, self.deliveries, self.pace, self.expiries)
        self.paused = self.stopping = False
        self._staged_budget = staged
        self._expired: list[str] = []
        self._news = _NOTHING_NEW
        self._claiming = 0  # jobs that the claims under way may bring
        self._hint = 0.0  # others have jobs ready, accepted until then, that nothing here has looked for yet
        self._looks = self._sheds = False  # at the next decision
        self._looks_again = -math.inf
        self._tenants_freed = False

    # ------------------------------------------------------------- what is known

    @property
    def reserved(self) -> int:
        """How many jobs are reserved here, or may be by statements under way."""
        return len(self.reservations) + self.ledger.inserting + self._claiming

    def granting(self, c: Conditions) -> bool:
        """Return True if jobs may be handed out, and a worker is there to take them."""
        return self.deliveries.capacity > 0 and not self.paused and self.open(c)

    def open(self, c: Conditions) -> bool:
        """Return True if jobs may go out, as far as the broker is concerned."""
        return c.may_hand_out and not self.stopping

    @property
    def room(self) -> int:
        """How many more jobs to hold: what workers can take now, and a short queue for when they are done.

        Without that queue where jobs are limited: jobs that wait here would keep other brokers from running
        theirs.
        """
        held = self.staging.bytes
        if not self.deliveries.capacity or held >= STAGED_BYTES or (held and self._staged_budget.full):
            return 0
        ahead = self.pace.appetite if self.limits.holds_ahead else 0
        return self.deliveries.free + ahead - len(self.staging)

    @property
    def room_bytes(self) -> int:
        """Bytes of payloads and headers that the next claim may bring."""
        budget = self._staged_budget
        # One claim may bring this part of the bytes that are free, so that other queues find room beside
        # it.
        share = max(LEAST_CLAIM, (budget.most - budget.used) // 8)
        return min(share, max(1, STAGED_BYTES - self.staging.bytes))

    def patience(self, count: int, c: Conditions) -> float:
        """Return for how many seconds a push of ``count`` jobs waits for workers that will have room for it.

        0: it does not wait, for the workers are slow, far behind, or have room at once.
        """
        if not self.granting(c) or not self.limits.holds_ahead:
            return 0.0
        room, catching_up = self._room_left, self.ledger.catching_up(c.now)
        if room >= count and not self.ledger.some_come_first and not catching_up:
            return 0.0  # they will be inserted reserved
        rate = self.pace.rate
        if rate is None:
            return _FIRST_MOMENT if catching_up or self.pace.working else 0.0
        fast = rate * (1 + c.others) >= FAST  # MongoDB has the jobs of all
        worthwhile = fast and self.ledger.backlog + count - max(0, room) <= rate * MOMENT
        return MOMENT if worthwhile else 0.0

    # ------------------------------------------------------------------- pushes

    def admit(self, jobs: Sequence[Job], number: int, due: float, c: Conditions) -> Arrival:
        """Decide which jobs of a push are inserted reserved, before it is written.

        A job is, if a worker can take it and no job that comes before it is ready: then it needs no claim.
        Jobs of groups never are. ``number``: of their reservation; ``due``: the server's time. Call
        :meth:`arrived` with what became of them.
        """
        self.limits.use(c.owner)
        reservation = Reservation(c.owner, number)
        reserved: list[Job] = []
        straight = self.granting(c) and not self.limits.of_tenants
        first = self.ledger.first_to_come(c.now) if straight else None
        if c.owner and first is not None:
            room = min(self._room_left, self.limits.free(self.reserved))
            if first > NOTHING and not self.staging.order.by_priority:
                first = HIGHEST  # whose turn it is, MongoDB knows
            for job in jobs:
                if len(reserved) + job.begins_pack > room:
                    break  # a pack is reserved as a whole
                if job.priority > first and job.eligible_at <= due and job.group is None:
                    job.reserve(reservation)
                    reserved.append(job)
            self.limits.spend(len(reserved))
        self.reservations.begin(number)
        return self.ledger.expect(jobs, reserved, number, due, c.now)

    def arrived(self, arrival: Arrival, durable: list[Job]) -> None:
        """A push was written: these of its jobs are reserved. They go out in the order of acceptance."""
        self.limits.spend(len(durable) - len(arrival.jobs))
        self.ledger.arrived(arrival, durable)

    # ------------------------------------------------------------ ready jobs

    def some_ready(self, priority: int = HIGHEST, count: float = math.inf) -> None:
        """``count`` jobs (by default an unknown number) of this priority or below may be ready."""
        # If the number is unknown, so is since when: jobs of a broker that has gone, say.
        self._news = self._news._replace(ready=True, anywhere=self._news.anywhere or count == math.inf)
        self.ledger.some_ready(priority, count)

    def promoted(self, priority: int, count: int, seq: int, c: Conditions) -> None:
        """``count`` jobs of groups, none of a higher number than ``seq``, became ready, at any broker."""
        self._accepted_at(seq, c)
        self._news = self._news._replace(ready=True, anywhere=True)
        self.ledger.promoted(priority, count, seq, c.now)

    def on_ready(self, seq: int, c: Conditions) -> None:
        """Another broker has jobs ready, none of a higher number than this (0: nobody knows)."""
        self._hint = max(self._hint, c.server, self._accepted_at(seq, c))

    def on_freed(self) -> None:
        """Another broker has fewer jobs running: jobs that the limits hold back here may begin."""
        self.limits.on_freed()
        self._tenants_freed = self._tenants_freed or self.held_back.wait_for_others

    def ended(self, jobs: Sequence[Job]) -> None:
        """Jobs are reserved here no more: the last statement about them was answered."""
        self.reservations.remove(jobs)
        self._tenants_freed = self._tenants_freed or self.held_back.freed_by(jobs)
        if self.limits.of_tenants:
            self._news = self._news._replace(freed=True)

    def tick(self, c: Conditions) -> None:
        """Every second or so: follow the pace, leave other brokers what is too much, look for their jobs."""
        self.pace.tick(c.now, working=bool(self.deliveries.in_flight))
        self._sheds = True
        if 0 < c.others < CROWD or c.now >= self._looks_again:
            self._looks_again = c.now + ALONE * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            self._looks = True

    # ------------------------------------------------------------------- workers

    def drop(self, owner: str, now: float) -> list[Delivery]:
        """Forget what was reserved under an owner id that is declared dead; returns what was at workers."""
        self.staging.drop(owner)
        self.ended(self.reservations.under(owner))
        taken = self.deliveries.lose(owner, now)
        self.hand_out.offer_workers_of(taken)
        return taken

    # ----------------------------------------------------------------- decisions

    def wake(self, c: Conditions) -> None:
        """Note what has come with the time, and stage the pushes whose turn it is."""
        self.limits.use(c.owner)
        self.pace.share(shared=c.others > 0)
        if due := self.due_times.take(c.server):
            self.some_ready(count=due)
        self._expired += self.expiries.take(c.server)
        if self.held_back.take(c.now) or self._tenants_freed:
            self._tenants_freed = False
            if not self.granting(c):
                self.held_back.clear()
            self.ledger.some_ready(HIGHEST, 0)
        if passed := self.ledger.passed(c.now):
            self._stage([job for plan in passed for job in plan.jobs if job.owner == c.owner], c)
            for plan in passed:
                self.reservations.end(plan.number)

    def unwanted(self, c: Conditions) -> list[Job]:
        """Take out what is staged in vain: all jobs if no worker can have them, expired ones, too many."""
        sheds, self._sheds = self._sheds, False
        is_open = self.open(c)
        if is_open and (self.paused or not self.deliveries.capacity):
            return self.staging.clear()
        unwanted: list[Job] = []
        if self._expired or (is_open and self.staging.soonest < math.inf):
            unwanted = self.staging.take_expired(c.server)  # nothing expires that is reserved
        return unwanted + self._surplus(c.now, shared=c.others > 0) if sheds else unwanted

    def take_expired(self) -> list[str]:
        """Return the ids of jobs that have expired since the last call, to be ended where they are ready."""
        if not self._expired:
            return []
        expired, self._expired = self._expired, []
        return expired

    def expire(self, ids: Iterable[str]) -> None:
        """The time to live of these is over."""
        self._expired += ids

    def take_news(self) -> News | None:
        """Return the news for other brokers since the last call; None: there are none."""
        if self._news is _NOTHING_NEW:
            return None
        news, self._news = self._news, _NOTHING_NEW
        return news

    # -------------------------------------------------------------------- claims

    def next_claiming(self, c: Conditions) -> Claiming | None:
        """Decide whether to begin to claim: jobs that are known to be ready, or just to look."""
        looks, self._looks = self._looks or self._hint > 0, False
        hungry = self._hungry(c)
        if not hungry and not (looks and self._curious(c)):
            return None
        # Claims at once: a second one only where the first has had no answer for long.
        if self.ledger.claimers() >= 2 or self.ledger.claims(c.now):
            return None
        return self.ledger.begin(c.now, catches_up=hungry)

    def wanted(self, claiming: Claiming, c: Conditions) -> int:
        """Return how many jobs the next claim should bring; 0: no more are wanted."""
        if claiming.catches_up:
            most = CLAIM if self._hungry(c) else 0
        else:
            most = LOOK if self.limits.holds_ahead else 1
        return max(1, min(most, self._room_left)) if most else 0

    def plan(self, claiming: Claiming, limit: int, number: int, c: Conditions) -> ClaimPlan:
        """Begin one claim of ``limit`` jobs; :meth:`claimed` and :meth:`answered` end it."""
        hint, self._hint = self._hint, 0.0
        due = max(c.server, hint)
        if claiming.catches_up:
            claiming.began = c.now
            bound, one_first = self.ledger.catch_up(due, c.now), False
        else:
            bound, one_first = self.ledger.search(due), hint > 0  # of one, mostly
        brokers = 1 + c.others
        plan = ClaimPlan(limit, self.room_bytes, due, bound, number, brokers, c.place, one_first)
        self._claiming += limit
        self.limits.spend(limit)
        self._staged_budget.take(plan.most_bytes)
        self.reservations.begin(number)
        return plan

    def claimed(
        self, plan: ClaimPlan, jobs: list[Job], held: Mapping[str, float], c: Conditions, *, more: bool
    ) -> None:
        """A claim has brought these; ``more``: it may have left some; ``held``: tenants it held back."""
        self.held_back.found(held, c.now, some_began=bool(jobs))
        self.ledger.claimed(plan.bound, jobs, more=more)
        self._stage(jobs, c)

    def answered(self, plan: ClaimPlan, brought: int) -> None:
        """A claim has ended, with its answer or without."""
        self._claiming -= plan.limit
        self.limits.spend(brought - plan.limit)
        self._staged_budget.take(-plan.most_bytes)
        self.reservations.end(plan.number)

    def next_time(self, c: Conditions) -> float:
        """Return when to ask again though nothing happens, in monotonic seconds."""
        at = self.held_back.next
        if not self.limits.holds_ahead:
            at = min(at, self.limits.next(c.now))
        server = min(self.due_times.next, self.expiries.next)
        return at if server == math.inf else min(at, c.now + min(server - c.server, _LONGEST))

    # --------------------------------------------------------------- helpers

    @property
    def _room_left(self) -> int:
        return self.room - self.ledger.expected

    def _stage(self, jobs: list[Job], c: Conditions) -> None:
        self.reservations.add(jobs)
        self.staging.add(jobs)
        if self.staging.soonest < math.inf:
            self.expiries.watch(jobs, c.server)

    def _surplus(self, now: float, *, shared: bool) -> list[Job]:
        """Take out what workers won't come to within a second: other brokers may have it.

        Not while later jobs are on their way here, which would overtake those.
        """
        if self.ledger.under_way(now):
            return []
        ahead = UNKNOWN if self.pace.rate is None else int(self.pace.rate)
        surplus = self.staging.take_last(len(self.staging) - self.deliveries.free - ahead)
        return self._to_border(surplus, shared=shared)

    def _to_border(self, surplus: list[Job], *, shared: bool) -> list[Job]:
        """Stage the jobs again whose pack would be torn; but where others wait for jobs, not if it is all."""
        pack = surplus[-1].pack if surplus else None
        if pack is None:
            return surplus
        torn = [job for job in surplus if job.pack is pack]
        if len(torn) == pack.left.bit_count() or (shared and len(torn) == len(surplus)):
            return surplus
        self.staging.add(torn[::-1])
        return surplus[: -len(torn)]

    def _accepted_at(self, seq: int, c: Conditions) -> float:
        """Return when a job of this number was accepted, in the server's time.

        Another broker's clock may be ahead of ours, as far as each knows the server's: jobs accepted here
        from now on have higher numbers, and so none of its jobs is taken for one that is yet to come.
        """
        # Seconds that the clock of another broker may be ahead; a number of a job beyond that is none.
        if seq <= (c.server + 1.0) * 1e6:
            self.ledger.heard_of(seq)
            return seq / 1e6
        return 0.0

    def _curious(self, c: Conditions) -> bool:
        """Return True if a look for jobs of other brokers is worthwhile."""
        return (
            self.granting(c)
            and self._room_left > 0
            and not self.ledger.older_returning(c.now)
            and (self.limits.holds_ahead or self.limits.may_grant(self.reserved, c.now))
        )

    def _hungry(self, c: Conditions) -> bool:
        """Return True if workers want more than is staged, and jobs may be ready."""
        return (
            self.ledger.may_lie_ready
            and (self._is_low() or self.ledger.backlog <= self._room_left)
            and self._curious(c)
        )

    def _is_low(self) -> bool:
        """Return True if so little is staged that a claim is a large one."""
        return len(self.staging) + self.ledger.expected <= self.pace.appetite // 2
