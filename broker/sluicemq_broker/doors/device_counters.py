"""The counters of a device."""

from __future__ import annotations

from sluicemq_devices.hub import DeviceCount


def counts_of_device(*, received: int, sent: int, lost: int, paused: float = 0.0) -> dict[str, int]:
    """Return a device's counters by their names; ``paused``: seconds."""
    return {
        DeviceCount.RECEIVED: received,
        DeviceCount.SENT: sent,
        DeviceCount.LOST: lost,
        DeviceCount.PAUSED: int(paused * 1000),
    }
