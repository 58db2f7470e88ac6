"""The claims that the scheduler wants, made in MongoDB."""

from __future__ import annotations

from collections.abc import Callable

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import SluiceError, Unavailable
from sluicemq_broker.context import Context
from sluicemq_broker.queue.endings import Endings
from sluicemq_broker.queue.groups import Groups
from sluicemq_broker.queue.ledger import HIGHEST, Claiming
from sluicemq_broker.queue.permits import Permits
from sluicemq_broker.queue.plans import ClaimPlan
from sluicemq_broker.queue.scheduler import Scheduler
from sluicemq_broker.queue.surroundings import Surroundings
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Claim, QueueStore


class Claims:
    """The greenlets that make the claims of one queue: each lives only while workers want more.

    ``kill -9`` at any moment: what a claim has reserved is given back when the lease has run out.
    """

    def __init__(
        self,
        store: QueueStore,
        context: Context,
        scheduler: Scheduler,
        surroundings: Surroundings,
        permits: Permits,
        groups: Groups,
        endings: Endings,
        go_on: Callable[[], None],
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._surroundings = surroundings
        self._permits = permits
        self._groups = groups
        self._endings = endings
        self._go_on = go_on
        self._owners = context.owners
        self._clock = context.clock
        self._timer = context.timer
        self._retry = context.retry
        self._counters = context.counters
        self._unanswered: set[tuple[str, int]] = set()  # owner and number of claims whose answer was lost
        self._idle = Event()
        self._idle.set()

    def start(self, claiming: Claiming) -> None:
        """Claim as long as the scheduler wants more."""
        self._idle.clear()
        gevent.spawn(self._run, claiming)

    def search(self, enough: Callable[[], bool], timeout: float) -> None:
        """Claim all ready jobs, known or not; blocks until they are staged, or there is enough."""
        end = self._timer.now() + timeout
        ledger = self._scheduler.ledger
        ledger.some_ready(HIGHEST, 0)
        self._go_on()
        while ledger.claimers() and not enough() and (left := end - self._timer.now()) > 0:
            self._timer.wait(self._idle, left)

    def at_rest(self, timeout: float) -> bool:
        """Wait until no claim is under way; False if time ran out before."""
        return bool(self._idle.wait(timeout))

    def _run(self, claiming: Claiming) -> None:
        ledger = self._scheduler.ledger
        try:
            self._claim_while_wanted(claiming)
        except Unavailable:
            pass  # nothing is tried again: the broker stops, and what may be claimed is swept
        except SluiceError as error:
            self._counters.notice(Count.CLAIMS_REFUSED, f"MongoDB refuses to hand out jobs: {error}")
        finally:
            ledger.end(claiming)
            if not ledger.claimers():
                self._idle.set()
        self._go_on()

    def _claim_while_wanted(self, claiming: Claiming) -> None:
        scheduler = self._scheduler
        while wanted := scheduler.wanted(claiming, self._surroundings.now()):
            limit = self._permits.grant(wanted)
            if not limit:
                return
            number = self._owners.new_reservation()
            plan = scheduler.plan(claiming, limit, number, self._surroundings.now())
            self._claim(plan)
            if not claiming.catches_up:
                return
            scheduler.ledger.caught_up(plan.bound)

    def _claim(self, plan: ClaimPlan) -> None:
        """Make one claim, until its outcome is known."""
        brought, began = 0, self._timer.now()
        try:
            claim = self._retry.run(lambda: self._reserve(plan))
            self._scheduler.pace.claim_took(self._timer.now() - began)
            brought = len(claim.jobs)
            self._take_in(claim, plan)
        finally:
            self._scheduler.answered(plan, brought)
            self._unanswered = {each for each in self._unanswered if each[1] != plan.number}

    def _take_in(self, claim: Claim, plan: ClaimPlan) -> None:
        self._counters.add(Count.CLAIMED, len(claim.jobs))
        self._counters.add(Count.CLAIMS_LOST, claim.lost)
        conditions = self._surroundings.now()
        if claim.owner != conditions.owner:
            return  # declared dead meanwhile: others have these jobs
        for job_id in claim.died:
            text = f"job {job_id} is dead: no attempt is left"
            self._counters.notice(Count.DEAD, text, about={"job": job_id})
        self._groups.freed(claim.freed)
        self._endings.died(claim.died)
        self._scheduler.claimed(plan, claim.jobs, claim.held, conditions, more=claim.more)
        self._go_on()

    def _reserve(self, plan: ClaimPlan) -> Claim:
        """Claim; after an error, when it may have been applied, take what lies under its number."""
        self._store.prepare()
        owner = self._owners.use()
        if (owner, plan.number) in self._unanswered:
            return Claim(self._store.claimed(owner, plan.number), owner, more=True)
        self._scheduler.limits.use(owner)
        if not self._scheduler.limits.cover(self._scheduler.reserved):
            return Claim([], owner, more=True)  # the permits were those of a former id
        try:
            return self._store.reserve(
                plan.limit,
                max(self._clock.now(), plan.due),
                owner,
                plan.number,
                before=plan.bound.before,
                brokers=plan.brokers,
                place=plan.place,
                most_bytes=plan.most_bytes,
                one_first=plan.one_first,
            )
        except Unavailable:
            self._unanswered.add((owner, plan.number))
            raise
