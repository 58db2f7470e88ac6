"""Common part of receipts: threads can wait until the broker has answered."""

from __future__ import annotations

import threading
from typing import Protocol

from sluicemq import forks
from sluicemq.aside import refuse_to_wait
from sluicemq.protocol.errors import NotAdmitted, SluiceError, Timeout

# Held only while an event is made, so one lock for all receipts is enough; each process has its own.
_making_an_event = {forks.generation: threading.Lock()}


class Way(Protocol):
    """The connection over which something is sent."""

    @property
    def not_admitted(self) -> NotAdmitted | None:
        """Why the broker did not let this client in, at the last try."""


class Confirmation:
    """The broker's answer to something that was sent, or the wait for it.

    It is cheap: the event to wait on is made by the first thread that waits. ``seen``: somebody has seen the
    refusal. A subclass sets all fields itself, since a call more for each job would cost too much.
    """

    __slots__ = ("_connection", "_error", "_event", "_generation", "seen")

    #: None once it is answered.
    _connection: Way | None

    _error: SluiceError | None
    _event: threading.Event | None
    _generation: int
    seen: bool

    @property
    def done(self) -> bool:
        """Return whether the broker has answered."""
        raise NotImplementedError

    def _wait_until_done(self, timeout: float | None, what: str, advice: str) -> bool:
        """Return whether the answer came in time; raises :class:`~sluicemq.Forked` in a child.

        A subclass sets its answer first and reads ``_event`` then: a thread that makes the event later sees
        the answer.
        """
        forks.refuse(what, self._generation, advice)
        refuse_to_wait(what)
        with _making_an_event.setdefault(forks.generation, threading.Lock()):
            event = self._event = self._event or threading.Event()
        return self.done or event.wait(timeout)

    def _late(self, what: str, *job: str) -> Timeout:
        """Return the error of a wait that took too long: with the reason, if the client can't enter."""
        connection = self._connection
        return late(what, connection.not_admitted if connection else None, *job)


def late(what: str, not_admitted: NotAdmitted | None, *job: str) -> Timeout:
    """Return a time-out; it names why the broker does not let this client in. ``job``: its id."""
    return Timeout(f"{what}: {not_admitted}" if not_admitted else what, *job)
