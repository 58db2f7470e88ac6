"""Jobs that are done, on their way out of MongoDB: commits, and the removal of what is popped.

``kill -9`` before the write: the job is still reserved by this broker, and is delivered again when its
lease has run out. After it: the job is done; a worker that was not told so settles again, and hears that
the receipt is void. Of popped jobs that were removed and not sent yet, nobody knows any more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import SluiceError, TooLarge, Uncertain
from sluicemq_broker.bus import BusKind
from sluicemq_broker.context import Context
from sluicemq_broker.job import RESULT_WANTED_FOR, Job
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.fan_outs import Children
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.verdict import Settlement, not_durable
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime import Batcher, Count, shielded
from sluicemq_broker.store import Completed, QueueStore

#: Commits in one statement, at most; and statements at once.
COMMIT: Final = 1000
COMMITS_AT_ONCE: Final = 2
_RESULT_BYTES: Final = 16 * 2**20
#: Commits that come one by one are merged for so many seconds; nobody's next job waits for them.
GATHER: Final = 0.001


class Commit(NamedTuple):
    """A delivery whose job is done, with its result, and whose verdict that was."""

    delivery: Delivery
    result: bytes
    settlement: Settlement
    position: int


@dataclass(slots=True)
class _Ends:
    """How the jobs of one batch end: ``removed``, ``kept``, or, as ``children``, with word to their parents.

    ``groups``: those in which another's turn has come; ``awaited``: somebody waits at another broker.
    """

    removed: list[Job]
    kept: list[Commit]
    children: list[Commit]
    groups: set[str]
    awaited: bool = False


class Commits:
    """The commits and the pops of one queue, merged into one statement each.

    ``unkept`` is told of a commit whose result MongoDB can't keep beside the job: it is none.
    """

    def __init__(
        self,
        store: QueueStore,
        context: Context,
        dispatch: Dispatch,
        waiters: ResultWaiters,
        unkept: Callable[[Commit, TooLarge], None],
        children: Children,
    ) -> None:
        self._store = store
        self._dispatch = dispatch
        self._groups = dispatch.groups
        self._supply = dispatch.supply
        self._waiters = waiters
        self._unkept = unkept
        self._children = children
        self._owners = context.owners
        self._clock = context.clock
        self._timer = context.timer
        self._retry = context.retry
        self._counters = context.counters
        self._events = context.events
        self._tell = context.notify_brokers
        self._verdicts = context.memory.verdicts
        self._commits: Batcher[Commit] = Batcher(
            self._write_all,
            size=COMMIT,
            in_flight=COMMITS_AT_ONCE,
            gather=self._gather,
            weigh=_weight,
            failed=self._failed,
        )
        self._pops: Batcher[tuple[Worker, list[Delivery]]] = Batcher(
            self._pop_all,
            size=COMMIT,
            in_flight=COMMITS_AT_ONCE,
            weigh=lambda pop: len(pop[1]),
            failed=self._pop_failed,
        )
        self._unsent: Batcher[Job] = Batcher(self._undo_pops, size=COMMIT, failed=self._undo_failed)
        self.under_way = 0
        """Commits and pops that are not written yet, or counted as failed."""
        #: What is written, each merged on its own.
        self.batchers: tuple[Batcher[Any], ...] = (self._commits, self._pops, self._unsent)

    def commit(self, commits: list[Commit]) -> None:
        """These are done; each settlement is told when that is durable."""
        if commits:
            self._verdicts.take(self._dispatch, len(commits), _bytes_of(commits))
            self.under_way += len(commits)
            self._commits.extend(commits)

    def pop(self, worker: Worker, deliveries: list[Delivery]) -> None:
        """Remove these durably, then deliver them."""
        self.under_way += len(deliveries)
        self._pops.add((worker, deliveries))

    def undo_pop(self, jobs: Iterable[Job]) -> None:
        """Popped jobs that are kept as done, and could not be sent, are ready again."""
        self._unsent.extend(jobs)

    # --------------------------------------------------------------- commits

    def _gather(self, waiting: int) -> None:
        if waiting < COMMIT:
            self._timer.sleep(GATHER)

    def _write_all(self, commits: list[Commit]) -> None:
        try:
            self._write(commits)
        finally:
            self._verdicts.give(self._dispatch, len(commits), _bytes_of(commits))

    def _write(self, commits: list[Commit]) -> None:
        now = self._clock.now()
        ends = self._sort(commits, now)
        problems = self._end_all(ends)
        self._dispatch.forget([each.delivery.job for each in commits])
        self._ended(Count.COMMITTED, len(commits) - len(problems))
        if self._events.wanted:
            done = [each.delivery for each in commits if each.delivery.job.id not in problems]
            self._events.emit(Count.COMMITTED, now, ({"job": each.job.id, **_by(each)} for each in done))
        if ends.awaited:
            self._tell(BusKind.ENDED, 0)
        self._settle(commits, problems)
        self._groups.freed(ends.groups)

    def _sort(self, commits: list[Commit], now: float) -> _Ends:
        ends = _Ends([], [], [], set())
        for each in commits:
            job = each.delivery.job
            if job.result_wanted and job.id not in self._waiters:  # it is another broker where somebody waits
                job.keep_result(RESULT_WANTED_FOR)
                ends.awaited = True
            if job.group is not None:
                ends.groups.add(job.group)
            stays = job.kept_until(now) is not None
            if stays:
                each.delivery.kept = True
            if job.parent:
                ends.children.append(each)
            elif stays:
                ends.kept.append(each)
            else:
                ends.removed.append(job)
        return ends

    def _end_all(self, ends: _Ends) -> dict[str, SluiceError]:
        """Write it; returns the ids that it did not write, and why."""
        problems = self._remove(ends.removed) | self._complete(ends.kept)
        return problems | self._children.commit(self._completed(ends.children)) if ends.children else problems

    def _settle(self, commits: list[Commit], problems: dict[str, SluiceError]) -> None:
        """Tell whoever waits for these verdicts, or for these jobs."""
        if not problems and not self._waiters:
            for settlement, count in Counter([each.settlement for each in commits]).items():
                settlement.close(count)
            return
        for each in commits:
            problem = problems.get(each.delivery.job.id)
            if problem:
                self._not_committed(each, problem)
            else:
                each.settlement.settled(each.position)
                if each.delivery.job.id in self._waiters:
                    shielded(self._waiters.committed, each.delivery.job.id, each.result)

    def _ended(self, count: Count, number: int) -> None:
        self._counters.add(count, number)
        self.under_way -= number

    def _not_committed(self, commit: Commit, problem: SluiceError) -> None:
        self.under_way -= 1
        if isinstance(problem, TooLarge):  # with its headers and history, which only MongoDB can tell
            self._unkept(commit, problem)
            return
        commit.settlement.settled(commit.position, problem)
        self._counters.notice(Count.UNCOMMITTED, str(problem))
        shielded(self._waiters.failed, commit.delivery.job.id, problem)

    def _remove(self, jobs: list[Job]) -> dict[str, SluiceError]:
        problems: dict[str, SluiceError] = {}
        for owner, held in by_owner(jobs).items():
            problems |= self._remove_held(owner, held)
        return problems

    def _remove_held(self, owner: str, jobs: list[Job]) -> dict[str, SluiceError]:
        """Remove jobs; those gone after a lost reply were removed by us if nobody else can have had them."""
        doubts: list[bool] = []
        problems = self._retry.run(lambda: self._store.commit(jobs), lambda: doubts.append(True))
        if doubts and problems and self._retry.run(lambda: self._owners.keeps(owner)):
            return {each: problem for each, problem in problems.items() if not isinstance(problem, Uncertain)}
        return problems

    def _complete(self, commits: list[Commit]) -> dict[str, SluiceError]:
        if not commits:
            return {}
        completed = self._completed(commits)
        return self._retry.run(lambda: self._store.complete(completed, self._clock.now()))

    def _completed(self, commits: list[Commit]) -> list[Completed]:
        then = self._clock.now() - self._timer.now()  # the server's time when this process's was 0
        return [
            Completed(
                each.delivery.job, each.result, each.delivery.worker.name, then + each.delivery.handed_at
            )
            for each in commits
        ]

    def _failed(self, commits: list[Commit]) -> None:
        """What is forgotten and still reserved is found by the audit, and delivered again."""
        self._ended(Count.UNCOMMITTED, len(commits))
        self._dispatch.forget(each.delivery.job for each in commits)
        for each in commits:
            each.settlement.settled(each.position, not_durable())

    # ------------------------------------------------------------------ pops

    def _pop_all(self, pops: list[tuple[Worker, list[Delivery]]]) -> None:
        """Remove jobs (or keep them as done), durably, and only then send them: at most once."""
        settlement = Settlement()
        deliveries = [delivery for _, popped in pops for delivery in popped]
        settlement.expect(len(deliveries))
        self._write([Commit(each, b"", settlement, at) for at, each in enumerate(deliveries)])
        gone = {deliveries[at] for at in settlement.problems}
        for worker, popped in pops:
            shielded(self._dispatch.popped, worker, popped, gone)

    def _pop_failed(self, pops: list[tuple[Worker, list[Delivery]]]) -> None:
        for worker, popped in pops:
            self._ended(Count.UNCOMMITTED, len(popped))
            self._dispatch.forget(each.job for each in popped)
            shielded(self._dispatch.popped, worker, popped, set(popped))

    def _undo_pops(self, jobs: list[Job]) -> None:
        self._retry.run(lambda: self._store.undo_pop(jobs))
        self._groups.may_go_on(jobs)
        self._supply.some_ready(count=len(jobs))

    def _undo_failed(self, jobs: list[Job]) -> None:
        self._counters.notice(Count.POPPED_LOST, f"{len(jobs)} popped jobs could not be stored again")


def by_owner(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """The jobs under each owner id: a statement names one."""
    groups: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        groups[job.reservation.owner].append(job)
    return groups


def _by(delivery: Delivery) -> dict[str, Any]:
    return {"attempt": delivery.job.attempts, "worker": delivery.worker.name}


def _bytes_of(commits: Sequence[Commit]) -> int:
    return sum([len(each.result) for each in commits])


def _weight(commit: Commit) -> int:
    """Of :data:`COMMIT`, how much it takes in a statement: a thousand of them, or 16 MiB of results."""
    return 1 + len(commit.result) * COMMIT // _RESULT_BYTES
