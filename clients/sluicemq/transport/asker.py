"""A connection that asks a broker, for the client: made again in the child of a fork."""

from __future__ import annotations

from time import sleep
from typing import Any

from sluicemq import forks
from sluicemq.codec import JSON, Codec
from sluicemq.steps import Ask, Pause, Step
from sluicemq.transport import native
from sluicemq.transport.access import Access
from sluicemq.transport.connection import Connection
from sluicemq.transport.questions import Questions


class Asker:
    """Asks questions and gives orders over one connection, from any number of threads or greenlets.

    ``timeout``: seconds that each waits for its answer. With ``patient`` false a question raises
    :class:`~sluicemq.UnavailableError` at once if nothing listens at any endpoint.
    """

    _open_mailbox = staticmethod(native.open_mailbox)

    def __init__(self, access: Access, *, timeout: float, patient: bool, codec: Codec = JSON) -> None:
        self.access = access
        self.timeout = timeout
        self.patient = patient
        self.codec = codec
        self._closed = False
        self._begin()
        self._connection.start()
        forks.on_fork(self, Asker._forked)

    @property
    def connected_to(self) -> str:
        """Return the endpoint of the broker that it is connected to; empty while there is none."""
        return self._connection.connected_to

    @property
    def permissions(self) -> dict[str, list[str]] | None:
        """Return what this client may do, as the broker said last; None: everything, or not known."""
        return self._connection.permissions

    def ask(
        self, verb: bytes, *fields: Any, timeout: float | None = None, more: float = 0.0, repeat: bool = True
    ) -> Any:
        """Send a request, and return what the broker answers; raises its error.

        ``timeout``: seconds in place of its own. ``more``: seconds that the answer itself may take.
        ``repeat``: it changes nothing, or nothing twice, and is sent again after a lost connection.
        """
        return self._questions.ask(verb, *fields, timeout=self.limit(timeout, more), repeat=repeat)

    def do(self, step: Step) -> Any:
        """Do one step of a verb."""
        match step:
            case Ask(verb, fields, repeat, timeout, more):
                return self.ask(verb, *fields, timeout=timeout, more=more, repeat=repeat)
            case Pause(seconds):
                return sleep(seconds)

    def limit(self, timeout: float | None, more: float) -> float:
        """Return the seconds that an answer may take."""
        return (self.timeout if timeout is None else timeout) + more

    @property
    def connection(self) -> Connection:
        """Return its present connection."""
        return self._connection

    def close(self, timeout: float = 1.0) -> None:
        """Disconnect from the broker, within ``timeout`` seconds; may be called again."""
        self._closed = True
        self._connection.close(timeout)

    def _begin(self) -> None:
        self._questions = Questions()
        self._connection = Connection(
            self.access,
            self._questions,
            patient=self.patient,
            repeats=True,
            open_mailbox=self._open_mailbox,
        )
        self._questions.attach(self._connection)

    def _forked(self) -> None:
        self._connection.abandon()
        if not self._closed:
            self._begin()
            self._connection.start_when_used(lambda: None)
