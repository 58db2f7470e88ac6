"""Just enough of ZMTP 3 to see how large a message becomes while it still comes.

libzmq bounds a frame (``maxmsgsize``) but not a message: it keeps the frames of one that never ends
until there is no memory left, and hands over nothing.
"""

from __future__ import annotations

_GREETING = 64
_VERSION_AT, _MECHANISM = 10, slice(12, 32)
_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT_HEADER, _LONG_HEADER = 2, 9

#: Frames of one message, at most: room for any envelope, and 4 MiB in libzmq.
MOST_FRAMES = 65_536


class MessageMeter:
    """Follows the frame headers of one direction of a connection.

    Only what is in clear: with CURVE the sizes are encrypted, and older ZMTP is left to libzmq.

        +-------+------------------+-----------+
        | flags | size: 1 or 8 (LONG) bytes    |  then ``size`` bytes of body
        +-------+------------------+-----------+
          MORE 1, LONG 2, COMMAND 4
    """

    def __init__(self, most_bytes: int) -> None:
        """``most_bytes``: the bodies of one message together, at most."""
        self.frames = 0
        self.bytes = 0
        self._most_bytes = most_bytes
        self._following = True
        self._greeting = b""
        self._skip = 0  # bytes of a body that lie ahead
        self._header = b""  # the beginning of a header that was cut by a chunk's end

    def over(self, data: bytes) -> bool:
        """Take the next bytes of the stream; whether the message that they belong to is too large."""
        if len(self._greeting) < _GREETING:
            data = self._greet(data)
        return self._following and self._walk(self._header + data if self._header else data)

    def _greet(self, data: bytes) -> bytes:
        missing = _GREETING - len(self._greeting)
        self._greeting += data[:missing]
        if len(self._greeting) == _GREETING:
            mechanism = self._greeting[_MECHANISM].rstrip(b"\0")
            self._following = self._greeting[_VERSION_AT] >= 3 and mechanism in (b"NULL", b"PLAIN")
        return data[missing:]

    def _walk(self, data: bytes) -> bool:
        at, end = self._skip, len(data)
        last = end - _SHORT_HEADER
        frames, size = self.frames, self.bytes
        while at <= last:
            flags = data[at]
            if not (flags or frames):  # a message of one short frame, as most are: at half the cost
                at += _SHORT_HEADER + data[at + 1]
                continue
            if flags & _LONG:
                if at + _LONG_HEADER > end:
                    break
                length = int.from_bytes(data[at + 1 : at + _LONG_HEADER])
                at += _LONG_HEADER + length
            else:
                length = data[at + 1]
                at += _SHORT_HEADER + length
            if flags & _COMMAND:
                continue
            frames += 1
            size += length
            if frames > MOST_FRAMES or size > self._most_bytes:
                return True
            if not flags & _MORE:
                frames = size = 0
        self.frames, self.bytes = frames, size
        self._skip = max(0, at - end)
        self._header = data[at:] if at < end else b""
        return False
