"""Ready jobs as far as a broker knows, and jobs on their way: none overtakes another.

No greenlet, no clock, no MongoDB: the time is an argument, in monotonic seconds. So every order of events can
be tried in a test.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from sluicemq_broker.job import Job

#: Jobs go out in the order of acceptance, but none waits longer than this many seconds for one before it
#: whose insert, claim, or way back to ``ready`` has no answer from MongoDB.
IN_ORDER: Final = 2.0
#: The priority of no job.
NOTHING: Final = -1
HIGHEST: Final = 255


class Arrival:
    """A push under way: those of its jobs that are inserted reserved go out once they are durable.

    ``ready``: the highest priority of the others, which no claim finds before that; ``seq``: the
    first number of all; ``number``: the number of their reservation.
    """

    __slots__ = ("began", "finished", "jobs", "number", "ready", "seq")

    def __init__(self, jobs: list[Job], ready: int, seq: int, number: int, began: float) -> None:
        self.jobs = jobs
        self.ready = ready
        self.seq = seq
        self.number = number
        self.began = began
        self.finished = False

    def awaited(self, now: float) -> bool:
        """True while what comes after it waits for it."""
        return not self.finished and now - self.began < IN_ORDER


class Claiming:
    """A greenlet that makes claims. ``catches_up``: of known ready jobs; else it just looks."""

    __slots__ = ("began", "catches_up")

    def __init__(self, began: float, *, catches_up: bool) -> None:
        self.began = began
        self.catches_up = catches_up

    def awaited(self, now: float) -> bool:
        """True if it may have its answer any moment."""
        return now - self.began < IN_ORDER


class Bound(NamedTuple):
    """How far one claim may go.

    ``priority``: the highest of ready jobs; ``before``: no job of this number or a later one may be
    claimed, for the insert of an earlier one may be under way; ``passes_over``: whether that leaves some
    that may be there already, none of a higher number than ``known``.
    """

    priority: int
    before: int
    passes_over: bool
    known: int


class Ledger:
    """The jobs of one queue that no worker here has yet, as far as is known.

    ::

        push ─┬─ expect ─ inserted reserved ── arrived ──▶ passed, in the order of acceptance ──▶ staged
              └─ the others: ready from when they are durable ─┐
        rolled back, released: returning ─── returned  ────────┤
        the next of its group: waiting ── promoted ────────────┤
        other brokers' jobs: nobody tells ─────────────────────┴▶ ready ── claim ──▶ staged

    The rule is *first accepted, first out* within a priority, and no higher priority is kept waiting by a
    lower one: a job is inserted reserved only if nothing that comes before it may be ready, be on its way
    there, or be claimed at this moment; a claim takes nothing accepted after an insert that is under way.
    What has had no answer for :data:`IN_ORDER` seconds is waited for no longer.
    """

    def __init__(self) -> None:
        self.expected = 0
        """Jobs inserted reserved that are on their way."""
        self.backlog = math.inf
        """About how many jobs are ready."""
        self.last_seq = 0
        """Jobs that are accepted from now on have higher numbers."""
        self._ready = HIGHEST  # the highest priority of jobs that may be ready; NOTHING: none does
        self._withheld = NOTHING  # priority of jobs that wait for earlier inserts to be through
        self._withheld_to = 0  # the highest number of those jobs
        self._arrivals: deque[Arrival] = deque()
        self._returning: deque[tuple[float, int]] = deque()  # since when how many are on their way back
        self._claiming: set[Claiming] = set()

    # ---------------------------------------------------------------- pushes

    def expect(
        self, jobs: Sequence[Job], reserved: list[Job], number: int, due: float, now: float
    ) -> Arrival:
        """A push is about to be written; these of its jobs are ``reserved``. ``due``: the server's time."""
        ready = [
            job.priority for job in jobs if not job.owner and job.eligible_at <= due and job.group is None
        ]
        arrival = Arrival(reserved, max(ready, default=NOTHING), jobs[0].seq, number, now)
        self._arrivals.append(arrival)
        self.expected += len(reserved)
        self._ready = max(self._ready, arrival.ready)
        self.backlog += len(ready)
        self.last_seq = max(self.last_seq, jobs[-1].seq)
        return arrival

    def heard_of(self, seq: int) -> None:
        """There is a job of this number, of another broker: what is accepted from now on comes after it."""
        self.last_seq = max(self.last_seq, seq)

    def first_to_come(self, now: float) -> int | None:
        """Return the priority above which a new job comes before all ready ones; None: none does."""
        if self.catching_up(now) or self.older_returning(now):
            return None
        waiting = [arrival.ready for arrival in self._arrivals if arrival.awaited(now)]
        return max([self._ready, self._withheld, *waiting])

    def arrived(self, arrival: Arrival, durable: list[Job]) -> None:
        """A push was written: of those inserted reserved these are durable."""
        self.expected -= len(arrival.jobs)
        arrival.jobs = durable
        arrival.finished = True

    @property
    def inserting(self) -> int:
        """Jobs inserted reserved that are on their way, or wait for those before them."""
        return sum([len(arrival.jobs) for arrival in self._arrivals])

    def passed(self, now: float) -> list[Arrival]:
        """Take out the pushes whose jobs may go out: durable, and none accepted before them is awaited."""
        passed: list[Arrival] = []
        if self._withheld == NOTHING and not any(arrival.finished for arrival in self._arrivals):
            return passed  # as mostly: this is asked after every event
        waiting: deque[Arrival] = deque()
        awaited = False
        for arrival in self._arrivals:
            if arrival.finished and not awaited:
                passed.append(arrival)
            else:
                waiting.append(arrival)
                awaited = awaited or arrival.awaited(now)
        self._arrivals = waiting
        if self._withheld > NOTHING and not self._held_up(self._withheld_to, now):
            self._ready = max(self._ready, self._withheld)
            self._withheld, self._withheld_to = NOTHING, 0
        return passed

    # ------------------------------------------------------ ready jobs

    def some_ready(self, priority: int = HIGHEST, count: float = math.inf) -> None:
        """``count`` jobs (by default an unknown number) of this priority or below may be ready."""
        self._ready = max(self._ready, priority)
        self.backlog += count

    def promoted(self, priority: int, count: int, seq: int, now: float) -> None:
        """``count`` jobs of groups, none of a higher number than ``seq``, are ready now.

        One may be so before the insert that brought it is answered, here or at another broker: no claim takes
        it until then.
        """
        self.some_ready(priority, count)
        if self._held_up(seq, now):
            self._withhold(priority, seq)

    @property
    def may_lie_ready(self) -> bool:
        """True if a claim may find anything, as far as is known here."""
        return self._ready > NOTHING

    @property
    def some_come_first(self) -> bool:
        """True if ready or withheld jobs come before a new one of their priority."""
        return max(self._ready, self._withheld) > NOTHING

    def returning(self, count: int, now: float) -> None:
        """``count`` jobs are on their way back to ``ready``: nothing newer goes out before them."""
        if count:
            self._returning.append((now, count))

    def returned(self, count: int) -> None:
        """``count`` of the returning jobs are ready again, or were not ours any more."""
        while count and self._returning:
            since, waiting = self._returning.popleft()
            if waiting > count:
                self._returning.appendleft((since, waiting - count))
            count -= min(count, waiting)

    def older_returning(self, now: float) -> bool:
        """True while jobs accepted before all that comes now are on their way back."""
        return bool(self._returning) and now - self._returning[0][0] < IN_ORDER

    # ---------------------------------------------------------------- claims

    def begin(self, now: float, *, catches_up: bool) -> Claiming:
        """Note that a greenlet begins to claim."""
        claiming = Claiming(now, catches_up=catches_up)
        self._claiming.add(claiming)
        return claiming

    def end(self, claiming: Claiming) -> None:
        """Note that a greenlet claims no more."""
        self._claiming.discard(claiming)

    def claimers(self) -> int:
        """How many greenlets make claims now."""
        return len(self._claiming)

    def claims(self, now: float) -> bool:
        """True if a claim may have its answer any moment."""
        return any(claim.awaited(now) for claim in self._claiming)

    def catching_up(self, now: float) -> bool:
        """True while ready jobs are being claimed: nothing may overtake them."""
        return any(claim.catches_up and claim.awaited(now) for claim in self._claiming)

    def under_way(self, now: float) -> bool:
        """True if a claim, or a push that is inserted reserved, will bring jobs."""
        return self.expected > 0 or self.claims(now)

    def catch_up(self, due: float, now: float) -> Bound:
        """Begin one claim of ready jobs: from now on none are known, but those noted meanwhile.

        ``due``: the server's time, from which jobs have their numbers.
        """
        priority, self._ready = self._ready, NOTHING
        under_way = [arrival.seq for arrival in self._arrivals if arrival.awaited(now)]
        # All ready jobs behind such an insert came with a push that is in here still.
        passes_over = bool(under_way) and any(arrival.ready > NOTHING for arrival in self._arrivals)
        before = min([*under_way, self._next_seq(due)])
        return Bound(priority, before, passes_over, self.last_seq)

    def search(self, due: float) -> Bound:
        """Begin one claim that only looks for jobs that other brokers have left."""
        return Bound(HIGHEST, self._next_seq(due), passes_over=False, known=self.last_seq)

    def claimed(self, bound: Bound, jobs: Sequence[Job], *, more: bool) -> None:
        """A claim has brought these; ``more``: it may have left some."""
        if more:
            self._ready = max(self._ready, jobs[-1].priority if jobs else bound.priority)
            self.backlog = max(0, self.backlog - len(jobs))
        else:
            self.backlog = 0

    def caught_up(self, bound: Bound) -> None:
        """A claim was answered: jobs it had to pass over may be ready once the inserts before are through."""
        if not bound.passes_over:
            return
        if any(not arrival.finished and arrival.seq <= bound.known for arrival in self._arrivals):
            self._withhold(bound.priority, bound.known)
        else:  # they were through before this claim was
            self._ready = max(self._ready, bound.priority)

    def _withhold(self, priority: int, seq: int) -> None:
        self._withheld = max(self._withheld, priority)
        self._withheld_to = max(self._withheld_to, seq)

    def _held_up(self, seq: int, now: float) -> bool:
        """True if an insert is awaited before which no job of this number is claimed."""
        return any(arrival.seq <= seq and arrival.awaited(now) for arrival in self._arrivals)

    def _next_seq(self, due: float) -> int:
        """No job that is accepted here from now on has a lower number.

        Of two inserts that are yet to come, the later may be through first.
        """
        return max(self.last_seq + 1, int(due * 1e6))
