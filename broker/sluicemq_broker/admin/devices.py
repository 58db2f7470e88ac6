"""Devices: their doors, what they hold, and what they have counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sluicemq.protocol.rows import CountedRow, DeviceRow, ForwarderRow, SubscriberRow


class Device(Protocol):
    """A configured device, as administration sees it; ``subscribers``: of a forwarder, else None."""

    @property
    def name(self) -> str:
        """Return the name under which it counts."""

    def describe(self) -> dict[str, Any]:
        """Return its kind and the addresses of its doors."""

    def figures(self) -> dict[str, Any]:
        """Return how much it holds."""

    def counted(self) -> dict[str, int]:
        """Return its counters."""

    def subscribers(self) -> list[dict[str, Any]] | None:
        """Return a forwarder's subscribers, and how many messages each has lost; None: no forwarder."""


class DeviceAdmin:
    """The devices of a broker."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices

    def all(self) -> tuple[DeviceRow, ...]:
        """Return each device: its doors, what it holds, its counters."""
        return tuple(
            DeviceRow(
                name=device.name,
                **device.describe(),
                **device.figures(),
                counted=CountedRow(**device.counted()),
            )
            for device in self._devices
        )

    def forwarders(self) -> tuple[ForwarderRow, ...]:
        """Return the doors of each forwarder, and how many messages each of its subscribers has lost."""
        return tuple(
            ForwarderRow(**device.describe(), subscribers=tuple(SubscriberRow(**row) for row in subscribers))
            for device in self._devices
            if (subscribers := device.subscribers()) is not None
        )
