"""Lanes: a client's private way. One connection that speaks ZMTP itself, in one of two forms."""

from __future__ import annotations

from devices.connection import Connection
from devices.zmtp_frames import Message
from devices.zmtp_messages import FramePeer, RawPeer


class Lane(Connection[Message]):
    """Its messages are lists of frames; those of a ROUTER begin with the identity of the peer."""

    _form = FramePeer

    def send(self, frames: Message) -> None:
        """Send now or, in order, as soon as the kernel takes it; dropped if the lane is closed."""
        if not self._closing and not self._outbox.send(frames[1:] if self._is_router else frames):
            self._stuck()

    def post(self, messages: list[Message]) -> None:
        """Send several, each now or as soon as the kernel takes it."""
        if self._is_router:
            messages = [frames[1:] for frames in messages]
        if not self._closing and not self._outbox.post(messages):
            self._stuck()


class RawLane(Connection[bytes]):
    """Its messages are as they are sent: what a relay takes from one lane it can give to another."""

    _form = RawPeer

    def post(self, messages: list[bytes]) -> None:
        """Send several, now or as soon as the kernel takes them; dropped if the lane is closed."""
        if not self._closing and not self._outbox.relay(messages):
            self._stuck()

    @property
    def unsent(self) -> list[bytes]:
        """Messages that have not gone to their last byte: at its end, those that somebody else can have."""
        return self._outbox.unsent

    def subscription(self, topic: bytes, *, on: bool) -> bytes:
        """What tells the peer of an XSUB that a topic is wanted, or no longer."""
        return self._zmtp.subscription(topic, on=on)
