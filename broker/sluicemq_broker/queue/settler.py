"""From a worker's verdict, or its silence, to what becomes of the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import LeaseLost, SluiceError, TooLarge
from sluicemq_broker.config import MAX_JOB_BYTES
from sluicemq_broker.context import Context
from sluicemq_broker.job import Backoff, Job
from sluicemq_broker.queue.commits import Commit, Commits
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.fan_outs import Children, Fanning, FanOuts
from sluicemq_broker.queue.forwards import Forwards, Going
from sluicemq_broker.queue.other_queues import OtherQueues
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.returns import Return, Returns
from sluicemq_broker.queue.verdict import Settlement, Verdict
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime import Batcher, Count, Timing
from sluicemq_broker.store import QueueStore, RolledBack, ServerClock

DIED: Final = "the worker died"
NOT_BEGUN: Final = "the worker died before it had begun this job"
NOT_ARRIVED: Final = "the worker's connection ended before it had this job"
TIMED_OUT: Final = "visibility_timeout passed without a verdict"

_DEFAULT_BACKOFF: Final = Backoff()


class Settler:
    """The verdicts of one queue. ``commits`` and ``returns`` write what they say into MongoDB.

    ``backoff``: how long a job of this queue waits that failed and says nothing of it itself.
    """

    def __init__(
        self,
        name: str,
        store: QueueStore,
        context: Context,
        dispatch: Dispatch,
        waiters: ResultWaiters,
        others: OtherQueues,
        backoff: Backoff = _DEFAULT_BACKOFF,
    ) -> None:
        children = Children(store, context, others)
        self.commits = Commits(store, context, dispatch, waiters, self._unkept, children)
        self.forwards = Forwards(store, context, dispatch, waiters, others, self._refused)
        self.fan_outs = FanOuts(name, store, context, dispatch, waiters, others, self._refused)
        self.returns = Returns(store, context, dispatch, waiters)
        self._dispatch = dispatch
        self._pace = dispatch.pace
        self._clock = context.clock
        self._timer = context.timer
        self._counters = context.counters
        self._backoff = backoff

    def reconfigure(self, backoff: Backoff) -> None:
        """Let those that fail from now on wait as this says."""
        self._backoff = backoff

    @property
    def busy(self) -> bool:
        """True if any verdict is not durable yet."""
        return any(each.busy for each in self.batchers)

    @property
    def batchers(self) -> tuple[Batcher[Any], ...]:
        """All that is on its way to MongoDB."""
        return (*self.commits.batchers, *self.returns.batchers, self.forwards.batcher, self.fan_outs.batcher)

    @property
    def under_way(self) -> int:
        """Commits, pops and forwards that are not written yet, or counted as failed."""
        return self.commits.under_way + self.forwards.under_way + self.fan_outs.under_way

    def settle(self, verdicts: Sequence[Verdict], settlement: Settlement) -> None:
        """End the deliveries that these verdicts name; each void receipt is refused and counted."""
        commits: list[Commit] = []
        going: list[Going] = []
        fanning: list[Fanning] = []
        workers: set[Worker] = set()
        handed: list[float] = []
        settlement.expect(len(verdicts))
        for position, verdict in enumerate(verdicts):
            delivery = self._dispatch.settle(verdict.receipt)
            if delivery is None:
                self._counters.add(Count.LATE_VERDICTS)
                settlement.settled(position, LeaseLost("this receipt is void: the delivery has ended"))
                continue
            workers.add(delivery.worker)
            handed.append(delivery.handed_at)
            problem = _too_long(verdict, delivery.job, self._clock)
            if problem:
                self._unkept(Commit(delivery, b"", settlement, position), problem)
            elif verdict.kind == wire.COMMIT:
                commits.append(Commit(delivery, _result(verdict), settlement, position))
            elif verdict.kind == wire.FORWARD:
                going.append(Going(delivery, verdict.onward[0], settlement, position))
            elif verdict.kind == wire.FAN_OUT:
                fanning.append(Fanning(delivery, verdict.onward, _result(verdict), settlement, position))
            else:
                self._return(delivery, verdict, settlement, position)
        self.commits.commit(commits)
        self.forwards.begin(going)
        self.fan_outs.begin(fanning)
        self._pace.ended(len(handed))
        now = self._timer.now()
        self._counters.took(Timing.TIME_AT_WORKER, [now - each for each in handed])
        settlement.close()
        for worker in workers:
            worker.settled_at = now
            self._dispatch.offer(worker)

    def worker_gone(self, worker: Worker, *, died: bool = True) -> None:
        """A worker has left: what it had goes to others at once, one job at a time if it died.

        What it has not begun counts no attempt. But one of these may be why it left, if it is larger than it
        takes, say. So the attempt counts from the second time on, when the job was delivered alone.
        """
        worker.note_begun(self._timer.now())
        left = self._dispatch.detach(worker)
        if died:
            not_begun = NOT_ARRIVED if worker.commits_on_arrival else NOT_BEGUN
            for begun, reason in ((True, DIED), (False, not_begun)):
                self._fail([each for each in left if each.begun == begun], reason, isolated=True)
        else:
            self.withdraw(left)

    def withdraw(self, deliveries: Sequence[Delivery]) -> None:
        """These end without a verdict, and count no attempt."""
        self._counters.add(Count.RETURNED, len(deliveries))
        self.returns.release([each.job for each in deliveries])

    def time_out(self) -> None:
        """Roll back the deliveries whose visibility timeout has passed; release those that were not begun."""
        late = self._dispatch.time_out()
        if late:
            self._counters.add(Count.TIMED_OUT, len(late))
            self._fail([each for each in late if each.begun], TIMED_OUT, isolated=False)
            self.withdraw([each for each in late if not each.begun])

    def _return(self, delivery: Delivery, verdict: Verdict, settlement: Settlement, position: int) -> None:
        job, worker = delivery.job, delivery.worker.name
        if verdict.kind == wire.RELEASE:
            self.withdraw([delivery])
            settlement.settled(position)
            return
        dead = verdict.kind == wire.REJECT or job.spent
        due = None if dead else self._due(job, verdict.delay)
        entry = RolledBack(job, _reason(verdict), worker, due, dead=dead)
        self._counters.add(Count.REJECTED if verdict.kind == wire.REJECT else Count.ROLLED_BACK)
        self.returns.send_back([Return(entry, settlement, position)])

    def _fail(self, deliveries: Iterable[Delivery], reason: str, *, isolated: bool) -> None:
        settlement = Settlement()
        returns = []
        for at, each in enumerate(deliveries):
            job, due = each.job, self._due_again(each.job, isolated=isolated)
            counted = job.isolated or each.begun
            dead = counted and job.spent
            entry = RolledBack(job, reason, each.worker.name, due, isolated, dead, counted)
            returns.append(Return(entry, settlement, at, awaited=due is None and not dead))
        settlement.expect(len(returns))
        uncounted = sum(not each.entry.counted for each in returns)
        for name in (Count.RETURNED, Count.RELEASED):
            self._counters.add(name, uncounted)
        self._counters.add(Count.ROLLED_BACK, len(returns) - uncounted)
        self.returns.send_back(returns)

    def _due(self, job: Job, delay: float | None = None) -> float | None:
        """When a job that was rolled back is due: after the delay, or else its back-off; None: at once."""
        wait = (job.backoff or self._backoff).wait(job.attempts) if delay is None else delay
        return self._clock.now() + wait if wait else None

    def _due_again(self, job: Job, *, isolated: bool) -> float | None:
        """At once, the first time that a worker has died with it or not answered; then with back-off."""
        return self._due(job, 0 if (not job.isolated if isolated else job.attempts == 1) else None)

    def _unkept(self, commit: Commit, problem: TooLarge) -> None:
        """A result that can't be kept is no result, also where that is found out late."""
        self._refused(commit, problem)

    def _refused(self, said: Commit | Going | Fanning, problem: SluiceError) -> None:
        """A verdict that can't be carried out: its worker hears why, and the job goes back."""
        said.settlement.refuse(said.position, problem)
        job_id, reason = said.delivery.job.id, f"{problem.code}: {problem}"
        about = {"job": job_id, "worker": said.delivery.worker.name, "reason": reason}
        self._counters.notice(Count.of(problem), f"job {job_id} is rolled back: {problem}", about=about)
        verdict = Verdict(said.delivery.receipt, wire.ROLLBACK, reason)
        self._return(said.delivery, verdict, said.settlement, said.position)


def _reason(verdict: Verdict) -> str:
    detail = verdict.detail if isinstance(verdict.detail, str) else verdict.detail.decode("utf-8", "replace")
    return detail or verdict.kind.lower()


def _result(verdict: Verdict) -> bytes:
    return verdict.detail if isinstance(verdict.detail, bytes) else verdict.detail.encode()


def _too_long(verdict: Verdict, job: Job, clock: ServerClock) -> TooLarge | None:
    """A result that can't be kept is no result; that of a job which is not kept may be longer."""
    if not verdict.detail or verdict.kind not in (wire.COMMIT, wire.FAN_OUT):
        return None
    size = len(_result(verdict))
    most = MAX_JOB_BYTES - (job.size if job.keep_done else 0)
    if size <= most or job.kept_until(clock.now()) is None:
        return None
    beside = f" beside a job of {job.size}" if job.keep_done else ""
    return TooLarge(f"the result has {size} bytes, {most} can be kept{beside}")
