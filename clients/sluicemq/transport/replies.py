"""The results that a producer's callers wait for: asked in the I/O thread, again until they are there.

A question's way::

    submit() ─▶ pushed ─▶ confirmed ─▶ wanted ─▶ asked ─▶ told (result or error)
                                         ▲         │
                                         └─ again ─┘  not ended yet, put off, connection lost
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, Timeout, Unavailable
from sluicemq.receipt import Receipt
from sluicemq.reply import Reply
from sluicemq.transport.connection import Connection

QUESTIONS_AT_ONCE = 4000
_WAIT = 20.0  # seconds that the broker keeps a question, before the next ones have their turn
_PUT_OFF = 0.5  # seconds until a broker is asked again that could not answer just now


class ResultReceipt(Receipt):
    """The receipt of a job whose result is wanted: once it is stored, its question is asked."""

    __slots__ = ("_replies", "_reply")

    def settle(self, error: SluiceError | None = None) -> None:
        """Confirmed: ask; refused: that is the reply, so whoever waits for it hears of it."""
        self.seen = error is not None
        super().settle(error)
        if error is None:
            self._replies.want(self._reply)
        else:
            self._reply.resolve(None, error)

    def attach(self, reply: Reply, replies: Replies) -> None:
        """Have this reply told."""
        self._reply, self._replies = reply, replies
        reply.receipt = self


class Replies:
    """A part of the producer's role: the questions for results, so many at once."""

    def __init__(self) -> None:
        self.due = inf
        self._wanted: deque[Reply] = deque()
        self._to_repeat: list[Reply] = []
        self._under_way = 0
        self._connection: Connection
        self._ended: SluiceError | None = None

    def want(self, reply: Reply) -> None:
        """Ask for the result of a stored job; from any thread."""
        self._wanted.append(reply)
        if self._ended is None:
            self._connection.wake()
            return
        for each in _drained(self._wanted):
            each.resolve(None, self._ended)

    # ------------------------------------------------------------------ from the I/O thread

    def attach(self, connection: Connection) -> None:
        """Use this connection; before it is started."""
        self._connection = connection

    def connected(self) -> None:
        """Ask again what was not answered; ``turn`` follows."""
        self.due = inf

    def turn(self) -> None:
        """Ask, as many as may be asked at once."""
        if not self._connection.greeted or monotonic() < self.due < inf:
            return
        self.due = inf
        while self._wanted and self._under_way < QUESTIONS_AT_ONCE:
            reply = self._wanted.popleft()
            if not reply.given_up:
                self._ask(reply)

    def disconnected(self) -> None:
        """What was asked is asked first in the next connection."""
        self._wanted.extendleft(reversed(self._to_repeat))
        self._to_repeat = []

    def ended(self, error: SluiceError) -> None:
        """Nobody will answer the rest."""
        self.disconnected()
        self._ended = error
        for each in _drained(self._wanted):
            self._connection.post(each.resolve, None, error)

    def _ask(self, reply: Reply) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            self._under_way -= 1
            self._answered(reply, value, error)

        self._under_way += 1
        receipt = reply.receipt
        self._connection.request(wire.RESULT, receipt.queue, receipt.id, _WAIT, answered=answered)

    def _answered(self, reply: Reply, value: Any, error: SluiceError | None) -> None:
        if error is self._connection.disconnect_error:
            self._to_repeat.append(reply)
        elif isinstance(error, Timeout):
            self._wanted.append(reply)
        elif isinstance(error, Unavailable):
            self._wanted.append(reply)
            self.due = monotonic() + _PUT_OFF
        else:
            self._connection.post(reply.resolve, value, error)


def _drained(replies: deque[Reply]) -> Iterator[Reply]:
    """Each of them once, whoever else takes some out at the same time."""
    while replies:
        with suppress(IndexError):
            yield replies.popleft()
