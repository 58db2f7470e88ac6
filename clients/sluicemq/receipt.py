"""A push and what became of it."""

from __future__ import annotations

import threading
from typing import Any

from sluicemq import forks
from sluicemq.protocol.errors import SluiceError, Timeout

# Held only while an event is made, so one for all receipts is enough; another one in each process.
_making_an_event = {forks.generation: threading.Lock()}


class Receipt:
    """One pushed job: its ``id`` at once, and whether the broker has confirmed it.

    Made by :meth:`Producer.push`. Cheap: the event to wait on is made by who waits, and the payload
    is let go once the job is confirmed. ``size``, ``header_bytes`` (a part of it), ``seen`` (of its
    refusal) and ``sending`` (its span, where somebody traces) are the producer's.

    ``existed``: after ``wait``, whether a job with this id was there already, so that this push made
    none. Also when this one was repeated after a lost connection, and its first try had stored it.
    ``position``: its place in ``push_many``, from 0.
    """

    __slots__ = (
        "_error",
        "_event",
        "_generation",
        "_headers",
        "_payload",
        "_settled",
        "existed",
        "header_bytes",
        "id",
        "position",
        "queue",
        "seen",
        "sending",
        "size",
    )

    def __init__(
        self,
        queue: str,
        job_id: str,
        payload: bytes,
        headers: dict[str, Any] | None,
        size: int,
        header_bytes: int = 0,
    ) -> None:
        self.queue = queue
        self.id = job_id
        self._payload: bytes | None = payload
        self._headers = headers
        self.size = size
        self.header_bytes = header_bytes
        self._settled = False
        self._error: SluiceError | None = None
        self._event: threading.Event | None = None
        self._generation = forks.generation
        self.seen = False
        self.existed = False
        self.position: int | None = None
        self.sending: Any = None

    @property
    def done(self) -> bool:
        """True if the broker has answered: confirmed or refused."""
        return self._settled

    def wait(self, timeout: float | None = None) -> None:
        """Return once the job is stored for good.

        Raises the broker's error if it refused the job, and :class:`~sluicemq.Timeout` after
        ``timeout`` seconds; the job is still on its way then. In a child that was forked after the push
        it raises :class:`~sluicemq.Forked`: only the parent hears what becomes of it.
        """
        if not self._settled and not self._wait(timeout):
            job = f"job {self.id} for queue {self.queue}"
            raise Timeout(f"{job} is not confirmed after {timeout:g} s", self.id)
        if self._error is not None:
            self.seen = True
            raise self._error

    def __repr__(self) -> str:
        state = "on its way" if not self._settled else self._error or "confirmed"
        return f"<Receipt {self.id} for {self.queue}: {state}>"

    def row(self) -> list[Any]:
        """The job as it stands in a PUSH message."""
        return [self.id, self._payload, self._headers]

    def settle(self, error: SluiceError | None = None) -> None:
        """Confirmed, or refused with ``error``; wakes who waits."""
        if self.sending is not None:
            self.sending.answered(error)
        self._error = error
        self._payload = self._headers = None
        self._settled = True
        # Read after `_settled` is set: who has made its event later finds that set.
        if self._event is not None:
            self._event.set()

    def _wait(self, timeout: float | None) -> bool:
        forks.refuse(f"the push of job {self.id}", self._generation, "only that one hears what becomes of it")
        with _making_an_event.setdefault(forks.generation, threading.Lock()):
            event = self._event = self._event or threading.Event()
        return self._settled or event.wait(timeout)
