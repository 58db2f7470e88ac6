"""Ask a broker about its queues, and act on them: for programs and for the command line."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Any, Self

from sluicemq import wire
from sluicemq.connection import Connection
from sluicemq.question import Questions

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5550"


class Client:
    """A connection for questions and administration; from any number of threads or greenlets.

    It connects by itself and keeps connected. Every method waits up to ``timeout`` seconds and
    raises :class:`~sluicemq.Timeout` when no broker has answered by then, and the broker's error
    when it refuses. Reads are asked again after a lost connection; ``purge``, ``delete`` and
    ``cancel`` raise :class:`~sluicemq.Unavailable` then, for they may or may not have been done.
    With ``patient=False`` they all raise :class:`~sluicemq.Unavailable` at once if nothing listens at
    ``endpoint``, rather than wait for a broker to come up there.
    """

    def __init__(
        self, endpoint: str = DEFAULT_ENDPOINT, *, timeout: float = 10.0, patient: bool = True
    ) -> None:
        self.timeout = timeout
        self._questions = Questions()
        self._connection = Connection(endpoint, self._questions, patient=patient)
        self._questions.attach(self._connection)
        self._connection.start()

    def queues(self) -> list[dict[str, Any]]:
        """All queues, each with its name and its counts."""
        return list(self._read(wire.QUEUES))

    def stats(self) -> dict[str, Any]:
        """What the broker tells of itself, its counters and its queues."""
        return dict(self._read(wire.STATS))

    def peek(self, queue: str, state: str = "ready", limit: int = 10) -> list[dict[str, Any]]:
        """The next jobs of a queue in one state, without taking them; times in Unix seconds."""
        return list(self._read(wire.PEEK, queue, state, limit))

    def purge(self, queue: str, state: str = "ready") -> int:
        """Remove all jobs of a queue that are in this state; how many there were."""
        return int(self._act(wire.PURGE, queue, state) or 0)

    def delete(self, queue: str) -> int:
        """Remove a queue with all its jobs; how many there were."""
        return int(self._act(wire.DELETE, queue) or 0)

    def cancel(self, queue: str, id: str) -> None:  # noqa: A002 - the word that jobs use everywhere
        """Remove one job that no worker holds; raises :class:`~sluicemq.NotFound`."""
        self._act(wire.CANCEL, queue, id)

    def ping(self, timeout: float | None = None) -> float:
        """Seconds for one way to the broker and back; the first call waits for the connection too."""
        asked = monotonic()
        self._questions.ask(wire.PING, timeout=self.timeout if timeout is None else timeout)
        return monotonic() - asked

    def close(self) -> None:
        """Leave the broker and end the connection; again is harmless."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, verb: bytes, *fields: Any) -> Any:
        return self._questions.ask(verb, *fields, timeout=self.timeout)

    def _act(self, verb: bytes, *fields: Any) -> Any:
        return self._questions.ask(verb, *fields, timeout=self.timeout, repeat=False)
