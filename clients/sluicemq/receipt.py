"""The receipt of a push."""

from __future__ import annotations

from typing import Any

from sluicemq import forks
from sluicemq.confirmation import Confirmation, Way
from sluicemq.protocol.errors import SluiceError


class Receipt(Confirmation):
    """One pushed job: its ``id`` at once, and later its confirmation.

    Made by :meth:`Producer.push`. It is cheap: the event to wait on is made by the first waiter, and the
    payload is freed once the job is confirmed. ``size``, ``header_bytes`` (a part of it), ``seen`` (the
    refusal was) and ``sending`` (its span, if the program traces) are the producer's.

    ``existed``: after ``wait``, True if a job with this id existed, so that this push made none; ``state``:
    the state that it had then (``dead``: it is a dead letter, which nobody works on), None if the broker does
    not say. Both may be of this push: if it was repeated after a lost connection, and its first try had
    stored the job. ``position``: its place in ``push_many``, from 0.
    """

    __slots__ = (
        "_headers",
        "_payload",
        "_settled",
        "header_bytes",
        "id",
        "position",
        "queue",
        "sending",
        "size",
        "there",
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
        self.size = size
        self.header_bytes = header_bytes
        self._connection = connection
        self._settled = False
        self._error = None
        self._event = None
        self._generation = forks.generation
        self.seen = False
        self.there: str | None = None
        self.position: int | None = None
        self.sending: Any = None

    @property
    def existed(self) -> bool:
        """Return whether a job with this id was there before."""
        return self.there is not None

    @property
    def state(self) -> str | None:
        """Return the state that it had, if it existed and the broker says it."""
        return self.there or None

    @property
    def done(self) -> bool:
        """Return whether the broker has answered: confirmed or refused."""
        return self._settled

    def wait(self, timeout: float | None = None) -> None:
        """Return once the job is stored durably.

        Raises the broker's error if it refused the job, and :class:`~sluicemq.Timeout` after ``timeout``
        seconds; the job is still on its way then, and the text has the reason if the broker does not let this
        client in. In a child that was forked after the push it raises
        :class:`~sluicemq.Forked`: only the parent gets the answer.
        """
        if not self._settled and not self._wait_until_done(
            timeout, f"the push of job {self.id}", "only that one gets the answer"
        ):
            job = f"job {self.id} for queue {self.queue}"
            raise self._late(f"{job} is not confirmed after {timeout:g} s", self.id)
        if self._error is not None:
            self.seen = True
            raise self._error

    def __repr__(self) -> str:
        state = "on its way" if not self._settled else self._error or "confirmed"
        return f"<Receipt {self.id} for {self.queue}: {state}>"

    def row(self) -> list[Any]:
        """Return the job as a PUSH message has it."""
        return [self.id, self._payload, self._headers]

    def settle(self, error: SluiceError | None = None) -> None:
        """Confirm the job, or refuse it with ``error``; wakes waiting threads."""
        self._error = error
        self._payload = self._headers = self._connection = None
        self._settled = True
        if self._event is not None:
            self._event.set()
