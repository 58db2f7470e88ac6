"""Streams: listed, shown, trimmed, erased; with their subscriptions and routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from sluicemq.protocol.errors import BadFramesError, BadStreamError
from sluicemq.protocol.packed import unpack
from sluicemq.protocol.rows import MessageRow, MessagesRow, RouteRow, StreamRow, StreamsRow, SubscriptionRow
from sluicemq.protocol.wire import MAX_NUMBER
from sluicemq_broker.config import RouteSettings
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import Unchanged
from sluicemq_broker.streams import ChosenMessages, Streams, Subscriptions, Topics, Usage, Wanted, summary
from sluicemq_devices.hub import let_others_run

#: Pages in which one answer looks for a topic, and bytes of each; bytes of a message that are shown.
_PAGES, _PAGE_BYTES, _SHOWN = 20, 1 << 20, 2048


class MessagesQuery(Struct, frozen=True):
    """Messages behind number ``after``, or from the time ``since`` on; else the newest."""

    after: Annotated[int, Meta(ge=0)] | None = None
    since: Annotated[float, Meta(ge=0, description="Unix seconds")] | None = None
    topic: Annotated[str, Meta(description="as a subscriber gives it")] = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class SeekBody(Struct, frozen=True):
    """Where a subscription goes on: behind this number; -1: behind the newest message."""

    watermark: Annotated[int, Meta(ge=-1, le=MAX_NUMBER)]


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

    def messages(self, name: str, query: MessagesQuery) -> MessagesRow:
        """Return messages from a number or a time on, with a topic; else the newest ones.

        Where few messages have the topic it looks at some pages, and says how far it has come.
        """
        stream = self._streams.get(name)
        newest, kept_from = stream.end() - 1, stream.store.head().first
        topics = Topics([query.topic.encode()] if query.topic else [], Usage())
        at = max(kept_from, newest - query.limit + 1)
        if query.since is not None:
            at = stream.since(query.since)
        elif query.after is not None:
            at = query.after + 1
        rows: list[MessageRow] = []
        for _ in range(_PAGES):
            reading = stream.read(Wanted(at, topics, query.limit, _PAGE_BYTES))
            at = reading.first
            rows += [row for part in reading.chosen for row in _messages(part)]
            if rows or not reading.more:
                break
            let_others_run()
        return MessagesRow(
            messages=tuple(rows), after=at - 1, first=kept_from, newest=newest, more=at <= newest
        )

    def seek(self, stream: str, name: str, watermark: int, peer: str) -> Unchanged | None:
        """Set the watermark of a subscription that nobody holds; ``peer``: who asks for it."""
        return None if self._subscriptions.seek(stream, name, watermark, peer) else Unchanged()

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


def _messages(part: ChosenMessages) -> Iterator[MessageRow]:
    """Yield the messages of a segment that were chosen."""
    segment = part.segment
    places = range(segment.count) if part.places is None else part.places
    for place, (topic, *body) in zip(places, unpack(part.packed), strict=True):
        whole = b"".join(body)
        yield MessageRow(
            number=segment.first + place,
            at=segment.at,
            topic=topic,
            body=whole[:_SHOWN],
            size=len(whole),
            frames=len(body),
        )


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
