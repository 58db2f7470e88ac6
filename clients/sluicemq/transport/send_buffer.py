"""The producer's part of the I/O thread: collects jobs into messages and keeps them until confirmed.

The way of a job::

    push() ─▶ jobs ─▶ waiting, by queue ─▶ in flight ─▶ settled (confirmed or refused)
                                  ▲             │
                                  └── again ◀───┘  connection lost, or put off by the broker

An idle buffer sends what it has at once. With messages in flight it sends only full ones, so that the batches
grow with the load by themselves, without a timer.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from math import inf
from time import monotonic
from typing import Any

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, Unavailable, Uncertain, from_code
from sluicemq.receipt import Receipt
from sluicemq.transport.connection import Connection
from sluicemq.transport.pacing import EAGER, IN_FLIGHT, RETRY_AFTER
from sluicemq.transport.replies import Replies

MESSAGE_JOBS = 256
MESSAGE_BYTES = 1 << 20
#: Bytes of all headers in a message: the broker takes more values than these and their jobs can have.
MESSAGE_HEADER_BYTES = 16 * 1024

PushBatch = list[Receipt]
#: Batches that were sent, with numbers that rise in the order of their pushes.
_Sent = tuple[int, PushBatch]
#: Called through the mailbox with the jobs of an answer, and the errors of the refused ones by position.
Settled = Callable[[PushBatch, dict[int, SluiceError]], None]

# The job may be stored or not. A repeat with its id is harmless, so these are no refusals.
_TRANSIENT = (Unavailable, Uncertain)


class SendBuffer:
    """The :class:`~sluicemq.transport.role.Role` of a producer; ``jobs`` is filled by any thread."""

    def __init__(self, settled: Settled) -> None:
        self.jobs: deque[Receipt] = deque()
        self.replies = Replies()
        self._rest_until = inf
        self._settled = settled
        self._connection: Connection
        self._waiting: dict[str, deque[Receipt]] = {}
        self._numbers = itertools.count()
        self._again: deque[_Sent] = deque()
        self._to_repeat: list[_Sent] = []
        self._in_flight = 0

    @property
    def busy(self) -> bool:
        """Return whether jobs are under way."""
        return self._in_flight > 0

    @property
    def due(self) -> float:
        """Return when postponed work is due."""
        return min(self._rest_until, self.replies.due)

    def attach(self, connection: Connection) -> None:
        """Use this connection; before it is started."""
        self._connection = connection
        self.replies.attach(connection)

    def connected(self) -> None:
        """Repeat what was not confirmed; ``turn`` follows."""
        self._rest_until = inf
        self.replies.connected()

    def turn(self) -> None:
        """Send what has been collected, as far as it may be in flight."""
        self.replies.turn()
        if not self._connection.takes_more or self._resting():
            return
        self._sort_in()
        while self._in_flight < IN_FLIGHT and (batch := self._next_batch()):
            self._send(*batch)

    def delivered(self, message: wire.Message) -> None:
        """Ignore a message: a producer only gets answers."""

    def disconnected(self) -> None:
        """Put jobs that were in flight first for the next connection, in their old order."""
        self._repeat(self._to_repeat)
        self._to_repeat = []
        self.replies.disconnected()

    def ended(self, error: SluiceError) -> None:
        """Refuse the rest: nobody will confirm it."""
        self._sort_in()
        for _, batch in (*self._to_repeat, *self._again):
            self._settle(batch, dict.fromkeys(range(len(batch)), error))
        for batch in map(list, self._waiting.values()):
            self._settle(batch, dict.fromkeys(range(len(batch)), error))
        self.replies.ended(error)

    def _resting(self) -> bool:
        if monotonic() < self._rest_until < inf:
            return True
        self._rest_until = inf
        return False

    def _sort_in(self) -> None:
        jobs, waiting = self.jobs, self._waiting
        while jobs:
            receipt = jobs.popleft()
            if receipt.queue not in waiting:
                waiting[receipt.queue] = deque()
            waiting[receipt.queue].append(receipt)

    def _next_batch(self) -> _Sent | None:
        if self._again:
            return self._again.popleft()
        for queue, jobs in self._waiting.items():
            if self._in_flight < EAGER or _fill_a_message(jobs):
                return next(self._numbers), self._take(queue)
        return None

    def _take(self, queue: str) -> PushBatch:
        jobs = self._waiting.pop(queue)
        batch = [jobs.popleft()]
        size, header_bytes = batch[0].size, batch[0].header_bytes
        while jobs and len(batch) < MESSAGE_JOBS:
            size += jobs[0].size
            header_bytes += jobs[0].header_bytes
            if size > MESSAGE_BYTES or header_bytes > MESSAGE_HEADER_BYTES:
                break
            batch.append(jobs.popleft())
        if jobs:
            self._waiting[queue] = jobs  # at the end: the queues take turns
        return batch

    def _send(self, number: int, batch: PushBatch) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            self._in_flight -= 1
            self._answered(number, batch, value, error)

        self._in_flight += 1
        rows = [receipt.row() for receipt in batch]
        self._connection.request(wire.PUSH, batch[0].queue, rows, answered=answered, whole=True)

    def _answered(self, number: int, batch: PushBatch, value: Any, error: SluiceError | None) -> None:
        if error is self._connection.disconnect_error:
            self._to_repeat.append((number, batch))
        elif error is not None:
            self._sort_out(number, batch, dict.fromkeys(range(len(batch)), error))
        else:
            refused, existing, states = (*value, None, None, None)[:3]
            for position, state in zip_longest(existing or (), states or ()):
                batch[position].there = state or ""
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
        self._repeat([(number, batch)])
        self._rest_until = monotonic() + RETRY_AFTER

    def _repeat(self, batches: list[_Sent]) -> None:
        """Send batches again before later ones."""
        self._again = deque(sorted((*batches, *self._again), key=lambda each: each[0]))

    def _settle(self, batch: PushBatch, refused: dict[int, SluiceError]) -> None:
        if batch:
            self._connection.post(self._settled, batch, refused)


def _fill_a_message(jobs: deque[Receipt]) -> bool:
    if len(jobs) >= MESSAGE_JOBS:
        return True
    return sum(receipt.size for receipt in jobs) >= MESSAGE_BYTES


def _refused(value: Any) -> dict[int, SluiceError]:
    """Return the refused jobs of a PUSH by position; nil or an empty list refuses none."""
    return {
        int(position): from_code(str(code), str(text), *map(str, job_id[:1]))
        for position, code, text, *job_id in value or ()
    }
