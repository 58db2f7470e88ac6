"""Doors that are opened, paused and closed together: those at one end of a device."""

from __future__ import annotations

from collections.abc import Iterable

from sluicemq_devices.sockets import LaneDoor, RawDoor


class DoorGroup:
    """The doors at one end of a device."""

    def __init__(self, doors: Iterable[LaneDoor | RawDoor]) -> None:
        self._doors = list(doors)

    @property
    def addresses(self) -> list[str]:
        """The address of each door."""
        return [door.address for door in self._doors]

    @property
    def connections(self) -> int:
        """Open connections."""
        return sum(door.connections for door in self._doors)

    @property
    def received(self) -> int:
        """Messages that have come in so far."""
        return sum(door.received for door in self._doors)

    @property
    def paused_for(self) -> float:
        """Seconds for which the doors were paused: they are paused together, so the longest."""
        return max((door.paused_for for door in self._doors), default=0.0)

    def start(self) -> None:
        """Open the doors. Raises OSError where an address is taken."""
        for door in self._doors:
            door.start()

    def pause(self) -> None:
        """Read nothing and accept no connection until :meth:`resume`."""
        for door in self._doors:
            door.pause()

    def resume(self) -> None:
        """Read on."""
        for door in self._doors:
            door.resume()

    def stop(self) -> None:
        """Close the doors; messages that have been read are still handed over."""
        for door in self._doors:
            door.stop()
