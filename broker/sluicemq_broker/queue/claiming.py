"""The claims that the scheduler wants, made in MongoDB."""

from __future__ import annotations

from collections.abc import Callable

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.endings import Endings
from sluicemq_broker.queue.groups import Groups
from sluicemq_broker.queue.ledger import HIGHEST, Claiming
from sluicemq_broker.queue.permits import Permits
from sluicemq_broker.queue.plans import ClaimPlan
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Claim


class Claimer:
    """The greenlets that make the claims of one queue: each lives only while workers want more.

    ``kill -9`` at any moment: what a claim has reserved is given back when the lease has run out.
    """

    def __init__(self, core: QueueCore, permits: Permits, groups: Groups, endings: Endings) -> None:
        self._core = core
        self._permits = permits
        self._groups = groups
        self._endings = endings
        self._unanswered: set[tuple[str, int]] = set()  # owner and number of claims whose answer was lost
        self._idle = Event()
        self._idle.set()

    def start(self, claiming: Claiming) -> None:
        """Claim as long as the scheduler wants more."""
        self._idle.clear()
        gevent.spawn(self._run, claiming)

    def search(self, enough: Callable[[], bool], timeout: float) -> None:
        """Claim all ready jobs, known or not; blocks until they are staged, or there is enough."""
        end = self._core.timer.now() + timeout
        ledger = self._core.scheduler.ledger
        ledger.some_ready(HIGHEST, 0)
        self._core.dispatch()
        while ledger.claimers() and not enough() and (left := end - self._core.timer.now()) > 0:
            self._core.timer.wait(self._idle, left)

    def at_rest(self, timeout: float) -> bool:
        """Wait until no claim is under way; False if time ran out before."""
        return bool(self._idle.wait(timeout))

    def _run(self, claiming: Claiming) -> None:
        ledger = self._core.scheduler.ledger
        try:
            self._claim_while_wanted(claiming)
        except UnavailableError:
            pass  # nothing is tried again: the broker stops, and what may be claimed is swept
        except SluiceError as error:
            self._core.counters.notice(Count.CLAIMS_REFUSED, f"MongoDB refuses to hand out jobs: {error}")
        finally:
            ledger.end(claiming)
            if not ledger.claimers():
                self._idle.set()
        self._core.dispatch()

    def _claim_while_wanted(self, claiming: Claiming) -> None:
        scheduler = self._core.scheduler
        while wanted := scheduler.wanted(claiming, self._core.conditions()):
            limit = self._permits.grant(wanted)
            if not limit:
                return
            number = self._core.owners.new_reservation()
            plan = scheduler.plan(claiming, limit, number, self._core.conditions())
            self._claim(plan)
            if not claiming.catches_up:
                return
            scheduler.ledger.caught_up(plan.bound)

    def _claim(self, plan: ClaimPlan) -> None:
        """Make one claim, until its outcome is known."""
        brought, began = 0, self._core.timer.now()
        try:
            claim = self._core.retry.run(lambda: self._reserve(plan))
            self._core.scheduler.pace.claim_took(self._core.timer.now() - began)
            brought = len(claim.jobs)
            self._take_in(claim, plan)
        finally:
            self._core.scheduler.answered(plan, brought)
            self._unanswered = {entry for entry in self._unanswered if entry[1] != plan.number}

    def _take_in(self, claim: Claim, plan: ClaimPlan) -> None:
        self._core.counters.add(Count.CLAIMED, len(claim.jobs))
        self._core.counters.add(Count.CLAIMS_LOST, claim.lost)
        conditions = self._core.conditions()
        if claim.owner != conditions.owner:
            return  # declared dead meanwhile: others have these jobs
        for job_id in claim.died:
            text = f"job {job_id} is dead: no attempt is left"
            self._core.counters.notice(Count.DEAD, text, about={"job": job_id})
        self._groups.freed(claim.freed)
        self._endings.died(claim.died)
        self._core.scheduler.claimed(plan, claim.jobs, claim.held, conditions, more=claim.more)
        self._core.dispatch()

    def _reserve(self, plan: ClaimPlan) -> Claim:
        """Claim; after an error, when it may have been applied, take what lies under its number."""
        self._core.store.prepare()
        owner = self._core.owners.use()
        if (owner, plan.number) in self._unanswered:
            return Claim(self._core.store.claimed(owner, plan.number), owner, more=True)
        self._core.scheduler.limits.use(owner)
        if not self._core.scheduler.limits.cover(self._core.scheduler.reserved):
            return Claim([], owner, more=True)  # the permits were those of a former id
        try:
            return self._core.store.reserve(
                plan.limit,
                max(self._core.clock.now(), plan.due),
                owner,
                plan.number,
                before=plan.bound.before,
                brokers=plan.brokers,
                place=plan.place,
                most_bytes=plan.most_bytes,
                one_first=plan.one_first,
            )
        except UnavailableError:
            self._unanswered.add((owner, plan.number))
            raise
