"""ZeroMQ's protocol, ZMTP 3.0 and 3.1: greeting, mechanisms, frames, messages."""

from sluicemq_devices.zmtp.credentials import CURVE, NULL, PLAIN, Credentials
from sluicemq_devices.zmtp.curve import load as load_curve
from sluicemq_devices.zmtp.frames import (
    LARGE,
    LONG,
    MORE,
    PING,
    Message,
    encode,
    encode_large,
    first_frame,
    ping,
)
from sluicemq_devices.zmtp.mechanism import Traffic
from sluicemq_devices.zmtp.messages import FramePeer, RawPeer
from sluicemq_devices.zmtp.peer import M, Peer
from sluicemq_devices.zmtp.terms import NULL_TERMS, Terms

__all__ = [
    "CURVE",
    "LARGE",
    "LONG",
    "MORE",
    "NULL",
    "NULL_TERMS",
    "PING",
    "PLAIN",
    "Credentials",
    "FramePeer",
    "M",
    "Message",
    "Peer",
    "RawPeer",
    "Terms",
    "Traffic",
    "encode",
    "encode_large",
    "first_frame",
    "load_curve",
    "ping",
]
