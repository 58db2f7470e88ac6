"""Doors, lanes and connections."""

from sluicemq_devices.doors.doors import LaneDoor, RawDoor
from sluicemq_devices.doors.endpoints import Endpoint, host_and_port, tcp_address, unix_path
from sluicemq_devices.doors.endpoints import parse as parse_endpoint
from sluicemq_devices.doors.lane import Lane, RawLane
from sluicemq_devices.doors.outgoing import SMALL, Outgoing, Ration
from sluicemq_devices.doors.places import resolved
from sluicemq_devices.doors.switchboard import Switchboard

__all__ = [
    "SMALL",
    "Endpoint",
    "Lane",
    "LaneDoor",
    "Outgoing",
    "Ration",
    "RawDoor",
    "RawLane",
    "Switchboard",
    "host_and_port",
    "parse_endpoint",
    "resolved",
    "tcp_address",
    "unix_path",
]
