"""Streams: listed, shown, trimmed, erased; with their subscriptions and routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sluicemq.protocol.errors import BadFrames, BadStream
from sluicemq_broker.config import RouteSettings
from sluicemq_broker.runtime import Count
from sluicemq_broker.streams import Streams, Subscriptions, summary


class StreamAdmin:
    """The streams of a broker. Each method may wait for MongoDB."""

    def __init__(
        self, streams: Streams, subscriptions: Subscriptions, routes: Sequence[RouteSettings]
    ) -> None:
        self._streams = streams
        self._subscriptions = subscriptions
        self._routes = routes

    def overview(self) -> dict[str, Any]:
        """Return ``{streams, subscriptions, routes}``: each subscription and route with how far it is."""
        subscriptions = self._subscriptions.listed()
        states = {(each["stream"], each["name"]): each for each in subscriptions}
        return {
            "streams": self.list(),
            "subscriptions": subscriptions,
            "routes": [_route(each, states.get((each.stream, each.name), {})) for each in self._routes],
        }

    def list(self) -> list[dict[str, Any]]:
        """Return all streams that have had a message, with those that other brokers have made."""
        found = (summary(self._streams.open(name)) for name in self._streams.names())
        return [each for each in found if each]

    def show(self, name: str) -> dict[str, Any]:
        """Return how many messages one stream has, and how many it may keep."""
        stream = self._streams.get(name)
        settings, found = stream.settings, summary(stream)
        if found is None:
            raise BadStream(f"stream {name!r} was erased")
        kept = {key: getattr(settings, key) for key in ("max_age", "max_messages", "max_bytes", "max_unread")}
        return {**found, **kept}

    def trim(self, name: str, first: int) -> int:
        """Remove all messages before number ``first``; returns how many those were."""
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
        """Remove all messages of a stream; the next one published gets the next number."""
        gone = self._streams.remove(name)
        self._streams.open(name).counters.add(Count.TRIMMED, gone)
        return gone


def _route(settings: RouteSettings, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a route with how far its subscription is."""
    return {
        "stream": settings.stream,
        "topics": list(settings.topics),
        "queue": settings.queue,
        "subscription": settings.name,
        **{name: state.get(name) for name in ("behind", "seconds_behind", "holder", "watermark")},
    }
