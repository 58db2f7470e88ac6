"""``client.streams`` and ``client.subscriptions``."""

from __future__ import annotations

import builtins

from sluicemq.arguments import checked
from sluicemq.namespaces.namespace import CalledBefore
from sluicemq.protocol import wire
from sluicemq.protocol.rows import StreamRow, SubscriptionRow


@checked()
class Streams(CalledBefore, verb="list"):
    """Streams: messages that are kept, and read from any point on."""

    __slots__ = ()

    def list(self) -> builtins.list[StreamRow]:
        """Return all streams: name, ``first`` and ``last`` number, ``messages`` and ``bytes``."""
        return self._calls.read(builtins.list[StreamRow], wire.STREAMS)

    def get(self, stream: str) -> StreamRow:
        """Return one stream, with its retention; raises :class:`~sluicemq.BadStreamError`."""
        return self._calls.read(StreamRow, wire.STREAM, stream)

    def trim(self, stream: str, first: int) -> int:
        """Remove the messages of a stream before number ``first``; returns how many."""
        return self._calls.change(int, wire.TRIM, stream, first)

    def erase(self, stream: str) -> int:
        """Remove all messages of a stream, whose numbers go on; returns how many."""
        return self._calls.change(int, wire.ERASE, stream)


@checked()
class Subscriptions(CalledBefore, verb="list"):
    """Subscriptions: how far the named readers of streams have come."""

    __slots__ = ()

    def list(self, stream: str | None = None) -> builtins.list[SubscriptionRow]:
        """Return all subscriptions, or those of one stream: ``watermark``, holder, how far ``behind``."""
        return self._calls.read(builtins.list[SubscriptionRow], wire.SUBS, stream)

    def seek(self, stream: str, name: str, watermark: int) -> None:
        """Set the watermark of a subscription that nobody holds: it goes on behind that number.

        -1: behind the newest message. Raises :class:`~sluicemq.HeldError`.
        """
        return self._calls.act(wire.SEEK, stream, name, watermark, repeat=True)

    def release(self, stream: str, name: str) -> None:
        """Take a subscription from its present or last holder; raises :class:`~sluicemq.NotFoundError`."""
        self._calls.act(wire.FREE, stream, name, None)

    def delete(self, stream: str, name: str) -> None:
        """Remove a subscription that nobody holds; raises :class:`~sluicemq.HeldError`."""
        self._calls.act(wire.FORGET, stream, name)
