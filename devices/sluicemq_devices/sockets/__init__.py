"""Doors, lanes and connections."""

from sluicemq_devices.sockets.addresses import owner_of
from sluicemq_devices.sockets.allow_list import AllowList, Dialling
from sluicemq_devices.sockets.doors import LaneDoor, RawDoor
from sluicemq_devices.sockets.endpoints import Endpoint, host_and_port, tcp_address, unix_path
from sluicemq_devices.sockets.endpoints import parse as parse_endpoint
from sluicemq_devices.sockets.guard import OPEN, Decide, Guard, Guards, open_to_all
from sluicemq_devices.sockets.lane import Lane, RawLane
from sluicemq_devices.sockets.outgoing_budget import SMALL, Outgoing, Ration
from sluicemq_devices.sockets.resolving import resolved
from sluicemq_devices.sockets.switchboard import Switchboard
