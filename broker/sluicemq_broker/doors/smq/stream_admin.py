"""What people ask of streams, and order: one method per verb. Each may wait for MongoDB."""

from __future__ import annotations

from typing import Any

from sluicemq.protocol.errors import BadFrames, BadStream
from sluicemq_broker.runtime import Count
from sluicemq_broker.streams import Streams, summary


class StreamAdmin:
    """The administrative verbs of streams."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def list(self) -> list[dict[str, Any]]:
        """All streams that have had a message, those that other brokers have made too."""
        found = (summary(self._streams.open(name)) for name in self._streams.names())
        return [each for each in found if each]

    def show(self, name: str) -> dict[str, Any]:
        """How one stream stands, and what is kept of it."""
        stream = self._streams.get(name)
        settings, found = stream.settings, summary(stream)
        if found is None:
            raise BadStream(f"stream {name!r} was erased")
        kept = {key: getattr(settings, key) for key in ("max_age", "max_messages", "max_bytes", "max_unread")}
        return {**found, **kept}

    def trim(self, name: str, first: int) -> int:
        """Keep no message before number ``first``; returns how many were kept until now."""
        stream = self._streams.get(name)
        tail, head = stream.store.tail().next, stream.store.head().first
        if not 1 <= first <= tail:
            raise BadFrames(f"first {first} is not from 1 to {tail}, the end of stream {name!r}")
        stream.store.raise_first(first)
        stream.kept_from(first)
        gone = max(0, first - head)
        stream.counters.add(Count.TRIMMED, gone)
        return gone

    def erase(self, name: str) -> int:
        """Keep no message of a stream; its numbers go on if anything is published again."""
        gone = self._streams.remove(name)
        self._streams.open(name).counters.add(Count.TRIMMED, gone)
        return gone
