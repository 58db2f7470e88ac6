"""Jobs that wait for children, which their workers name; and children that are done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import BadFrames, BadHeaders, SluiceError, TooLarge
from sluicemq.protocol.options import MOVE_OPTIONS
from sluicemq.protocol.rules import LONGEST_ID
from sluicemq_broker.context import Context
from sluicemq_broker.job import Job, Parent
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.moves import Moves, carried_out
from sluicemq_broker.queue.other_queues import OtherQueue, OtherQueues
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.verdict import Onward, Settlement
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Child, Completed, FanOut, Portions, QueueStore, end_children, fan_out

#: Children in one transaction, at most, unless one parent alone has more: up to :data:`MOST_CHILDREN`.
_AT_ONCE: Final = 500
MOST_CHILDREN: Final = 1000
_BYTES: Final = 8 * 2**20
#: Queues into which one fan-out goes, at most: each takes a statement of its transaction, which would be too
#: old at a slow MongoDB with more. And bytes that its children inherit: the cache of a small MongoDB does not
#: take a transaction of 100 MB.
_MOST_QUEUES: Final = 100
_MOST_INHERITED: Final = 64 * 2**20
#: Children that end in one transaction, at most.
_ENDS: Final = 1000


class Fanning(NamedTuple):
    """A delivery whose job waits for children from now on, and whose verdict that was."""

    delivery: Delivery
    children: tuple[Onward, ...]
    result: bytes
    settlement: Settlement
    position: int

    @property
    def size(self) -> int:
        """Bytes of the result and of the children's own payloads."""
        return len(self.result) + sum([len(each.payload or b"") for each in self.children])

    @property
    def inherited(self) -> int:
        """Bytes of the children that have the payload of their parent."""
        return self.delivery.job.size * sum([each.payload is None for each in self.children])


class _Ready(NamedTuple):
    """One that can be written, and the children by their queues."""

    said: Fanning
    entry: FanOut
    born: dict[OtherQueue, list[Job]]

    @property
    def job(self) -> Job:
        """Which is held here."""
        return self.entry.job


class FanOuts(Moves[Fanning, _Ready]):
    """The fan-outs of one queue."""

    def __init__(
        self,
        name: str,
        store: QueueStore,
        context: Context,
        dispatch: Dispatch,
        waiters: ResultWaiters,
        others: OtherQueues,
        refuse: Callable[[Fanning, SluiceError], None],
    ) -> None:
        super().__init__(context, dispatch, waiters, refuse, size=_AT_ONCE)
        self._name = name
        self._store = store
        self._others = others

    def _weigh(self, said: Fanning) -> int:
        return len(said.children) + (said.size + said.inherited) * _AT_ONCE // _BYTES

    def _prepare(self, said: Fanning, _now: float) -> _Ready:
        if not 1 <= len(said.children) <= MOST_CHILDREN:
            raise BadFrames(f"a fan-out has 1 to {MOST_CHILDREN} children, not {len(said.children)}")
        if (queues := len({each.queue for each in said.children})) > _MOST_QUEUES:
            raise BadFrames(f"a fan-out goes into {_MOST_QUEUES} queues at most, not {queues}")
        if said.inherited > _MOST_INHERITED:
            text = f"the children would inherit {said.inherited} bytes in all, at most {_MOST_INHERITED}"
            raise TooLarge(f"{text}: give them payloads of their own")
        job, born = said.delivery.job, _none_yet()
        parent = Parent(self._name, job.id, job.seq, job.under)
        made = [self._child(said, parent, number, born) for number in range(len(said.children))]
        return _Ready(said, FanOut(job, tuple(made), said.result), born)

    def _child(self, said: Fanning, parent: Parent, number: int, born: dict[OtherQueue, list[Job]]) -> Child:
        onward = said.children[number]
        if unknown := onward.options.keys() - MOVE_OPTIONS:
            raise BadHeaders(f"a child takes no {', '.join(sorted(map(repr, unknown)))}")
        job_id = f"{parent.id}.{number + 1}"
        if len(job_id.encode()) > LONGEST_ID:
            raise BadHeaders(f"children of job {parent.id!r} would have an id that is too long")
        worker = said.delivery.worker
        queue = self._others.for_push(onward.queue, by=worker.name, peer=worker.peer)
        payload = b"" if onward.payload is None else onward.payload
        job = self._others.make(queue.settings, payload, onward.options, job_id)
        job.set_parent(parent)
        born[queue].append(job)
        return Child(queue.store, job, inherits=onward.payload is None)

    def _place(self, ready: _Ready) -> str:
        return next(iter(ready.born)).name

    def _accept(self, ready: Sequence[_Ready]) -> None:
        for each in ready:
            for queue, jobs in each.born.items():
                queue.accept(jobs)

    def _statement(self, ready: Sequence[_Ready]) -> dict[str, SluiceError]:
        return fan_out(self._store, [each.entry for each in ready], self._clock.now())

    def _moved(self, ready: Sequence[_Ready]) -> None:
        self._counters.add(Count.FANNED_OUT, len(ready))
        self._counters.add(Count.CHILDREN, sum(len(each.entry.children) for each in ready))
        told = ({"job": each.job.id, "children": len(each.entry.children)} for each in ready)
        self._events.emit(Count.FANNED_OUT, self._clock.now(), told)
        for each in ready:
            for queue, jobs in each.born.items():
                queue.stored(jobs, existing=0)


class Children:
    """The children among the jobs of one queue that are done: each is counted at its parent with its end."""

    def __init__(self, store: QueueStore, context: Context, others: OtherQueues) -> None:
        self._store = store
        self._others = others
        self._context = context
        self._clock = context.clock
        self._portions = Portions(_ENDS, context.counters.notice)
        #: Children of one parent that end here in two transactions at once would be in conflict.
        self._one_at_a_time = BoundedSemaphore()

    def commit(self, completed: Sequence[Completed]) -> dict[str, SluiceError]:
        """Returns the ids that were not committed, and why; who waits for a parent that is done is told."""
        by_owner: dict[str, list[Completed]] = defaultdict(list)
        for each in completed:
            by_owner[each.job.owner].append(each)
        problems: dict[str, SluiceError] = {}
        for owner, these in by_owner.items():
            these.sort(key=_parent)  # those of one parent, and of one queue of parents, end together
            with self._one_at_a_time:
                problems |= carried_out(self._context, self._portions, owner, these, self._end)
        return problems

    def _end(self, completed: Sequence[Completed]) -> dict[str, SluiceError]:
        now = self._clock.now()
        problems, ended = end_children(self._store, completed, now, self._store_of)
        for each in ended:
            queue = self._others.open(each.queue)
            queue.parent_ended(each.id, each.result)
            queue.freed([each.group] if each.group else [])
        return problems

    def _store_of(self, name: str) -> QueueStore:
        return self._others.open(name).store


def _parent(child: Completed) -> tuple[str, str]:
    return (child.job.parent.queue, child.job.parent.id) if child.job.parent else ("", "")


def _none_yet() -> dict[OtherQueue, list[Job]]:
    return defaultdict(list)
