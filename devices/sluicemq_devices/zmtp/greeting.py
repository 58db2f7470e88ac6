"""The greeting and the READY command of a ZMTP 3 connection (ZeroMQ RFC 23 and 37), written and read.

Greeting: ``ff``, 8 bytes, ``7f``, major, minor, mechanism (20 bytes), as-server, 31 bytes.
Command: length of its name, name; then, for READY, of each property: length of its name, name, length of its
value (4 bytes), value.
"""

from __future__ import annotations

from typing import Final

from sluicemq_devices.zmtp.credentials import NULL
from sluicemq_devices.zmtp.frames import short

#: First part of the greeting: signature and version.
VERSION: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01"
GREETING_SIZE: Final = 64

_OLD, _MECHANISM = 3, slice(12, 32)
_SIGNATURE_END, _MAJOR, _MINOR = 9, 10, 11


def choice(mechanism: str, *, as_server: bool) -> bytes:
    """Return the second part of the greeting."""
    return mechanism.encode().ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


GREETING: Final = VERSION + choice(NULL, as_server=False)


def minor_of(greeting: bytes) -> int:
    """Return the minor version that a whole greeting names; ours if its major version is newer."""
    return greeting[_MINOR] if greeting[_MAJOR] == _OLD else 1


def not_spoken(data: bytes) -> str:
    """Return why a greeting, or its beginning, is not one of ZMTP 3; empty if it is."""
    if data[:1] not in (b"", b"\xff") or data[_SIGNATURE_END:_MAJOR] not in (b"", b"\x7f"):
        return f"it does not speak ZMTP 3, but sent {data[:24]!r}"
    if len(data) > _MAJOR and data[_MAJOR] < _OLD:
        return "it does not speak ZMTP 3, but an older one: its ZeroMQ is from before 2013 (libzmq 4.0)"
    return ""


def mechanism_of(data: bytes) -> bytes | None:
    """Return the mechanism that a greeting names; None if that has not come yet."""
    return data[_MECHANISM].rstrip(b"\0") if len(data) >= _MECHANISM.stop else None


def offered_by(data: bytes, awaited: str) -> str:
    """Describe a greeting, or its beginning, and the command that is missing; empty if no byte came."""
    if len(data) <= _SIGNATURE_END:
        return f"the first {len(data)} bytes of a greeting" if data else ""
    if len(data) <= _MAJOR:
        return "a greeting that ends before its version: as of a ZeroMQ from before 2013 (libzmq 3.2)"
    version = f"ZMTP {data[_MAJOR]}" + (f".{data[_MINOR]}" if len(data) > _MINOR else "")
    mechanism = mechanism_of(data)
    if mechanism is None:
        return f"{version}, no mechanism"
    return f"{version}, the mechanism {mechanism!r}, no {awaited} command"


def read_properties(data: bytes) -> dict[bytes, bytes] | None:
    """Return the properties of READY by lower-case name; None if they can't be read."""
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
    """Return one property as READY carries it; its name has up to 255 bytes."""
    return short(name) + len(value).to_bytes(4) + value


def split(body: bytes) -> tuple[bytes, bytes]:
    """Return the name of a command and its data; an empty name if it is broken."""
    length = body[0] if body else 0
    return (body[1 : 1 + length], body[1 + length :]) if length < len(body) else (b"", b"")


def complaint(about: bytes) -> str:
    """Return the text of an ERROR command, for the log."""
    return f"it says ERROR: {about[1:200].decode(errors='replace')!r}"
