"""Verdicts that move jobs on, many in one transaction: to another queue, or behind children that are new.

``kill -9`` before the transaction: the job is still reserved, and is delivered again when the lease has run
out. After it: the job has moved on, and its worker, if it got no answer, settles again and hears that the
receipt is void.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from sluicemq.protocol.errors import BadFramesError, BadHeadersError, SluiceError, TooLargeError
from sluicemq.protocol.options import MOVE_OPTIONS
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rules import LONGEST_ID
from sluicemq_broker.config import MAX_JOB_BYTES
from sluicemq_broker.job import RESULT_WANTED_FOR, Job, Parent
from sluicemq_broker.queue.core import QueueCore
from sluicemq_broker.queue.decisions import AwaitChildren, PassOn, Settled
from sluicemq_broker.queue.other_queues import OtherQueues
from sluicemq_broker.queue.pending_writes import weigh, write_in_portions
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.verdict import MOST_CHILDREN, Onward
from sluicemq_broker.security import authorize
from sluicemq_broker.store import Child, FanOutEntry, ForwardEntry, Portions, fan_out, forward
from sluicemq_devices.hub import in_pieces

if TYPE_CHECKING:
    from sluicemq_broker.queue.queue import Queue

#: Jobs that are forwarded in one transaction, at most.
FORWARDS: Final = 250
#: Children in one transaction, at most, unless one parent alone has more: up to :data:`MOST_CHILDREN`.
CHILDREN: Final = 500
_BYTES: Final = 8 * 2**20
#: Queues into which one fan-out goes, at most: each takes a statement of its transaction, which would be too
#: old at a slow MongoDB with more.
_MOST_QUEUES: Final = 100
#: Bytes that the children of one fan-out inherit, at most: the cache of a small MongoDB takes no transaction
#: of 100 MB.
_MOST_INHERITED: Final = 64 * 2**20
#: Bytes that all children of one parent return to it, at most: its worker gets them in one message.
MOST_RETURNED: Final = 2**20

Moving = TypeVar("Moving", PassOn, AwaitChildren)
#: New jobs by the queue into which they go.
NewJobs = dict["Queue", list[Job]]


class PreparedMove(NamedTuple):
    """A job that can be moved on: what is written about it, and the new jobs that this makes."""

    entry: Any
    new: NewJobs

    @property
    def job(self) -> Job:
        """The job that is reserved here."""
        job: Job = self.entry.job
        return job


class Moves(Generic[Moving]):
    """Moves of one kind from one queue: see :class:`Forwards` and :class:`FanOuts`."""

    def __init__(self, core: QueueCore, others: OtherQueues, most: int) -> None:
        self._core = core
        self._others = others
        self._portions = Portions(most, core.counters.notice)

    def write(self, batch: Sequence[Settled[Moving]], now: float) -> tuple[dict[str, SluiceError], NewJobs]:
        """Move these; returns problems by the ids of jobs that were not moved, and the others' new jobs."""
        problems: dict[str, SluiceError] = {}
        moves: list[PreparedMove] = []
        for end in batch:
            try:
                moves.append(self._prepare(end, now))
            except SluiceError as error:
                problems[end.delivery.job.id] = error
        for queue, jobs in _new_jobs(moves).items():
            queue.intake.accept(jobs)
        problems |= write_in_portions(self._core, self._portions, moves, _first_queue, self._statement)
        return problems, _new_jobs(move for move in moves if move.job.id not in problems)

    def _prepare(self, settled: Settled[Moving], now: float) -> PreparedMove:
        """Return what is to be written; raises what is wrong with the verdict."""
        raise NotImplementedError

    def _statement(self, moves: Sequence[PreparedMove]) -> dict[str, SluiceError]:
        """Write these; returns the ids of those that were not moved, and why."""
        raise NotImplementedError

    def _make(self, settled: Settled[Moving], onward: Onward, job_id: str, what: str) -> tuple[Queue, Job]:
        """Make the new job that a worker asks for, and find its queue."""
        onward = onward.read()
        if unknown := onward.options.keys() - MOVE_OPTIONS:
            raise BadHeadersError(f"{what} takes no {', '.join(sorted(map(repr, unknown)))}")
        worker, caller = settled.delivery.worker, settled.caller
        authorize(caller, Action.PUSH, onward.queue)
        queue = self._others.for_push(
            onward.queue, by=worker.name, peer=caller.name or worker.peer, caller=caller
        )
        job = self._others.make(caller, queue.settings, onward.payload or b"", onward.options, job_id)
        return queue, job


class Forwards(Moves[PassOn]):
    """Jobs of one queue that go on to another queue."""

    def __init__(self, core: QueueCore, others: OtherQueues, waiters: ResultWaiters) -> None:
        super().__init__(core, others, FORWARDS)
        self._waiters = waiters

    @staticmethod
    def weigh(settled: Settled[PassOn]) -> int:
        """Return how much of a batch of :data:`FORWARDS` it takes."""
        return weigh(1, settled.delivery.job.size + settled.decision.size, FORWARDS, _BYTES)

    def _prepare(self, settled: Settled[PassOn], now: float) -> PreparedMove:
        onward, delivery = settled.decision.onward, settled.delivery
        job = delivery.job
        queue, on = self._make(settled, onward, job.id, "a job that is forwarded")
        if on.group is None:
            on.join_group(job.group)
        if self._waiters.wanted_by_others(job):
            job.keep_result(RESULT_WANTED_FOR)
        own = {"payload"} if onward.payload is not None else set()
        own |= {"tenant"} if settled.caller.tenant is not None else set()
        own |= {"kind"} if on.kind is not None else set()
        began = now - self._core.timer.now() + delivery.handed_at
        said = frozenset(onward.options) | own
        entry = ForwardEntry(job, queue.store, on, said, delivery.worker.name, began, job.kept_until(now))
        return PreparedMove(entry, {queue: [on]})

    def _statement(self, moves: Sequence[PreparedMove]) -> dict[str, SluiceError]:
        return forward(self._core.store, [move.entry for move in moves], self._core.clock.now())


class FanOuts(Moves[AwaitChildren]):
    """Jobs of one queue that wait for children, which their workers name."""

    def __init__(self, core: QueueCore, others: OtherQueues) -> None:
        super().__init__(core, others, CHILDREN)

    @staticmethod
    def weigh(settled: Settled[AwaitChildren]) -> int:
        """Return how much of a batch of :data:`CHILDREN` it takes."""
        children = settled.decision.children
        size = settled.decision.size + _inherited(settled.delivery.job, children)
        return weigh(len(children), size, CHILDREN, _BYTES)

    def _prepare(self, settled: Settled[AwaitChildren], now: float) -> PreparedMove:  # noqa: ARG002 - times are those of the statement
        job, (onwards, result, join, may_fail) = settled.delivery.job, settled.decision
        _check(job, onwards)
        parent = Parent(self._core.name, job.id, job.seq, job.under, may_fail)
        new: NewJobs = defaultdict(list)
        children = []
        for number, onward in enumerate(in_pieces(onwards), 1):
            job_id = f"{job.id}.{number}"
            if len(job_id.encode()) > LONGEST_ID:
                raise BadHeadersError(f"children of job {job.id!r} would have an id that is too long")
            queue, child = self._make(settled, onward, job_id, "a child")
            child.set_parent(parent)
            new[queue].append(child)
            children.append(Child(queue.store, child, inherits=onward.payload is None))
        room = max(0, min(MOST_RETURNED, MAX_JOB_BYTES - job.size)) if join else None
        return PreparedMove(FanOutEntry(job, tuple(children), result, room), new)

    def _statement(self, moves: Sequence[PreparedMove]) -> dict[str, SluiceError]:
        return fan_out(self._core.store, [move.entry for move in moves], self._core.clock.now())


def _check(job: Job, children: Sequence[Onward]) -> None:
    """Raise what is wrong with a fan-out as a whole."""
    if not 1 <= len(children) <= MOST_CHILDREN:
        raise BadFramesError(f"a fan-out has 1 to {MOST_CHILDREN} children, not {len(children)}")
    if (queues := len({child.queue for child in children})) > _MOST_QUEUES:
        raise BadFramesError(f"a fan-out goes into {_MOST_QUEUES} queues at most, not {queues}")
    if (size := _inherited(job, children)) > _MOST_INHERITED:
        text = f"the children would inherit {size} bytes in all, at most {_MOST_INHERITED}"
        raise TooLargeError(f"{text}: give them payloads of their own")


def _inherited(job: Job, children: Sequence[Onward]) -> int:
    """Return the bytes of the children that have the payload of their parent."""
    return job.size * sum([child.payload is None for child in children])


def _new_jobs(moves: Iterable[PreparedMove]) -> NewJobs:
    new: NewJobs = defaultdict(list)
    for move in moves:
        for queue, jobs in move.new.items():
            new[queue].extend(jobs)
    return new


def _first_queue(move: PreparedMove) -> str:
    return next(iter(move.new)).name
