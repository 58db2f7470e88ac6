"""The bytes with which a ZMTP 3 connection begins (ZeroMQ RFC 23 and 37), and what a stranger's mean.

Greeting: ``ff``, 8 bytes, ``7f``, major, minor, mechanism (20 bytes), as-server, 31 bytes.
Command: length of its name, name; then, for READY, of each property: length of its name, name, length of its
value (4 bytes), value.
"""

from __future__ import annotations

from typing import Final

from sluicemq_devices.zmtp.frames import short

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
#: Of it, the first part: signature and version.
VERSION_END: Final = 12

_OLD, _MECHANISM = 3, slice(12, 32)
_SIGNATURE_END, _MAJOR, _MINOR = 9, 10, 11


def minor_of(greeting: bytes) -> int:
    """The minor version that a whole greeting names; of a ZMTP yet to come, that of ours."""
    return greeting[_MINOR] if greeting[_MAJOR] == _OLD else 1


def not_spoken(data: bytes) -> str:
    """Why a greeting, or the beginning of one, is not that of ZMTP 3 with NULL; empty if it is."""
    if data[:1] not in (b"", b"\xff") or data[_SIGNATURE_END:_MAJOR] not in (b"", b"\x7f"):
        return f"it does not speak ZMTP 3, but sent {data[:24]!r}"
    if len(data) > _MAJOR and data[_MAJOR] < _OLD:
        return "it does not speak ZMTP 3, but an older one: its ZeroMQ is from before 2013 (libzmq 4.0)"
    if len(data) >= _MECHANISM.stop and data[_MECHANISM] != GREETING[_MECHANISM]:
        return f"no handshake: it wants the mechanism {_mechanism(data)!r}, and only NULL is spoken here"
    return ""


def offered_by(data: bytes) -> str:
    """A greeting, or the beginning of one, in words; empty if there is nothing of it."""
    if len(data) <= _SIGNATURE_END:
        return f"the first {len(data)} bytes of a greeting" if data else ""
    if len(data) <= _MAJOR:
        return "a greeting that ends before its version: as of a ZeroMQ from before 2013 (libzmq 3.2)"
    version = f"ZMTP {data[_MAJOR]}" + (f".{data[_MINOR]}" if len(data) > _MINOR else "")
    if len(data) < _MECHANISM.stop:
        return f"{version}, no mechanism"
    return f"{version}, the mechanism {_mechanism(data)!r}, no READY command"


def read_properties(data: bytes) -> dict[bytes, bytes] | None:
    """By lower-case name; None: they can't be read."""
    properties: dict[bytes, bytes] = {}
    while data:
        name, rest = split(data)
        end = 4 + int.from_bytes(rest[:4])
        if not name or len(rest) < end:
            return None
        properties[name.lower()] = rest[4:end]
        data = rest[end:]
    return properties


def ready_property(name: bytes, value: bytes) -> bytes:
    """One property, as READY says it; its name in up to 255 bytes."""
    return short(name) + len(value).to_bytes(4) + value


def split(body: bytes) -> tuple[bytes, bytes]:
    """Name of a command, and what comes after it; no name: it is broken."""
    length = body[0] if body else 0
    return (body[1 : 1 + length], body[1 + length :]) if length < len(body) else (b"", b"")


def complaint(about: bytes) -> str:
    """What an ERROR command says, in words for the log."""
    return f"it says ERROR: {about[1:200].decode(errors='replace')!r}"


def _mechanism(greeting: bytes) -> bytes:
    return greeting[_MECHANISM].rstrip(b"\0")
