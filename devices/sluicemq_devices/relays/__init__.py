"""The three devices: STREAMER, QUEUE and FORWARDER."""

from sluicemq_devices.relays.device import HWM, HWM_BYTES, Device, Kind
from sluicemq_devices.relays.forwarder import Forwarder
from sluicemq_devices.relays.queue import Queue
from sluicemq_devices.relays.streamer import Streamer

__all__ = [
    "HWM",
    "HWM_BYTES",
    "Device",
    "Forwarder",
    "Kind",
    "Queue",
    "Streamer",
]
