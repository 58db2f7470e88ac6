"""Requests that a caller waits for: made in any thread, sent by the I/O thread, answered once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, ClassVar

from sluicemq.aside import refuse_to_wait
from sluicemq.protocol import wire
from sluicemq.protocol.errors import NotAdmittedError, SluiceError, TimeoutError
from sluicemq.transport.connection import Connection


class Question:
    """One request and its answer. ``repeat``: it may be sent again after a lost connection.

    Its fields are packed in the caller's thread; raises :class:`~sluicemq.BadFramesError` for values that
    can't be.
    """

    __slots__ = ("_error", "_value", "answered", "fields", "given_up", "repeat", "verb")

    #: Makes what is set once the answer is here.
    Event: ClassVar[type[Any]] = threading.Event

    def __init__(self, verb: bytes, *fields: Any, repeat: bool) -> None:
        self.verb = verb
        self.fields = wire.packed(verb, fields)
        self.repeat = repeat
        self.given_up = False
        self.answered = self.Event()
        self._value: Any = None
        self._error: SluiceError | None = None

    def wait(self, timeout: float | None, connection: Connection) -> Any:
        """Return the answer's value; raises its error, or :class:`Timeout`."""
        return self.outcome(timeout, connection, in_time=self.answered.wait(timeout))

    def outcome(self, timeout: float | None, connection: Connection, *, in_time: bool) -> Any:
        """Return the answer's value, or raise what :meth:`wait` does, once it has come or the time is up."""
        if not in_time:
            self.given_up = True
            if connection.not_admitted:
                raise NotAdmittedError(str(connection.not_admitted))
            raise TimeoutError(_what_is_missing(self.verb, timeout, connection))
        if self._error is not None:
            raise self._error
        return self._value

    def answer(self, value: Any, error: SluiceError | None) -> None:
        """Set the answer and wake the caller; called through the mailbox."""
        self._value, self._error = value, error
        self.answered.set()


class Questions:
    """The role of a connection that carries questions only, and a part of the worker's."""

    due = inf
    of_deliveries = False
    """True if the questions are about what this connection has delivered, so that no other can ask them."""

    def __init__(self) -> None:
        self._connection: Connection
        self._unsent: deque[Question] = deque()
        self._to_repeat: list[Question] = []
        self._ended: SluiceError | None = None
        self._under_way = 0  # questions that may not be repeated
        self.held = False
        """True while the caller holds something at this broker, which only this connection can end."""

    @property
    def busy(self) -> bool:
        """Return whether there are questions under way whose outcome would be unknown."""
        return self._under_way > 0 or self.held

    def attach(self, connection: Connection) -> None:
        """Use this connection; before it is started."""
        self._connection = connection

    def ask(self, verb: bytes, *fields: Any, timeout: float | None, repeat: bool = True) -> Any:
        """Send a request and wait for the answer, from any thread or greenlet."""
        question = Question(verb, *fields, repeat=repeat)
        refuse_to_wait(verb.decode())
        with noted(verb, fields):
            self.put(question)
            return question.wait(timeout, self._connection)

    def put(self, question: Question) -> None:
        """Send a question soon; raises if the connection has ended."""
        self._connection.call(self._put, question)

    def connected(self) -> None:
        """Send the questions that have waited, and repeat those without an answer."""
        waiting, self._unsent = self._unsent, deque()
        for question in waiting:
            self._put(question)

    def turn(self) -> None:
        """Do nothing: each question is sent by its own call."""

    def delivered(self, message: wire.Message) -> None:
        """Ignore a message: brokers send none here; a newer one may."""

    def disconnected(self) -> None:
        """Keep questions that may be repeated, before later ones; answer all if the broker lets none in."""
        self._unsent.extendleft(reversed(self._to_repeat))
        self._to_repeat = []
        if self._connection.not_admitted:
            unsent, self._unsent = self._unsent, deque()
            for question in unsent:
                self._connection.post(question.answer, None, self._connection.not_admitted)

    def ended(self, error: SluiceError) -> None:
        """Answer everything that waits, now and later, with ``error``."""
        self._ended = error
        for question in (*self._to_repeat, *self._unsent):
            self._connection.post(question.answer, None, error)

    def _put(self, question: Question) -> None:
        if question.given_up:
            return
        if self._ended is not None:
            self._connection.post(question.answer, None, self._ended)
        elif self._connection.greeted if self.of_deliveries or self.held else self._connection.takes_more:
            self._send(question)
        else:
            self._unsent.append(question)

    def _send(self, question: Question) -> None:
        def answered(value: Any, error: SluiceError | None) -> None:
            self._under_way -= not question.repeat
            if question.repeat and error is self._connection.disconnect_error:
                self._to_repeat.append(question)
            else:
                self._connection.post(question.answer, value, error)

        self._under_way += not question.repeat
        self._connection.request_packed(question.verb, question.fields, answered=answered)


@contextmanager
def noted(verb: bytes, fields: tuple[Any, ...]) -> Iterator[None]:
    """Note in an error of a question whether that only looks."""
    try:
        yield
    except SluiceError as error:
        error.changes_nothing = verb in wire.LOOKS or fields[:1] == (wire.LIST,)
        raise


def _what_is_missing(verb: bytes, timeout: float | None, connection: Connection) -> str:
    if connection.epoch:
        where = connection.connected_to or connection.endpoint
        return f"no answer to {verb.decode()} from {where} within {timeout:g} s"
    return f"{connection.obstacle} (waited {timeout:g} s)"
