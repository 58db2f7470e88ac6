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

from sluicemq_devices.zmtp.curve.sodium import BOX, Boxes, Broken
from sluicemq_devices.zmtp.frames import COMMAND, LARGE, LONG, MORE
from sluicemq_devices.zmtp.large_frame import LargeFrame, memory_of
from sluicemq_devices.zmtp.mechanism import Traffic

#: First parts of the nonces of a side.
FROM_CLIENT: Final = b"CurveZMQMESSAGEC"
FROM_SERVER: Final = b"CurveZMQMESSAGES"

_NAME: Final = b"\x07MESSAGE"
_BEFORE_BOX: Final = len(_NAME) + 8  # name and nonce
_OVERHEAD: Final = _BEFORE_BOX + BOX + 1  # bytes of a sealed frame beyond the body of its plain one
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
        "_boxes",
        "_inward",
        "_large",
        "_most_sealed",
        "_outward",
        "_received",
        "_rest",
        "_sent",
        "error",
        "held",
        "missing",
    )

    def __init__(
        self, key: bytes, outward: bytes, inward: bytes, *, sent: int, received: int, most_bytes: int
    ) -> None:
        """``outward``, ``inward``: first parts of nonces; ``sent``, ``received``: nonces of the handshake.

        ``most_bytes``: of one frame or command that is received.
        """
        self.error = ""
        self.missing = self.held = 0
        self._boxes = Boxes(key)
        self._outward, self._inward = outward, inward
        self._sent, self._received = sent, received
        self._most_sealed = most_bytes + _OVERHEAD
        self._rest = b""
        self._large = LargeFrame()

    def encode(self, frames: list[bytes]) -> bytes:
        """Return a message as the bytes that are sent; ``error`` is set if no nonce is left."""
        if len(frames) == 1 and len(frames[0]) < LARGE:
            return self._seal(0, frames[0])
        *others, last = frames
        if max(map(len, frames)) < LARGE:
            return b"".join([*[self._seal(_INNER_MORE, frame) for frame in others], self._seal(0, last)])
        return self._seal_in_place([*((_INNER_MORE, frame) for frame in others), (0, last)])

    def seal(self, encoded: bytes) -> bytes:
        """Return encoded frames as the bytes that are sent; ``error`` is set if no nonce is left."""
        if encoded and not encoded[0] and encoded[1] == len(encoded) - 2:  # one short frame: most messages
            return self._seal(0, encoded[2:])
        frames = _frames(encoded)
        if len(encoded) < LARGE:
            return b"".join([self._seal(_inner(flags), encoded[start:stop]) for flags, start, stop in frames])
        view = memoryview(encoded)
        return self._seal_in_place([(_inner(flags), view[start:stop]) for flags, start, stop in frames])

    def unseal(self, sealed: bytes) -> bytes:
        """Return the encoded frames that this side has sealed."""
        plain: list[bytes | memoryview] = []
        for _, start, stop in _frames(sealed):
            body = bytearray(sealed[start:stop])
            self._boxes.unseal_in(body, _BEFORE_BOX, self._outward + bytes(body[8:16]))
            plain += (_header(body[_OVERHEAD - 1], len(body) - _OVERHEAD), memoryview(body)[_OVERHEAD:])
        return b"".join(plain)

    def open(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the encoded frames that are complete with these bytes; keep the rest.

        A large frame is in memory of its own: it is returned alone, as a memoryview, and not copied.
        """
        missing = self._large.missing
        if not missing:
            return self._open_small(data)
        frame, rest = self._add_to_large(data[:missing]), data[missing:]
        return b"".join((frame, self._open_small(rest))) if rest and not self.error else frame

    def _seal_in_place(self, frames: list[tuple[int, bytes | memoryview]]) -> bytes:
        """Seal the frames of a message, of which some are large, in the memory from which they are sent."""
        if self._has_no_nonces(len(frames)):
            return b""
        sealed = memory_of(sum([_sealed_size(body) for _, body in frames]))
        start = 0
        for flags, body in frames:
            stop = start + _sealed_size(body)
            if len(body) < LARGE:
                sealed[start:stop] = self._seal(flags, body)
            else:
                self._seal_large(flags, body, sealed, start, stop)
            start = stop
        return cast("bytes", sealed)  # it serves as bytes

    def _seal(self, flags: int, body: bytes | memoryview) -> bytes:
        if self._sent >= _MOST_NONCES and self._has_no_nonces(1):
            return b""
        self._sent += 1
        nonce = self._sent.to_bytes(8)
        box = self._boxes.seal(_INNER[flags] + body, self._outward + nonce)
        length = len(box) + _BEFORE_BOX
        return (_SHORT_SEALED[length] if length < 256 else _long_sealed(length)) + nonce + box

    def _seal_large(
        self, flags: int, body: bytes | memoryview, sealed: bytearray | mmap, start: int, stop: int
    ) -> None:
        """Seal a frame in the memory for it, from ``start`` to ``stop``."""
        self._sent += 1
        nonce = self._sent.to_bytes(8)
        box = start + 9 + _BEFORE_BOX
        sealed[start:box] = _long_sealed(stop - start - 9) + nonce
        sealed[box + BOX] = flags
        memoryview(sealed)[box + BOX + 1 : stop] = body  # without the view it would be copied twice
        self._boxes.seal_in(sealed, box, stop, self._outward + nonce)

    def _has_no_nonces(self, count: int) -> bool:
        """True if fewer than ``count`` nonces are left; ``error`` is set."""
        if self._sent + count > _MOST_NONCES:
            self.error = "all nonces of the connection are used"
        return bool(self.error)

    def _open_small(self, data: bytes | memoryview) -> bytes:
        """Return the frames that are complete with these bytes; keep the rest, perhaps of a large one."""
        plain: list[bytes] = []
        try:
            if data and not self.error:
                self._open_all(self._rest + data if self._rest else bytes(data), plain)
        except Broken:
            self._refuse("a frame that is not authentic")
        self.missing = self._large.missing
        self.held = self._large.held or len(self._rest)
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def _open_all(self, data: bytes, plain: list[bytes]) -> None:
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
            opened = self._open(data[start : start + 16], data[start + 16 : stop])
            if not opened:
                break
            plain.append(opened)
            at = stop
        self._rest = b"" if self.error else data[at:]

    def _open(self, head: bytes, box: bytes) -> bytes:
        """Open one sealed frame; return the plain one, or nothing after an error."""
        if not self._is_next(head):
            return b""
        opened = self._boxes.unseal(box, self._inward + head[8:])
        self._received += 1
        return _plain(opened) if opened[0] <= _INNER_COMMAND else self._refuse_flags(opened[0])

    def _add_to_large(self, data: bytes | memoryview) -> bytes | memoryview:
        """Add to a large frame; return it once it is complete."""
        frame: bytes | memoryview = b""
        try:
            body = self._large.add(data)
            if body is not None:
                frame = self._open_large(body)
        except Broken:
            self._refuse("a frame that is not authentic")
        except (OSError, MemoryError):
            self.error = f"no memory for a frame of which {self._large.missing} bytes were missing"
        self.missing, self.held = self._large.missing, self._large.held
        return frame

    def _open_large(self, body: bytearray | mmap) -> bytes | memoryview:
        """Open a large frame in its memory; its header gets a place before it."""
        head = bytes(body[:16])
        if not self._is_next(head):
            return b""
        self._boxes.unseal_in(body, _BEFORE_BOX, self._inward + head[8:])
        self._received += 1
        flags, start = body[_OVERHEAD - 1], _OVERHEAD - 9
        if flags > _INNER_COMMAND:
            return self._refuse_flags(flags)
        body[start:_OVERHEAD] = _header(flags, len(body) - _OVERHEAD)
        return memoryview(body)[start:]

    def _is_next(self, head: bytes) -> bool:
        """True for name and nonce of the next frame."""
        if head[:8] == _NAME and int.from_bytes(head[8:]) == self._received + 1:
            return True
        if head[:8] != _NAME:
            self._refuse(f"{head!r} where MESSAGE belongs")
        else:
            self._refuse("a frame whose nonce is not the next one: played back, out of order, or one is lost")
        return False

    def _refuse_flags(self, flags: int) -> bytes:
        return self._refuse(f"a frame with flags {flags:#04x} in its box")

    def _refuse(self, why: str) -> bytes:
        """Open nothing any more."""
        self.error = f"broken CURVE: {why}"
        return b""


def _plain(opened: bytes) -> bytes:
    """Return the plain frame that was in a box."""
    return _header(opened[0], len(opened) - 1) + opened[1:]


def _header(flags: int, length: int) -> bytes:
    """Return the header of a plain frame, by the flags that were in the box."""
    return _SHORT_PLAIN[flags][length] if length < 256 else _LONG_HEADER.pack(_LONG_FLAGS[flags], length)


def _inner(flags: int) -> int:
    """Return the flags in the box of a frame with these flags."""
    return flags & MORE | (flags & COMMAND) >> 1


def _long_sealed(length: int) -> bytes:
    return _LONG_HEADER.pack(LONG, length) + _NAME


def _sealed_size(body: bytes | memoryview) -> int:
    """Return the bytes of the sealed frame, with its header."""
    length = len(body) + _OVERHEAD
    return length + (2 if length < 256 else 9)


def _frames(encoded: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield flags, start and end of the body of each of these complete frames."""
    at, end = 0, len(encoded)
    while at < end:
        flags = encoded[at]
        start = at + (9 if flags & LONG else 2)
        at = start + int.from_bytes(encoded[at + 1 : start])
        yield flags, start, at
