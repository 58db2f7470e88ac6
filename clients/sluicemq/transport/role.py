"""The part of a connection's owner in the I/O thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, SluiceError


class Role(Protocol):
    """The part of a producer, worker or client in the I/O thread; nothing here may block or lock."""

    @property
    def due(self) -> float:
        """Return when ``turn`` is wanted again, on the monotonic clock; ``inf``: when something comes."""

    @property
    def busy(self) -> bool:
        """Return whether something is under way that only this connection can end."""

    def connected(self) -> None:
        """Called when the broker has greeted; also after every reconnect."""

    def turn(self) -> None:
        """Called when something has come, or ``due`` has passed: send what is to be sent."""

    def delivered(self, message: wire.Message) -> None:
        """Called for a message that is no answer."""

    def disconnected(self) -> None:
        """Called when the connection has ended, after all pending requests got ``disconnect_error``."""

    def ended(self, error: SluiceError) -> None:
        """Called when the connection is closed, or has failed for good."""


class Roles:
    """The roles of one connection, by the queue whose deliveries each gets."""

    def __init__(self, by_queue: Mapping[str, Role]) -> None:
        self._by_queue = by_queue

    @property
    def due(self) -> float:
        """Return when the first of them wants a turn."""
        return min(role.due for role in self._by_queue.values())

    @property
    def busy(self) -> bool:
        """Return whether one of them is."""
        return any(role.busy for role in self._by_queue.values())

    def connected(self) -> None:
        """Tell all."""
        for role in self._by_queue.values():
            role.connected()

    def turn(self) -> None:
        """Give each its turn."""
        for role in self._by_queue.values():
            role.turn()

    def delivered(self, message: wire.Message) -> None:
        """Give a DELIVER, CANCEL or STOP to the role of its queue."""
        if message.verb not in (wire.DELIVER, wire.CANCEL, wire.STOP):
            return
        role = self._by_queue.get(message.fields[0]) if message.fields else None
        if role is None:
            raise BadFramesError("a DELIVER is of a queue that was not asked for")
        role.delivered(message)

    def disconnected(self) -> None:
        """Tell all."""
        for role in self._by_queue.values():
            role.disconnected()

    def ended(self, error: SluiceError) -> None:
        """Tell all."""
        for role in self._by_queue.values():
            role.ended(error)
