"""A configured device: its two ends, and the durable queue or the relay between them."""

from __future__ import annotations

from typing import Any

from sluicemq_broker.config import DeviceSettings
from sluicemq_broker.doors.backends import Backend, PullBackend, RepBackend
from sluicemq_broker.doors.device_counters import of_device, paused
from sluicemq_broker.doors.frontends import Frontend, PushFrontend
from sluicemq_broker.doors.requests import RequestFrontend
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.stream_device import StreamDevice
from sluicemq_devices.relays import Forwarder, Kind
from sluicemq_devices.sockets import Switchboard

_ENDS: dict[str, tuple[type[Frontend], type[Backend]]] = {
    Kind.STREAMER: (PushFrontend, PullBackend),
    Kind.QUEUE: (RequestFrontend, RepBackend),
}


class QueueDevice:
    """A STREAMER or a QUEUE: producers, a durable queue, workers."""

    def __init__(self, settings: DeviceSettings, services: Services) -> None:
        frontend, backend = _ENDS[settings.kind]
        self._settings = settings
        self.frontend = frontend(settings, services)
        self.backend = backend(settings, services)

    @property
    def name(self) -> str:
        """Under which it counts: with all others of this kind and queue."""
        return f"{self._settings.kind}.{self._settings.queue}"

    @property
    def received(self) -> int:
        """Messages that have come in so far."""
        return self.frontend.received

    @property
    def taking_in(self) -> bool:
        """True while something that has come in is not stored."""
        return self.frontend.mark.count > 0

    def start(self) -> None:
        """Open the doors, those of the workers first."""
        self.backend.start()
        self.frontend.start()

    def read_all(self) -> None:
        """The broker stops: read the doors where intake is paused, too."""
        self.frontend.read_all()

    def close_gates(self) -> None:
        """Let no producer in any more, after what has been read was taken in."""
        self.frontend.close_gates()

    def stop(self) -> None:
        """Close the doors."""
        self.frontend.stop()
        self.backend.stop()

    def figures(self) -> dict[str, Any]:
        """What it holds: ``unsettled`` at its workers, the rest on its way into MongoDB."""
        mark = self.frontend.mark
        return {
            "connections": self.frontend.connections + self.backend.connections,
            "held": mark.count,
            "held_bytes": mark.bytes,
            "unsettled": self.backend.unsettled,
            "shut": self.frontend.is_shut,
        }

    def counted(self) -> dict[str, int]:
        """What it has counted since its start."""
        front = self.frontend
        return of_device(
            received=front.received, sent=self.backend.sent, lost=front.lost, paused=paused(front.doors)
        )

    def subscribers(self) -> None:
        """Return None: it is no forwarder."""

    def describe(self) -> dict[str, Any]:
        """What it is and where its doors are."""
        return {
            "kind": self._settings.kind,
            "queue": self._settings.queue,
            "frontend": [door.address for door in self.frontend.doors],
            "backend": [door.address for door in self.backend.doors],
            "commit": [door.address for door in self.backend.commit_doors],
        }


class ForwarderDevice:
    """A FORWARDER: publishers and subscribers, and nothing that lasts between them."""

    name = str(Kind.FORWARDER)
    received = 0  # what it relays is not taken in
    taking_in = False

    def __init__(self, settings: DeviceSettings, board: Switchboard) -> None:
        self._settings = settings
        self._relay = Forwarder(
            board,
            list(settings.frontends),
            list(settings.backends),
            hwm=settings.hwm,
            hwm_bytes=settings.hwm_bytes,
        )

    def start(self) -> None:
        """Open the doors."""
        self._relay.start()

    def read_all(self) -> None:
        """It reads all the time."""

    def close_gates(self) -> None:
        """It relays until it is stopped."""

    def stop(self) -> None:
        """Close the doors."""
        self._relay.stop()

    def figures(self) -> dict[str, Any]:
        """What it holds for subscribers."""
        return {
            "connections": self._relay.connections,
            "held": self._relay.backlog,
            "held_bytes": 0,
            "unsettled": 0,
            "shut": False,
        }

    def counted(self) -> dict[str, int]:
        """What it has counted since its start; it pauses publishers, not its doors."""
        relay = self._relay
        return of_device(received=relay.received, sent=relay.sent, lost=relay.lost)

    def subscribers(self) -> list[dict[str, Any]]:
        """Who subscribes, and what each has lost."""
        return self._relay.subscribers

    def describe(self) -> dict[str, Any]:
        """What it is and where its doors are."""
        addresses, fronts = self._relay.addresses, len(self._settings.frontends)
        ends = {"frontend": addresses[:fronts], "backend": addresses[fronts:], "commit": []}
        return {"kind": Kind.FORWARDER, "queue": "", **ends}


Device = QueueDevice | ForwarderDevice | StreamDevice
