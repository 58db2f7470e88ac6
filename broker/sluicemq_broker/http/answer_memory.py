"""The memory that answers may take: how many bytes may lie unread before another answer is made.

Large answers leave memory for all others, so that a peer that reads nothing delays neither the dashboard
nor Prometheus. They also wait while the other doors have much that is not read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import gevent

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.http.connections import Connection, Connections
from sluicemq_broker.http.fair_turns import LOOK, PATIENCE, FairTurns, too_much
from sluicemq_devices.sockets import Outgoing


class AnswerMemory:
    """The memory that all answers of the door share; ``outgoing``: that of all doors of the process."""

    def __init__(self, connections: Connections, outgoing: Outgoing) -> None:
        self._connections = connections
        self._outgoing = outgoing
        self._all = outgoing.ration(None)
        self._large = FairTurns(at_once=2, waiting=10)  # few wait, so that other requests have connections

    def for_any(self) -> None:
        """Wait until any answer may be made; raises Unavailable if it takes too long."""
        self._wait(unread=64 << 20)

    @contextmanager
    def for_large(self, size: int, connection: Connection) -> Iterator[None]:
        """Wait for the memory of a large answer, and keep it for the body; raises Unavailable."""
        with self._large.turn(connection.served):
            self._wait(unread=24 << 20)
            if connection.has_left():
                raise UnavailableError("the client has disconnected")
            if not self._all.reserve(size, PATIENCE):
                raise too_much()
            try:
                yield
            finally:
                self._all.release(size)

    def _wait(self, unread: int) -> None:
        """Wait until fewer bytes lie unread; peers that read nothing are cut."""
        until = time.monotonic() + PATIENCE
        while self._connections.unread >= unread:
            now = time.monotonic()
            if self._connections.end_stalled(now):
                continue
            if now >= until:
                raise too_much()
            gevent.sleep(LOOK)
