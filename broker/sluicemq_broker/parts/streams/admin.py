"""Streams: listed, shown, trimmed, erased; with their subscriptions and routes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sluicemq.protocol.errors import BadFramesError, BadStreamError
from sluicemq.protocol.rows import RouteRow, StreamRow, StreamsRow, SubscriptionRow
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

    def overview(self) -> StreamsRow:
        """Return streams, subscriptions and routes, with how far each subscription and route is."""
        subscriptions = self._subscriptions.listed()
        states = {(subscription.stream, subscription.name): subscription for subscription in subscriptions}
        return StreamsRow(
            streams=tuple(self.list()),
            subscriptions=tuple(subscriptions),
            routes=tuple(_route(route, states.get((route.stream, route.name))) for route in self._routes),
        )

    def list(self) -> list[StreamRow]:
        """Return all streams that have had a message, with those that other brokers have made."""
        found = (summary(self._streams.open(name)) for name in self._streams.names())
        return [row for row in found if row]

    def show(self, name: str) -> StreamRow:
        """Return how many messages one stream has, and how many it may keep."""
        stream = self._streams.get(name)
        settings, found = stream.settings, summary(stream)
        if found is None:
            raise BadStreamError(f"stream {name!r} was erased")
        return replace(
            found,
            max_age=settings.max_age,
            max_messages=settings.max_messages,
            max_bytes=settings.max_bytes,
            max_unread=settings.max_unread,
        )

    def trim(self, name: str, first: int) -> int:
        """Remove all messages before number ``first``; returns how many those were."""
        stream = self._streams.get(name)
        tail, head = stream.store.tail().next, stream.store.head().first
        if not 1 <= first <= tail:
            raise BadFramesError(f"first {first} is not from 1 to {tail}, the end of stream {name!r}")
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


def _route(settings: RouteSettings, state: SubscriptionRow | None) -> RouteRow:
    """Return a route with how far its subscription is."""
    return RouteRow(
        stream=settings.stream,
        topics=tuple(settings.topics),
        queue=settings.queue,
        subscription=settings.name,
        behind=state.behind if state else None,
        seconds_behind=state.seconds_behind if state else None,
        holder=state.holder if state else None,
        watermark=state.watermark if state else None,
    )
