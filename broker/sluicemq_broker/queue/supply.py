"""Where jobs come from: pushes that are born reserved, and claims of what lies ready in MongoDB.

A job that is born reserved costs MongoDB an insert and a delete; one that lies ready first, a claim
between them, which doubles that. So pushes wait for workers that are about to have room
(:meth:`Supply.await_room`): both together do 45k jobs a second instead of 20k.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import gevent
from gevent.event import Event

from sluicemq.errors import SluiceError, Unavailable
from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.holdings import Holdings
from sluicemq_broker.queue.memory import Memory
from sluicemq_broker.queue.owners import Owners
from sluicemq_broker.queue.pace import Pace
from sluicemq_broker.queue.patience import Patience
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.runtime.counts import Count
from sluicemq_broker.store.connection import ServerClock
from sluicemq_broker.store.queue_store import Claim, QueueStore

#: Jobs in one claim, at most: 256 to 1000 at a time reach 25k to 39k/s, one by one 1k to 2k.
CLAIM: Final = 1000
#: Jobs in one look for what other brokers have left; it must not stand in anybody's way.
LOOK: Final = 64
#: A push waits so many seconds for workers, at most, if they are as fast as this, in jobs a second:
#: MongoDB has time to spare for slower ones. Of workers just begun, we know within the other time.
MOMENT: Final = 0.25
FAST: Final = 5000.0
_FIRST_MOMENT: Final = 0.05
#: Jobs go out in the order of acceptance, but none waits longer than so many seconds for one before it
#: whose insert, claim, or way back to ``ready`` has no answer from MongoDB.
IN_ORDER: Final = 2.0
#: Claims at once: a second one only where the first has had no answer for as long as that.
_CLAIMS_AT_ONCE: Final = 2
_NOTHING = -1
#: Delayed jobs are looked for on ticks of so many seconds, this far ahead: a bounded number of timers.
_TICK, _HORIZON = 0.05, 60.0


class Demand(Protocol):
    """What the workers of this broker want."""

    pace: Pace

    @property
    def granting(self) -> bool:
        """Whether jobs may be handed out, and somebody is there to take them."""

    @property
    def room(self) -> int:
        """How many more jobs to hold for them; nothing if what is held takes too much memory."""

    @property
    def room_bytes(self) -> int:
        """The same in bytes of payloads and headers."""

    @property
    def staged(self) -> int:
        """How many jobs are held for them."""

    def stage(self, jobs: list[Job]) -> None:
        """Hold jobs that this broker has reserved."""


class Arrival:
    """A push under way: those of its jobs that are born reserved go out once they are durable.

    ``ready``: the highest priority of the others, which no claim finds before that; ``seq``: the
    first number of all; ``hold``: the number of their reservation.
    """

    __slots__ = ("began", "finished", "hold", "jobs", "ready", "seq")

    def __init__(self, jobs: list[Job], ready: int, seq: int, hold: int, began: float) -> None:
        self.jobs = jobs
        self.ready = ready
        self.seq = seq
        self.hold = hold
        self.began = began
        self.finished = False

    def awaited(self, now: float) -> bool:
        """True while what comes after it waits for it."""
        return not self.finished and now - self.began < IN_ORDER


class Supply:
    """What lies ready in MongoDB as far as this broker knows, what is on its way there, and the claims.

    Nothing here blocks but :meth:`await_room`, :meth:`search` and the claims, whose greenlet lives only while
    workers want more than is staged.
    """

    def __init__(
        self,
        store: QueueStore,
        owners: Owners,
        clock: ServerClock,
        patience: Patience,
        counters: Counters,
        demand: Demand,
        holdings: Holdings,
        memory: Memory,
    ) -> None:
        self._store = store
        self._memory = memory
        self._holdings = holdings
        self._owners = owners
        self._clock = clock
        self._patience = patience
        self._counters = counters
        self._demand = demand
        self.on_dead: Callable[[Iterable[str]], None] = _ignore
        """Told the ids of jobs that became dead letters when they were claimed."""
        self._arrivals: deque[Arrival] = deque()
        self._going_back: deque[tuple[float, int]] = deque()  # since when how many are on their way back
        self._expected = 0
        self._ready = 255  # the highest priority that may lie ready in MongoDB; _NOTHING: none does
        self._backlog = math.inf  # about how many that are
        self._withheld = _NOTHING  # priority of jobs that wait for an earlier insert to be through
        self._last_seq = 0
        self._claims: dict[object, float] = {}  # who claims, and since when it waits for its claim
        self._catching_up: set[object] = set()  # those of them that claim what is known to lie ready
        self._unanswered: set[tuple[str, int]] = set()  # owner and hold of claims whose answer was lost
        self._unclaimed = Event()
        self._unclaimed.set()
        self._changed = Event()
        self._ticks: Counter[int] = Counter()  # how many jobs become due at each

    # ---------------------------------------------------------------- pushes

    def await_room(self, count: int) -> None:
        """Before a push: wait for workers that will have come to so many jobs in a moment.

        Nothing is waited for if they are slow, or far behind: a push never gets slower than some
        thousands a second by it, and only while that brings the jobs to the workers sooner.
        """
        deadline = time.monotonic() + (_FIRST_MOMENT if self._demand.pace.rate is None else MOMENT)
        while self._worth_waiting(count) and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            self._changed.wait(left)

    def expect(self, jobs: Sequence[Job], now: float) -> Arrival:
        """Before a push is written: give an owner to those that can go straight to a free worker.

        A job is born reserved if a worker can take it and nothing that comes before it lies ready:
        no claim round trip. Call :meth:`arrived` with what became of it.
        """
        first = self._demand.granting and not self._behind and not self._older_come_back
        owner = self._owners.current if first else ""
        room = self._room() if owner else 0
        began = time.monotonic()
        before = max([self._ready, *(each.ready for each in self._arrivals if each.awaited(began))])
        hold = self._owners.new_hold()
        born: list[Job] = []
        for job in jobs:
            if room > len(born) and job.priority > before and job.eligible_at <= now:
                job.owner, job.hold, job.attempts = owner, hold, 1
                born.append(job)
        ready = [job.priority for job in jobs if not job.owner and job.eligible_at <= now]
        arrival = Arrival(born, max(ready, default=_NOTHING), jobs[0].seq, hold, began)
        self._holdings.begin(hold)
        self._expected += len(born)
        self._arrivals.append(arrival)
        self._ready = max(self._ready, arrival.ready)
        self._backlog += len(ready)
        self._last_seq = jobs[-1].seq
        return arrival

    def arrived(self, arrival: Arrival, durable: list[Job]) -> None:
        """After a push was written: stage what it reserved, in the order of acceptance."""
        self._expected -= len(arrival.jobs)
        arrival.jobs = durable
        arrival.finished = True
        self._pass_on()

    # --------------------------------------------------------------- the order

    def going_back(self, count: int) -> None:
        """So many jobs are on their way back to ``ready``: nothing newer goes out before them."""
        if count:
            self._going_back.append((time.monotonic(), count))

    def came_back(self, count: int) -> None:
        """So many of them are ``ready`` again, or were not ours any more."""
        while count and self._going_back:
            since, waiting = self._going_back.popleft()
            if waiting > count:
                self._going_back.appendleft((since, waiting - count))
            count -= min(count, waiting)

    def tick(self) -> None:
        """Every second or so: wait no longer for what has had no answer for too long; look for more."""
        if self._arrivals:
            self._pass_on()
        self.refill()
        self._look_around()

    # ------------------------------------------------------ what lies ready

    def some_ready(self, priority: int = 255, count: float = math.inf) -> None:
        """So many jobs (by default nobody knows how many) of this priority or below may lie ready."""
        self._ready = max(self._ready, priority)
        self._backlog += count
        self.refill()

    def due_later(self, times: Iterable[float]) -> None:
        """Jobs become due at these times: claim them then. What lies further ahead is found by the poll."""
        now = self._clock.now()
        for when in times:
            if when - now < _HORIZON:
                tick = math.ceil(when / _TICK)
                if tick not in self._ticks:
                    gevent.spawn_later(max(0.0, tick * _TICK - now), self._due, tick)
                self._ticks[tick] += 1

    def refill(self) -> None:
        """What is staged, or who is there, has changed: claim if more is wanted."""
        self._changed.set()
        if self._hungry():
            self._spawn_claims(self._catch_up)

    def search(self, enough: Callable[[], bool], timeout: float) -> None:
        """Claim what lies ready, whatever is known of that; blocks until it is staged, or there is enough."""
        end = time.monotonic() + timeout
        self.some_ready(count=0)
        while self._claims and not enough() and (left := end - time.monotonic()) > 0:
            self._unclaimed.wait(left)

    @property
    def under_way(self) -> bool:
        """Whether a claim or a push that is born reserved will bring jobs."""
        return self._awaited(self._claims) or self._expected > 0

    def at_rest(self, timeout: float) -> bool:
        """Wait until no claim is under way; False if time ran out before."""
        return bool(self._unclaimed.wait(timeout))

    # --------------------------------------------------------------- helpers

    @property
    def _older_come_back(self) -> bool:
        return bool(self._going_back) and time.monotonic() - self._going_back[0][0] < IN_ORDER

    @property
    def _behind(self) -> bool:
        """True while what lies ready is being claimed: nothing may overtake it."""
        return self._awaited(self._catching_up)

    def _awaited(self, claims: Iterable[object]) -> bool:
        """True if one of them may have its answer any moment."""
        now = time.monotonic()
        return any(now - self._claims[each] < IN_ORDER for each in claims)

    def _pass_on(self) -> None:
        """Stage what is durable, but for what comes after an insert that is awaited."""
        staged: list[Job] = []
        passed: list[int] = []
        waiting: deque[Arrival] = deque()
        now = time.monotonic()
        mine = set(self._owners.mine())  # declared dead meanwhile: others have these jobs
        for each in self._arrivals:
            if each.finished and not any(before.awaited(now) for before in waiting):
                staged += [job for job in each.jobs if job.owner in mine]
                passed.append(each.hold)
            else:
                waiting.append(each)
        self._arrivals = waiting
        self._ready, self._withheld = max(self._ready, self._withheld), _NOTHING
        self._demand.stage(staged)
        for hold in passed:
            self._holdings.end(hold)

    def _look_around(self) -> None:
        """Claim a little, to see whether other brokers have left something ready."""
        if self._demand.granting and self._room() > 0 and not self._older_come_back:
            self._spawn_claims(self._look)

    def _due(self, tick: int) -> None:
        self.some_ready(count=self._ticks.pop(tick))

    def _room(self) -> int:
        return self._demand.room - self._expected

    def _worth_waiting(self, count: int) -> bool:
        if not self._demand.granting:
            return False
        room = self._room()
        if room >= count and self._ready == _NOTHING and not self._behind:
            return False  # they will be born reserved
        rate = self._demand.pace.rate
        if rate is None:
            return self._behind or self._demand.pace.working
        return rate >= FAST and self._backlog + count - max(0, room) <= rate * MOMENT

    def _hungry(self) -> bool:
        return (
            self._ready > _NOTHING
            and self._demand.granting
            and not self._older_come_back
            and self._room() > 0  # else the next tick would give back what is claimed
            and (self._is_low() or self._backlog <= self._room())
        )

    def _is_low(self) -> bool:
        """Whether so little is staged that a claim is a large one."""
        return self._demand.staged + self._expected <= self._demand.pace.appetite // 2

    def _spawn_claims(self, claims: Callable[[object], None]) -> None:
        """One claim at a time, but for those whose answer is long in coming."""
        if len(self._claims) < _CLAIMS_AT_ONCE and not self._awaited(self._claims):
            me = object()
            self._claims[me] = time.monotonic()
            if claims == self._catch_up:
                self._catching_up.add(me)
            self._unclaimed.clear()
            gevent.spawn(self._run_claims, me, claims)

    def _run_claims(self, me: object, claims: Callable[[object], None]) -> None:
        try:
            claims(me)
        except Unavailable:
            pass  # patience is over: the broker stops, and what may be claimed is swept
        except SluiceError as error:
            self._counters.notice(Count.CLAIMS_REFUSED, f"MongoDB refuses to hand out jobs: {error}")
        finally:
            del self._claims[me]
            self._catching_up.discard(me)
            if not self._claims:
                self._unclaimed.set()
        self.refill()

    def _catch_up(self, me: object) -> None:
        """Claim what is known to lie ready, as long as workers want it."""
        while self._hungry():
            self._claims[me] = time.monotonic()
            self._claim(max(1, min(CLAIM, self._room())))

    def _look(self, _me: object) -> None:
        self._claim_next(min(LOOK, max(1, self._room())), [], 255)

    def _claim(self, limit: int) -> None:
        bound, self._ready = self._ready, _NOTHING
        now = time.monotonic()
        under_way = [each.seq for each in self._arrivals if each.ready > _NOTHING and each.awaited(now)]
        self._claim_next(limit, under_way, bound)
        if under_way:
            self._withheld = max(self._withheld, bound)

    def _claim_next(self, limit: int, under_way: list[int], bound: int) -> None:
        """One claim, until its outcome is known; ``bound``: the highest priority that may lie ready."""
        hold = self._owners.new_hold()
        self._holdings.begin(hold)
        most_bytes = self._demand.room_bytes
        self._memory.staged += most_bytes
        try:
            claim = self._patience.insist(lambda: self._reserve(limit, hold, under_way, most_bytes))
            self._take_in(claim, bound)
        finally:
            self._memory.staged -= most_bytes
            self._holdings.end(hold)
            self._unanswered = {each for each in self._unanswered if each[1] != hold}

    def _take_in(self, claim: Claim, bound: int) -> None:
        if claim.owner not in self._owners.mine():
            return  # declared dead meanwhile: others have these jobs
        for job_id in claim.buried:
            self._counters.notice(Count.DEAD, f"job {job_id} is dead: no attempt is left")
        self.on_dead(claim.buried)
        if claim.more:
            self._ready = max(self._ready, claim.jobs[-1].priority if claim.jobs else bound)
            self._backlog = max(0, self._backlog - len(claim.jobs))
        else:
            self._backlog = 0
        self._demand.stage(claim.jobs)

    def _reserve(self, limit: int, hold: int, under_way: list[int], most_bytes: int) -> Claim:
        """Claim; after an error, when it may have been applied, take what lies under its number."""
        self._store.prepare()
        owner = self._owners.use()
        if (owner, hold) in self._unanswered:
            return Claim(self._store.claimed(owner, hold), owner, more=True)
        try:
            now, brokers = self._clock.now(), 1 + self._owners.others
            # Of two inserts under way, or yet to come, the later may be through first: nothing that is
            # accepted here from now on is claimed, nor what comes after an insert under way.
            before = min([max(self._last_seq + 1, int(now * 1e6)), *under_way])
            return self._store.reserve(
                limit, now, owner, hold, before=before, brokers=brokers, most_bytes=most_bytes
            )
        except Unavailable:
            self._unanswered.add((owner, hold))
            raise


def _ignore(_ids: Iterable[str]) -> None:
    """Nobody wants to hear of them."""
