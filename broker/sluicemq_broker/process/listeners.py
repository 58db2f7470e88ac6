"""The doors of a broker put together: sessions, devices, routes, streams, HTTP; and how they are closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gevent

from sluicemq_broker.admin import (
    Admin,
    BrokerAdmin,
    DeadLetterAdmin,
    DeviceAdmin,
    Figures,
    JobAdmin,
    QueueAdmin,
    ScheduleAdmin,
    StreamAdmin,
)
from sluicemq_broker.bus import BusKind
from sluicemq_broker.config import Config, DeviceSettings
from sluicemq_broker.doors import (
    Device,
    ForwarderDevice,
    QueueDevice,
    Services,
    SessionDoor,
    StreamDevice,
)
from sluicemq_broker.process.duties import Duty, poll
from sluicemq_broker.process.foundation import Foundation
from sluicemq_broker.process.jobs import Jobs
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.store import SubscriptionStore
from sluicemq_broker.streams import Lags, Route, Stream, Streams, StreamServices, Subscriptions
from sluicemq_devices.relays import Kind
from sluicemq_devices.sockets import Switchboard

if TYPE_CHECKING:
    from sluicemq_broker.http import HttpDoor


class Listeners:
    """All doors and devices of one broker, and what goes on behind them.

    ``ready``: true while the broker is open, for those who ask over HTTP.
    """

    def __init__(
        self, config: Config, ground: Foundation, jobs: Jobs, maker: JobMaker, ready: Callable[[], bool]
    ) -> None:
        settings, counters = config.broker, ground.counters
        self._config = config
        self._ground = ground
        self._jobs = jobs
        self._board = Switchboard(
            notice=counters.notice,
            count=counters.add,
            max_connections=settings.max_connections,
            keep=True,
            unfinished_bytes=settings.hwm_bytes // 2,
            outgoing=ground.memory.outgoing,
        )
        self._services = Services(settings, counters, self._board, jobs.queues, maker, ground.context.timer)
        ground.memory.follow(self._follow_memory)
        context = ground.context
        streaming = StreamServices(
            ground.clock, counters, context.retry, timer=context.timer, names=context.names
        )
        self._streams = Streams(config, streaming, ground.database, ground.bus.channel)
        ground.bus.on(BusKind.SEGMENT, self._streams.on_segment)
        ground.bus.on(BusKind.STREAM, self._streams.on_stored)
        subscriptions = Subscriptions(self._streams, streaming, ground.owners, self._subscriptions_of)
        self._streams.keep(subscriptions.unread)
        self._lags = Lags(subscriptions)
        self._devices = [self._device(each) for each in config.devices]
        jobs.history.follow("stream", self._of_streams, self._streams.database_name)
        jobs.history.follow("device", self._of_devices, lambda _name: settings.database)
        self._routes = [
            Route(
                each,
                self._streams.open(each.stream),
                jobs.queues.open(each.queue),
                *(subscriptions, maker, streaming, ground.name),
            )
            for each in config.routes
        ]
        admin = self._admin(subscriptions, ready)
        self._sessions = SessionDoor(self._services, admin, self._streams, subscriptions)
        self._http = self._http_door(admin) if settings.http else None

    def start_http(self) -> None:
        """Open the HTTP door: it answers before MongoDB does. Raises OSError if its address is taken."""
        if self._http:
            self._http.start()

    def start(self) -> None:
        """Open the others. Raises OSError where an address is taken."""
        self._board.start()
        for part in (self._sessions, *self._devices, *self._routes):
            part.start()

    def duties(self) -> Iterator[Duty]:
        """What is done at the doors again and again."""
        settings = self._ground.settings
        yield Duty("streams: what is kept of them", settings.lease, self._streams.sweep)
        yield poll("streams: a look for who waits, whatever was told", settings.poll, self._streams.look)
        if self._http:
            yield Duty("streams: how far subscriptions are behind", settings.lease, self._lags.look)
        yield Duty("heartbeats of library sessions", settings.heartbeat / 2, self._sessions.beat)

    def describe(self) -> dict[str, Any]:
        """Those that are open: ``{endpoint, http, devices: [{kind, queue, frontend, backend, commit}]}``."""
        return {
            "endpoint": self._sessions.door.address,
            "http": self._http.address if self._http else "",
            "devices": [each.describe() for each in self._devices],
        }

    # ------------------------------------------------------------------ stop

    def read_all(self) -> None:
        """Read what lies at the devices, whatever holds them back."""
        for device in self._devices:
            device.read_all()

    @property
    def received(self) -> int:
        """Messages that have come in at the devices."""
        return sum(device.received for device in self._devices)

    @property
    def taking_in(self) -> bool:
        """True while something that has come in is not stored, and may hold the devices' doors back."""
        return self._ground.memory.takes_no_more or any(device.taking_in for device in self._devices)

    def close_gates(self) -> None:
        """Let nothing in any more; returns when what had come is passed on."""
        _all_at_once(device.close_gates for device in self._devices)
        self._sessions.close_gates()
        for route in self._routes:
            route.close_gates()

    @property
    def storing(self) -> bool:
        """True if a stream, or a route, has something that is not stored yet."""
        return any(each.busy for each in (*self._streams, *self._routes))

    def stop(self) -> None:
        """Close them, but HTTP; what a lane still held is pushed anew."""
        _all_at_once(part.stop for part in (*self._devices, self._sessions))

    def stop_http(self) -> None:
        """Close what is left."""
        self._board.stop()
        if self._http:
            self._http.stop()

    # ----------------------------------------------------------- parts of it

    def _device(self, settings: DeviceSettings) -> Device:
        if settings.kind != Kind.FORWARDER:
            return QueueDevice(settings, self._services)
        if settings.stream is None:
            return ForwarderDevice(settings, self._board)
        return StreamDevice(settings, settings.stream, self._streams, self._services)

    def _of_streams(self) -> Iterator[tuple[str, Mapping[str, int]]]:
        return ((each.name, each.counters.values) for each in self._streams)

    def _of_devices(self) -> Iterable[tuple[str, Mapping[str, int]]]:
        counted: dict[str, Counter[str]] = {}
        for each in self._devices:
            counted.setdefault(each.name, Counter()).update(each.counted())
        return counted.items()

    def _subscriptions_of(self, stream: Stream) -> SubscriptionStore:
        database = stream.settings.database or self._ground.settings.database
        return SubscriptionStore(self._ground.database(database))

    def _admin(self, subscriptions: Subscriptions, ready: Callable[[], bool]) -> Admin:
        jobs, ground, context = self._jobs, self._ground, self._ground.context
        return Admin(
            BrokerAdmin(context, jobs.queues, ground.store, ground.turns, self._board, ready),
            QueueAdmin(jobs.queues, jobs.census, jobs.tasks),
            JobAdmin(jobs.queues, jobs.census, context),
            DeadLetterAdmin(jobs.queues, jobs.census, jobs.tasks, context),
            jobs.tasks,
            ScheduleAdmin(jobs.schedules),
            StreamAdmin(self._streams, subscriptions, self._config.routes),
            DeviceAdmin(self._devices),
            jobs.history,
            jobs.incidents,
        )

    def _http_door(self, admin: Admin) -> HttpDoor:
        from sluicemq_broker import http  # noqa: PLC0415 - 7 MB and 0.1 s that a broker without it need not have

        ground, settings, outgoing = self._ground, self._ground.settings, self._board.outgoing
        figures = Figures(
            *(admin, ground.counters, self._jobs.queues, self._streams, self._lags),
            *(ground.store, ground.turns),
        )
        connections = http.limited_connections(ground.counters, outgoing)
        site = http.Site(settings, ground.counters, connections, admin, http.Metrics(figures), outgoing)
        return http.HttpDoor(settings.http, site, ground.counters, connections)

    def _follow_memory(self) -> None:
        """What is complete and has to be stored leaves no memory for more large messages, or does again."""
        if self._ground.memory.takes_no_more:
            self._board.unfinished.close()
        else:
            self._board.unfinished.open()


def _all_at_once(steps: Iterable[Callable[[], None]]) -> None:
    """Each may take a second or two to flush; one after the other they would take the deadline."""
    gevent.joinall([gevent.spawn(step) for step in steps])
