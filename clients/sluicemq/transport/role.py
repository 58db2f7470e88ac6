"""The part of a connection's owner in the I/O thread."""

from __future__ import annotations

from typing import Protocol

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError


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
