"""The outbox of a connection whose messages are sealed, as CURVE does."""

from __future__ import annotations

import _socket

from sluicemq_devices.sockets.outbox import Outbox
from sluicemq_devices.zmtp import Message, Traffic


class SealedOutbox(Outbox):
    """Seals what is sent at the moment when it gets its place: the peer refuses another order.

    A command that is not sent is not sealed. Sealed bytes count in ``held``.
    """

    __slots__ = ("_traffic",)

    def __init__(self, socket: _socket.socket, handshake: Outbox, traffic: Traffic) -> None:
        """``handshake``: the outbox up to now; what it holds is sent first."""
        super().__init__(socket, handshake.held)
        self._parts, self.broken, self.written = handshake.parts, handshake.broken, handshake.written
        self._traffic = traffic

    def send_command(self, data: bytes) -> bool:
        """Send a command now, unless bytes wait, which are a sign of life, too. False: bytes are held."""
        return not self._parts and super().add(self._traffic.seal(data))

    def add(self, data: bytes) -> bool:
        """Send a command behind all that waits. False: bytes are held."""
        return super().add(self._traffic.seal(data))

    def send(self, frames: Message) -> bool:
        """Send a message now, or hold it. False: bytes are held."""
        return super().relay([self._traffic.encode(frames)])

    def post(self, messages: list[Message], behind: bytes = b"") -> bool:
        """Send several, and ``behind``, a command, after them; hold the rest. False: bytes are held."""
        sent = super().relay([self._traffic.encode(frames) for frames in messages])
        return self.add(behind) if behind else sent

    def relay(self, messages: list[bytes]) -> bool:
        """Send messages that are encoded already, like :meth:`post`."""
        return super().relay([self._traffic.seal(message) for message in messages])

    @property
    def unsent(self) -> list[bytes]:
        """Messages whose last byte the kernel has not taken, as they were given to :meth:`relay`."""
        return [self._traffic.unseal(message) for message in super().unsent]
