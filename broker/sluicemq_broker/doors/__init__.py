"""The doors of the broker: SMQ/1 for the library, REQ, REP, PUSH, PULL and SUB for plain sockets."""

from sluicemq_broker.doors.device import Device, ForwarderDevice, QueueDevice
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.smq.sessions import SessionDoor
from sluicemq_broker.doors.stream_device import StreamDevice

__all__ = [
    "Device",
    "ForwarderDevice",
    "QueueDevice",
    "Services",
    "SessionDoor",
    "StreamDevice",
]
