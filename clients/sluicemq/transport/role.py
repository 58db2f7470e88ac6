"""What the owner of a connection does in its I/O thread."""

from __future__ import annotations

from typing import Protocol

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError


class Role(Protocol):
    """What a producer, worker or client does in the I/O thread; nothing here may block or lock."""

    @property
    def due(self) -> float:
        """When ``turn`` is wanted again, on the monotonic clock; ``inf`` for not before something comes."""

    def connected(self) -> None:
        """The broker has greeted; also after every reconnect."""

    def turn(self) -> None:
        """Something came, or ``due`` has passed: send what is to be sent."""

    def delivered(self, message: wire.Message) -> None:
        """A message that is no answer."""

    def disconnected(self) -> None:
        """Called when the connection has ended, after all pending requests got ``disconnect_error``."""

    def ended(self, error: SluiceError) -> None:
        """The connection is closed, or has failed for good."""
