"""From a worker's verdict to MongoDB: commits and give-backs are merged, written, then confirmed.

``kill -9`` before the write: the job is still reserved by this broker, and is delivered again when
its lease has run out. After it: the job is settled; a worker that was not told so settles again,
and hears that the receipt is void.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import gevent

from sluicemq import wire
from sluicemq.errors import Dead, LeaseLost, SluiceError, TooLarge, Unavailable, Uncertain
from sluicemq_broker.config.settings import MAX_JOB_BYTES
from sluicemq_broker.job.backoff import Backoff
from sluicemq_broker.job.job import ASKED, Job
from sluicemq_broker.queue.answers import Answers
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.memory import Memory
from sluicemq_broker.queue.patience import Patience
from sluicemq_broker.queue.verdict import Settlement, Verdict
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime.batcher import Batcher
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.runtime.counts import Count
from sluicemq_broker.runtime.shield import shielded
from sluicemq_broker.store.connection import ServerClock
from sluicemq_broker.store.queue_store import QueueStore
from sluicemq_broker.store.verdicts import Finished, GivenBack

#: Commits in one statement, at most; and statements at once.
COMMIT: Final = 1000
COMMITS_AT_ONCE: Final = 2
_RESULT_BYTES: Final = 16 * 2**20
#: Commits that come one by one are merged for so many seconds; nobody's next job waits for them.
GATHER: Final = 0.001

DIED: Final = "the worker died"
TIMED_OUT: Final = "visibility_timeout passed without a verdict"

_USUAL_BACKOFF: Final = Backoff()


class _Commit(NamedTuple):
    delivery: Delivery
    result: bytes
    settlement: Settlement
    position: int


class _Return(NamedTuple):
    entry: GivenBack
    settlement: Settlement
    position: int
    awaited: bool = False
    """Newer jobs wait until it is ``ready`` again."""


class Settle:
    """The verdicts of one queue, on their way into MongoDB."""

    def __init__(
        self,
        store: QueueStore,
        dispatch: Dispatch,
        answers: Answers,
        clock: ServerClock,
        patience: Patience,
        counters: Counters,
        backoff: Backoff = _USUAL_BACKOFF,
        memory: Memory | None = None,
    ) -> None:
        self._store = store
        self._dispatch = dispatch
        self._answers = answers
        self._clock = clock
        self._patience = patience
        self._counters = counters
        self._backoff = backoff
        self._verdicts = (memory or Memory()).verdicts
        dispatch.pop = self._pop
        dispatch.give_back = self.release
        self._commits: Batcher[_Commit] = Batcher(
            self._commit_all,
            size=COMMIT,
            in_flight=COMMITS_AT_ONCE,
            gather=_merge,
            weigh=_weight,
            failed=self._commit_failed,
        )
        self._returns: Batcher[_Return] = Batcher(
            self._give_back_all, size=COMMIT, failed=self._return_failed
        )
        self._releases: Batcher[Job] = Batcher(self._release_all, size=COMMIT, failed=self._release_failed)
        self._pops: Batcher[tuple[Worker, list[Delivery]]] = Batcher(
            self._pop_all,
            size=COMMIT,
            in_flight=COMMITS_AT_ONCE,
            weigh=lambda pop: len(pop[1]),
            failed=self._pop_failed,
        )
        self._unsent: Batcher[Job] = Batcher(self._take_back, size=COMMIT, failed=self._take_back_failed)

    # -------------------------------------------------------------- verdicts

    def settle(self, verdicts: Sequence[Verdict], settlement: Settlement) -> None:
        """End the deliveries that these verdicts name; each void receipt is refused and counted."""
        commits: list[_Commit] = []
        workers: set[Worker] = set()
        ended = 0
        for position, verdict in enumerate(verdicts):
            delivery = self._dispatch.take(verdict.receipt)
            if delivery is None:
                self._counters.add(Count.LATE_VERDICTS)
                settlement.problems[position] = LeaseLost("this receipt is void: the delivery has ended")
                continue
            workers.add(delivery.worker)
            ended += 1
            settlement.pending += 1
            problem = _too_long(verdict, delivery.job, self._clock)
            if problem:
                self._return_unkept(_Commit(delivery, b"", settlement, position), problem)
            elif verdict.kind == wire.COMMIT:
                result = verdict.detail if isinstance(verdict.detail, bytes) else verdict.detail.encode()
                commits.append(_Commit(delivery, result, settlement, position))
            else:
                self._return(delivery, verdict, settlement, position)
        self._take(len(commits), _bytes_of(commits))
        self._commits.extend(commits)
        self._dispatch.pace.ended(ended)
        settlement.close()
        for worker in workers:
            self._dispatch.offer(worker)

    def worker_gone(self, worker: Worker, *, died: bool = True) -> None:
        """A worker has left: what it had goes to others at once, one job at a time if it died."""
        left = self._dispatch.detach(worker)
        if died:
            self._fail(left, DIED, suspect=True)
        else:
            self.release([delivery.job for delivery in left])

    def time_out(self) -> None:
        """Give back the deliveries whose visibility timeout has passed."""
        late = self._dispatch.overdue()
        if late:
            self._counters.add(Count.TIMED_OUT, len(late))
            self._fail(late, TIMED_OUT, suspect=False)

    def release(self, jobs: Iterable[Job]) -> None:
        """Give back jobs that no worker has started; the attempt is not counted."""
        going = list(jobs)
        for job in going:
            job.payload = b""  # it lies in MongoDB, and may be long on its way
        self._take(len(going), 0)
        self._dispatch.supply.going_back(len(going))
        self._releases.extend(going)

    def await_releases(self, timeout: float) -> None:
        """Block until what is being given back unstarted can be claimed again."""
        self._releases.drain(timeout)

    # -------------------------------------------------------------- stopping

    @property
    def busy(self) -> bool:
        """Whether any verdict is not durable yet."""
        return any(each.busy for each in self._all())

    def _all(self) -> tuple[Batcher[Any], ...]:
        return self._commits, self._returns, self._releases, self._pops, self._unsent

    # --------------------------------------------------------------- commits

    def _commit_all(self, commits: list[_Commit]) -> None:
        try:
            self._commit(commits)
        finally:
            self._give(len(commits), _bytes_of(commits))

    def _commit(self, commits: list[_Commit]) -> None:
        now = self._clock.now()
        removed: list[Job] = []
        kept: list[_Commit] = []
        for each in commits:
            job = each.delivery.job
            if job.asked and job.id not in self._answers:  # it is another broker where somebody waits
                job.remember = max(job.remember or 0.0, ASKED)
            if job.kept_until(now) is None:
                removed.append(job)
            else:
                kept.append(each)
        problems = self._remove(removed) | self._finish(kept)
        self._dispatch.forget(each.delivery.job for each in commits)
        for job in removed:
            job.owner = ""
        self._counters.add(Count.COMMITTED, len(commits) - len(problems))
        for each in commits:
            problem = problems.get(each.delivery.job.id)
            if problem:
                self._not_committed(each, problem)
            else:
                each.settlement.settled(each.position)
                if each.delivery.job.id in self._answers:
                    shielded(self._answers.committed, each.delivery.job.id, each.result)

    def _not_committed(self, commit: _Commit, problem: SluiceError) -> None:
        if isinstance(problem, TooLarge):  # with its headers and history, which only MongoDB can tell
            self._return_unkept(commit, problem)
            return
        commit.settlement.settled(commit.position, problem)
        self._counters.notice(Count.UNCOMMITTED, str(problem))
        shielded(self._answers.failed, commit.delivery.job.id, problem)

    def _remove(self, jobs: list[Job]) -> dict[str, SluiceError]:
        problems: dict[str, SluiceError] = {}
        for owner, held in _by_owner(jobs).items():
            problems |= self._remove_held(owner, held)
        return problems

    def _remove_held(self, owner: str, jobs: list[Job]) -> dict[str, SluiceError]:
        """Remove jobs; those gone after a lost reply were removed by us if nobody else can have had them."""
        doubts: list[bool] = []
        problems = self._patience.insist(lambda: self._store.commit(jobs), lambda: doubts.append(True))
        if doubts and problems and self._patience.insist(lambda: self._dispatch.keeps(owner)):
            return {each: problem for each, problem in problems.items() if not isinstance(problem, Uncertain)}
        return problems

    def _finish(self, commits: list[_Commit]) -> dict[str, SluiceError]:
        if not commits:
            return {}
        then = self._clock.now() - time.monotonic()  # the server's time when this machine's was 0
        finished = [
            Finished(
                each.delivery.job, each.result, each.delivery.worker.name, then + each.delivery.handed_at
            )
            for each in commits
        ]
        return self._patience.insist(lambda: self._store.finish(finished, self._clock.now()))

    def _commit_failed(self, commits: list[_Commit]) -> None:
        """What is forgotten and still reserved is found by the audit, and delivered again."""
        self._dispatch.forget(each.delivery.job for each in commits)
        for each in commits:
            each.settlement.settled(each.position, _not_durable())

    # ------------------------------------------------------------------ pops

    def _pop(self, worker: Worker, deliveries: list[Delivery]) -> None:
        self._pops.add((worker, deliveries))

    def _pop_all(self, pops: list[tuple[Worker, list[Delivery]]]) -> None:
        """Remove jobs (or keep them as done), durably, and only then send them: at most once."""
        settlement = Settlement()
        deliveries = [delivery for _, popped in pops for delivery in popped]
        settlement.pending += len(deliveries)
        self._commit([_Commit(each, b"", settlement, at) for at, each in enumerate(deliveries)])
        gone = {deliveries[at].receipt for at in settlement.problems}
        for worker, popped in pops:
            shielded(worker.deliver, [each for each in popped if each.receipt not in gone])

    def _pop_failed(self, pops: list[tuple[Worker, list[Delivery]]]) -> None:
        for worker, popped in pops:
            self._dispatch.forget(each.job for each in popped)
            shielded(worker.deliver, [])

    def take_back(self, jobs: Iterable[Job]) -> None:
        """Popped jobs that are kept as done, and could not be sent, are ready again."""
        self._unsent.extend(jobs)

    def _take_back(self, jobs: list[Job]) -> None:
        self._patience.insist(lambda: self._store.take_back(jobs))
        self._dispatch.supply.some_ready(count=len(jobs))

    def _take_back_failed(self, jobs: list[Job]) -> None:
        self._counters.notice(Count.POPPED_LOST, f"{len(jobs)} popped jobs could not be stored again")

    # ------------------------------------------------------------- give-backs

    def _return(self, delivery: Delivery, verdict: Verdict, settlement: Settlement, position: int) -> None:
        job, worker = delivery.job, delivery.worker.name
        reason = (
            verdict.detail if isinstance(verdict.detail, str) else verdict.detail.decode("utf-8", "replace")
        )
        if verdict.kind == wire.RELEASE:
            self.release([job])
            settlement.settled(position)
            return
        dead = verdict.kind == wire.REJECT or job.spent
        due = None if dead else self._due(job, verdict.delay)
        entry = GivenBack(job, reason or verdict.kind.lower(), worker, due, dead=dead)
        self._counters.add(Count.REJECTED if verdict.kind == wire.REJECT else Count.ROLLED_BACK)
        self._send_back([_Return(entry, settlement, position)])

    def _fail(self, deliveries: list[Delivery], reason: str, *, suspect: bool) -> None:
        settlement = Settlement()
        settlement.pending += len(deliveries)
        entries = [
            GivenBack(
                each.job,
                reason,
                each.worker.name,
                self._due_again(each.job, suspect=suspect),
                suspect,
                each.job.spent,
            )
            for each in deliveries
        ]
        self._counters.add(Count.ROLLED_BACK, len(entries))
        returns = [
            _Return(entry, settlement, at, awaited=entry.due is None and not entry.dead)
            for at, entry in enumerate(entries)
        ]
        self._dispatch.supply.going_back(_awaited(returns))
        self._send_back(returns)

    def _due(self, job: Job, delay: float | None = None) -> float | None:
        """When a job that was rolled back is due: after the delay, or else its back-off; None: at once."""
        wait = (job.backoff or self._backoff).wait(job.attempts) if delay is None else delay
        return self._clock.now() + wait if wait else None

    def _due_again(self, job: Job, *, suspect: bool) -> float | None:
        """At once, the first time that a worker has died with it or not answered; then with back-off."""
        return self._due(job, 0 if (not job.suspect if suspect else job.attempts == 1) else None)

    def _return_unkept(self, commit: _Commit, problem: TooLarge) -> None:
        """A result that can't be kept is no result, also where that is found out late."""
        commit.settlement.problems[commit.position] = problem
        job_id, reason = commit.delivery.job.id, f"{problem.code}: {problem}"
        self._counters.notice(Count.TOO_LARGE, f"job {job_id} is rolled back: {problem}")
        verdict = Verdict(commit.delivery.receipt, wire.ROLLBACK, reason)
        self._return(commit.delivery, verdict, commit.settlement, commit.position)

    def _send_back(self, returns: list[_Return]) -> None:
        self._take(len(returns), _bytes_of_reasons(returns))
        self._returns.extend(returns)

    def _give_back_all(self, returns: list[_Return]) -> None:
        try:
            self._give_back(returns)
        finally:
            self._give(len(returns), _bytes_of_reasons(returns))

    def _give_back(self, returns: list[_Return]) -> None:
        entries = [each.entry for each in returns]
        now = self._clock.now()
        ours = self._patience.insist(lambda: self._store.give_back(entries, now))
        if ours < len(entries):
            self._counters.add(Count.GIVEN_BACK_BY_OTHERS, len(entries) - ours)
        self._dispatch.forget(each.job for each in entries)
        self._dispatch.supply.came_back(_awaited(returns))
        for each in returns:
            each.settlement.settled(each.position)
        self._announce(entries, now)

    def _announce(self, entries: list[GivenBack], now: float) -> None:
        for entry in entries:
            if entry.dead:
                self._counters.notice(Count.DEAD, f"job {entry.job.id} is dead after {entry.reason!r}")
                why = Dead(f"job {entry.job.id} is dead: {entry.reason}")
                shielded(self._answers.failed, entry.job.id, why)
        alive = [entry for entry in entries if not entry.dead]
        at_once = [entry.job.priority for entry in alive if not entry.due or entry.due <= now]
        if at_once:
            self._dispatch.supply.some_ready(max(at_once), len(at_once))
        later = [entry.due for entry in alive if entry.due and entry.due > now]
        if later:
            self._dispatch.supply.due_later(later)

    def _return_failed(self, returns: list[_Return]) -> None:
        self._dispatch.forget(each.entry.job for each in returns)
        self._dispatch.supply.came_back(_awaited(returns))
        for each in returns:
            each.settlement.settled(each.position, _not_durable())

    def _release_all(self, jobs: list[Job]) -> None:
        try:
            self._release(jobs)
        finally:
            self._give(len(jobs), 0)

    def _release(self, jobs: list[Job]) -> None:
        for held in _by_owner(jobs).values():
            self._release_held(held)
        self._dispatch.forget(jobs)
        self._counters.add(Count.RELEASED, len(jobs))
        self._dispatch.supply.came_back(len(jobs))
        self._dispatch.supply.some_ready(count=len(jobs))

    def _release_held(self, jobs: list[Job]) -> None:
        self._patience.insist(lambda: self._store.release(jobs))

    def _release_failed(self, jobs: list[Job]) -> None:
        self._dispatch.forget(jobs)
        self._dispatch.supply.came_back(len(jobs))

    # ----------------------------------------------------------- what is held

    def _take(self, count: int, size: int) -> None:
        """So many verdicts are on their way to MongoDB."""
        if count:
            self._verdicts.take(self._dispatch, count, size)

    def _give(self, count: int, size: int) -> None:
        self._verdicts.give(self._dispatch, count, size)


def _too_long(verdict: Verdict, job: Job, clock: ServerClock) -> TooLarge | None:
    """A result that can't be kept is no result; that of a job which is not kept may be longer."""
    if verdict.kind != wire.COMMIT:
        return None
    size = len(verdict.detail if isinstance(verdict.detail, bytes) else verdict.detail.encode())
    most = MAX_JOB_BYTES - (job.size if job.keep_done else 0)
    if size <= most or job.kept_until(clock.now()) is None:
        return None
    beside = f" beside a job of {job.size}" if job.keep_done else ""
    return TooLarge(f"the result has {size} bytes, {most} can be kept{beside}")


def _awaited(returns: Iterable[_Return]) -> int:
    return sum(each.awaited for each in returns)


def _bytes_of(commits: Sequence[_Commit]) -> int:
    return sum([len(each.result) for each in commits])


def _bytes_of_reasons(returns: Sequence[_Return]) -> int:
    return sum([len(each.entry.reason) for each in returns])


def _weight(commit: _Commit) -> int:
    """Of :data:`COMMIT`, how much it takes in a statement: a thousand of them, or 16 MiB of results."""
    return 1 + len(commit.result) * COMMIT // _RESULT_BYTES


def _merge(waiting: int) -> None:
    if waiting < COMMIT:
        gevent.sleep(GATHER)


def _by_owner(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    groups: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        groups[job.owner].append(job)
    return groups


def _not_durable() -> Unavailable:
    return Unavailable("this is not durable: the broker stops, or has failed; the job is delivered again")
