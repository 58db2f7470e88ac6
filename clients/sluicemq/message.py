"""Messages of a stream, and the receipt of a publish."""

from __future__ import annotations

from typing import Any, NamedTuple

from sluicemq import forks
from sluicemq.confirmation import Confirmation, Way
from sluicemq.protocol.errors import SluiceError


class Message(NamedTuple):
    """One message: its number, topic and payload, and when it was stored (Unix seconds)."""

    sequence: int
    topic: str
    payload: bytes
    time: float
    frames: tuple[bytes, ...]
    """All frames after the topic; the library's publishers send the payload only."""


class Published(Confirmation):
    """One message on its way into a stream, made by :meth:`Publisher.publish`.

    ``sequence``: its number in the stream, once it is durable. ``existed``: it was stored before, under its
    id. ``packed``, ``id``, ``expected`` and ``seen`` (the refusal was) are the publisher's.
    """

    __slots__ = (
        "_sequence",
        "existed",
        "expected",
        "id",
        "packed",
        "size",
        "stream",
    )

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
        self.packed = packed
        self.size = size
        self.id = id
        self.expected = expected
        self.existed = self.seen = False
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

        Raises the broker's error if it was refused, and :class:`~sluicemq.Timeout` after ``timeout`` seconds;
        the message is still on its way then.
        """
        if not self.done and not self._wait_until_done(timeout, "this receipt", "publish the message here"):
            raise self._late(f"a message for stream {self.stream} is not confirmed after {timeout:g} s")
        if self._error is not None:
            self.seen = True
            raise self._error
        return self._sequence

    def __repr__(self) -> str:
        state = self._error or self._sequence or "on its way"
        return f"<Published to {self.stream}: {state}>"

    def settle(self, sequence: int, error: SluiceError | None = None) -> None:
        """Set the number or the error; wakes waiting threads."""
        self._error = error
        self.packed, self._connection = b"", None
        self._sequence = sequence
        if self._event is not None:
            self._event.set()
