"""The publisher's part of the I/O thread: makes batches, and sends each until it is confirmed.

An idle publisher sends what it has at once. With batches in flight it sends only full ones, so that they grow
with the load. A repeated batch has its old content and id, so it is stored once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq.receipt import PublishReceipt
from sluicemq.transport.connection import Connection
from sluicemq.transport.pacing import EAGER, IN_FLIGHT, RETRY_AFTER

#: Messages, and bytes, of a full batch.
BATCH: Final = 1024
BATCH_BYTES: Final = 512 << 10


class PublishBatch:
    """Messages to one stream that are sent together, under one number, which brokers read in their id."""

    __slots__ = ("ids", "messages", "number", "options", "size", "stream")

    def __init__(self, stream: str, number: int, publisher: str) -> None:
        self.stream = stream
        self.number = number
        self.messages: list[PublishReceipt] = []
        self.size = 0
        self.ids: dict[str, int] = {}
        self.options: dict[str, Any] = {"id": f"{publisher}/{number:012}"}

    def takes(self, message: PublishReceipt) -> bool:
        """Return whether a message may join the batch."""
        return (
            len(self.messages) < BATCH
            and self.size + message._size <= BATCH_BYTES
            and message._expected is None
            and "last" not in self.options
            and message.id not in self.ids
        )

    def add(self, message: PublishReceipt) -> None:
        """Add a message at the end."""
        if message.id is not None:
            self.ids[message.id] = len(self.messages)
            self.options["ids"] = [[place, job_id] for job_id, place in self.ids.items()]
        if message._expected is not None:
            self.options |= message._expected
        self.messages.append(message)
        self.size += message._size


#: Called through the mailbox with a batch: the number of its first new message, and the numbers of those that
#: were stored before, by their places; or the error of all.
Settled = Callable[[PublishBatch, int, dict[int, int], SluiceError | None], None]


class Publishing:
    """The :class:`~sluicemq.transport.role.Role` of a publisher; ``messages`` is filled by any thread."""

    def __init__(self, settled: Settled) -> None:
        self.messages: deque[PublishReceipt] = deque()
        self.due = inf
        self._settled = settled
        self._connection: Connection
        self._number = 0
        self._open: dict[str, PublishBatch] = {}  # by stream: batches that may still grow
        self._waiting: deque[PublishBatch] = deque()
        self._to_repeat: list[PublishBatch] = []
        self._in_flight = 0

    @property
    def busy(self) -> bool:
        """Return whether batches are under way."""
        return self._in_flight > 0

    def attach(self, connection: Connection) -> None:
        """Use this connection; before it is started."""
        self._connection = connection

    def connected(self) -> None:
        """Repeat what was not confirmed; ``turn`` follows."""
        self.due = inf

    def turn(self) -> None:
        """Send what has been collected, as far as it may be in flight."""
        self._collect()
        if not self._connection.takes_more or monotonic() < self.due < inf:
            return
        self.due = inf
        while self._waiting and self._in_flight < IN_FLIGHT and self._may_go(self._waiting[0]):
            self._send(self._waiting.popleft())

    def delivered(self, message: wire.Message) -> None:
        """Ignore a message: a publisher only gets answers."""

    def disconnected(self) -> None:
        """Put batches that were in flight first for the next connection, in their old order."""
        self._again(self._to_repeat)
        self._to_repeat = []

    def ended(self, error: SluiceError) -> None:
        """Refuse the rest: nobody will confirm it."""
        self._collect()
        for batch in (*self._to_repeat, *self._waiting):
            self._connection.post(self._settled, batch, 0, {}, error)

    def _collect(self) -> None:
        messages, open_ones = self.messages, self._open
        while messages:
            message = messages.popleft()
            batch = open_ones.get(message.stream)
            if batch is None or not batch.takes(message):
                self._number += 1
                batch = open_ones[message.stream] = PublishBatch(
                    message.stream, self._number, self._connection.id
                )
                self._waiting.append(batch)
            batch.add(message)

    def _may_go(self, batch: PublishBatch) -> bool:
        return self._in_flight < EAGER or self._open.get(batch.stream) is not batch or "last" in batch.options

    def _send(self, batch: PublishBatch) -> None:
        if self._open.get(batch.stream) is batch:
            del self._open[batch.stream]

        def answered(value: Any, error: SluiceError | None) -> None:
            self._in_flight -= 1
            self._answered(batch, value, error)

        self._in_flight += 1
        packed = b"".join([message._packed for message in batch.messages])
        self._connection.request(
            wire.PUBLISH, batch.stream, packed, dict(batch.options), answered=answered, whole=True
        )
        batch.options["again"] = True

    def _answered(self, batch: PublishBatch, value: Any, error: SluiceError | None) -> None:
        if error is self._connection.disconnect_error:
            self._to_repeat.append(batch)
        elif isinstance(error, UnavailableError):
            self._again([batch])
            self.due = monotonic() + RETRY_AFTER
        elif error is not None:
            self._connection.post(self._settled, batch, 0, {}, error)
        else:
            first, there = (*value, (), ())[:2]
            self._connection.post(self._settled, batch, int(first), dict(there or ()), None)

    def _again(self, batches: list[PublishBatch]) -> None:
        self._waiting = deque(sorted((*batches, *self._waiting), key=lambda batch: batch.number))
