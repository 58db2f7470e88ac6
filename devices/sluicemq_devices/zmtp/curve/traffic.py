"""Messages and commands of a connection with CURVE: each frame of ZMTP is the box of one plain frame.

sealed frame:  header, length of "MESSAGE", "MESSAGE", nonce (8 bytes), Box[flags + body]

Its flags are 0 or LONG, as libzmq and JeroMQ send it; the flags of the plain frame are in the box. Any other
flag is refused: it is not authenticated, and would mean nothing. Nonces rise by one, as those of all
implementations do, so that a frame that somebody has taken out is noticed too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Final, cast

from sluicemq_devices.zmtp.curve.sodium import BOX, Broken, seal, unseal
from sluicemq_devices.zmtp.frames import COMMAND, LARGE, LONG, MORE
from sluicemq_devices.zmtp.large_frame import LargeFrame
from sluicemq_devices.zmtp.mechanism import Traffic

#: First parts of the nonces of a side.
FROM_CLIENT: Final = b"CurveZMQMESSAGEC"
FROM_SERVER: Final = b"CurveZMQMESSAGES"

_NAME: Final = b"\x07MESSAGE"
_OVERHEAD: Final = len(_NAME) + 8 + BOX + 1  # bytes of a sealed frame beyond the body of its plain one
_MOST_NONCES: Final = (1 << 64) - 1
_INNER_MORE, _INNER_COMMAND = 1, 2
_INNER: Final = [bytes((flags,)) for flags in range(4)]

_LONG_HEADER = struct.Struct(">BQ")
_SHORT_SEALED: Final = [bytes((0, length)) + _NAME for length in range(256)]
#: Headers of short plain frames, by the flags in the box.
_SHORT_PLAIN: Final = [[bytes((flags, length)) for length in range(256)] for flags in (0, MORE, COMMAND)]
_LONG_FLAGS: Final = [flags | LONG for flags in (0, MORE, COMMAND)]


class CurveTraffic(Traffic):
    """Traffic of one side of a connection, all under one key; the two directions differ in their nonces."""

    __slots__ = (
        "_heard",
        "_inward",
        "_key",
        "_large",
        "_most_sealed",
        "_outward",
        "_rest",
        "_sent",
        "error",
        "held",
        "missing",
    )

    def __init__(
        self, key: bytes, outward: bytes, inward: bytes, *, sent: int, heard: int, most_bytes: int
    ) -> None:
        """``outward``, ``inward``: first parts of nonces; ``sent``, ``heard``: nonces of the handshake.

        ``most_bytes``: of one frame or command that is received.
        """
        self.error = ""
        self.missing = self.held = 0
        self._key = key
        self._outward, self._inward = outward, inward
        self._sent, self._heard = sent, heard
        self._most_sealed = most_bytes + _OVERHEAD
        self._rest = b""
        self._large = LargeFrame()

    def encode(self, frames: list[bytes]) -> bytes:
        """Return a message as the bytes that are sent; ``error`` is set if no nonce is left."""
        if len(frames) == 1:
            return self._seal(0, frames[0])
        sealed = [self._seal(_INNER_MORE, frame) for frame in frames[:-1]]
        return b"".join((*sealed, self._seal(0, frames[-1])))

    def seal(self, encoded: bytes) -> bytes:
        """Return encoded frames as the bytes that are sent; ``error`` is set if no nonce is left."""
        if encoded and not encoded[0] and encoded[1] == len(encoded) - 2:  # one short frame: most messages
            return self._seal(0, encoded[2:])
        view = memoryview(encoded)
        sealed = [
            self._seal(flags & MORE | (flags & COMMAND) >> 1, view[start:stop])
            for flags, start, stop in _frames(encoded)
        ]
        return sealed[0] if len(sealed) == 1 else b"".join(sealed)

    def unseal(self, sealed: bytes) -> bytes:
        """Return the encoded frames that this side has sealed."""
        plain: list[bytes | memoryview] = []
        for _, start, stop in _frames(sealed):
            nonce, box = sealed[start + 8 : start + 16], sealed[start + 16 : stop]
            plain += _plain(unseal(box, self._outward + nonce, self._key))
        return b"".join(plain)

    def open(self, data: bytes | memoryview) -> bytes:
        """Return the encoded frames that are complete with these bytes; keep the rest."""
        plain: list[bytes | memoryview] = []
        try:
            if self._large.missing:
                data = self._add_to_large(data, plain)
            if data and not self.error:
                self._open_all(self._rest + data if self._rest else bytes(data), plain)
        except Broken:
            self._refuse("a frame that is not authentic")
        except (OSError, MemoryError):
            self.error = f"no memory for a frame of which {self._large.missing} bytes were missing"
        self.missing = self._large.missing
        self.held = self._large.held or len(self._rest)
        return b"".join(plain)

    def _seal(self, flags: int, body: bytes | memoryview) -> bytes:
        if self._sent >= _MOST_NONCES:
            self.error = "all nonces of the connection are used"
            return b""
        self._sent += 1
        nonce = self._sent.to_bytes(8)
        box = seal(_INNER[flags] + body, self._outward + nonce, self._key)
        length = len(_NAME) + 8 + len(box)
        beginning = _SHORT_SEALED[length] if length < 256 else _LONG_HEADER.pack(LONG, length) + _NAME
        return b"".join((beginning, nonce, box))

    def _open_all(self, data: bytes, plain: list[bytes | memoryview]) -> None:
        """Open the frames that are complete; keep what is not."""
        at, end, most = 0, len(data), self._most_sealed
        while at + 2 <= end:
            flags, length = data[at], data[at + 1]
            start = at + 2
            if flags & LONG:
                start = at + 9
                if start > end:
                    break
                length = int.from_bytes(data[at + 1 : start])
            stop = start + length
            if flags & ~LONG or not _OVERHEAD <= length <= most:
                self._refuse(f"a frame with flags {flags:#04x} and {length} bytes, of {most} at most")
                break
            if stop > end:
                if length >= LARGE:
                    self._large.begin(length, data[start:])
                    at = end
                break
            self._open(data[start:stop], plain)
            if self.error:
                break
            at = stop
        self._rest = b"" if self.error else data[at:]

    def _open(self, body: bytes | memoryview, plain: list[bytes | memoryview]) -> None:
        """Open one sealed frame."""
        nonce = bytes(body[8:16])
        if body[:8] != _NAME:
            self._refuse(f"{bytes(body[:16])!r} where MESSAGE belongs")
        elif int.from_bytes(nonce) != self._heard + 1:
            self._refuse("a frame whose nonce is not the next one: played back, out of order, or one is lost")
        else:
            opened = unseal(cast("bytes", body[16:]), self._inward + nonce, self._key)
            self._heard += 1
            if opened[0] > _INNER_COMMAND:
                self._refuse(f"a frame with flags {opened[0]:#04x} in its box")
            else:
                plain += _plain(opened)

    def _add_to_large(self, data: bytes | memoryview, plain: list[bytes | memoryview]) -> bytes | memoryview:
        """Add to a large frame; return the bytes behind it."""
        missing = self._large.missing
        body: bytearray | mmap | None = self._large.add(data[:missing])
        if body is not None:
            self._open(memoryview(body), plain)
        return data[missing:]

    def _refuse(self, why: str) -> None:
        self.error = f"broken CURVE: {why}"


def _plain(opened: bytes) -> tuple[bytes, bytes | memoryview]:
    """Return header and body of the plain frame that was in a box; a long one is not copied."""
    flags, length = opened[0], len(opened) - 1
    if length < 256:
        return _SHORT_PLAIN[flags][length], opened[1:]
    return _LONG_HEADER.pack(_LONG_FLAGS[flags], length), memoryview(opened)[1:]


def _frames(encoded: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield flags, start and end of the body of each of these complete frames."""
    at, end = 0, len(encoded)
    while at < end:
        flags = encoded[at]
        start = at + (9 if flags & LONG else 2)
        at = start + int.from_bytes(encoded[at + 1 : start])
        yield flags, start, at
