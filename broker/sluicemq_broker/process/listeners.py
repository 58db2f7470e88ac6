"""The doors of a broker, put together: library sessions, devices, HTTP; and how they are closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gevent

from sluicemq.protocol.errors import UnavailableError
from sluicemq_broker.admin import (
    Admin,
    BrokerAdmin,
    DeadLetterAdmin,
    DeviceAdmin,
    Figures,
    Finder,
    JobAdmin,
    PrincipalAdmin,
    QueueAdmin,
    ScheduleAdmin,
)
from sluicemq_broker.bus import BusKind
from sluicemq_broker.config import BrokerSettings, DeviceSettings
from sluicemq_broker.doors import BrokerDevice, ForwarderDevice, QueueDevice, SessionDoor
from sluicemq_broker.process.duties import Duty
from sluicemq_broker.process.foundation import Foundation
from sluicemq_broker.process.part import Core, Part
from sluicemq_broker.runtime import LabelledGauge, Subjects
from sluicemq_devices.relays import Kind
from sluicemq_devices.sockets import Switchboard

if TYPE_CHECKING:
    from sluicemq_broker.http import HttpDoor


def switchboard(foundation: Foundation) -> Switchboard:
    """Return what counts and bounds the connections of all doors."""
    settings, counters, memory = foundation.settings, foundation.counters, foundation.memory
    board = Switchboard(
        notice=counters.notice,
        count=counters.add,
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_address,
        max_handshakes=settings.max_handshakes,
        keep=True,
        unfinished_bytes=settings.hwm_bytes // 2,
        outgoing=memory.outgoing,
    )

    def follow_memory() -> None:
        """Read no more large messages while those to be stored take all memory."""
        (board.unfinished.close if memory.takes_no_more else board.unfinished.open)()

    memory.follow(follow_memory)
    return board


class Listeners:
    """All doors and devices of one broker. ``is_open``: true while the broker works, for ``/readyz``."""

    def __init__(
        self,
        core: Core,
        parts: Sequence[Part],
        principals: PrincipalAdmin,
        is_open: Callable[[], bool],
    ) -> None:
        settings = core.config.broker
        self._core = core
        self._parts = parts
        self._board = core.services.board
        self._devices = [self._device(device) for device in core.config.devices]
        core.subjects.append(Subjects("device", self._counters, lambda _name: settings.database))
        admin = self._admin(principals, is_open)
        self._sessions = SessionDoor(core.services, admin, parts)
        self._sessions.clients.channel = lambda: core.foundation.bus.channel(settings.database)
        core.foundation.bus.on(BusKind.CLIENT, self._sessions.clients.on_event)
        self._http = self._http_door(admin) if settings.http else None

    def start_http(self) -> None:
        """Open the HTTP door: it answers before MongoDB does. Raises OSError if its address is taken."""
        if self._http:
            self._http.start()

    def reconfigure(self, settings: BrokerSettings) -> None:
        """Use other live settings."""
        if self._http:
            self._http.reconfigure(settings)

    def start(self) -> None:
        """Open the other doors. Raises OSError if an address is taken."""
        self._board.start()
        self._sessions.start()
        for device in self._devices:
            device.start()

    def duties(self) -> Iterator[Duty]:
        """Return what is repeated at the doors."""
        heartbeat = self._core.config.broker.heartbeat
        yield Duty("heartbeats of library sessions", heartbeat / 2, self._sessions.beat)

    def describe(self) -> dict[str, Any]:
        """Return the open doors: ``{endpoint, http, http_scheme, devices: [{kind, queue, ...}]}``."""
        return {
            "endpoint": self._sessions.door.address,
            "http": self._http.address if self._http else "",
            "http_scheme": self._http.scheme if self._http else "",
            "devices": [device.describe() for device in self._devices],
        }

    # ------------------------------------------------------------------ stop

    def announce_stop(self) -> None:
        """Tell clients of the library that know other brokers to go on there."""
        self._sessions.announce_stop()

    @property
    def quiet(self) -> bool:
        """True if no client of the library waits for an answer, and those that move have left."""
        return self._sessions.quiet

    def read_all(self) -> None:
        """Let devices read all that has come, whatever holds them back."""
        self._core.services.security.principals.read_all()
        for device in self._devices:
            device.read_all()

    @property
    def received(self) -> int:
        """Messages that have come in at the devices."""
        return sum(device.received for device in self._devices)

    @property
    def taking_in(self) -> bool:
        """True while something that came in is not stored, and may hold the devices' doors back."""
        return self._core.foundation.memory.takes_no_more or any(device.taking_in for device in self._devices)

    def close_gates(self) -> None:
        """Let nothing new in; returns when what had come is passed on."""
        _all_at_once(device.close_gates for device in self._devices)
        self._sessions.close_gates()

    def stop(self) -> None:
        """Close all doors but HTTP; jobs that a connection had not taken yet are pushed again."""
        _all_at_once([self._sessions.stop, *(device.stop for device in self._devices)])

    def stop_http(self) -> None:
        """Close what is left."""
        self._board.stop()
        if self._http:
            self._http.stop()

    # ------------------------------------------------------- putting together

    def _device(self, settings: DeviceSettings) -> BrokerDevice:
        for part in self._parts:
            if device := part.device(settings):
                return device
        if settings.stream is not None:
            raise UnavailableError(
                f"device with stream {settings.stream!r}: this broker runs without streams"
            )
        if settings.kind == Kind.FORWARDER:
            return ForwarderDevice(settings, self._core.services)
        return QueueDevice(settings, self._core.services)

    def _counters(self) -> Iterable[tuple[str, Mapping[str, int]]]:
        counted: dict[str, Counter[str]] = {}
        for device in self._devices:
            counted.setdefault(device.name, Counter()).update(device.counted())
        return counted.items()

    def _admin(self, principals: PrincipalAdmin, is_open: Callable[[], bool]) -> Admin:
        jobs, foundation = self._core.jobs, self._core.foundation
        context = foundation.context
        return Admin(
            BrokerAdmin(context, jobs.queues, foundation.store, foundation.turns, self._board, is_open),
            QueueAdmin(jobs.queues, jobs.census, jobs.tasks, jobs.disagreements.of),
            JobAdmin(jobs.queues, jobs.census, context),
            Finder(jobs.queues, jobs.census, context),
            DeadLetterAdmin(jobs.queues, jobs.census, jobs.tasks, context),
            jobs.tasks,
            ScheduleAdmin(jobs.schedules),
            principals,
            DeviceAdmin(self._devices),
            jobs.fleet,
            self._dying,
        )

    def _dying(self) -> dict[str, int]:
        return {queue: count for part in self._parts for queue, count in part.dying().items()}

    def _http_door(self, admin: Admin) -> HttpDoor:
        from sluicemq_broker import http  # noqa: PLC0415 - 7 MB and 0.1 s that a broker without it need not have

        foundation, core, outgoing = self._core.foundation, self._core, self._board.outgoing
        tls = http.Tls(foundation.settings)
        figures = Figures(
            *(admin, foundation.counters, core.jobs.queues, core.subjects),
            *(foundation.store, foundation.turns, self._labelled, lambda: tls.left),
        )
        connections = http.limited_connections(foundation.counters, outgoing)
        metrics = http.Metrics(figures, lambda: http.Detail(core.jobs.queues.config.broker.metrics_detail))
        site = http.Site(
            foundation.settings,
            foundation.counters,
            connections,
            admin,
            metrics,
            outgoing,
            core.services.security,
        )
        for part in self._parts:
            part.add_paths(site)
        return http.HttpDoor(foundation.settings, site, foundation.counters, connections, tls)

    def _labelled(self) -> Iterator[LabelledGauge]:
        return (gauge for part in self._parts for gauge in part.gauges())


def _all_at_once(steps: Iterable[Callable[[], None]]) -> None:
    """Run steps at once: each may flush for a second or two, and one after the other takes too long."""
    gevent.joinall([gevent.spawn(step) for step in steps])
