"""Bytes that a connection has to send: written at once, or held in order until the kernel takes them."""

from __future__ import annotations

import _socket
from collections import deque
from itertools import islice
from typing import cast

from sluicemq_devices.hub import Watermark
from sluicemq_devices.zmtp import LARGE, Message, encode, encode_large

_AT_ONCE = 256  # buffers given to the kernel in one call, at most
_SMALL = 4096  # bytes of encoded messages, on average, that are cheaper copied than sent one by one
_UNFINISHED = -1
_PART = 100  # bytes that a part takes beyond its own: as an object, and its place among the others

#: Bytes to send, and the weight of the message that ends with them or ``_UNFINISHED``.
_Part = tuple[bytes | memoryview, int]


class Outbox:
    """Writes messages to a socket that never blocks.

    A message counts in ``held`` until the kernel has taken its last byte. Messages that are held when the
    connection ends were not received.
    """

    __slots__ = ("_parts", "_send", "_sendmsg", "broken", "held", "written")

    def __init__(self, socket: _socket.socket, held: Watermark) -> None:
        self.held = held
        self.broken = False
        """True if the connection takes nothing any more."""
        self.written = 0
        """Bytes that the kernel has taken of what was held."""
        self._send = socket.send
        self._sendmsg = socket.sendmsg
        self._parts: deque[_Part] = deque()

    @property
    def parts(self) -> deque[_Part]:
        """Bytes that wait to be sent, in order."""
        return self._parts

    def __bool__(self) -> bool:
        """True if bytes wait to be sent, or new ones would have to."""
        return bool(self._parts) or self.broken

    @property
    def weight(self) -> int:
        """Bytes of memory of all that is held."""
        return self.held.bytes + _PART * len(self._parts)

    def send_command(self, data: bytes) -> bool:
        """Send a command now, unless bytes wait, which are a sign of life, too. False: bytes are held."""
        if self._parts:
            return False
        self._add(data, _UNFINISHED, self._try(data))
        return not self._parts

    def add(self, data: bytes) -> bool:
        """Send a command behind all that waits. False: bytes are held."""
        self._add(data, _UNFINISHED, 0 if self._parts else self._try(data))
        return not self._parts

    def send(self, frames: Message) -> bool:
        """Send a message now, or hold it. False: bytes are held."""
        size = sum([len(frame) for frame in frames])
        if self._parts or size >= LARGE:
            return self._post([frames])
        data = encode(frames)
        sent = self._try(data)
        if sent < len(data):
            self._add(data, size, sent)
            self.held.take(1, size)
            return False
        return True

    def post(self, messages: list[Message], behind: bytes = b"") -> bool:
        """Send several in as few system calls as possible, and hold the rest. False: bytes are held.

        ``behind``: a command that is sent after them.
        """
        return self._post(messages, behind) if behind or len(messages) > 1 else self.send(messages[0])

    def relay(self, messages: list[bytes]) -> bool:
        """Send messages that are encoded already, like :meth:`post`."""
        size = sum(map(len, messages))
        if self._parts or size > _SMALL * len(messages):
            return self._put([(message, len(message)) for message in messages], len(messages), size)
        sent = self._try(b"".join(messages))
        if sent < size:
            self._keep(messages, sent)
            return False
        return True

    @property
    def unsent(self) -> list[bytes]:
        """Messages given to :meth:`relay` whose last byte the kernel has not taken: the peer lacks them.

        A message that was sent in part is whole here: the peer drops the part that it has.
        """
        return [_whole(part) for part, size in self._parts if size != _UNFINISHED]

    def flush(self) -> bool:
        """Send what the kernel takes in one call. False: bytes are still held."""
        gone, lighter, _ = self._write()
        if gone:
            self.held.give(gone, lighter)
        return not self._parts

    def forget(self) -> None:
        """Free what waits: it will not be sent."""
        self._parts.clear()

    def drop(self) -> None:
        """Free what waits, and count it as held no more."""
        self.forget()
        self.held.give(self.held.count, self.held.bytes)

    def _post(self, messages: list[Message], behind: bytes = b"") -> bool:
        parts: list[_Part] = []
        weight = 0
        for frames in messages:
            size = sum([len(frame) for frame in frames])
            weight += size
            parts += _parts_of(frames, size)
        if behind:
            parts.append((behind, _UNFINISHED))
        return self._put(parts, len(messages), weight)

    def _put(self, parts: list[_Part], count: int, weight: int) -> bool:
        """Send ``count`` messages of ``weight`` bytes as far as the kernel takes them; hold the rest."""
        first = not self._parts
        self._parts.extend(parts)
        while first and self._parts:
            gone, lighter, stuck = self._write()
            count, weight = count - gone, weight - lighter
            if stuck:
                break
        if count:
            self.held.take(count, weight)
        return not self._parts

    def _keep(self, messages: list[bytes], sent: int) -> None:
        """Hold the messages behind the first ``sent`` bytes."""
        count = weight = 0
        for message in messages:
            size = len(message)
            if sent >= size:
                sent -= size
                continue
            self._add(message, size, sent)
            sent, count, weight = 0, count + 1, weight + size
        self.held.take(count, weight)

    def _write(self) -> tuple[int, int, bool]:
        """Write once; return the messages that went, their bytes, and True if the kernel takes no more."""
        buffers = [part for part, _ in islice(self._parts, _AT_ONCE)]
        try:
            sent = self._sendmsg(buffers)
        except BlockingIOError:
            return 0, 0, True
        except OSError:
            self.broken = True
            return 0, 0, True
        self.written += sent
        return self._gone(buffers, sent)

    def _gone(self, buffers: list[bytes | memoryview], sent: int) -> tuple[int, int, bool]:
        count = weight = 0
        for buffer in buffers:
            _, size = self._parts.popleft()
            if sent < len(buffer):
                self._parts.appendleft((memoryview(buffer)[sent:] if sent else buffer, size))
                return count, weight, True
            sent -= len(buffer)
            if size != _UNFINISHED:
                count, weight = count + 1, weight + size
        return count, weight, False

    def _try(self, data: bytes) -> int:
        try:
            return self._send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.broken = True
            return 0

    def _add(self, data: bytes, size: int, sent: int) -> None:
        if sent < len(data):
            self._parts.append((memoryview(data)[sent:] if sent else data, size))


def _whole(part: bytes | memoryview) -> bytes:
    return cast("bytes", part.obj) if isinstance(part, memoryview) else part


def _parts_of(frames: Message, size: int) -> list[_Part]:
    if size < LARGE:
        return [(encode(frames), size)]
    *buffers, last = encode_large(frames)
    return [*((buffer, _UNFINISHED) for buffer in buffers), (last, size)]
