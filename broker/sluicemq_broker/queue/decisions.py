"""Decisions about jobs whose deliveries have ended: pure functions of plain values, which write nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, TooLargeError
from sluicemq.protocol.readable import MOST_REASON, start_of
from sluicemq_broker.config import MAX_JOB_BYTES
from sluicemq_broker.job import Backoff, Failure, Job
from sluicemq_broker.queue.verdict import Onward, Settlement, Verdict
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import Caller
from sluicemq_broker.store import RolledBack

DIED: Final = "the worker died"
#: Seconds until a job comes again that its worker has released: at once, it would go round without end.
RELEASED_FOR: Final = 1.0
NOT_BEGUN: Final = "the worker died before it had begun this job"
SILENT: Final = "the worker is taken for dead"
NOT_ARRIVED: Final = "the worker's connection ended before it had this job"
TIMED_OUT: Final = "visibility_timeout passed without a verdict"
#: The type of error of a job whose worker did not end it at its hard time limit: that of the library.
HARD_LIMIT: Final = "sluicemq.time_limits.HardTimeLimitError"


class Commit(NamedTuple):
    """The job is done: it is removed, or kept with its result."""

    result: bytes

    @property
    def size(self) -> int:
        """Bytes that it holds until it is written."""
        return len(self.result)


class PassOn(NamedTuple):
    """The job goes on to another queue."""

    onward: Onward

    @property
    def size(self) -> int:
        """Bytes that it holds until it is written."""
        return self.onward.size


class AwaitChildren(NamedTuple):
    """The job waits for these children, and has this result when they are done.

    ``join``: it is delivered once more then, with their results. ``allow_failures``: it does not die of a
    child that fails.
    """

    children: tuple[Onward, ...]
    result: bytes
    join: bool = False
    allow_failures: bool = False

    @property
    def size(self) -> int:
        """Bytes that it holds until it is written."""
        return len(self.result) + sum([child.size for child in self.children])


class Release(NamedTuple):
    """The job is ready again at once, and its attempt is not counted."""

    size: int = 0


class Return(NamedTuple):
    """The job is ready again, now or later, or a dead letter."""

    entry: RolledBack
    counts_as: Count

    @property
    def size(self) -> int:
        """Bytes that it holds until it is written."""
        return len(self.entry.reason) + len(self.entry.failure.traceback)


class Confirm(NamedTuple):
    """The worker says that its transaction has ended the job, with this result; MongoDB knows."""

    result: bytes

    @property
    def size(self) -> int:
        """Bytes that it holds until it is written."""
        return len(self.result)


class TakeBack(NamedTuple):
    """The job is given back so, unless its worker's transaction has ended it, or does before."""

    otherwise: Return

    @property
    def size(self) -> int:
        """Bytes that it holds until it is written."""
        return self.otherwise.size


#: Most jobs have no result, and share this.
NO_RESULT: Final = Commit(b"")

Decision = Commit | PassOn | AwaitChildren | Release | Return | Confirm | TakeBack


D_co = TypeVar("D_co", bound=Decision, covariant=True)


class Settled(NamedTuple, Generic[D_co]):
    """A delivery that has ended, the decision about its job, and where its worker waits for an answer.

    ``settlement`` is None without a verdict: the worker has gone, or did not answer in time.
    """

    delivery: Delivery
    decision: D_co
    settlement: Settlement | None = None
    position: int = 0

    @property
    def caller(self) -> Caller:
        """Caller who gave the verdict: at a commit door another than the worker."""
        given = self.settlement.caller if self.settlement else None
        return given or self.delivery.worker.caller


def bytes_of(settled: Sequence[Settled[Decision]]) -> int:
    """Return the bytes that these hold until they are written."""
    return sum([end.decision.size for end in settled if end.decision is not NO_RESULT])


def on_verdict(verdict: Verdict, job: Job, worker: str, backoff: Backoff, now: float) -> Decision:
    """Decide by a worker's verdict; raises :class:`TooLarge` if its result can't be kept.

    Raises :class:`BadHeaders` if its delay ends after the job has expired.

    ``backoff`` is the queue's: a job that says nothing of its own waits by that.
    """
    match verdict.kind:
        case wire.COMMIT:
            return Commit(_result(verdict, job, now)) if verdict.detail else NO_RESULT
        case wire.FORWARD:
            return PassOn(verdict.onward[0])
        case wire.FAN_OUT:
            result = _result(verdict, job, now)
            return AwaitChildren(verdict.onward, result, verdict.join, verdict.allow_failures)
        case wire.RELEASE:
            return _released(verdict, job, worker, now)
    dead = verdict.kind == wire.REJECT or job.spent
    due = None if dead else _due(job, verdict.delay, backoff, now)
    if verdict.delay and due is not None:
        job.check_due(due)
    count = Count.REJECTED if verdict.kind == wire.REJECT else Count.ROLLED_BACK
    return Return(RolledBack(job, _reason(verdict), worker, due, dead=dead, failure=verdict.failure), count)


def _released(verdict: Verdict, job: Job, worker: str, now: float) -> Return | Release:
    """Decide on a job that its worker could not begin: it comes again a moment later, or as it says."""
    if verdict.delay == 0:
        return Release()
    due = now + (verdict.delay or RELEASED_FOR)
    if verdict.delay:
        job.check_due(due)
    return Return(RolledBack(job, "", worker, due, counted=False), Count.RETURNED)


def on_refusal(problem: SluiceError, job: Job, worker: str, backoff: Backoff, now: float) -> Return:
    """Decide on a job whose verdict can't be carried out: it is rolled back, with the problem as reason."""
    due = None if job.spent else _due(job, None, backoff, now)
    entry = RolledBack(job, f"{problem.code}: {problem}", worker, due, dead=job.spent)
    return Return(entry, Count.ROLLED_BACK)


def in_transaction(settled: Settled[Any]) -> Settled[Any]:
    """Return the end of a delivery whose job may be ended by a transaction of its worker.

    A worker that says how its job goes on says by that no more than that it is done. A failure counts no
    attempt if the transaction may have failed because the job was moved.
    """
    delivery = settled.delivery
    uncounted = Return(RolledBack(delivery.job, "", delivery.worker.name, counted=False), Count.RETURNED)
    match settled.decision:
        case Confirm() | TakeBack():
            return settled
        case Return(counts_as=Count.ROLLED_BACK) if delivery.moved and settled.settlement:
            return settled._replace(decision=TakeBack(uncounted))
        case Return() as decision:
            return settled._replace(decision=TakeBack(decision))
        case Release():
            return settled._replace(decision=TakeBack(uncounted))
        case decision:
            return settled._replace(decision=Confirm(getattr(decision, "result", b"")))


def reason_of_death(*, begun: bool, arrived: bool = True, seen: str = "") -> str:
    """Return the reason for a job whose worker has died, or is taken for dead for what was ``seen``.

    ``arrived`` is False for a worker that commits on arrival, and had not got the job.
    """
    if not (begun or arrived):
        return NOT_ARRIVED
    if seen:
        return f"{SILENT}: {seen}" if begun else f"{SILENT}, it had not begun this job: {seen}"
    return DIED if begun else NOT_BEGUN


def on_death(
    job: Job, worker: str, backoff: Backoff, now: float, reason: str, *, max_unanswered: int, begun: bool
) -> Return:
    """Decide on a job whose worker has died: the next worker gets it alone.

    A job that was not begun counts no attempt the first time. It may still be why the worker has left, if it
    is larger than the worker takes, say: so the attempt counts if the job had been delivered alone.
    """
    counted = begun or job.isolated
    due = _due(job, None if job.isolated else 0.0, backoff, now)
    dead = counted and job.unheard_of(max_unanswered)
    entry = RolledBack(
        job, reason, worker, due, isolated=True, dead=dead, counted=counted, answered=not counted
    )
    return Return(entry, Count.ROLLED_BACK if counted else Count.RETURNED)


def on_time_out(
    job: Job, worker: str, backoff: Backoff, now: float, *, max_unanswered: int, begun: bool
) -> Return | Release:
    """Decide on a job whose visibility timeout has passed: at once the first time, then with back-off."""
    if not begun:
        return Release()
    due = _due(job, 0.0 if job.attempts == 1 else None, backoff, now)
    dead = job.unheard_of(max_unanswered)
    return Return(RolledBack(job, TIMED_OUT, worker, due, dead=dead, answered=False), Count.ROLLED_BACK)


def on_hard_limit(job: Job, worker: str, backoff: Backoff, now: float, *, seconds: float) -> Return:
    """Decide on a job whose hard time limit is over: it has failed."""
    due = None if job.spent else _due(job, None, backoff, now)
    reason, failure = f"hard_time_limit of {seconds:g} s passed", Failure(HARD_LIMIT, seconds=seconds)
    entry = RolledBack(job, reason, worker, due, dead=job.spent, failure=failure)
    return Return(entry, Count.ROLLED_BACK)


def _due(job: Job, delay: float | None, backoff: Backoff, now: float) -> float | None:
    """Return when the job is due: after the delay, or its back-off; None: at once, at its former place."""
    wait = (job.backoff or backoff).wait(job.attempts) if delay is None else delay
    return now + wait if wait else None


def _reason(verdict: Verdict) -> str:
    detail = verdict.detail
    text = detail if isinstance(detail, str) else start_of(detail, MOST_REASON, "replace")
    return text or verdict.kind.lower()


def check_result(size: int, job: Job) -> None:
    """Raise :class:`TooLarge` for a result of ``size`` bytes that has no room in MongoDB."""
    most = MAX_JOB_BYTES - (job.size if job.keep_done else 0)
    if size > most:
        beside = f" beside a job of {job.size}" if job.keep_done else ""
        raise TooLargeError(f"the result has {size} bytes, {most} can be kept{beside}")


def _result(verdict: Verdict, job: Job, now: float) -> bytes:
    """Return the result; raises :class:`TooLarge` as :func:`check_result`, if it is to be kept."""
    result = verdict.detail if isinstance(verdict.detail, bytes) else verdict.detail.encode()
    if result and job.kept_until(now) is not None:
        check_result(len(result), job)
    return result
