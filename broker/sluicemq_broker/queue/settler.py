"""The end of every delivery: a verdict, a time-out or a worker's end is decided, written and answered here.

``kill -9`` before a write: the job is still reserved by this broker, and is delivered again when its lease
has run out, with one loss more. After it: the job is where it should be; a worker that got no answer settles
again, and hears that the receipt is void. Popped jobs that were removed and not sent yet are gone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sluicemq.protocol.errors import (
    BadHeadersError,
    LeaseLostError,
    SluiceError,
    TooLargeError,
    UncertainError,
)
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import Job
from sluicemq_broker.queue.application_commits import ApplicationCommits
from sluicemq_broker.queue.commits import COMMIT, Commits
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.decisions import (
    NO_RESULT,
    AwaitChildren,
    Commit,
    Confirm,
    Decision,
    PassOn,
    Release,
    Return,
    Settled,
    TakeBack,
    bytes_of,
    in_transaction,
    on_death,
    on_hard_limit,
    on_refusal,
    on_time_out,
    on_verdict,
    reason_of_death,
)
from sluicemq_broker.queue.endings import Endings, about_return
from sluicemq_broker.queue.groups import Groups
from sluicemq_broker.queue.moves import CHILDREN, FORWARDS, FanOuts, Forwards, Moves, Moving
from sluicemq_broker.queue.other_queues import OtherQueues
from sluicemq_broker.queue.pending_writes import PendingWrites, by_owner, weigh
from sluicemq_broker.queue.ports import Popped
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.verdict import Settlement, Verdict, not_durable
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime import Batcher, Count, Timing, shielded
from sluicemq_broker.store import NotCommitted, RolledBack

#: Returns, or releases, in one statement at most; and statements of commits, or of forwards, at once.
RETURN: Final = 1000
AT_ONCE: Final = 2

_Pop = tuple[list[Delivery], Popped]


class Settler:
    """Ends the deliveries of one queue.

    ``backoff``: how long a job of this queue waits that failed and says nothing of it itself.
    ``max_unanswered``: deliveries that may end without an answer before a job is a dead letter.
    """

    def __init__(
        self,
        core: QueueCore,
        groups: Groups,
        waiters: ResultWaiters,
        endings: Endings,
        others: OtherQueues,
        settings: QueueSettings,
    ) -> None:
        self._core = core
        self._groups = groups
        self._endings = endings
        self.reconfigure(settings)
        self._looked_at = -math.inf
        self.under_way = 0
        """Commits, pops and moves that are neither written nor counted as failed."""
        self._commits = Commits(core, waiters, others)
        self._forwards = Forwards(core, others, waiters)
        self._fan_outs = FanOuts(core, others)
        self._in_transactions = ApplicationCommits(core, waiters, others)
        self._pops: Batcher[_Pop] = Batcher(
            self._write_pops,
            size=COMMIT,
            in_flight=AT_ONCE,
            weigh=lambda pop: len(pop[0]),
            failed=self._pops_failed,
        )
        self._unsent: Batcher[Job] = Batcher(self._undo_pops, size=COMMIT, failed=self._undo_failed)
        verdict = partial(PendingWrites[Any], core, bytes_of=bytes_of, failed=self._failed)
        commits, forwards, fan_outs = self._write_commits, self._write_forwards, self._write_fan_outs
        self._writes: dict[type[Decision], PendingWrites[Any]] = {
            Commit: verdict(
                commits, size=COMMIT, in_flight=AT_ONCE, weigh=Commits.weigh, gather=self._gather
            ),
            PassOn: verdict(forwards, size=FORWARDS, in_flight=AT_ONCE, weigh=Forwards.weigh),
            AwaitChildren: verdict(fan_outs, size=CHILDREN, weigh=FanOuts.weigh),
            Return: verdict(self._write_returns, size=RETURN, weigh=_weigh_return),
            Confirm: verdict(
                self._write_confirms, size=COMMIT, in_flight=AT_ONCE, failed=self._doubtful_failed
            ),
            # Each may wait for a transaction whose program stands still, until MongoDB ends it.
            TakeBack: verdict(self._take_back, size=1, in_flight=8, failed=self._doubtful_failed),
            Release: PendingWrites(core, self._write_releases, size=RETURN, failed=self._releases_failed),
        }

    def reconfigure(self, settings: QueueSettings) -> None:
        """Let jobs that fail from now on wait, or die, as this says."""
        self._backoff = settings.retries
        self._max_unanswered = settings.max_unanswered

    @property
    def busy(self) -> bool:
        """Return True if any verdict is not durable yet."""
        return any(batcher.busy for batcher in self.batchers)

    @property
    def batchers(self) -> tuple[Batcher[Any], ...]:
        """Return all batches on their way to MongoDB."""
        return (self._pops, self._unsent, *[write.batcher for write in self._writes.values()])

    # -------------------------------------------------------- ways a delivery ends

    def settle(self, verdicts: Sequence[Verdict], settlement: Settlement) -> None:
        """End the deliveries that these verdicts name; each void receipt is refused and counted."""
        settlement.expect(len(verdicts))
        settled: list[Settled[Any]] = []
        now, at = self._core.clock.now(), self._core.timer.now()
        for position, verdict in enumerate(verdicts):
            delivery = self._core.scheduler.hand_out.settle(verdict.receipt, at)
            if delivery is None:
                self._core.counters.add(Count.LATE_VERDICTS)
                settlement.settled(position, LeaseLostError("this receipt is void: the delivery has ended"))
                continue
            try:
                decision = on_verdict(verdict, delivery.job, delivery.worker.name, self._backoff, now)
            except (TooLargeError, BadHeadersError) as problem:
                decision = self._refuse(delivery, problem, settlement, position)
            settled.append(Settled(delivery, decision, settlement, position))
        self._carry_out(settled)
        self._core.scheduler.pace.ended(len(settled), at)
        self._time_kinds(settled, now, at)
        self._core.counters.took(Timing.TIME_AT_WORKER, [at - end.delivery.handed_at for end in settled])
        settlement.close()
        for end in settled:
            end.delivery.worker.settled_at = at
        self._core.scheduler.hand_out.offer_workers_of([end.delivery for end in settled])
        self._core.hand_out()

    def extend(self, receipt: bytes, worker: Worker, seconds: float) -> bool:
        """Give a delivery more time, from now; False if this worker does not have it (any more)."""
        until = self._core.timer.now() + seconds
        return self._core.scheduler.deliveries.extend(receipt, worker, until)

    def statements_of_end(self, receipt: bytes, worker: Worker, size: int) -> bytes | None:
        """Return the statements, in BSON, by which a worker ends its job within a transaction of its own.

        ``size``: of its result. None if this worker does not have it (any more); may wait for MongoDB.
        """
        deliveries = self._core.scheduler.deliveries
        delivery = deliveries.at(receipt, worker)
        if delivery is None:
            return None
        statements = self._in_transactions.begin(delivery, size)
        return statements if deliveries.at(receipt, worker) else None  # it may have ended meanwhile

    def worker_gone(self, worker: Worker, *, died: bool = True, seen: str = "") -> None:
        """A worker has left: its jobs go to others at once, one job at a time if it died.

        One that pops has nothing that could go to others. ``seen``: why it is taken for dead, if its
        connection had not ended by itself.
        """
        worker.note_begun(self._core.timer.now())
        left = self._core.scheduler.hand_out.leave(worker)
        if died:
            now, backoff, arrives = self._core.clock.now(), self._backoff, not worker.commits_on_arrival

            def end(delivery: Delivery) -> Settled[Return]:
                reason = reason_of_death(begun=delivery.begun, arrived=arrives, seen=seen)
                death = partial(on_death, max_unanswered=self._max_unanswered, begun=delivery.begun)
                return Settled(delivery, death(delivery.job, worker.name, backoff, now, reason))

            self._carry_out(map(end, left))
        else:
            self.withdraw(left)
        self._core.dispatch()

    def time_out(self) -> None:
        """End the deliveries whose time was over at the last look: time limit, or visibility timeout.

        So each ends at the second look. After a standstill of this broker, the verdicts and extensions that
        its workers have sent meanwhile are read between the two.
        """
        now, at = self._core.clock.now(), self._core.timer.now()
        since, self._looked_at = self._looked_at, at
        for delivery in self._core.scheduler.deliveries.never_answered(since):
            self._hang_up(delivery)
        if over := self._core.scheduler.hand_out.over_limit(at, since):
            self._end_over_limit(over, now)
        late = self._core.scheduler.hand_out.time_out(at, since)
        if late:
            self._core.counters.add(Count.TIMED_OUT, len(late))
            time_out = partial(
                on_time_out, backoff=self._backoff, now=now, max_unanswered=self._max_unanswered
            )
            self._carry_out(
                Settled(delivery, time_out(delivery.job, delivery.worker.name, begun=delivery.begun))
                for delivery in late
            )

    def _end_over_limit(self, over: list[Delivery], now: float) -> None:
        """Count these as failed, and let their workers end them."""
        self._core.counters.add(Count.OVER_LIMIT, len(over))
        end = partial(on_hard_limit, backoff=self._backoff, now=now)
        self._carry_out(
            Settled(delivery, end(delivery.job, delivery.worker.name, seconds=delivery.hard_limit))
            for delivery in over
        )
        self._notify_workers(over, "its hard_time_limit is over")

    def _notify_workers(self, ended: Sequence[Delivery], why: str) -> None:
        """Notify the workers of deliveries that have ended without a verdict."""
        for worker in {delivery.worker for delivery in ended}:
            shielded(worker.cancelled, [delivery for delivery in ended if delivery.worker is worker], why)

    def _hang_up(self, delivery: Delivery) -> None:
        """End the connection of a worker that has not answered for twice the visibility timeout."""
        job, worker = delivery.job, delivery.worker.name
        about = {"job": job.id, "worker": worker, "attempt": job.attempts}
        text = (
            f"worker {worker} has not answered job {job.id} for twice its visibility_timeout: its handler "
            "hangs, or needs more time (extend it, or raise visibility_timeout); it is disconnected"
        )
        self._core.counters.notice(Count.WORKERS_HUNG_UP, text, about=about)
        delivery.worker.hang_up()

    def cancelled(self, removed: Collection[tuple[str, int | None]]) -> None:
        """Drop cancelled jobs, by id and number: none is handed out, and workers that have one are notified.

        A later job of such an id, which may be here before MongoDB has answered, has another number.
        """
        staged = self._core.scheduler.staging.remove(removed)
        taken = self._core.scheduler.deliveries.cancel(removed, self._core.timer.now())
        if not (staged or taken):
            return
        gone = [*staged, *(delivery.job for delivery in taken)]
        for job in gone:
            job.leave_pack()  # the order has lifted it out
        self._core.scheduler.ended(gone)
        self._core.counters.add(Count.CANCELLED_AT_WORK, len(taken))
        self._notify_workers(taken, "it was cancelled")
        self._core.scheduler.hand_out.offer_workers_of(taken)
        self._core.dispatch()

    def withdraw(self, deliveries: Sequence[Delivery]) -> None:
        """End these without a verdict; their attempts are not counted."""
        self._carry_out(Settled(delivery, Release()) for delivery in deliveries)

    def release(self, jobs: Iterable[Job]) -> None:
        """Give back jobs that no worker has started: they are ready, and the attempt is not counted."""
        going = list(jobs)
        for job in going:
            job.drop_payload()  # it may be long on its way
        if going:
            self._core.scheduler.ledger.returning(len(going), self._core.timer.now())
            self._writes[Release].add(going)

    def await_releases(self, timeout: float) -> None:
        """Block until jobs that are given back unstarted can be claimed again."""
        self._writes[Release].batcher.drain(timeout)

    def pop(self, deliveries: list[Delivery], popped: Popped) -> None:
        """Remove these durably, then call ``popped``, which sends them: at most once."""
        self.under_way += len(deliveries)
        self._pops.add((deliveries, popped))

    def undo_pop(self, jobs: Iterable[Job]) -> None:
        """Make popped jobs ready again that are kept as done and could not be sent."""
        self._unsent.extend(jobs)

    # ------------------------------------------------------------------- decided

    def _refuse(
        self, delivery: Delivery, problem: SluiceError, settlement: Settlement | None, at: int
    ) -> Return:
        """Roll back a job whose verdict can't be carried out; its worker hears why."""
        if settlement:
            settlement.refuse(at, problem)
        job, worker = delivery.job, delivery.worker.name
        decision = on_refusal(problem, job, worker, self._backoff, self._core.clock.now())
        about = {"job": job.id, "worker": worker, "reason": decision.entry.reason}
        self._core.counters.refused(problem, f"job {job.id} is rolled back: {problem}", about)
        return decision

    def _carry_out(self, settled: Iterable[Settled[Any]]) -> None:
        """Hand these to the batches of their kinds."""
        kinds: dict[type[Decision], list[Settled[Any]]] = {}
        for ended in settled:
            end = ended if ended.delivery.transaction is None else in_transaction(ended)
            kinds.setdefault(type(end.decision), []).append(end)
        for kind, these in kinds.items():
            if kind is Release:
                self._core.counters.add(Count.RETURNED, len(these))
                self.release([end.delivery.job for end in these])
                _answer(these)
                continue
            if kind is Return:
                self._note_attempts(these)
                self._count_returns(these)
            else:
                self.under_way += len(these)
            self._writes[kind].add(these)

    def _time_kinds(self, settled: Iterable[Settled[Any]], now: float, at: float) -> None:
        """Record by kind how long these jobs have waited, and were at their workers."""
        kinds: dict[str, list[Delivery]] = {}
        for end in settled:
            if (kind := end.delivery.job.kind) is not None:
                kinds.setdefault(kind, []).append(end.delivery)
        for kind, these in kinds.items():
            worked = [at - delivery.handed_at for delivery in these]
            # The number of a job is the microsecond in which it was accepted.
            waited = now * len(these) - sum(worked) - sum([delivery.job.seq for delivery in these]) / 1e6
            self._core.counters.kinds.took(kind, waited, worked)

    def _note_attempts(self, settled: Iterable[Settled[Return]]) -> None:
        """Note when and where these attempts were made."""
        origin = (
            self._core.clock.now() - self._core.timer.now()
        )  # the server's time when this process's was 0
        for delivery, decision, *_ in settled:
            entry = decision.entry
            entry.began_at, entry.process = origin + delivery.handed_at, delivery.worker.process

    def _count_returns(self, settled: Sequence[Settled[Return]]) -> None:
        self._core.scheduler.ledger.returning(_awaited(settled), self._core.timer.now())
        for count, number in Counter([end.decision.counts_as for end in settled]).items():
            self._core.counters.add(count, number)
            if count is Count.RETURNED:
                self._core.counters.add(Count.RELEASED, number)
            else:
                failed = [end.delivery.job.kind for end in settled if end.decision.counts_as is count]
                self._core.counters.kinds.add(count, failed)

    # ------------------------------------------------------------------- written

    def _gather(self, waiting: int) -> None:
        if waiting < COMMIT:
            # Seconds for which commits that come one by one are merged; no worker's next job waits for
            # them.
            self._core.timer.sleep(0.001)

    def _write_commits(self, batch: Sequence[Settled[Commit]]) -> dict[str, SluiceError]:
        now = self._core.clock.now()
        problems = self._commits.write(batch, now)
        self._ended(Count.COMMITTED, batch, problems, now)
        return problems

    def _write_forwards(self, batch: list[Settled[PassOn]]) -> None:
        self._move(self._forwards, Count.FORWARDED, batch)

    def _write_fan_outs(self, batch: list[Settled[AwaitChildren]]) -> None:
        self._core.counters.add(Count.CHILDREN, self._move(self._fan_outs, Count.FANNED_OUT, batch))

    def _move(self, moves: Moves[Moving], count: Count, batch: list[Settled[Moving]]) -> int:
        now = self._core.clock.now()
        problems, new = moves.write(batch, now)
        self._ended(count, batch, problems, now)
        for queue, jobs in new.items():
            queue.intake.stored(jobs, existing=0)
        return sum(len(jobs) for jobs in new.values())

    def _write_confirms(self, batch: list[Settled[Any]]) -> None:
        """End jobs that transactions of their workers have ended; give the others back."""
        problems = self._in_transactions.confirm([end.delivery.job for end in batch])
        over: list[Settled[Any]] = []
        for end in batch:
            problem = problems.get(end.delivery.job.id)
            if isinstance(problem, NotCommitted):
                decision = TakeBack(self._refuse(end.delivery, problem, end.settlement, end.position))
                self._writes[TakeBack].add([end._replace(decision=decision)])
            else:
                over.append(end._replace(decision=Commit(end.decision.result)))
        self._ended_in_transaction(over, problems)

    def _take_back(self, batch: list[Settled[Any]]) -> None:
        """Give jobs back, unless transactions of their workers have ended them."""
        for end in batch:
            outcome = self._in_transactions.take_back(end)
            if outcome is None:
                returned = end._replace(decision=end.decision.otherwise)
                self.under_way -= 1
                self._count_returns([returned])
                self._returned([returned], self._core.clock.now())
            elif isinstance(outcome, bytes):
                self._ended_in_transaction([end._replace(decision=Commit(outcome))], {})
            else:
                problems = {end.delivery.job.id: outcome}
                self._ended_in_transaction([end._replace(decision=NO_RESULT)], problems)

    def _ended_in_transaction(self, batch: list[Settled[Any]], problems: dict[str, SluiceError]) -> None:
        self._ended(Count.COMMITTED, batch, problems, self._core.clock.now())
        self._in_transactions.parents_ended([end for end in batch if end.delivery.job.id not in problems])

    def _write_returns(self, batch: list[Settled[Return]]) -> None:
        entries = [end.decision.entry for end in batch]
        now = self._core.clock.now()
        ours = self._core.retry.run(lambda: self._core.store.roll_back(entries, now))
        if ours < len(entries):
            self._core.counters.add(Count.GIVEN_BACK_BY_OTHERS, len(entries) - ours)
        self._returned(batch, now)

    def _returned(self, batch: Sequence[Settled[Return]], now: float) -> None:
        """Say that these are given back, or are dead letters."""
        entries = [end.decision.entry for end in batch]
        self._core.scheduler.ended([entry.job for entry in entries])
        self._core.scheduler.ledger.returned(_awaited(batch))
        _answer(batch)
        self._endings.became_dead([entry for entry in entries if entry.dead], now)
        self._have_returned([entry for entry in entries if not entry.dead], now)

    def _write_releases(self, jobs: list[Job]) -> None:
        for these in by_owner(jobs).values():
            self._core.retry.run(partial(self._core.store.release, these))
        self._core.scheduler.ended(jobs)
        self._core.scheduler.ledger.returned(len(jobs))
        self._core.counters.add(Count.RELEASED, len(jobs))
        self._core.events.emit(Count.RELEASED, self._core.clock.now(), ({"job": job.id} for job in jobs))
        self._core.scheduler.some_ready(count=len(jobs))
        self._core.scheduler.expiries.watch(jobs, self._core.clock.now())
        self._core.dispatch()

    def _write_pops(self, pops: list[_Pop]) -> None:
        """Remove jobs (or keep them as done), durably, and only then send them."""
        batch = [Settled(delivery, NO_RESULT) for deliveries, _ in pops for delivery in deliveries]
        problems = self._write_commits(batch)
        for deliveries, popped in pops:
            shielded(popped, {delivery for delivery in deliveries if delivery.job.id in problems})

    def _undo_pops(self, jobs: list[Job]) -> None:
        self._core.retry.run(lambda: self._core.store.undo_pop(jobs))
        self._groups.may_advance(jobs)
        self._core.scheduler.some_ready(count=len(jobs))
        self._core.dispatch()

    def _ended(
        self, count: Count, batch: Sequence[Settled[Any]], problems: Mapping[str, SluiceError], now: float
    ) -> None:
        """Say how a batch has ended; jobs that were not written go back, or are forgotten."""
        done = over = batch
        if problems:
            done = [end for end in batch if end.delivery.job.id not in problems]
            over = [end for end in batch if not _goes_back(end, problems.get(end.delivery.job.id))]
        self.under_way -= len(batch)
        self._core.scheduler.ended([end.delivery.job for end in over])
        if not self._core.scheduler.limits.holds_ahead:  # others may begin
            self._core.dispatch()
        self._endings.ended(count, done, now)
        _answer(done)
        for end in batch if problems else ():
            if problem := problems.get(end.delivery.job.id):
                self._not_written(end, problem)

    def _not_written(self, settled: Settled[Any], problem: SluiceError) -> None:
        delivery, settlement, at = settled.delivery, settled.settlement, settled.position
        if _goes_back(settled, problem):
            decision = self._refuse(delivery, problem, settlement, at)
            self._carry_out([Settled(delivery, decision, settlement, at)])
        else:
            _answer([settled], problem)
            self._endings.not_ended(settled, problem)

    def _have_returned(self, entries: Sequence[RolledBack], now: float) -> None:
        for entry in entries if self._core.events.wanted else ():
            count = Count.ROLLED_BACK if entry.reason else Count.RELEASED
            self._core.events.emit(count, now, [about_return(entry)])
        at_once = [entry.job.priority for entry in entries if not entry.due or entry.due <= now]
        if at_once:
            self._core.scheduler.some_ready(max(at_once), len(at_once))
        self._core.scheduler.due_times.add(
            [entry.due for entry in entries if entry.due and entry.due > now], now
        )
        self._core.scheduler.expiries.watch([entry.job for entry in entries], now)
        self._core.dispatch()

    # ------------------------- not answered by MongoDB before the broker stops

    def _failed(self, batch: list[Settled[Any]]) -> None:
        """Forget these jobs: the audit finds those that are still reserved, and they are delivered again."""
        returns = [end for end in batch if isinstance(end.decision, Return)]
        self._core.scheduler.ledger.returned(_awaited(returns))
        self.under_way -= len(batch) - len(returns)
        self._core.counters.add(Count.UNCOMMITTED, len(batch) - len(returns))
        self._core.scheduler.ended([end.delivery.job for end in batch])
        _answer(batch, not_durable())
        self._core.dispatch()

    def _doubtful_failed(self, batch: list[Settled[Any]]) -> None:
        self._failed([end._replace(decision=NO_RESULT) for end in batch])

    def _releases_failed(self, jobs: list[Job]) -> None:
        self._core.scheduler.ended(jobs)
        self._core.scheduler.ledger.returned(len(jobs))
        self._core.dispatch()

    def _pops_failed(self, pops: list[_Pop]) -> None:
        for deliveries, popped in pops:
            self._failed([Settled(delivery, NO_RESULT) for delivery in deliveries])
            shielded(popped, set(deliveries))

    def _undo_failed(self, jobs: list[Job]) -> None:
        self._core.counters.notice(Count.POPPED_LOST, f"{len(jobs)} popped jobs could not be stored again")


def _weigh_return(settled: Settled[Return]) -> int:
    """Return how much of a batch of :data:`RETURN` it takes."""
    # Bytes of reasons and tracebacks in one statement, about
    return weigh(1, settled.decision.size, RETURN, 2 * 2**20)


def _answer(settled: Sequence[Settled[Any]], problem: SluiceError | None = None) -> None:
    """Answer the workers: their verdicts are durable, or why they are not."""
    if problem:
        for end in settled:
            if end.settlement:
                end.settlement.settled(end.position, problem)
        return
    for settlement, count in Counter([end.settlement for end in settled]).items():
        if settlement:
            settlement.close(count)


def _awaited(returns: Iterable[Settled[Return]]) -> int:
    """Count the jobs that newer jobs wait for: ready at once, though no worker has said so."""
    entries = [end.decision.entry for end in returns if end.settlement is None]
    return sum(entry.due is None and not entry.dead for entry in entries)


def _goes_back(settled: Settled[Any], problem: SluiceError | None) -> bool:
    """True if the job is still ours, and has a problem that is the verdict's own."""
    if isinstance(
        settled.decision, Commit
    ):  # only MongoDB can tell that a result has no room beside the rest
        return isinstance(problem, TooLargeError)
    return not isinstance(problem, LeaseLostError | UncertainError | None)
