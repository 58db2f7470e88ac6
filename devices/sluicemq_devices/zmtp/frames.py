"""Frames as ZMTP 3 sends them (ZeroMQ RFC 23).

frame:    flags  size: 1 byte, or 8 if LONG  body         flags: MORE 1, LONG 2, COMMAND 4
command:  a frame whose body is: length of name, name, data
"""

from __future__ import annotations

import struct

#: A message: the bodies of its frames.
Message = list[bytes]

MORE, LONG, COMMAND = 1, 2, 4
#: Frames from this size on are neither copied when they are sent, nor received in pieces.
LARGE = 65_536

_LONG_HEADER = struct.Struct(">BQ")
_SHORT_LAST = [bytes((0, length)) for length in range(256)]
_SHORT_MORE = [bytes((MORE, length)) for length in range(256)]


def encode(frames: Message) -> bytes:
    """Return a message as the bytes that are sent."""
    if len(frames) == 1 and len(frames[0]) < 256:
        return _SHORT_LAST[len(frames[0])] + frames[0]
    parts: list[bytes] = []
    for frame in frames:
        length = len(frame)
        parts.append(_SHORT_MORE[length] if length < 256 else _LONG_HEADER.pack(MORE | LONG, length))
        parts.append(frame)
    length = len(frames[-1])
    parts[-2] = _SHORT_LAST[length] if length < 256 else _LONG_HEADER.pack(LONG, length)
    return b"".join(parts)


def encode_large(frames: Message) -> list[bytes]:
    """Return a message as parts to be sent in order, so that no large frame is copied."""
    parts: list[bytes] = []
    small: list[bytes] = []
    for at, frame in enumerate(frames):
        length, more = len(frame), MORE if at < len(frames) - 1 else 0
        small.append(bytes((more, length)) if length < 256 else _LONG_HEADER.pack(more | LONG, length))
        if length < LARGE:
            small.append(frame)
        else:
            parts += [b"".join(small), frame]
            small = []
    return [*parts, b"".join(small)] if small else parts


def first_frame(encoded: bytes) -> bytes:
    """Return the body of the first frame of an encoded message."""
    if encoded[0] & LONG:
        return bytes(encoded[9 : 9 + int.from_bytes(encoded[1:9])])
    return encoded[2 : 2 + encoded[1]]


def command(name: bytes, about: bytes) -> bytes:
    """Return a command as the bytes that are sent."""
    body = short(name) + about
    header = bytes((COMMAND, len(body))) if len(body) < 256 else _LONG_HEADER.pack(COMMAND | LONG, len(body))
    return header + body


def short(text: bytes) -> bytes:
    """Return a text of up to 255 bytes, with its length before it."""
    return bytes((len(text),)) + text


def ping(context: bytes = b"") -> bytes:
    """Return a PING, whose PONG brings the context back (up to 16 bytes; RFC 37)."""
    return command(b"PING", bytes(2) + context)


#: A heartbeat: a PING without a context.
PING = ping()
