"""Jobs that go on to another queue, as their workers say: many in one transaction.

``kill -9`` before it: the job is reserved still, and is delivered again when the lease has run out. After
it: the job is in the other queue, and its worker, if it was not told, hears that the receipt is void.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from sluicemq.errors import BadHeaders, DifferentStore, LeaseLost, SluiceError, Uncertain
from sluicemq.options import OPTIONS
from sluicemq_broker.bus import BusKind
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import ASKED, Job
from sluicemq_broker.queue.answers import Answers
from sluicemq_broker.queue.context import Context
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.verdict import Onward, Settlement, not_durable
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.runtime import Batcher, Count, shielded
from sluicemq_broker.store import Forward, QueueStore, Refused, forward

if TYPE_CHECKING:
    from sluicemq_broker.queue.queue import Queue

#: Makes a job of its queue's settings, payload, options and id; raises what is wrong with them.
MakeJob = Callable[[QueueSettings, bytes, Mapping[str, Any], str], Job]

#: Jobs in one transaction, at most, and transactions at once.
FORWARD: Final = 250
FORWARDS_AT_ONCE: Final = 2
_BYTES: Final = 8 * 2**20
#: What a worker may say of its job anew: it keeps its id, and who waits for it.
FORWARD_OPTIONS: Final = OPTIONS.keys() - {"id", "dedupe_id", "dedupe_window", "reply"}


class Elsewhere(Protocol):
    """The queues of this broker, as one of them sees the others."""

    def for_push(self, name: str, *, by: str) -> Queue:
        """The queue of this name, made if that is allowed."""

    def open(self, name: str) -> Queue:
        """The queue of this name, known or not."""

    def make(
        self, settings: QueueSettings, payload: bytes, options: Mapping[str, Any], job_id: str, /
    ) -> Job:
        """A job of this queue; raises what is wrong with its options."""


class Going(NamedTuple):
    """A delivery whose job goes on, where to, and whose verdict that was."""

    delivery: Delivery
    onward: Onward
    settlement: Settlement
    position: int


#: Told of one that can't go on, and why: it goes back.
Refuse = Callable[[Going, SluiceError], None]


class Forwards:
    """The forwards of one queue, merged into transactions."""

    def __init__(
        self,
        store: QueueStore,
        context: Context,
        dispatch: Dispatch,
        answers: Answers,
        elsewhere: Elsewhere,
        refuse: Refuse,
    ) -> None:
        self._store = store
        self._dispatch = dispatch
        self._answers = answers
        self._elsewhere = elsewhere
        self._refuse = refuse
        self._owners = context.owners
        self._clock = context.clock
        self._timer = context.timer
        self._retry = context.retry
        self._counters = context.counters
        self._events = context.events
        self._tell = context.tell
        self._verdicts = context.memory.verdicts
        self.batcher: Batcher[Going] = Batcher(
            self._write_all, size=FORWARD, in_flight=FORWARDS_AT_ONCE, weigh=_weight, failed=self._failed
        )
        self.under_way = 0
        """Forwards that are not written yet, or counted as failed."""

    def forward(self, going: Sequence[Going]) -> None:
        """These go on; each settlement is told when that is durable."""
        if going:
            self._verdicts.take(self._dispatch, len(going), _bytes_of(going))
            self.under_way += len(going)
            self.batcher.extend(going)

    def _write_all(self, going: list[Going]) -> None:
        try:
            self._write(going)
        finally:
            self._verdicts.give(self._dispatch, len(going), _bytes_of(going))

    def _write(self, going: list[Going]) -> None:
        now = self._clock.now()
        ready: dict[str, list[_Ready]] = defaultdict(list)
        for each in going:
            try:
                ready[each.delivery.job.owner].append(self._ready(each, now))
            except SluiceError as error:
                self._send_back(each, error)
        for queue, arriving in _by_queue(each for these in ready.values() for each in these).items():
            queue.accept(arriving)
        for owner, these in ready.items():
            self._end(these, self._go_on(owner, these))

    def _ready(self, going: Going, now: float) -> _Ready:
        """As the transaction takes it; raises what is wrong with where, or as what, it is to go on."""
        onward, delivery = going.onward, going.delivery
        if unknown := onward.options.keys() - FORWARD_OPTIONS:
            raise BadHeaders(f"a job that is forwarded takes no {', '.join(map(repr, sorted(unknown)))}")
        job, worker = delivery.job, delivery.worker.name
        queue = self._elsewhere.for_push(onward.queue, by=worker)
        payload = b"" if onward.payload is None else onward.payload
        on = self._elsewhere.make(queue.settings, payload, onward.options, job.id)
        if on.group is None:
            on.join(job.group)
        if job.asked and job.id not in self._answers:  # it is another broker where somebody waits
            job.keep_result(ASKED)
        said = frozenset(onward.options) | ({"payload"} if onward.payload is not None else frozenset())
        began = now - self._timer.now() + delivery.handed_at
        kept = job.kept_until(now)
        return _Ready(going, queue, Forward(job, queue.store, on, said, worker, began, kept))

    def _go_on(self, owner: str, ready: list[_Ready]) -> dict[str, SluiceError]:
        """Which have not gone on, and why; what MongoDB refuses is halved, until only one is refused."""
        doubts: list[bool] = []
        these = [each.forward for each in ready]
        try:
            problems = self._retry.run(
                lambda: forward(self._store, these, self._clock.now()), lambda: doubts.append(True)
            )
        except DifferentStore as error:
            return dict.fromkeys((each.job.id for each in these), error)
        except Refused as error:
            if len(ready) == 1:
                return {these[0].job.id: error}
            half = len(ready) // 2
            return self._go_on(owner, ready[:half]) | self._go_on(owner, ready[half:])
        if doubts and problems and self._retry.run(lambda: self._owners.keeps(owner)):
            # What is gone after a lost reply has gone on, and is done by now: nobody else can have had it.
            return {each: why for each, why in problems.items() if not isinstance(why, Uncertain)}
        return problems

    def _end(self, ready: list[_Ready], problems: dict[str, SluiceError]) -> None:
        gone = [each for each in ready if each.forward.job.id not in problems]
        self._dispatch.forget(each.forward.job for each in gone)
        self.under_way -= len(gone)
        self._counters.add(Count.FORWARDED, len(gone))
        for each in gone:
            if each.forward.job.id in self._answers:
                shielded(self._answers.follow, each.forward.job.id, each.queue)
        if any(each.forward.job.asked and each.forward.kept_until for each in gone):
            self._tell(BusKind.ENDED, 0)  # somebody may wait for it at another broker
        self._events.tell(Count.FORWARDED, self._clock.now(), map(_told, gone))
        self._dispatch.groups.may_go_on([each.forward.job for each in gone])
        for queue, jobs in _by_queue(gone).items():
            queue.stored(jobs, existing=0)
        for each in gone:
            each.going.settlement.settled(each.going.position)
        for each in ready:
            if problem := problems.get(each.forward.job.id):
                self._not_gone(each.going, problem)

    def _not_gone(self, going: Going, problem: SluiceError) -> None:
        if not isinstance(problem, LeaseLost | Uncertain):
            self._send_back(going, problem)
            return
        self.under_way -= 1
        self._dispatch.forget([going.delivery.job])
        going.settlement.settled(going.position, problem)
        self._counters.notice(Count.UNCOMMITTED, str(problem))
        self._answers.check([going.delivery.job.id])

    def _send_back(self, going: Going, problem: SluiceError) -> None:
        """It can't go on, and is held still."""
        self.under_way -= 1
        self._refuse(going, problem)

    def _failed(self, going: list[Going]) -> None:
        """What is forgotten and still reserved is found by the audit, and delivered again."""
        self._counters.add(Count.UNCOMMITTED, len(going))
        self.under_way -= len(going)
        self._dispatch.forget(each.delivery.job for each in going)
        for each in going:
            each.settlement.settled(each.position, not_durable())


class _Ready(NamedTuple):
    """One that can be written, and the queue to which it goes."""

    going: Going
    queue: Queue
    forward: Forward


def _by_queue(ready: Iterable[_Ready]) -> dict[Queue, list[Job]]:
    """As which jobs they are to come into which queues."""
    queues: dict[Queue, list[Job]] = defaultdict(list)
    for each in ready:
        queues[each.queue].append(each.forward.on)
    return queues


def _told(ready: _Ready) -> dict[str, Any]:
    """As an event."""
    return {"job": ready.forward.job.id, "worker": ready.forward.worker, "to": ready.queue.name}


def _size(going: Going) -> int:
    return going.delivery.job.size + len(going.onward.payload or b"")


def _bytes_of(going: Sequence[Going]) -> int:
    return sum([len(each.onward.payload or b"") for each in going])


def _weight(going: Going) -> int:
    """Of :data:`FORWARD`, how much it takes in a transaction: so many jobs, or 8 MiB."""
    return 1 + _size(going) * FORWARD // _BYTES
