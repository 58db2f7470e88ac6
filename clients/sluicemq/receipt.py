"""Receipts of what was pushed or published: threads can wait until the broker has answered."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from sluicemq import forks
from sluicemq.aside import refuse_to_wait
from sluicemq.protocol.errors import NotAdmittedError, SluiceError, TimeoutError

# Held only while an event is made, so one lock for all receipts is enough; each process has its own.
_making_an_event = {forks.generation: threading.Lock()}


class Way(Protocol):
    """The connection over which something is sent."""

    @property
    def not_admitted(self) -> NotAdmittedError | None:
        """Why the broker did not let this client in, at the last try."""


class Receipt:
    """The broker's answer to something that was sent, or the wait for it.

    Of a push it is a :class:`PushReceipt`, of a publish a :class:`PublishReceipt`. It is cheap: the event to
    wait on is made by the first thread that waits. A subclass sets all fields itself, since a call more for
    each job would cost too much. ``_seen``: somebody has seen the refusal.
    """

    __slots__ = ("_connection", "_error", "_event", "_generation", "_seen")

    #: None once it is answered.
    _connection: Way | None

    _error: SluiceError | None
    _event: threading.Event | None
    _generation: int
    _seen: bool

    @property
    def done(self) -> bool:
        """Return whether the broker has answered: stored, or refused."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> int | None:
        """Return once the broker has answered; raises its refusal, or :class:`~sluicemq.TimeoutError`."""
        raise NotImplementedError

    @property
    def error(self) -> SluiceError | None:
        """Return the refusal; None while the broker has not answered, and if it has stored it."""
        self._seen = self._seen or self._error is not None
        return self._error

    def _wait_until_done(self, timeout: float | None, what: str, advice: str) -> bool:
        """Return whether the answer came in time; raises :class:`~sluicemq.ForkedError` in a child.

        A subclass sets its answer first and reads ``_event`` then: a thread that makes the event later sees
        the answer.
        """
        forks.refuse(what, self._generation, advice)
        refuse_to_wait(what)
        with _making_an_event.setdefault(forks.generation, threading.Lock()):
            event = self._event = self._event or threading.Event()
        return self.done or event.wait(timeout)

    def _unconfirmed(self, timeout: float | None) -> TimeoutError:
        """Return the error of a wait for the answer that took too long."""
        raise NotImplementedError

    def _raise_refusal(self) -> None:
        """Raise the broker's refusal, if there is one; somebody sees it then."""
        if self._error is not None:
            self._seen = True
            raise self._error

    def _late(self, what: str, *job: str) -> TimeoutError:
        """Return the error of a wait that took too long: with the reason, if the client can't enter."""
        connection = self._connection
        return late(what, connection.not_admitted if connection else None, *job)


class PushReceipt(Receipt):
    """One pushed job: its ``id`` at once, and later its confirmation.

    Made by :meth:`Producer.push`. The payload is freed once the job is confirmed.

    ``existed``: after ``wait``, True if a job with this id existed, so that this push made none; ``state``:
    the state that it had then (``dead``: it is a dead letter, which nobody works on), None if the broker does
    not say. Both may be of this push: if it was repeated after a lost connection, and its first try had
    stored the job. ``position``: its place in ``push_many``, from 0.
    """

    __slots__ = (
        "_header_bytes",
        "_headers",
        "_payload",
        "_sending",
        "_settled",
        "_size",
        "_there",
        "id",
        "position",
        "queue",
    )

    def __init__(
        self,
        queue: str,
        job_id: str,
        payload: bytes,
        headers: dict[str, Any] | None,
        size: int,
        header_bytes: int = 0,
        connection: Way | None = None,
    ) -> None:
        self.queue = queue
        self.id = job_id
        self._payload: bytes | None = payload
        self._headers = headers
        self._size = size
        self._header_bytes = header_bytes
        self._connection = connection
        self._settled = False
        self._error = None
        self._event = None
        self._generation = forks.generation
        self._seen = False
        self._there: str | None = None
        self.position: int | None = None
        self._sending: Any = None

    @property
    def existed(self) -> bool:
        """Return whether a job with this id was there before."""
        return self._there is not None

    @property
    def state(self) -> str | None:
        """Return the state that it had, if it existed and the broker says it."""
        return self._there or None

    @property
    def done(self) -> bool:
        """Return whether the broker has answered: confirmed or refused."""
        return self._settled

    def wait(self, timeout: float | None = None) -> None:
        """Return once the job is stored durably.

        Raises the broker's error if it refused the job, and :class:`~sluicemq.TimeoutError` after ``timeout``
        seconds; the job is still on its way then, and the text has the reason if the broker does not let this
        client in. In a child that was forked after the push it raises
        :class:`~sluicemq.ForkedError`: only the parent gets the answer.
        """
        if not self._settled and not self._wait_until_done(
            timeout, f"the push of job {self.id}", "only that one gets the answer"
        ):
            raise self._unconfirmed(timeout)
        self._raise_refusal()

    def __repr__(self) -> str:
        state = "on its way" if not self._settled else self._error or "confirmed"
        return f"<PushReceipt {self.id} for {self.queue}: {state}>"

    def _unconfirmed(self, timeout: float | None) -> TimeoutError:
        job = f"job {self.id} for queue {self.queue}"
        return self._late(f"{job} is not confirmed after {timeout:g} s", self.id)

    def _row(self) -> list[Any]:
        """Return the job as a PUSH message has it."""
        return [self.id, self._payload, self._headers]

    def _settle(self, error: SluiceError | None = None) -> None:
        """Confirm the job, or refuse it with ``error``; wakes waiting threads."""
        self._error = error
        self._payload = self._headers = self._connection = None
        self._settled = True
        if self._event is not None:
            self._event.set()


class PublishReceipt(Receipt):
    """One message on its way into a stream, made by :meth:`Publisher.publish`.

    ``sequence``: its number in the stream, once it is durable. ``existed``: it was stored before, under its
    id.
    """

    __slots__ = ("_expected", "_packed", "_sequence", "_size", "existed", "id", "stream")

    def __init__(
        self,
        stream: str,
        packed: bytes,
        size: int,
        id: str | None,  # noqa: A002 - the word that jobs use everywhere
        expected: dict[str, Any] | None,
        connection: Way | None = None,
    ) -> None:
        self.stream = stream
        self._packed = packed
        self._size = size
        self.id = id
        self._expected = expected
        self.existed = self._seen = False
        self._connection = connection
        self._sequence = 0
        self._error = None
        self._event = None
        self._generation = forks.generation

    @property
    def done(self) -> bool:
        """Return whether the broker has answered: durable or refused."""
        return self._sequence > 0 or self._error is not None

    @property
    def sequence(self) -> int | None:
        """Return its number in the stream; None while that is not known."""
        return self._sequence or None

    def wait(self, timeout: float | None = None) -> int:
        """Return its number, once it is durable.

        Raises the broker's error if it was refused, and :class:`~sluicemq.TimeoutError` after ``timeout``
        seconds; the message is still on its way then.
        """
        if not self.done and not self._wait_until_done(timeout, "this receipt", "publish the message here"):
            raise self._unconfirmed(timeout)
        self._raise_refusal()
        return self._sequence

    def __repr__(self) -> str:
        state = self._error or self._sequence or "on its way"
        return f"<PublishReceipt to {self.stream}: {state}>"

    def _unconfirmed(self, timeout: float | None) -> TimeoutError:
        return self._late(f"a message for stream {self.stream} is not confirmed after {timeout:g} s")

    def _settle(self, sequence: int, error: SluiceError | None = None) -> None:
        """Set the number or the error; wakes waiting threads."""
        self._error = error
        self._packed, self._connection = b"", None
        self._sequence = sequence
        if self._event is not None:
            self._event.set()


def late(what: str, not_admitted: NotAdmittedError | None, *job: str) -> TimeoutError:
    """Return a time-out; it names why the broker does not let this client in. ``job``: its id."""
    return TimeoutError(f"{what}: {not_admitted}" if not_admitted else what, *job)
