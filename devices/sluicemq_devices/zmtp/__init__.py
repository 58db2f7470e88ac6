"""ZeroMQ's protocol, ZMTP 3.0 and 3.1: greeting, mechanisms, frames, messages."""

from sluicemq_devices.zmtp.credentials import CURVE, NULL, PLAIN, Credentials
from sluicemq_devices.zmtp.curve import load as load_curve
from sluicemq_devices.zmtp.frames import (
    COMMAND,
    LARGE,
    LONG,
    MORE,
    PING,
    Message,
    command,
    encode,
    encode_large,
    first_frame,
    ping,
)
from sluicemq_devices.zmtp.greeting import ready_property
from sluicemq_devices.zmtp.mechanism import Mechanism, Traffic
from sluicemq_devices.zmtp.messages import FramePeer, RawPeer
from sluicemq_devices.zmtp.peer import M, Peer
from sluicemq_devices.zmtp.plain import PlainClient, PlainServer
from sluicemq_devices.zmtp.terms import NULL_TERMS, Terms
