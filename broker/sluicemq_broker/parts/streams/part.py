"""Streams, put together: the log, its subscriptions, the routes into queues, and who reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import MessagesRow, StreamsRow, SubscriptionRow
from sluicemq_broker.bus import BusKind
from sluicemq_broker.config import DeviceSettings
from sluicemq_broker.doors import Session
from sluicemq_broker.parts.streams.admin import MessagesQuery, SeekBody, StreamAdmin
from sluicemq_broker.parts.streams.device import StreamDevice
from sluicemq_broker.parts.streams.sessions import StreamSession, StreamSessions
from sluicemq_broker.process.duties import Duty, poll
from sluicemq_broker.process.foundation import retried
from sluicemq_broker.process.part import Core, Part
from sluicemq_broker.runtime import LabelledGauge, Subjects
from sluicemq_broker.security import Needs, visible
from sluicemq_broker.store import SubscriptionStore
from sluicemq_broker.streams import Lags, Route, Stream, Streams, StreamServices, Subscriptions
from sluicemq_devices.relays import Kind

if TYPE_CHECKING:
    from sluicemq_broker.http import Site

#: By the key of a subscription's row: name and text of its gauge.
GAUGES: Final = {
    "behind": ("behind_messages", "messages of its stream that it has not read"),
    "seconds_behind": ("behind_seconds", "age of the oldest message that it has not read; 0: there is none"),
    "holder": ("held", "1 while a client holds it"),
}


class StreamsPart(Part):
    """The streams of a broker."""

    settings = ("streams", "routes")

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        config, foundation = core.config, core.foundation
        context = foundation.context
        services = StreamServices(
            foundation.clock, foundation.counters, context.retry, timer=context.timer, names=context.names
        )
        self._streams = Streams(config, services, foundation.database, foundation.bus.channel)
        subscriptions = Subscriptions(self._streams, services, foundation.owners, self._subscriptions_of)
        self._streams.keep(subscriptions.unread)
        self._streams.bound_by(core.disks.get)
        core.keepers.append(self._streams.kept)
        self._lags = Lags(subscriptions)
        self._admin = StreamAdmin(self._streams, subscriptions, config.routes)
        self._sessions = StreamSessions(
            config.broker, self._streams, subscriptions, self._admin, foundation.counters
        )
        self._routes = [
            Route(
                route,
                self._streams.open(route.stream),
                core.jobs.queues.open(route.queue),
                *(subscriptions, core.services.maker, services, foundation.name),
            )
            for route in config.routes
        ]
        self.verbs = self._sessions.verbs(self)
        self.subjects = [Subjects("stream", self._counters, self._streams.database_name)]
        foundation.bus.on(BusKind.SEGMENT, self._streams.on_segment)
        foundation.bus.on(BusKind.STREAM, self._streams.on_stored)

    def join(self, session: Session) -> StreamSession:
        """Return what a session holds and reads."""
        return self._sessions.join(session)

    def device(self, settings: DeviceSettings) -> StreamDevice | None:
        """Return a forwarder with a stream between its ends."""
        if settings.kind != Kind.FORWARDER or settings.stream is None:
            return None
        return StreamDevice(settings, settings.stream, self._streams, self.core.services)

    def add_paths(self, site: Site) -> None:
        """Add the list of streams, subscriptions and routes."""
        site.ask(
            "/streams",
            "streams.list",
            "Streams, their subscriptions with how far each is behind, and routes into queues",
            Needs(Action.SUBSCRIBE, shows=visible.stream_overview),
            StreamsRow,
            lambda _call: self._admin.overview(),
        )
        site.ask(
            "/streams/{stream}/messages",
            "streams.messages",
            "Messages of a stream, from a number or a time on, with a topic; else the newest",
            Needs(Action.SUBSCRIBE, "stream"),
            MessagesRow,
            lambda call, stream: self._admin.messages(stream, call.query),
            query=MessagesQuery,
        )
        site.change(
            "/streams/{stream}/subscriptions/{name}/seek",
            "subscriptions.seek",
            "Move a subscription that nobody holds",
            Needs(Action.MANAGE, "stream"),
            None,
            lambda call, stream, name: self._admin.seek(stream, name, call.body.watermark, call.caller.maker),
            body=SeekBody,
            act="seek",
        )

    def gauges(self) -> Iterable[LabelledGauge]:
        """Return how far each subscription was behind at the last look."""
        rows = self._lags.rows[:1000]
        for key, (name, text) in GAUGES.items():
            values = [((row.stream, row.name), _value(key, row)) for row in rows]
            yield LabelledGauge(f"subscription_{name}", text, ("stream", "subscription"), values)

    def prepare(self) -> None:
        """Find the streams: to publish into one of them needs no permission to make it."""
        retried(self._streams.discover)

    def start(self) -> None:
        """Begin to make jobs of messages."""
        for route in self._routes:
            route.start()

    def duties(self) -> Iterator[Duty]:
        """Return retention, and looks for messages of other brokers."""
        settings = self.core.config.broker
        yield Duty("streams: retention", settings.lease, self._streams.sweep)
        yield poll("streams: messages of other brokers", settings.poll, self._streams.read_newer)
        if settings.http:
            yield Duty("streams: how far subscriptions are behind", settings.lease, self._lags.measure)

    def close_gates(self) -> None:
        """End the routes; sessions refuse messages themselves."""
        for route in self._routes:
            route.close_gates()

    @property
    def busy(self) -> bool:
        """True while a message is not stored, or a route's jobs are not."""
        return any(worker.busy for worker in (*self._streams, *self._routes))

    def _counters(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        return ((stream.name, stream.counters.values) for stream in self._streams)

    def _subscriptions_of(self, stream: Stream) -> SubscriptionStore:
        foundation = self.core.foundation
        return SubscriptionStore(
            foundation.database(stream.settings.database or foundation.settings.database)
        )


def _value(key: str, row: SubscriptionRow) -> float:
    value = getattr(row, key)
    return float(bool(value) if key == "holder" else value)
