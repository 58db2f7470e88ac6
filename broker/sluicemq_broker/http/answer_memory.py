"""The memory that answers may take: how many bytes may lie unread before another answer is made.

Large answers leave memory for all others, so that a peer that reads nothing delays neither the dashboard
nor Prometheus. They also wait while the other doors have much that is not read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import gevent

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.http.connections import Connection, Connections
from sluicemq_broker.http.fair_turns import PATIENCE, FairTurns, too_much
from sluicemq_devices.sockets import Outgoing

#: Unread bytes at which no large answer is begun; at which none is.
_MOST_OF_LARGE: Final = 24 << 20
_MOST: Final = 64 << 20
#: Large answers that are made at one time, and that wait: few, so that other requests have connections.
_LARGE_AT_ONCE: Final = 2
_LARGE_WAITING: Final = 10
_LOOK: Final = 0.05  # seconds between two looks for peers that read nothing


class AnswerMemory:
    """The memory that all answers of the door share; ``outgoing``: that of all doors of the process."""

    def __init__(self, connections: Connections, outgoing: Outgoing) -> None:
        self._connections = connections
        self._outgoing = outgoing
        self._all = outgoing.ration(None)
        self._large = FairTurns(_LARGE_AT_ONCE, _LARGE_WAITING)

    def for_any(self) -> None:
        """Wait until any answer may be made; raises Unavailable if it takes too long."""
        self._wait(_MOST)

    @contextmanager
    def for_large(self, size: int, connection: Connection) -> Iterator[None]:
        """Wait for the memory of a large answer, and keep it for the body; raises Unavailable."""
        with self._large.turn(connection.served):
            self._wait(_MOST_OF_LARGE)
            if connection.has_left():
                raise UnavailableError("the client has disconnected")
            if not self._all.reserve(size, PATIENCE):
                raise too_much()
            try:
                yield
            finally:
                self._all.release(size)

    def _wait(self, most: int) -> None:
        until = time.monotonic() + PATIENCE
        while self._connections.unread >= most:
            now = time.monotonic()
            if self._connections.end_stalled(now):
                continue
            if now >= until:
                raise too_much()
            gevent.sleep(_LOOK)
