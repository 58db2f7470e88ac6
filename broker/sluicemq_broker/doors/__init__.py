"""What comes in and goes out: plain frames, SMQ/1, REP, PULL and PUSH doors."""

from sluicemq_broker.doors.device import Device, ForwarderDevice, QueueDevice
from sluicemq_broker.doors.services import Services
from sluicemq_broker.doors.smq.session_streams import SessionStreams
from sluicemq_broker.doors.smq.sessions import SessionDoor
from sluicemq_broker.doors.stream_device import StreamDevice

__all__ = [
    "Device",
    "ForwarderDevice",
    "QueueDevice",
    "Services",
    "SessionDoor",
    "SessionStreams",
    "StreamDevice",
]
