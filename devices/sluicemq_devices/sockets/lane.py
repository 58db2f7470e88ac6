"""Lanes: connections that speak ZMTP themselves, in one of two forms of messages."""

from __future__ import annotations

from collections.abc import Callable

from sluicemq_devices.sockets.arrivals import Arrivals
from sluicemq_devices.sockets.connection import Connection
from sluicemq_devices.zmtp import FramePeer, Message, RawPeer


class Lane(Connection[Message]):
    """A connection whose messages are lists of frames; those of a ROUTER begin with the peer's identity."""

    _form = FramePeer
    _longest_turn = 0.002

    def send(self, frames: Message) -> None:
        """Send now or, in order, as soon as the kernel takes it; dropped if the lane is closed."""
        if not self._closing and not self._outbox.send(frames[1:] if self._is_router else frames):
            self._stuck()

    def post(self, messages: list[Message], arrived: Callable[[], object] | None = None) -> None:
        """Send several, each now or as soon as the kernel takes it.

        ``arrived`` is called when the peer's ZeroMQ has taken them into its memory, as far as that is known
        (:class:`~sluicemq_devices.sockets.arrivals.Arrivals`); never after the connection has ended.
        """
        if self._closing:
            return
        if self._is_router:
            messages = [frames[1:] for frames in messages]
        behind = self._expected.expect(arrived) if arrived else b""
        if not self._outbox.post(messages, behind):
            self._stuck()

    @property
    def _expected(self) -> Arrivals:
        if self._arrivals is None:
            zmtp = self.zmtp
            self._arrivals = Arrivals(self._socket, self._outbox, self._say_behind, asks=zmtp.echoes)
            zmtp.answered = self._arrivals.answered
        return self._arrivals

    def _say_behind(self, command: bytes) -> None:
        if not self._outbox.add(command):
            self._stuck()


class RawLane(Connection[bytes]):
    """A connection whose messages stay encoded: a relay passes them from one lane to another."""

    _form = RawPeer
    _longest_turn = 0.010  # it ends in one write to each lane that gets something, which short ones repeat
    posted = 0
    """Number of messages sent, or to be sent as soon as the kernel takes them."""

    def post(self, messages: list[bytes]) -> None:
        """Send several, now or as soon as the kernel takes them; dropped if the lane is closed."""
        if self._closing:
            return
        self.posted += len(messages)
        if not self._outbox.relay(messages):
            self._stuck()

    @property
    def identity(self) -> bytes:
        """The routing id that the peer has announced, or nothing."""
        return self.zmtp.identity

    @property
    def deserted(self) -> bool:
        """True if the peer has left, even if its end has not been read yet."""
        self.look_for_its_end()
        return self._deserted or self._ended

    @property
    def unsent(self) -> list[bytes]:
        """Messages whose last byte was not sent: at the end of the lane another peer can have them."""
        return self._outbox.unsent

    def subscription(self, topic: bytes, *, on: bool) -> bytes:
        """Return the message by which an XSUB subscribes to a topic (``on``) or unsubscribes."""
        return self.zmtp.subscription(topic, on=on)
