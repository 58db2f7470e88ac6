"""Verdicts that move jobs on, each batch of them in one transaction: forwards, fan-outs, ends of children.

``kill -9`` before it: the job is reserved still, and is delivered again when the lease has run out. After
it: it has moved on, and its worker, if it was not told, hears that the receipt is void.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from sluicemq.protocol.errors import DifferentStore, LeaseLost, SluiceError, Uncertain
from sluicemq_broker.context import Context
from sluicemq_broker.job import Job
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.verdict import Settlement, not_durable
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.runtime import Batcher, Count
from sluicemq_broker.store import Portions, Refused


class Said(Protocol):
    """A worker's word on a delivery, who waits for it, and the bytes that it keeps until it is written."""

    @property
    def delivery(self) -> Delivery: ...  # noqa: D102
    @property
    def settlement(self) -> Settlement: ...  # noqa: D102
    @property
    def position(self) -> int: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102


class HeldJob(Protocol):
    """A verdict that moves one job: the job, where its outcome goes, and how many bytes it keeps."""

    @property
    def job(self) -> Job: ...  # noqa: D102


class Prepared(HeldJob, Protocol):
    """One that can be written, and what was said."""

    @property
    def said(self) -> Any: ...  # noqa: D102


S = TypeVar("S", bound=Said)
R = TypeVar("R", bound=Prepared)
H = TypeVar("H", bound=HeldJob)


class Moves(Generic[S, R]):
    """Verdicts of one kind that move jobs of one queue on.

    ``refuse`` is told of one that can't be carried out: it goes back.
    """

    def __init__(
        self,
        context: Context,
        dispatch: Dispatch,
        waiters: ResultWaiters,
        refuse: Callable[[S, SluiceError], None],
        *,
        size: int,
        in_flight: int = 1,
    ) -> None:
        self._context = context
        self._dispatch = dispatch
        self._waiters = waiters
        self._refuse = refuse
        self._clock = context.clock
        self._counters = context.counters
        self._events = context.events
        self._verdicts = context.memory.verdicts
        self.batcher: Batcher[S] = Batcher(
            self._write_all, size=size, in_flight=in_flight, weigh=self._weigh, failed=self._failed
        )
        self._portions = Portions(size, context.counters.notice)
        self.under_way = 0
        """Those that are not written yet, or counted as failed."""

    def begin(self, said: Sequence[S]) -> None:
        """Carry these out; each settlement is told when that is durable."""
        if said:
            self._verdicts.take(self._dispatch, len(said), _bytes_of(said))
            self.under_way += len(said)
            self.batcher.extend(said)

    # ------------------------------------------------- what each kind does in its own way

    def _weigh(self, said: S) -> int:
        """How much of the batch's ``size`` it takes."""
        raise NotImplementedError

    def _prepare(self, said: S, now: float) -> R:
        """As the store takes it; raises what is wrong with it."""
        raise NotImplementedError

    def _place(self, ready: R) -> str:
        """Name the queue that it goes to: those of one place are written together."""
        raise NotImplementedError

    def _accept(self, ready: Sequence[R]) -> None:
        """Number the jobs that these make."""
        raise NotImplementedError

    def _statement(self, ready: Sequence[R]) -> dict[str, SluiceError]:
        """Write them; returns the ids of those it did not, and why."""
        raise NotImplementedError

    def _moved(self, ready: Sequence[R]) -> None:
        """These are durable: count them, and say what is new to whom it concerns."""
        raise NotImplementedError

    # ------------------------------------------------------------- what all of them do

    def _write_all(self, said: list[S]) -> None:
        try:
            self._write(said)
        finally:
            self._verdicts.give(self._dispatch, len(said), _bytes_of(said))

    def _write(self, said: list[S]) -> None:
        now = self._clock.now()
        by_owner: dict[str, list[R]] = defaultdict(list)
        for each in said:
            try:
                by_owner[each.delivery.job.owner].append(self._prepare(each, now))
            except SluiceError as error:
                self._send_back(each, error)
        self._accept([each for these in by_owner.values() for each in these])
        for owner, ready in by_owner.items():
            ready.sort(key=self._place)
            self._end(ready, carried_out(self._context, self._portions, owner, ready, self._statement))

    def _end(self, ready: list[R], problems: Mapping[str, SluiceError]) -> None:
        moved = [each for each in ready if each.job.id not in problems]
        self._dispatch.forget(each.job for each in moved)
        self.under_way -= len(moved)
        self._moved(moved)
        for each in moved:
            each.said.settlement.settled(each.said.position)
        for each in ready:
            if problem := problems.get(each.job.id):
                self._not_moved(each.said, problem)

    def _not_moved(self, said: S, problem: SluiceError) -> None:
        if not isinstance(problem, LeaseLost | Uncertain):
            self._send_back(said, problem)
            return
        self.under_way -= 1
        self._dispatch.forget([said.delivery.job])
        said.settlement.settled(said.position, problem)
        self._counters.notice(Count.UNCOMMITTED, str(problem))
        self._waiters.check([said.delivery.job.id])

    def _send_back(self, said: S, problem: SluiceError) -> None:
        """It can't be carried out, and is held still."""
        self.under_way -= 1
        self._refuse(said, problem)

    def _failed(self, said: list[S]) -> None:
        """What is forgotten and still reserved is found by the audit, and delivered again."""
        self._counters.add(Count.UNCOMMITTED, len(said))
        self.under_way -= len(said)
        self._dispatch.forget(each.delivery.job for each in said)
        for each in said:
            each.settlement.settled(each.position, not_durable())


def carried_out(
    context: Context,
    portions: Portions,
    owner: str,
    these: Sequence[H],
    statement: Callable[[Sequence[H]], dict[str, SluiceError]],
) -> dict[str, SluiceError]:
    """Write these of one owner, in portions; returns the ids of those that are not written, and why."""

    def write(part: Sequence[H]) -> dict[str, SluiceError]:
        return _written(context, owner, part, statement)

    problems: dict[str, SluiceError] = {}
    for part, answer in portions.carry_out(these, write):
        problems |= {each.job.id: answer for each in part} if isinstance(answer, Refused) else answer
    return problems


def _written(
    context: Context,
    owner: str,
    these: Sequence[H],
    statement: Callable[[Sequence[H]], dict[str, SluiceError]],
) -> dict[str, SluiceError]:
    doubts: list[bool] = []
    try:
        problems = context.retry.run(lambda: statement(these), lambda: doubts.append(True))
    except DifferentStore as error:
        return dict.fromkeys((each.job.id for each in these), error)
    if doubts and problems and context.retry.run(lambda: context.owners.keeps(owner)):
        # What is gone after a lost reply we have written, and is done by now: nobody else can have had it.
        return {each: why for each, why in problems.items() if not isinstance(why, Uncertain)}
    return problems


def _bytes_of(said: Sequence[Said]) -> int:
    return sum([each.size for each in said])
