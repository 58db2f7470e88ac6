"""The two forms in which messages are read: lists of frames, or encoded as they came."""

from __future__ import annotations

from collections.abc import Sequence
from mmap import mmap
from typing import Any, cast

from sluicemq_devices.zmtp.frames import LARGE, LONG, MORE, Message, encode
from sluicemq_devices.zmtp.peer import MOST_FRAMES, Peer, too_large

#: Messages of one :meth:`FramePeer.take`, and commands of any, at most: a chunk may hold thousands.
MOST_AT_ONCE = 256
_FIRST = 16
#: Frames of one :meth:`RawPeer.take`, at most, each at a third of the cost.
MOST_RAW_AT_ONCE = 1024

_NO_IDENTITY = b"\0"  # a routing id as ZeroMQ makes them begins with a zero too


class FramePeer(Peer[Message]):
    """Messages as lists of frames; those of a ROUTER begin with the identity of its peer."""

    __slots__ = ("_frames", "_prefix")
    first, limit = _FIRST, MOST_AT_ONCE

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._prefix: Message = []
        self._frames: Message = []

    def forget(self) -> None:
        """Free what is incomplete: the connection has ended."""
        super().forget()
        self._frames = []

    @property
    def begun(self) -> Sequence[bytes]:
        """Return the frames that came of the message that is not complete, without the one that is coming."""
        return self._frames

    @property
    def _frames_begun(self) -> int:
        return len(self._frames) - len(self._prefix)

    def _introduced(self, identity: bytes) -> None:
        if self._kind == "ROUTER":
            self._prefix = [identity or _NO_IDENTITY]
            self._frames = self._prefix.copy()

    def _message(self, frame: bytes) -> Message:
        return [frame]

    def _end_large(self, large: bytearray | mmap | memoryview, *, has_more: bool) -> list[Message]:
        frames = self._frames
        frames.append(bytes(large))
        if has_more:
            return []
        self._frames, self._size = self._prefix.copy(), 0
        return [frames]

    def _read(self, data: bytes, at: int) -> list[Message]:  # noqa: C901 - a call for each frame would cost more than all the rest
        messages: list[Message] = []
        commands = 0
        frames, size, prefix, most_bytes = self._frames, self._size, self._prefix, self._most_bytes
        most_frames = MOST_FRAMES + len(prefix)
        end, most = len(data), self.most
        while at + 2 <= end and len(messages) + commands < most:
            flags = data[at]
            if flags & LONG:
                start = at + 9
                if start > end:
                    break
                length = int.from_bytes(data[at + 1 : start])
            else:
                start, length = at + 2, data[at + 1]
            stop = start + length
            if flags > MORE | LONG:  # a command, or rubbish
                if not self._is_command(flags, length) or stop > end:
                    break
                commands += 1
                messages += self._obey(data[start:stop])
                if self.error:
                    break
                at = stop
                continue
            if size + length > most_bytes or len(frames) >= most_frames:
                self.error = too_large(size + length, most_bytes)
                break
            if stop > end:
                if length >= LARGE:
                    self._begin_large(length, data[start:], has_more=bool(flags & MORE))
                    at, size = end, size + length
                break
            frames.append(data[start:stop])
            size += length
            at = stop
            if not flags & MORE:
                messages.append(frames)
                frames, size = prefix.copy(), 0
        self._frames, self._size, self._rest = frames, size, data[at:]
        if size or self.unfinished or len(frames) > len(prefix):
            self._weigh()
        self.behind = len(messages) + commands >= most and not self.error
        self.idle = self.behind and not messages
        return messages


class RawPeer(Peer[bytes]):
    """Messages as they were sent, with the headers of their frames: a relay only needs to know their ends.

    They are as :func:`~sluicemq_devices.zmtp.encode` writes them, except that a small size may be LONG.
    """

    __slots__ = ("_count", "_parts")
    first = limit = MOST_RAW_AT_ONCE

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._count = 0  # frames of a message that is not complete
        self._parts: list[bytes] = []  # these frames

    def forget(self) -> None:
        """Free what is incomplete: the connection has ended."""
        super().forget()
        self._parts = []

    @property
    def _frames_begun(self) -> int:
        return self._count

    def _message(self, frame: bytes) -> bytes:
        return encode([frame])

    def _end_large(self, large: bytearray | mmap | memoryview, *, has_more: bool) -> list[bytes]:
        # A bytearray serves as bytes, except as a key; a copy would cost as much as all the rest.
        self._parts.append(cast("bytes", large) if isinstance(large, bytearray) else bytes(large))
        return [] if has_more else [self._whole()]

    def _read(self, data: bytes, at: int) -> list[bytes]:  # noqa: C901, PLR0912, PLR0915 - a call for each frame would cost more than all the rest
        messages: list[bytes] = []
        count, most_bytes, end = self._count, self._most_bytes, len(data)
        begin = at  # of what belongs to the message that is being read
        commands = 0
        self.behind = False
        for _ in range(self.most):
            if at + 2 > end:
                break
            flags, length = data[at], data[at + 1]
            start = at + 2
            stop = start + length
            if not (flags or count) and length <= most_bytes and stop <= end:  # as most messages are
                messages.append(data[at:stop])
                begin = at = stop
                continue
            if flags & LONG:
                start = at + 9
                if start > end:
                    break
                length = int.from_bytes(data[at + 1 : start])
                stop = start + length
            if flags > MORE | LONG:  # a command, or rubbish
                if not self._is_command(flags, length) or stop > end:
                    break
                self._set_aside(data[begin:at])
                begin = at = stop
                messages += self._obey(data[start:stop])
                commands += 1
                if self._has_obeyed_enough(commands, messages):
                    break
                continue
            if self._size + length > most_bytes or count >= MOST_FRAMES:
                self.error = too_large(self._size + length, most_bytes)
                break
            if stop > end and length < LARGE:
                break
            self._size += length
            count += 1
            if stop > end:
                self._set_aside(data[begin:at])
                self._begin_large(stop - at, data[at:], has_more=bool(flags & MORE))
                begin = at = end
                break
            at = stop
            if not flags & MORE:
                messages.append(self._whole(data[begin:at]))
                begin, count = at, 0
        else:
            self.behind = True
        self._set_aside(data[begin:at])
        self._count, self._rest = count, data[at:]
        if count or self.unfinished:
            self._weigh()
        return messages

    def _has_obeyed_enough(self, commands: int, messages: list[bytes]) -> bool:
        """True after as many commands as a turn takes: each may need an answer."""
        self.behind = commands >= MOST_AT_ONCE and not self.error
        self.idle = self.behind and not messages
        return self.behind or bool(self.error)

    def _set_aside(self, frames: bytes) -> None:
        """Keep complete frames of a message that goes on."""
        if frames:
            self._parts.append(frames)

    def _whole(self, last: bytes = b"") -> bytes:
        """Return the message that ends with these frames."""
        self._count = self._size = 0
        if not self._parts:
            return last
        self._set_aside(last)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)
