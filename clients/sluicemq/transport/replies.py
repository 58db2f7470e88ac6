"""Results that a producer's callers wait for: requested in the I/O thread until they are there.

The way of a question::

    submit() ─▶ pushed ─▶ confirmed ─▶ wanted ─▶ requested ─▶ resolved (result or error)
                                         ▲           │
                                         └── again ──┘  not ended yet, put off, connection lost
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Protocol

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError, TimeoutError, UnavailableError
from sluicemq.receipt import PushReceipt
from sluicemq.transport.connection import Connection
from sluicemq.transport.pacing import RETRY_AFTER

QUESTIONS_AT_ONCE = 4000
_WAIT = 20.0  # seconds that the broker keeps a question, before the next ones have their turn


class Wanted(Protocol):
    """The result of a job that somebody waits for; ``given_up``: nobody does any longer.

    ``send_cancel``: :meth:`Replies.cancel` of its job.
    """

    receipt: PushReceipt
    given_up: bool
    send_cancel: Callable[[Callable[[bool], None]], None]

    def resolve(self, value: Any, error: SluiceError | None) -> None:
        """Set the result or the error; called through the mailbox."""


class ResultReceipt(PushReceipt):
    """The receipt of a job whose result is wanted: the result is requested once the job is stored."""

    __slots__ = ("_replies", "_reply")

    def _settle(self, error: SluiceError | None = None) -> None:
        """Request the result if the job was confirmed; a refusal is the reply."""
        self._seen = error is not None
        super()._settle(error)
        if error is None:
            self._replies.want(self._reply)
        else:
            self._reply.resolve(None, error)

    def attach(self, reply: Wanted, replies: Replies) -> None:
        """Resolve this reply with the outcome."""
        self._reply, self._replies = reply, replies
        reply.receipt, reply.send_cancel = self, partial(replies.cancel, self)


class Replies:
    """A part of the producer's role: the requests for results, with a bound on those under way."""

    def __init__(self) -> None:
        self.due = inf
        self._wanted: deque[Wanted] = deque()
        self._to_repeat: list[Wanted] = []
        self._under_way = 0
        self._connection: Connection
        self._ended: SluiceError | None = None

    def want(self, reply: Wanted) -> None:
        """Request the result of a stored job; from any thread."""
        self._wanted.append(reply)
        if self._ended is None:
            self._connection.wake()
            return
        for wanted in _drained(self._wanted):
            wanted.resolve(None, self._ended)

    def cancel(self, receipt: PushReceipt, answered: Callable[[bool], None]) -> None:
        """Cancel a job that no worker has; ``answered``, through the mailbox, gets whether it was possible.

        False, too, if nobody knows: a lost connection took the answer with it. Raises if it has ended.
        """
        self._connection.call(self._cancel, receipt, answered)

    # ------------------------------------------------------------------ from the I/O thread

    def attach(self, connection: Connection) -> None:
        """Use this connection; before it is started."""
        self._connection = connection

    def connected(self) -> None:
        """Repeat requests without an answer; ``turn`` follows."""
        self.due = inf

    def turn(self) -> None:
        """Send requests, as many as may be under way."""
        if not self._connection.takes_more or monotonic() < self.due < inf:
            return
        self.due = inf
        while self._wanted and self._under_way < QUESTIONS_AT_ONCE:
            reply = self._wanted.popleft()
            if not reply.given_up:
                self._ask(reply)

    def disconnected(self) -> None:
        """Put requests that were under way first for the next connection."""
        self._wanted.extendleft(reversed(self._to_repeat))
        self._to_repeat = []

    def ended(self, error: SluiceError) -> None:
        """Refuse the rest: nobody will answer."""
        self.disconnected()
        self._ended = error
        for reply in _drained(self._wanted):
            self._connection.post(reply.resolve, None, error)

    def _ask(self, reply: Wanted) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            self._under_way -= 1
            self._answered(reply, value, error)

        self._under_way += 1
        receipt = reply.receipt
        self._connection.request(wire.RESULT, receipt.queue, receipt.id, _WAIT, answered=answered)

    def _cancel(self, receipt: PushReceipt, answered: Callable[[bool], None]) -> None:
        def done(_value: Any, error: SluiceError | None) -> None:
            self._connection.post(answered, error is None)

        if self._connection.takes_more:
            self._connection.request(wire.CANCEL, receipt.queue, receipt.id, answered=done)
        else:
            self._connection.post(answered, False)  # noqa: FBT003 - the answer

    def _answered(self, reply: Wanted, value: Any, error: SluiceError | None) -> None:
        if error is self._connection.disconnect_error:
            self._to_repeat.append(reply)
        elif isinstance(error, TimeoutError):
            self._wanted.append(reply)
        elif isinstance(error, UnavailableError):
            self._wanted.append(reply)
            self.due = monotonic() + RETRY_AFTER
        else:
            self._connection.post(reply.resolve, value, error)


def _drained(replies: deque[Wanted]) -> Iterator[Wanted]:
    """Take out each reply once; other threads may take some at this time."""
    while replies:
        with suppress(IndexError):
            yield replies.popleft()
