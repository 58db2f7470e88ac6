"""One queue in memory: jobs and workers, moved by the decisions of the broker's own queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    BadHeadersError,
    DeadError,
    DuplicateError,
    ExpiredError,
    LeaseLostError,
    NotFoundError,
    PausedError,
    SluiceError,
)
from sluicemq.protocol.options import MOVE_OPTIONS
from sluicemq.testing.stored import Children, StoredJob
from sluicemq_broker.config import MAX_JOB_BYTES, QueueSettings
from sluicemq_broker.job import NOT_RESERVED, ChildEnd, Job, OnExpiry, Parent, Reservation, State
from sluicemq_broker.queue import (
    MOST_RETURNED,
    AwaitChildren,
    Commit,
    Decision,
    Deliveries,
    Delivery,
    Expiries,
    HandOut,
    Onward,
    Pace,
    PassOn,
    QueueTimeLimits,
    Release,
    Return,
    Staging,
    Verdict,
    Worker,
    WorkerMessage,
    on_death,
    on_hard_limit,
    on_refusal,
    on_time_out,
    on_verdict,
    reason_of_death,
)
from sluicemq_broker.runtime import Budget
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import RolledBack, StagedByPriority

if TYPE_CHECKING:
    from sluicemq.testing.queues import MemoryQueues

#: Called once with a job's result, or why there is none.
OnOutcome = Callable[[bytes | SluiceError], None]

_ENOUGH: Final = 1 << 40
_reservations = count(1)


class MemoryWorker(Worker):
    """A worker, and how it gets its jobs: ``send`` is called with the deliveries of one message."""

    def __init__(self, name: str, prefetch: int, send: Callable[[Sequence[Delivery]], None]) -> None:
        super().__init__(name, prefetch, ANYBODY)
        self.send = send


class MemoryQueue:
    """The jobs of one queue, whatever their state, and its workers.

    All times are seconds of the broker's clock, which stands still between two calls of ``advance``.
    """

    def __init__(self, name: str, queues: MemoryQueues, settings: QueueSettings) -> None:
        self.name = name
        self.deliveries = Deliveries()
        self.reconfigure(settings)
        self.paused: set[str] = set()
        self.jobs: dict[str, StoredJob] = {}
        self._queues = queues
        self._waiters: dict[str, list[OnOutcome]] = {}
        budget = Budget(_ENOUGH)
        self._staging = Staging(budget, StagedByPriority())
        self._hand_out = HandOut(self._staging, self.deliveries, Pace(), Expiries(Budget(_ENOUGH)))

    def reconfigure(self, settings: QueueSettings) -> None:
        """Take other settings."""
        self.settings = settings
        self.deliveries.time_limits = QueueTimeLimits.of(settings)

    @property
    def now(self) -> float:
        """Return the time."""
        return self._queues.clock.now()

    @property
    def times(self) -> list[float]:
        """Return when something happens by itself: a job is due, expires, is overdue or removed."""
        times: list[float] = []
        for stored in self.jobs.values():
            job = stored.job
            waits = stored.state in (State.READY, State.WAITING)
            times += [stored.remove_at] if stored.remove_at is not None else []
            times += [job.expires_at] if waits and job.expires_at is not None else []
            times += [job.eligible_at] if stored.state is State.READY else []
        return times + [
            min(delivery.overdue_at, delivery.limit_at) for delivery in self.deliveries.in_flight.values()
        ]

    # ------------------------------------------------------------------ pushes

    def push(self, jobs: Sequence[Job]) -> tuple[dict[int, SluiceError], dict[int, str]]:
        """Store jobs; return the refusals and the states of those that were there, by position."""
        refused: dict[int, SluiceError] = {}
        existing: dict[int, str] = {}
        for at, job in enumerate(jobs):
            if there := self.jobs.get(job.id):
                existing[at] = there.shown_state(self.now)
            elif duplicate := self._duplicate(job):
                refused[at] = duplicate
            else:
                self.add(job)
        self.dispatch()
        return refused, existing

    @property
    def admits(self) -> bool:
        """Return whether it takes jobs."""
        return wire.INTAKE not in self.paused

    def admit(self) -> None:
        """Raise PausedError if it takes no jobs."""
        if not self.admits:
            raise PausedError(f"queue {self.name!r} takes no jobs: its intake is paused")

    def add(self, job: Job) -> StoredJob:
        """Store a new job, which may be handed out by the next dispatch."""
        now = self.now
        job.accept(self._queues.next_seq(), now)
        if job.dedupe:
            job.claim_dedupe_id(now + job.dedupe.window)
        stored = self.jobs[job.id] = StoredJob(job)
        self._advance_group(job.group)
        return stored

    def _duplicate(self, job: Job) -> DuplicateError | None:
        if job.dedupe is None:
            return None
        for other in self.jobs.values():
            first = other.job
            if first.dedupe and first.dedupe.id == job.dedupe.id and first.dedupe_until > self.now:
                left = first.dedupe_until - self.now
                text = f"not stored: job {first.id} has dedupe_id {job.dedupe.id!r} for {left:.1f} s more"
                return DuplicateError(text, first.id)
        return None

    # ------------------------------------------------------------------ workers

    def attach(self, worker: MemoryWorker) -> None:
        """Give jobs to a worker from now on."""
        self.deliveries.attach(worker, self.now)
        self.offer(worker)

    def offer(self, worker: MemoryWorker) -> None:
        """Note that a worker may take more, or fewer, than before."""
        self._hand_out.offer(worker)
        self.dispatch()

    def leave(self, worker: MemoryWorker, *, died: bool) -> None:
        """Take back the jobs of a worker that has gone."""
        worker.note_begun(self.now)
        for delivery in self._hand_out.leave(worker):
            decision: Decision = Release()
            if died:
                decision = on_death(
                    delivery.job, worker.name, self.settings.retries, self.now,
                    reason_of_death(begun=delivery.begun),
                    max_unanswered=self.settings.max_unanswered, begun=delivery.begun,
                )  # fmt: skip
            self._carry_out(delivery, decision)
        self.dispatch()

    def settle(self, verdict: Verdict) -> SluiceError | None:
        """End a delivery; return why the verdict is refused."""
        delivery = self._hand_out.settle(verdict.receipt, self.now)
        if delivery is None:
            self._hand_out.offer_workers_of([])
            self.dispatch()
            return LeaseLostError("this receipt is void: the delivery has ended")
        job, worker, backoff, problem = delivery.job, delivery.worker, self.settings.retries, None
        delivery.worker.settled_at = self.now
        try:
            decision = on_verdict(verdict, job, worker.name, backoff, self.now)
            self._carry_out(delivery, decision)
        except SluiceError as error:
            problem = error
            self._carry_out(delivery, on_refusal(error, job, worker.name, backoff, self.now))
        self._hand_out.offer_workers_of([delivery])
        self.dispatch()
        return problem

    def extend(self, receipt: bytes, worker: MemoryWorker, seconds: float) -> bool:
        """Give a delivery more time; False if this worker does not have it any more."""
        return self.deliveries.extend(receipt, worker, self.now + seconds)

    def note_progress(self, delivery: Delivery, done: float, total: float | None, note: str | None) -> None:
        """Note how far a job is."""
        self.one(delivery.job.id).progress = {
            "done": done, "total": total, "note": note or None, "at": self.now,
            "attempt": delivery.job.attempts,
        }  # fmt: skip

    @property
    def has_due(self) -> bool:
        """Return whether a job could be handed out, if a worker had room."""
        return bool(self._due()) and wire.DELIVERY not in self.paused

    @property
    def count_left(self) -> int:
        """Return how many jobs are due, or at work."""
        return len(self._due()) + len(self.deliveries.in_flight)

    def _due(self) -> list[StoredJob]:
        ready = (job for job in self.jobs.values() if job.state is State.READY)
        return sorted((stored for stored in ready if stored.job.eligible_at <= self.now), key=_order)

    # ------------------------------------------------------------------ time

    def pass_time(self) -> None:
        """Do what is due by now: end overdue deliveries and jobs that have expired, hand out the others."""
        for delivery in self._hand_out.over_limit(self.now, self.now):
            limit = partial(on_hard_limit, backoff=self.settings.retries, now=self.now)
            self._carry_out(delivery, limit(delivery.job, delivery.worker.name, seconds=delivery.hard_limit))
        for delivery in self._hand_out.time_out(self.now, self.now):
            time_out = partial(
                on_time_out, backoff=self.settings.retries, now=self.now,
                max_unanswered=self.settings.max_unanswered,
            )  # fmt: skip
            self._carry_out(delivery, time_out(delivery.job, delivery.worker.name, begun=delivery.begun))
        for stored in list(self.jobs.values()):
            expires_at = stored.job.expires_at
            waits = stored.state in (State.READY, State.WAITING) and stored.children is None
            if stored.remove_at is not None and stored.remove_at <= self.now:
                self._forget(stored)
            elif waits and expires_at is not None and expires_at <= self.now:
                self._expire(stored)
        self.dispatch()

    def dispatch(self) -> None:
        """Hand out what is due, in order, to the workers that have room."""
        if wire.DELIVERY in self.paused:
            return
        while message := self._next_message():
            worker = message.worker
            for delivery in message.deliveries:
                self.jobs[delivery.job.id].worker = worker.name
            if worker.pops:
                for delivery in message.deliveries:
                    self._done(self.jobs[delivery.job.id], b"")
                worker.prefetch = max(0, worker.prefetch - len(message.deliveries))
                self.deliveries.removed(worker, message.deliveries)
            assert isinstance(worker, MemoryWorker)  # noqa: S101 - no others are attached
            worker.send(message.deliveries)
            self._hand_out.sent(message)
        self.deliveries.begin_limits(self.now)

    def _next_message(self) -> WorkerMessage | None:
        if not self.deliveries.workers:
            return None
        due = self._due()[: max(1, self.deliveries.free)]
        for stored in due:
            if stored.job.spent:
                self._die(stored, "no attempts left", "")
            else:
                stored.job.reserve(Reservation("memory", next(_reservations)))
                stored.state = State.RESERVED
        self._staging.add([stored.job for stored in due if stored.state is State.RESERVED])
        message = self._hand_out.next_isolated(self.now) if self._staging.isolated else None
        message = message or self._hand_out.next_message(math.inf, self.now)
        for job in self._staging.clear():
            self._release(self.jobs[job.id])
        return message

    # ------------------------------------------------------------------ decisions

    def _carry_out(self, delivery: Delivery, decision: Decision) -> None:
        stored = self.jobs.get(delivery.job.id)
        if stored is None or stored.job is not delivery.job:
            return
        match decision:
            case Commit(result):
                self._done(stored, result)
            case PassOn(onward):
                self._forward(stored, onward)
            case AwaitChildren():
                self._fan_out(stored, decision)
            case Release():
                self._release(stored)
            case Return(entry):
                self._roll_back(stored, entry)

    def _done(self, stored: StoredJob, result: bytes) -> None:
        job = stored.job
        stored.state, stored.result, stored.ended_at = State.DONE, result, self.now
        stored.remove_at = job.kept_until(self.now)
        self._answer(job.id, result)
        if stored.remove_at is None:
            self.jobs.pop(job.id, None)
        self._after(stored)
        self._count_down(job.parent, ChildEnd(job.id, result))

    def _count_down(self, waits: Parent | None, end: ChildEnd) -> None:
        """Count a child that has ended at its parent, if that waits for it."""
        if waits is not None and (waiting := self._waiting_parent(waits)):
            queue, parent, children = waiting
            if children.count_down(end):
                queue._end_wait(parent, children)
                queue.dispatch()

    def _end_wait(self, parent: StoredJob, children: Children) -> None:
        """End a job whose children are done, or make it ready once more, with what they have returned."""
        if children.room is None:
            self._done(parent, children.result)
            return
        job = parent.job
        job.attempts = job.unanswered = 0
        job.isolated, parent.children, parent.progress = False, None, None
        job.join(children.ends)
        self._make_ready(parent)

    def _die(self, stored: StoredJob, reason: str, worker: str) -> None:
        job = stored.job
        stored.failed(reason, worker, self.now)
        stored.state, stored.ended_at = State.DEAD, self.now
        stored.remove_at = self.now + self.settings.dead_retention
        error = (
            ExpiredError(_over(job.id)) if stored.expired else DeadError(f"job {job.id} is dead: {reason}")
        )
        self._answer(job.id, error)
        self._after(stored)
        self._fail_parent(job, f"is dead: {reason}", reason)

    def _expire(self, stored: StoredJob) -> None:
        stored.expired = True
        if self.settings.on_expiry == OnExpiry.DEAD:
            self._die(stored, "its time to live is over", "")
        else:
            self.remove(stored, ExpiredError(_over(stored.job.id)), "has expired")

    def _release(self, stored: StoredJob) -> None:
        stored.job.attempts -= 1
        self._make_ready(stored)

    def _roll_back(self, stored: StoredJob, entry: RolledBack) -> None:
        job = stored.job
        if entry.dead:
            self._die(stored, entry.reason, entry.worker)
            return
        if entry.reason:
            stored.failed(entry.reason, entry.worker, self.now)
        job.attempts -= not entry.counted
        job.unanswered += entry.counted and not entry.answered
        job.isolated = entry.isolated
        job.eligible_at = job.eligible_at if entry.due is None else entry.due
        self._make_ready(stored)

    def _make_ready(self, stored: StoredJob) -> None:
        stored.job.reservation = NOT_RESERVED
        stored.state = State.READY

    def _forward(self, stored: StoredJob, onward: Onward) -> None:
        job = stored.job
        queue, on = self._made(onward, job.id, "a job that is forwarded")
        if queue is not self and (there := queue.jobs.get(job.id)) and there.forwarded_to is None:
            raise DuplicateError(f"queue {queue.name!r} has a job {job.id!r} already", job.id)
        on.join_group(on.group or job.group)
        own = {"payload"} if onward.payload is not None else set()
        ttl = None if job.expires_at is None else job.expires_at - job.created_at
        on.accept(self._queues.next_seq(), self.now)
        on.continue_from(job, frozenset(onward.options) | own, ttl, {})
        on.check_due()
        waiters = self._waiters.pop(job.id, [])
        if queue is self or job.kept_until(self.now) is None:
            self._forget(stored)
        else:
            stored.state, stored.forwarded_to, stored.result = State.DONE, queue.name, b""
            stored.ended_at, stored.remove_at = self.now, job.kept_until(self.now)
        queue._waiters.setdefault(job.id, []).extend(waiters)
        queue.add(on).errors = stored.errors
        self._after(stored)
        queue.dispatch()

    def _fan_out(self, stored: StoredJob, decision: AwaitChildren) -> None:
        job = stored.job
        parent = Parent(self.name, job.id, job.seq, job.under, decision.allow_failures)
        new: list[tuple[MemoryQueue, Job]] = []
        for number, onward in enumerate(decision.children, 1):
            queue, child = self._made(onward, f"{job.id}.{number}", "a child")
            if child.id in queue.jobs:
                raise DuplicateError(f"queue {queue.name!r} has a job {child.id!r} already", child.id)
            child.set_parent(parent)
            if onward.payload is None:
                child.inherit_payload(job.payload)
            new.append((queue, child))
        room = max(0, min(MOST_RETURNED, MAX_JOB_BYTES - job.size)) if decision.join else None
        stored.children, stored.state = Children(len(new), decision.result, room), State.WAITING
        for queue, child in new:
            queue.add(child)
        for queue in dict.fromkeys(queue for queue, _ in new):
            queue.dispatch()

    def _made(self, onward: Onward, job_id: str, what: str) -> tuple[MemoryQueue, Job]:
        onward = onward.read()
        if unknown := onward.options.keys() - MOVE_OPTIONS:
            raise BadHeadersError(f"{what} takes no {', '.join(sorted(map(repr, unknown)))}")
        queue = self._queues.for_push(onward.queue)
        return queue, self._queues.make(queue, onward.payload or b"", onward.options, job_id)

    # ------------------------------------------------------------------ families

    def _waiting_parent(self, parent: Parent) -> tuple[MemoryQueue, StoredJob, Children] | None:
        queue = self._queues.known.get(parent.queue)
        found = queue.jobs.get(parent.id) if queue else None
        if queue is None or found is None or found.children is None or not found.children.left:
            return None  # a dead one counts on: it may be redriven
        same = found.job.seq == parent.seq and found.job.under == parent.by
        return (queue, found, found.children) if same else None

    def _fail_parent(self, child: Job, what: str, reason: str = "") -> None:
        """Let the parent of a failed child die, or count the child, which has no parent from now on."""
        if child.parent is not None and child.parent.may_fail:
            waits = child.parent
            child.set_parent(None)
            self._count_down(waits, ChildEnd(child.id, error=reason or f"it {what}"))
        elif child.parent is not None and (waiting := self._waiting_parent(child.parent)):
            queue, parent, _ = waiting
            if parent.ended:
                return
            queue._die(parent, f"child {child.id} in queue {self.name} {what}", "")
            queue.dispatch()

    def _after(self, stored: StoredJob) -> None:
        self._advance_group(stored.job.group)

    def _advance_group(self, group: str | None) -> None:
        """Give the turn to the first job of a group, if that waits for it."""
        if group is None:
            return
        line = [stored for stored in self.jobs.values() if stored.job.group == group and not stored.ended]
        first = min(line, key=lambda stored: stored.job.seq, default=None)
        if first is not None and first.state is State.WAITING and first.children is None:
            first.state = State.READY

    # ------------------------------------------------------------------ results

    def wait_for_result(self, job_id: str, on_outcome: OnOutcome) -> None:
        """Call ``on_outcome`` once the job has ended, or at once if it has."""
        stored = self.jobs.get(job_id)
        if stored is None:
            on_outcome(NotFoundError(f"there is no job {job_id}: never pushed, or ended and not remembered"))
        elif stored.forwarded_to is not None:
            self._queues.for_push(stored.forwarded_to).wait_for_result(job_id, on_outcome)
        elif stored.state is State.DONE:
            on_outcome(stored.result or b"")
        elif stored.state is State.DEAD and not stored.expired:
            on_outcome(DeadError(f"job {job_id} is among the dead letters: {stored.reason}"))
        elif stored.state is State.DEAD:
            on_outcome(ExpiredError(_over(job_id)))
        else:
            self._waiters.setdefault(job_id, []).append(on_outcome)

    def _answer(self, job_id: str, outcome: bytes | SluiceError) -> None:
        for waiter in self._waiters.pop(job_id, ()):
            waiter(outcome)

    # ------------------------------------------------------------------ orders

    def one(self, job_id: str) -> StoredJob:
        """Return a job; raises NotFoundError."""
        found = self.jobs.get(job_id)
        if found is None:
            raise NotFoundError(f"there is no job {job_id!r} in queue {self.name!r}")
        return found

    def shown(self, state: str) -> list[StoredJob]:
        """Return the jobs of a state in the order in which they are listed."""
        found = [stored for stored in self.jobs.values() if stored.shown_state(self.now) == state]
        if state in (State.READY, "scheduled"):
            return sorted(found, key=_order)
        return sorted(found, key=lambda stored: (stored.ended_at or 0.0, stored.job.seq))

    def remove(self, stored: StoredJob, why: SluiceError, of_child: str) -> None:
        """Remove a job that no worker has."""
        self._forget(stored)
        self._answer(stored.job.id, why)
        self._after(stored)
        self._fail_parent(stored.job, of_child)
        self.dispatch()

    def redrive(self, stored: Sequence[StoredJob], to: MemoryQueue) -> int:
        """Make dead letters ready again; return how many. One whose children are left waits for these."""
        moved = 0
        for dead in stored:
            job = dead.job
            if to is self:
                self._revive(dead)
            elif job.id not in to.jobs:
                del self.jobs[job.id]
                dead.failed(f"redriven from {self.name}", "", self.now)
                parent = job.parent
                job.reset()
                job.parent = parent
                self._renew(job)
                to.add(job).errors = dead.errors
            else:
                continue
            moved += 1
        to.dispatch()
        return moved

    def _revive(self, stored: StoredJob) -> None:
        job, waits = stored.job, self._has_all_children(stored)
        more = ": it waits for the children that are left" if waits else ""
        stored.failed(f"redriven{more}", "", self.now)
        stored.ended_at, stored.remove_at, stored.expired = None, None, False
        if waits:
            stored.state, job.expires_at = State.WAITING, None
            return
        self._renew(job)
        job.attempts, job.eligible_at = 0, self.now
        stored.children = None
        stored.state = State.READY
        if job.group is not None:  # at the end of its line
            stored.state, job.seq = State.WAITING, self._queues.next_seq()
            self._advance_group(job.group)

    def _has_all_children(self, stored: StoredJob) -> bool:
        """Return whether all children that are left can be worked on: none of them is a dead letter."""
        left = stored.children.left if stored.children else 0
        jobs = [stored for queue in self._queues.known.values() for stored in queue.jobs.values()]
        own = (self.name, stored.job.id, stored.job.seq)
        there = [
            child for child in jobs if child.job.parent and child.job.parent[:3] == own and not child.ended
        ]
        return 0 < left <= len(there)

    def _renew(self, job: Job) -> None:
        """Let its time to live, and what is known of its failures, begin again."""
        if job.expires_at is not None:
            job.expires_at += self.now - job.created_at
        job.reservation, job.isolated, job.unanswered = NOT_RESERVED, False, 0

    def change(self, stored: StoredJob, *, priority: int | None, due: float | None) -> None:
        """Change a job that waits."""
        if stored.state is not State.READY and (stored.state is not State.WAITING or stored.children):
            raise NotFoundError(f"job {stored.job.id!r} of queue {self.name!r} does not wait")
        job = stored.job
        job.priority = job.priority if priority is None else priority
        job.eligible_at = job.eligible_at if due is None else due
        self.dispatch()

    def row(self) -> dict[str, Any]:
        """Return its counts as QUEUE answers them."""
        states = [stored.shown_state(self.now) for stored in self.jobs.values()]
        counts = {state: states.count(state) for state in (*State, "scheduled")}
        ages = [self.now - stored.job.created_at for stored in self.shown(State.READY)]
        rates = dict.fromkeys(("pushed", "delivered", "committed"), 0.0)
        return {
            "name": self.name, **counts, "exact": True, "estimates": [], "counted_ago": 0.0,
            "oldest_ready_age": max(ages, default=None), "workers": len(self.deliveries.workers),
            "in_flight": len(self.deliveries.in_flight), "rates": rates, "paused": sorted(self.paused),
            "permits": 0, "held_back": 0, "full": 0,
        }  # fmt: skip

    def _forget(self, stored: StoredJob) -> None:
        if self.jobs.get(stored.job.id) is stored:
            del self.jobs[stored.job.id]


def _over(job_id: str) -> str:
    return f"job {job_id}: its time to live is over"


def _order(stored: StoredJob) -> tuple[int, float, int]:
    return stored.order
