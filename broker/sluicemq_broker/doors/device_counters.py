"""What a device counts of what goes through it."""

from __future__ import annotations

from collections.abc import Sequence

from sluicemq_devices.hub import DeviceCount
from sluicemq_devices.sockets import LaneDoor, RawDoor


def of_device(*, received: int, sent: int, lost: int, paused: float = 0.0) -> dict[str, int]:
    """The counters of a device, by their names; ``paused``: seconds."""
    return {
        DeviceCount.RECEIVED: received,
        DeviceCount.SENT: sent,
        DeviceCount.LOST: lost,
        DeviceCount.PAUSED: int(paused * 1000),
    }


def paused(doors: Sequence[LaneDoor] | Sequence[RawDoor]) -> float:
    """Seconds for which the doors of a front were not read: all of them at once, so the longest."""
    return max((door.paused_for for door in doors), default=0.0)
