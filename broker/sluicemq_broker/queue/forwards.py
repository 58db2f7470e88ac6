"""Jobs that go on to another queue, as their workers say: many in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import BadHeaders, SluiceError
from sluicemq.protocol.options import MOVE_OPTIONS
from sluicemq_broker.bus import BusKind
from sluicemq_broker.context import Context
from sluicemq_broker.job import RESULT_WANTED_FOR, Job
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.moves import Moves
from sluicemq_broker.queue.other_queues import OtherQueue, OtherQueues
from sluicemq_broker.queue.result_waiters import ResultWaiters
from sluicemq_broker.queue.verdict import Onward, Settlement
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.runtime import Count, shielded
from sluicemq_broker.store import Forward, QueueStore, forward

#: Jobs in one transaction, at most, and transactions at once.
FORWARD: Final = 250
FORWARDS_AT_ONCE: Final = 2
_BYTES: Final = 8 * 2**20


class Going(NamedTuple):
    """A delivery whose job goes on, where to, and whose verdict that was."""

    delivery: Delivery
    onward: Onward
    settlement: Settlement
    position: int

    @property
    def size(self) -> int:
        """Bytes that were said anew."""
        return len(self.onward.payload or b"")


class _Ready(NamedTuple):
    """One that can be written, and the queue to which it goes."""

    said: Going
    entry: Forward
    queue: OtherQueue

    @property
    def job(self) -> Job:
        """Which is held here."""
        return self.entry.job


class Forwards(Moves[Going, _Ready]):
    """The forwards of one queue."""

    def __init__(
        self,
        store: QueueStore,
        context: Context,
        dispatch: Dispatch,
        waiters: ResultWaiters,
        others: OtherQueues,
        refuse: Callable[[Going, SluiceError], None],
    ) -> None:
        super().__init__(context, dispatch, waiters, refuse, size=FORWARD, in_flight=FORWARDS_AT_ONCE)
        self._store = store
        self._groups = dispatch.groups
        self._others = others
        self._timer = context.timer
        self._tell = context.notify_brokers

    def _weigh(self, said: Going) -> int:
        return 1 + (said.delivery.job.size + said.size) * FORWARD // _BYTES

    def _prepare(self, said: Going, now: float) -> _Ready:
        onward, delivery = said.onward, said.delivery
        if unknown := onward.options.keys() - MOVE_OPTIONS:
            raise BadHeaders(f"a job that is forwarded takes no {', '.join(sorted(map(repr, unknown)))}")
        job, worker = delivery.job, delivery.worker.name
        queue = self._others.for_push(onward.queue, by=worker, peer=delivery.worker.peer)
        payload = b"" if onward.payload is None else onward.payload
        on = self._others.make(queue.settings, payload, onward.options, job.id)
        if on.group is None:
            on.join_group(job.group)
        if job.result_wanted and job.id not in self._waiters:  # it is another broker where somebody waits
            job.keep_result(RESULT_WANTED_FOR)
        anew = frozenset(onward.options) | ({"payload"} if onward.payload is not None else frozenset())
        began = now - self._timer.now() + delivery.handed_at
        kept = job.kept_until(now)
        return _Ready(said, Forward(job, queue.store, on, anew, worker, began, kept), queue)

    def _place(self, ready: _Ready) -> str:
        return ready.queue.name

    def _accept(self, ready: Sequence[_Ready]) -> None:
        for queue, jobs in _by_queue(ready).items():
            queue.accept(jobs)

    def _statement(self, ready: Sequence[_Ready]) -> dict[str, SluiceError]:
        return forward(self._store, [each.entry for each in ready], self._clock.now())

    def _moved(self, ready: Sequence[_Ready]) -> None:
        self._counters.add(Count.FORWARDED, len(ready))
        for each in ready:
            if each.job.id in self._waiters:
                shielded(self._waiters.follow, each.job.id, each.queue)
        if any(each.job.result_wanted and each.entry.kept_until for each in ready):
            self._tell(BusKind.ENDED, 0)  # somebody may wait for it at another broker
        self._events.emit(Count.FORWARDED, self._clock.now(), map(_told, ready))
        self._groups.may_go_on([each.job for each in ready])
        for queue, jobs in _by_queue(ready).items():
            queue.stored(jobs, existing=0)


def _by_queue(ready: Iterable[_Ready]) -> dict[OtherQueue, list[Job]]:
    """As which jobs they are to come into which queues."""
    queues: dict[OtherQueue, list[Job]] = defaultdict(list)
    for each in ready:
        queues[each.queue].append(each.entry.on)
    return queues


def _told(ready: _Ready) -> dict[str, Any]:
    """As an event."""
    return {"job": ready.job.id, "worker": ready.entry.worker, "to": ready.queue.name}
