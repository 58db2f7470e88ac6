"""A configured device: its two ends, and the durable queue or the relay between them."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from sluicemq.protocol.permissions import Action
from sluicemq_broker import admin
from sluicemq_broker.config import DeviceSettings
from sluicemq_broker.doors.backends import Backend, PullBackend, RepBackend
from sluicemq_broker.doors.frontends import Frontend, PushFrontend
from sluicemq_broker.doors.requests import RequestFrontend
from sluicemq_broker.doors.services import Services
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import charge, may_stay, put_back, takes
from sluicemq_devices.hub import DeviceCount
from sluicemq_devices.relays import Forwarder, Kind
from sluicemq_devices.sockets import RawLane

_ENDS: dict[str, tuple[type[Frontend], type[Backend]]] = {
    Kind.STREAMER: (PushFrontend, PullBackend),
    Kind.QUEUE: (RequestFrontend, RepBackend),
}


class BrokerDevice(admin.Device, Protocol):
    """A device of the broker, as the process starts and stops it."""

    @property
    def received(self) -> int:
        """Return how many messages have come in."""

    @property
    def taking_in(self) -> bool:
        """True while something that came in is not stored."""

    def start(self) -> None:
        """Open the doors. Raises OSError if an address is taken."""

    def read_all(self) -> None:
        """Read the doors whatever holds them back: the broker stops."""

    def close_gates(self) -> None:
        """Let nothing new in; returns when what had come is passed on."""

    def stop(self) -> None:
        """Close the doors."""


class QueueDevice:
    """A STREAMER or a QUEUE: producers, a durable queue, workers."""

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        frontend, backend = _ENDS[settings.kind]
        self._settings = settings
        self._frontend = frontend(settings, services)
        self._backend = backend(settings, services)

    @property
    def name(self) -> str:
        """The name under which it counts, with all others of this kind and queue."""
        return f"{self._settings.kind}.{self._settings.queue}"

    @property
    def received(self) -> int:
        """Messages that have come in so far."""
        return self._frontend.doors.received

    @property
    def taking_in(self) -> bool:
        """True while a message that has come in is not stored."""
        return self._frontend.mark.count > 0

    def start(self) -> None:
        """Open the doors, those of the workers first."""
        self._backend.start()
        self._frontend.start()

    def read_all(self) -> None:
        """Read the doors although intake is paused: the broker stops."""
        self._frontend.read_all()

    def close_gates(self) -> None:
        """Take nothing more in; what has been read is stored."""
        self._frontend.close_gates()

    def stop(self) -> None:
        """Close the doors."""
        self._frontend.stop()
        self._backend.stop()

    def figures(self) -> dict[str, Any]:
        """Return what it holds: ``unsettled`` jobs at its workers, the others on their way into MongoDB."""
        mark = self._frontend.mark
        return {
            "connections": self._frontend.doors.connections + self._backend.connections,
            "held": mark.count,
            "held_bytes": mark.bytes,
            "unsettled": self._backend.marks.jobs,
            "shut": self._frontend.is_shut,
        }

    def counted(self) -> dict[str, int]:
        """Return its counters since its start."""
        doors = self._frontend.doors
        return counts_of_device(
            received=doors.received,
            sent=self._backend.sent,
            lost=self._frontend.lost,
            paused=doors.paused_for,
        )

    def subscribers(self) -> None:
        """Return None: it is no forwarder."""

    def describe(self) -> dict[str, Any]:
        """Return its kind and the addresses of its doors."""
        return {
            "kind": self._settings.kind,
            "queue": self._settings.queue,
            "frontend": self._frontend.doors.addresses,
            "backend": self._backend.doors.addresses,
            "commit": self._backend.commit_doors.addresses,
        }


class ForwarderDevice:
    """A FORWARDER: publishers and subscribers, with nothing durable between them."""

    name = str(Kind.FORWARDER)
    received = 0  # nothing that it relays is stored
    taking_in = False

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        self._settings = settings
        self._relay = Forwarder(
            services.board,
            list(settings.frontends),
            list(settings.backends),
            hwm=settings.hwm,
            hwm_bytes=settings.hwm_bytes,
            guard=lambda end: services.security.guard(end, settings),
            # It has no stream, so no name: only the pattern * permits it.
            admits=(partial(_admits_publisher, services.counters), _admits_subscriber),
            published=partial(_charge, services.counters),
        )

    def start(self) -> None:
        """Open the doors."""
        self._relay.start()

    def read_all(self) -> None:
        """Do nothing: it always reads."""

    def close_gates(self) -> None:
        """Do nothing: it relays until it is stopped."""

    def stop(self) -> None:
        """Close the doors."""
        self._relay.stop()

    def figures(self) -> dict[str, Any]:
        """Return what it holds for subscribers."""
        return {
            "connections": self._relay.connections,
            "held": self._relay.backlog,
            "held_bytes": 0,
            "unsettled": 0,
            "shut": False,
        }

    def counted(self) -> dict[str, int]:
        """Return its counters since its start; it pauses publishers, not its doors."""
        relay = self._relay
        return counts_of_device(received=relay.received, sent=relay.sent, lost=relay.lost)

    def subscribers(self) -> list[dict[str, Any]]:
        """Return its subscribers, and how many messages each has lost."""
        return self._relay.subscribers

    def describe(self) -> dict[str, Any]:
        """Return its kind and the addresses of its doors."""
        addresses, fronts = self._relay.addresses, len(self._settings.frontends)
        ends = {"frontend": addresses[:fronts], "backend": addresses[fronts:], "commit": []}
        return {"kind": Kind.FORWARDER, "queue": "", **ends}


def counts_of_device(*, received: int, sent: int, lost: int, paused: float = 0.0) -> dict[str, int]:
    """Return a device's counters by their names; ``paused``: seconds."""
    return {
        DeviceCount.RECEIVED: received,
        DeviceCount.SENT: sent,
        DeviceCount.LOST: lost,
        DeviceCount.PAUSED: int(paused * 1000),
    }


def _charge(counters: Counters, lane: RawLane, messages: list[bytes]) -> bool:
    """Count messages of a publisher; False: they were put back."""
    if put_back(lane, messages, counters):
        return False
    charge(lane, len(messages), sum(map(len, messages)), counters)
    return True


def _admits_publisher(counters: Counters, lane: RawLane) -> bool:
    lane.on(large=partial(takes, lane, counters))
    return may_stay(lane, Action.PUBLISH)


def _admits_subscriber(lane: RawLane) -> bool:
    return may_stay(lane, Action.SUBSCRIBE)
