"""The producer's part of the I/O thread: collects jobs into messages and keeps them until confirmed.

The way of a job::

    push() ─▶ jobs ─▶ waiting, by queue ─▶ in flight ─▶ settled (confirmed or refused)
                                  ▲             │
                                  └── again ◀───┘  connection lost, or put off by the broker

An idle buffer sends what it has at once. With messages in flight it sends only full ones, so that the batches
grow with the load by themselves, without a timer. Queues share that only for a moment: a message that is not
answered by then counts for its own queue alone, so that a slow queue holds up no other. What is in flight
over all is bounded by the producer's window of jobs and bytes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from itertools import zip_longest
from math import inf
from time import monotonic
from typing import Any

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, UnavailableError, UncertainError, from_code
from sluicemq.receipt import PushReceipt
from sluicemq.transport.connection import Connection
from sluicemq.transport.pacing import EAGER, IN_FLIGHT, RETRY_AFTER
from sluicemq.transport.replies import Replies

MESSAGE_JOBS = 256
MESSAGE_BYTES = 1 << 20

#: Seconds for which a message in flight keeps other queues from sending small ones.
_SHARED_FOR = 0.02

PushBatch = list[PushReceipt]
#: Batches that were sent, with numbers that rise in the order of their pushes.
_Sent = tuple[int, PushBatch]
#: Called through the mailbox with the jobs of an answer, and the errors of the refused ones by position.
Settled = Callable[[PushBatch, dict[int, SluiceError]], None]

# The job may be stored or not. A repeat with its id is harmless, so these are no refusals.
_TRANSIENT = (UnavailableError, UncertainError)


class SendBuffer:
    """The :class:`~sluicemq.transport.role.Role` of a producer; ``jobs`` is filled by any thread."""

    def __init__(self, settled: Settled) -> None:
        self.jobs: deque[PushReceipt] = deque()
        self.replies = Replies()
        self._settled = settled
        self._connection: Connection
        self._queues: dict[str, _Queue] = {}
        """Queues with jobs, in the order of their turns."""
        self._numbers = itertools.count()
        self._to_repeat: list[_Sent] = []
        self._in_flight = 0
        self._young: dict[int, float] = {}
        """Messages in flight that other queues wait for, and when they were sent, the oldest first."""
        self._waits = False
        """True if jobs wait that may go when the oldest of these is no longer young."""

    @property
    def busy(self) -> bool:
        """Return whether jobs are under way."""
        return self._in_flight > 0

    @property
    def due(self) -> float:
        """Return when postponed work is due."""
        rests = [queue.rest_until for queue in self._queues.values() if queue.rest_until > -inf]
        now = monotonic() if rests else inf
        due = min([self.replies.due, *[rest for rest in rests if rest > now]])
        if self._waits and self._young:
            due = min(due, next(iter(self._young.values())) + _SHARED_FOR)
        return due

    def attach(self, connection: Connection) -> None:
        """Use this connection; before it is started."""
        self._connection = connection
        self.replies.attach(connection)

    def connected(self) -> None:
        """Repeat what was not confirmed; ``turn`` follows."""
        for queue in self._queues.values():
            queue.rest_until = -inf
        self.replies.connected()

    def turn(self) -> None:
        """Send what has been collected, as far as it may be in flight."""
        self.replies.turn()
        self._sort_in()
        self._waits = False
        if self._connection.takes_more and self._queues:
            now = monotonic()
            self._forget_old(now)
            while (queue := self._next_queue(now)) is not None:
                self._send(queue, now)

    def delivered(self, message: wire.Message) -> None:
        """Ignore a message: a producer only gets answers."""

    def disconnected(self) -> None:
        """Put jobs that were in flight first for the next connection, in their old order."""
        for sent in self._to_repeat:
            self._queue(sent[1][0].queue).repeat(sent)
        self._to_repeat = []
        self.replies.disconnected()

    def ended(self, error: SluiceError) -> None:
        """Refuse the rest: nobody will confirm it."""
        self._sort_in()
        for _, batch in self._to_repeat:
            self._settle(batch, dict.fromkeys(range(len(batch)), error))
        for queue in self._queues.values():
            for batch in (*[batch for _, batch in queue.again], list(queue.jobs)):
                self._settle(batch, dict.fromkeys(range(len(batch)), error))
        self.replies.ended(error)

    def _sort_in(self) -> None:
        # Most jobs are for the queue of the one before, which is looked up once.
        jobs, name = self.jobs, ""
        add: Callable[[PushReceipt], None] = jobs.append  # of the first one's queue by then: all have names
        while jobs:
            receipt = jobs.popleft()
            if receipt.queue != name:
                name = receipt.queue
                add = self._queue(name).jobs.append
            add(receipt)

    def _queue(self, name: str) -> _Queue:
        """Return what is known of a queue."""
        found = self._queues.get(name)
        if found is None:
            found = self._queues[name] = _Queue()
        return found

    def _forget_old(self, now: float) -> None:
        while self._young and next(iter(self._young.values())) + _SHARED_FOR <= now:
            del self._young[next(iter(self._young))]

    def _next_queue(self, now: float) -> _Queue | None:
        """Return the first queue that may send a message now; it has its next turn after the others."""
        young = len(self._young)
        for name, queue in self._queues.items():
            if not queue.has_any or now < queue.rest_until:
                continue
            if young >= IN_FLIGHT or not (young < EAGER or queue.is_full):
                self._waits = True
                if young >= IN_FLIGHT:
                    return None
            elif queue.may_send:
                self._queues[name] = self._queues.pop(name)
                return queue
        return None

    def _send(self, queue: _Queue, now: float) -> None:
        number, batch = queue.again.popleft() if queue.again else (next(self._numbers), queue.take())

        def answered(value: Any, error: SluiceError | None) -> None:
            self._in_flight -= 1
            queue.in_flight -= 1
            self._young.pop(number, None)
            self._answered(number, batch, value, error)
            if not (queue.in_flight or queue.has_any):
                self._queues.pop(batch[0].queue, None)

        self._in_flight += 1
        queue.in_flight += 1
        self._young[number] = now
        rows = [receipt._row() for receipt in batch]
        self._connection.request(wire.PUSH, batch[0].queue, rows, answered=answered, whole=True)

    def _answered(self, number: int, batch: PushBatch, value: Any, error: SluiceError | None) -> None:
        if error is self._connection.disconnect_error:
            self._to_repeat.append((number, batch))
        elif error is not None:
            self._sort_out(number, batch, dict.fromkeys(range(len(batch)), error))
        else:
            refused, existing, states = (*value, None, None, None)[:3]
            for position, state in zip_longest(existing or (), states or ()):
                batch[position]._there = state or ""
            self._sort_out(number, batch, _refused(refused))

    def _sort_out(self, number: int, batch: PushBatch, refused: dict[int, SluiceError]) -> None:
        put_off = {position for position, error in refused.items() if isinstance(error, _TRANSIENT)}
        if not put_off:
            self._settle(batch, refused)
            return
        self._put_off(number, [receipt for position, receipt in enumerate(batch) if position in put_off])
        rest = [position for position in range(len(batch)) if position not in put_off]
        errors = {at: refused[position] for at, position in enumerate(rest) if position in refused}
        self._settle([batch[position] for position in rest], errors)

    def _put_off(self, number: int, batch: PushBatch) -> None:
        """Send jobs again after a pause, in which their queue rests; others go on."""
        queue = self._queue(batch[0].queue)
        queue.repeat((number, batch))
        queue.rest_until = monotonic() + RETRY_AFTER

    def _settle(self, batch: PushBatch, refused: dict[int, SluiceError]) -> None:
        if batch:
            self._connection.post(self._settled, batch, refused)


class _Queue:
    """The jobs of one queue that are not in flight, and how many messages are."""

    __slots__ = ("again", "in_flight", "jobs", "rest_until")

    def __init__(self) -> None:
        self.jobs: deque[PushReceipt] = deque()
        self.again: deque[_Sent] = deque()
        """Batches that were sent before, in the order of their pushes."""
        self.in_flight = 0
        self.rest_until = -inf

    @property
    def has_any(self) -> bool:
        """Return whether a job can be sent."""
        return bool(self.again or self.jobs)

    @property
    def is_full(self) -> bool:
        """Return whether there is enough for a whole message, or one that was made before."""
        return bool(self.again) or _fill_a_message(self.jobs)

    @property
    def may_send(self) -> bool:
        """Return whether one more message of this queue may be in flight."""
        return self.in_flight < EAGER or (self.in_flight < IN_FLIGHT and self.is_full)

    def repeat(self, sent: _Sent) -> None:
        """Send a batch again before later ones."""
        self.again = deque(sorted((*self.again, sent), key=lambda entry: entry[0]))

    def take(self) -> PushBatch:
        """Take out the jobs of one message."""
        return [self.jobs.popleft() for _ in range(first_message(self.jobs))]


def first_message(jobs: Iterable[PushReceipt]) -> int:
    """Return how many of the first jobs travel in one message: at least one, if there is any."""
    count = size = header_bytes = 0
    for job in jobs:
        size += job._size
        header_bytes += job._header_bytes
        # Bytes of all headers in a message: the broker takes more values than these and their jobs can have
        if count and (size > MESSAGE_BYTES or header_bytes > 16 * 1024):
            break
        count += 1
        if count == MESSAGE_JOBS:
            break
    return count


def _fill_a_message(jobs: deque[PushReceipt]) -> bool:
    if len(jobs) >= MESSAGE_JOBS:
        return True
    return sum([receipt._size for receipt in jobs]) >= MESSAGE_BYTES


def _refused(value: Any) -> dict[int, SluiceError]:
    """Return the refused jobs of a PUSH by position; nil or an empty list refuses none."""
    return {
        int(position): from_code(str(code), str(text), *map(str, job_id[:1]))
        for position, code, text, *job_id in value or ()
    }
