"""Jobs that wait for children, which their workers name; and children that are done, or dead letters.

``kill -9`` before one of these transactions: the delivery comes again after the lease. After it: it is
carried out, and a worker that was not told hears that the receipt is void.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sluicemq.errors import BadFrames, BadHeaders, DifferentStore, LeaseLost, SluiceError, Uncertain
from sluicemq.options import LONGEST_ID
from sluicemq_broker.job import Job, Parent
from sluicemq_broker.queue.context import Context
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.forwards import FORWARD_OPTIONS, Elsewhere
from sluicemq_broker.queue.verdict import Onward, Settlement, not_durable
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.runtime import Batcher, Count
from sluicemq_broker.store import Child, Completed, FanOut, QueueStore, Refused, end_children, fan_out

if TYPE_CHECKING:
    from sluicemq_broker.queue.queue import Queue

#: Children in one transaction, at most, unless one parent alone has more: up to :data:`MOST_CHILDREN`.
_AT_ONCE: Final = 500
MOST_CHILDREN: Final = 1000
_BYTES: Final = 8 * 2**20


class Fanning(NamedTuple):
    """A delivery whose job waits for children from now on, and whose verdict that was."""

    delivery: Delivery
    children: tuple[Onward, ...]
    result: bytes
    settlement: Settlement
    position: int


class FanOuts:
    """The fan-outs of one queue, merged into transactions; ``refuse`` is told of one that can't be done."""

    def __init__(
        self,
        name: str,
        store: QueueStore,
        context: Context,
        dispatch: Dispatch,
        elsewhere: Elsewhere,
        refuse: Callable[[Fanning, SluiceError], None],
    ) -> None:
        self._name = name
        self._store = store
        self._dispatch = dispatch
        self._elsewhere = elsewhere
        self._refuse = refuse
        self._owners = context.owners
        self._clock = context.clock
        self._retry = context.retry
        self._counters = context.counters
        self._events = context.events
        self._verdicts = context.memory.verdicts
        self.batcher: Batcher[Fanning] = Batcher(
            self._write_all, size=_AT_ONCE, weigh=_weight, failed=self._failed
        )
        self.under_way = 0
        """Fan-outs that are not written yet, or counted as failed."""

    def fan_out(self, fanning: Sequence[Fanning]) -> None:
        """These wait for their children; each settlement is told when that is durable."""
        if fanning:
            self._verdicts.take(self._dispatch, len(fanning), _bytes_of(fanning))
            self.under_way += len(fanning)
            self.batcher.extend(fanning)

    def _write_all(self, fanning: list[Fanning]) -> None:
        try:
            self._write(fanning)
        finally:
            self._verdicts.give(self._dispatch, len(fanning), _bytes_of(fanning))

    def _write(self, fanning: list[Fanning]) -> None:
        ready: dict[str, list[_Ready]] = defaultdict(list)
        for each in fanning:
            try:
                ready[each.delivery.job.owner].append(self._ready(each))
            except SluiceError as error:
                self._send_back(each, error)
        for owner, these in ready.items():
            self._end(these, self._carry_out(owner, these))

    def _ready(self, fanning: Fanning) -> _Ready:
        if not 1 <= len(fanning.children) <= MOST_CHILDREN:
            raise BadFrames(f"a fan-out has 1 to {MOST_CHILDREN} children, not {len(fanning.children)}")
        job, born = fanning.delivery.job, _none_yet()
        parent = Parent(self._name, job.id, job.seq)
        made = [self._child(fanning, parent, number, born) for number in range(len(fanning.children))]
        for queue, jobs in born.items():
            queue.accept(jobs)
        return _Ready(fanning, FanOut(job, tuple(made), fanning.result), born)

    def _child(self, fanning: Fanning, parent: Parent, number: int, born: dict[Queue, list[Job]]) -> Child:
        onward = fanning.children[number]
        if unknown := onward.options.keys() - FORWARD_OPTIONS:
            raise BadHeaders(f"a child takes no {', '.join(map(repr, sorted(unknown)))}")
        job_id = f"{parent.id}.{number + 1}"
        if len(job_id.encode()) > LONGEST_ID:
            raise BadHeaders(f"children of job {parent.id!r} would have an id that is too long")
        queue = self._elsewhere.for_push(onward.queue, by=fanning.delivery.worker.name)
        payload = b"" if onward.payload is None else onward.payload
        job = self._elsewhere.make(queue.settings, payload, onward.options, job_id)
        job.is_child_of(parent)
        born[queue].append(job)
        return Child(queue.store, job, inherits=onward.payload is None)

    def _carry_out(self, owner: str, ready: list[_Ready]) -> dict[str, SluiceError]:
        doubts: list[bool] = []
        these = [each.fan for each in ready]
        try:
            problems = self._retry.run(
                lambda: fan_out(self._store, these, self._clock.now()), lambda: doubts.append(True)
            )
        except DifferentStore as error:
            return dict.fromkeys((each.job.id for each in these), error)
        except Refused as error:
            if len(ready) == 1:
                return {these[0].job.id: error}
            half = len(ready) // 2
            return self._carry_out(owner, ready[:half]) | self._carry_out(owner, ready[half:])
        return _known(problems, doubts=bool(doubts), keeps=lambda: self._keeps(owner))

    def _keeps(self, owner: str) -> bool:
        return self._retry.run(lambda: self._owners.keeps(owner))

    def _end(self, ready: list[_Ready], problems: dict[str, SluiceError]) -> None:
        for each in ready:
            if problem := problems.get(each.fan.job.id):
                self._not_done(each.fanning, problem)
                continue
            self.under_way -= 1
            self._dispatch.forget([each.fan.job])
            self._counters.add(Count.FANNED_OUT)
            self._counters.add(Count.CHILDREN, len(each.fan.children))
            told = {"job": each.fan.job.id, "children": len(each.fan.children)}
            self._events.tell(Count.FANNED_OUT, self._clock.now(), [told])
            for queue, jobs in each.born.items():
                queue.stored(jobs, existing=0)
            each.fanning.settlement.settled(each.fanning.position)

    def _not_done(self, fanning: Fanning, problem: SluiceError) -> None:
        if not isinstance(problem, LeaseLost | Uncertain):
            self._send_back(fanning, problem)
            return
        self.under_way -= 1
        self._dispatch.forget([fanning.delivery.job])
        fanning.settlement.settled(fanning.position, problem)
        self._counters.notice(Count.UNCOMMITTED, str(problem))

    def _send_back(self, fanning: Fanning, problem: SluiceError) -> None:
        self.under_way -= 1
        self._refuse(fanning, problem)

    def _failed(self, fanning: list[Fanning]) -> None:
        """What is forgotten and still reserved is found by the audit, and delivered again."""
        self._counters.add(Count.UNCOMMITTED, len(fanning))
        self.under_way -= len(fanning)
        self._dispatch.forget(each.delivery.job for each in fanning)
        for each in fanning:
            each.settlement.settled(each.position, not_durable())


class Children:
    """The children among the jobs of one queue that are done: each is counted at its parent with its end."""

    def __init__(self, store: QueueStore, context: Context, elsewhere: Elsewhere) -> None:
        self._store = store
        self._elsewhere = elsewhere
        self._owners = context.owners
        self._clock = context.clock
        self._retry = context.retry

    def commit(self, completed: Sequence[Completed]) -> dict[str, SluiceError]:
        """Returns the ids that were not committed, and why; who waits for a parent that is done is told."""
        by_owner: dict[str, list[Completed]] = defaultdict(list)
        for each in completed:
            by_owner[each.job.owner].append(each)
        problems: dict[str, SluiceError] = {}
        for owner, these in by_owner.items():
            problems |= self._commit(owner, these)
        return problems

    def _commit(self, owner: str, completed: list[Completed]) -> dict[str, SluiceError]:
        doubts: list[bool] = []
        try:
            problems, ended = self._retry.run(
                lambda: end_children(self._store, completed, self._clock.now(), self._store_of),
                lambda: doubts.append(True),
            )
        except Refused as error:
            if len(completed) == 1:
                return {completed[0].job.id: error}
            half = len(completed) // 2
            return self._commit(owner, completed[:half]) | self._commit(owner, completed[half:])
        for each in ended:
            queue = self._elsewhere.open(each.queue)
            queue.parent_done(each.id, each.result)
            queue.freed([each.group] if each.group else [])
        return _known(problems, doubts=bool(doubts), keeps=lambda: self._keeps(owner))

    def _keeps(self, owner: str) -> bool:
        return self._retry.run(lambda: self._owners.keeps(owner))

    def _store_of(self, name: str) -> QueueStore:
        return self._elsewhere.open(name).store


class _Ready(NamedTuple):
    """One that can be written, and the children by their queues."""

    fanning: Fanning
    fan: FanOut
    born: dict[Queue, list[Job]]


def _none_yet() -> dict[Queue, list[Job]]:
    return defaultdict(list)


def _known(
    problems: dict[str, SluiceError], *, doubts: bool, keeps: Callable[[], bool]
) -> dict[str, SluiceError]:
    """Without those gone after a lost reply: we have ended them, if nobody else can have had them."""
    if doubts and problems and keeps():
        return {each: why for each, why in problems.items() if not isinstance(why, Uncertain)}
    return problems


def _bytes_of(fanning: Iterable[Fanning]) -> int:
    return sum(len(child.payload or b"") for each in fanning for child in each.children)


def _weight(fanning: Fanning) -> int:
    """Of :data:`_AT_ONCE`, how much it takes: so many children, or 8 MiB."""
    return len(fanning.children) + _bytes_of([fanning]) * _AT_ONCE // _BYTES
