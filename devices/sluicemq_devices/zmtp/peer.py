"""One end of a ZMTP 3 connection (ZeroMQ RFC 23 and 37), mechanism NULL: bytes in, messages out.

The greeting (:mod:`.greeting`) is sent in two parts, as libzmq does: first the version, and the rest after
the peer has sent its own. A peer that wants another mechanism or an older ZMTP leaves without an error when
it reads our whole greeting first; this way it has named what it wants, and the log can say so.

Frames (:mod:`.frames`) follow, read in one of the forms of :mod:`.messages`.
This module touches no socket, never waits, and raises nothing for what a stranger sends.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import ClassVar, Generic, TypeVar

from sluicemq_devices.zmtp.frames import COMMAND, LONG, command, encode, short
from sluicemq_devices.zmtp.greeting import (
    GREETING,
    VERSION_END,
    complaint,
    minor_of,
    not_spoken,
    offered_by,
    read_properties,
    ready_property,
    split,
)

#: Frames of one message, at most: room for any envelope.
MOST_FRAMES = 65_536

_MOST_COMMAND = 65_536  # bytes
_MOST_SUBSCRIPTION = 1 << 20  # bytes of a command at XPUB: topics that are too long are refused, not cut
_LONGEST_IDENTITY = 255
_LONGEST_READY = 8192  # bytes
_GROWN = 1 << 20  # bytes of a large frame that must have come before it is received into a mapping
_FRAME = 64  # bytes that a frame takes beyond its own: as an object, and its place in a list

_PARTNERS = {
    "DEALER": (b"REP", b"DEALER", b"ROUTER"),
    "ROUTER": (b"REQ", b"DEALER", b"ROUTER"),
    "PULL": (b"PUSH",),
    "PUSH": (b"PULL",),
    "XPUB": (b"SUB", b"XSUB"),
    "XSUB": (b"PUB", b"XPUB"),
}
_WITH_IDENTITY = ("DEALER", "ROUTER")
_SUBSCRIBE, _CANCEL = b"SUBSCRIBE", b"CANCEL"  # RFC 37, ZMTP 3.1
_AS_MESSAGE = {_SUBSCRIBE: b"\x01", _CANCEL: b"\x00"}  # RFC 23, ZMTP 3.0

M = TypeVar("M")
"""Form in which messages are handed over."""


class Peer(abc.ABC, Generic[M]):
    """Reads the bytes of one peer and sends what the protocol requires.

    Feed :meth:`take`, with no more than ``missing`` bytes while any are missing. Once ``error`` is set,
    nothing more is read: the connection must be cut.
    """

    first: ClassVar[int]
    """Messages of the first :meth:`take`, at most: their cost is not known yet."""
    limit: ClassVar[int]
    """Messages of any :meth:`take`, at most."""

    __slots__ = (
        "_greeted",
        "_kind",
        "_large",
        "_large_has_more",
        "_minor",
        "_most_bytes",
        "_rest",
        "_say",
        "_size",
        "_unsaid",
        "answered",
        "behind",
        "error",
        "identity",
        "idle",
        "knows_ping",
        "missing",
        "most",
        "ready",
        "unfinished",
    )

    def __init__(self, kind: str, most_bytes: int, say: Callable[[bytes], None]) -> None:
        """``kind``: type of this end's socket; ``most_bytes``: limit of one message; ``say``: sends bytes."""
        self.error = ""
        """Reason why the connection must be cut, for the log."""
        self.ready = False
        """True once the handshake is done."""
        self.behind = False
        """True if there may be more messages in what was taken: call :meth:`take` again without bytes."""
        self.idle = False
        """True if a turn's worth of commands came and no message, as no honest peer sends."""
        self.most = self.first
        """Messages of one :meth:`take` now, at most; see :meth:`pace`."""
        self.identity = b""
        """Routing id that the peer has announced, or empty."""
        self.missing = 0
        """Bytes of a large frame that have not come yet."""
        self.unfinished = 0
        """Bytes of memory of an incomplete message, without the small frame that is coming."""
        self.knows_ping = False
        """True if the peer announced ZMTP 3.1 or sent a heartbeat: others may take a PING for a message."""
        self.answered: Callable[[bytes], None] = _unheard
        """Called with the context that a PONG brings back."""
        self._kind = kind
        self._most_bytes = most_bytes
        self._say = say
        self._unsaid = GREETING
        self._greeted = False
        self._rest = b""
        self._minor = 0
        self._large: bytearray | mmap = bytearray()  # what has come of a large frame, and room for the rest
        self._large_has_more = False
        self._size = 0  # bytes of the frames of a message, the large one that is coming included

    @property
    def late(self) -> str:
        """Reason for cutting the peer when the time for its handshake is over."""
        if self._greeted:
            return "no handshake in time: the READY command is missing"
        return (
            "it never finished its ZMTP greeting"
            if self._rest
            else "it sent nothing in the time for a handshake"
        )

    @property
    def echoes(self) -> bool:
        """True if the peer announced ZMTP 3.1, as libzmq does since 4.3.3: its PONG returns the context."""
        return self._minor > 0

    @property
    def offered(self) -> str:
        """Description of what came of an unfinished handshake; empty if nothing did."""
        return offered_by(self._rest)

    def greet(self) -> None:
        """Send the first part of the greeting; call this first."""
        self._unsaid = GREETING[VERSION_END:]
        self._say(GREETING[:VERSION_END])

    def greet_on(self) -> None:
        """Send the rest of the greeting, if it was not sent yet."""
        if self._unsaid:
            rest, self._unsaid = self._unsaid, b""
            self._say(rest)

    def subscription(self, topic: bytes, *, on: bool) -> bytes:
        """Return what subscribes to a topic (``on``) or cancels that, in the ZMTP version of this peer."""
        verb = _SUBSCRIBE if on else _CANCEL
        return command(verb, topic) if self._minor else encode([_AS_MESSAGE[verb] + topic])

    def pace(self, took: float, longest: float) -> None:
        """Adapt the size of the next :meth:`take` to the seconds that the last one took."""
        if took > longest:
            self.most = max(1, int(self.most * longest / took))
        elif self.most < self.limit and 2 * took < longest:
            self.most = min(self.limit, 2 * self.most)

    def take(self, data: bytes = b"") -> list[M]:
        """Read the next bytes; return the messages that are complete now, a few hundred frames at most."""
        if self.missing:
            return self.take_of_large(data)
        if self._rest:
            data = self._rest + data
        if self.ready:
            return self._read(data, 0)
        at = self._shake_hands(data)
        if self.ready:
            return self._read(data, at)
        self._rest = data
        return []

    def take_of_large(self, data: bytes | memoryview) -> list[M]:
        """Read the next bytes of a large frame (while some are ``missing``); they are copied."""
        try:
            messages = self._add_to_large(data)
        except (OSError, MemoryError):
            self.error = f"no memory for a frame of which {self.missing} bytes were missing"
            return []
        self._weigh()
        return messages

    def forget(self) -> None:
        """Free what is incomplete, and the callbacks: the connection has ended."""
        self._say = self.answered = _unheard
        self._rest, self._large = b"", bytearray()
        self.missing = self.unfinished = 0

    @abc.abstractmethod
    def _read(self, data: bytes, at: int) -> list[M]:
        """Read frames from ``at`` on, keep what is incomplete, set ``behind``."""

    @abc.abstractmethod
    def _end_large(self, large: bytearray | mmap, *, has_more: bool) -> list[M]:
        """Add a large frame that is complete; return the message that it ends, if it does."""

    @abc.abstractmethod
    def _message(self, frame: bytes) -> M:
        """Return a message of this one frame."""

    def _introduced(self, identity: bytes) -> None:
        """Note the identity that the peer of a ROUTER announced, if it did."""

    @property
    @abc.abstractmethod
    def _frames_begun(self) -> int:
        """Number of frames that came of the incomplete message."""

    def _weigh(self) -> None:
        """Note the memory of the incomplete message."""
        self.unfinished = self._size - self.missing + _FRAME * self._frames_begun

    def _begin_large(self, size: int, beginning: bytes, *, has_more: bool) -> None:
        """Take the next bytes as the rest of a large frame.

        Memory grows with the bytes that come: a size alone, which anybody can name, takes none.
        """
        self._large_has_more = has_more
        self._large = bytearray(beginning)
        self.missing = size - len(beginning)

    def _add_to_large(self, data: bytes | memoryview) -> list[M]:
        large, missing = self._large, self.missing - len(data)
        if isinstance(large, mmap):
            at = len(large) - self.missing
            large[at : at + len(data)] = data
        else:
            large += data
            if missing and len(large) >= _GROWN:
                self._large = _mapped(large, len(large) + missing)
        self.missing = missing
        if missing:
            return []
        self._large = bytearray()
        return self._end_large(large, has_more=self._large_has_more)

    # ------------------------------------------------------------- handshake

    def _shake_hands(self, data: bytes) -> int:
        """Read greeting and READY as far as they have come; return where the frames begin."""
        if not self._greeted:
            self.error = not_spoken(data)
            if self.error:
                return 0
            if len(data) >= VERSION_END:
                self.greet_on()
            if len(data) < len(GREETING):
                return 0
            self._greeted = True
            self._minor = minor_of(data)
            self.knows_ping = self._minor > 0
            self._say(command(b"READY", self._properties()))
        return self._be_introduced(data)

    def _be_introduced(self, data: bytes) -> int:
        header = data[len(GREETING) : len(GREETING) + 9]
        if len(header) < 2 or (header[0] & LONG and len(header) < 9):
            return 0
        start = len(GREETING) + (9 if header[0] & LONG else 2)
        length = int.from_bytes(header[1:]) if header[0] & LONG else header[1]
        if length > _LONGEST_READY:
            self.error = (
                f"a READY command of {length} bytes, more than {_LONGEST_READY}: a frame over the limit"
            )
        elif self._is_command(header[0], length) and start + length <= len(data):
            self._check(data[start : start + length])
            self.ready = not self.error
        return start + length

    def _check(self, body: bytes) -> None:
        name, about = split(body)
        if name != b"READY":
            self.error = (
                complaint(about) if name == b"ERROR" else f"broken ZMTP: {body[:24]!r} where READY belongs"
            )
            return
        properties = read_properties(about)
        if properties is None:
            self.error = "broken ZMTP: a READY command whose properties can't be read"
            return
        kind, identity = properties.get(b"socket-type", b""), properties.get(b"identity", b"")
        if kind not in _PARTNERS[self._kind] or len(identity) > _LONGEST_IDENTITY:
            names = b", ".join(_PARTNERS[self._kind]).decode()
            self.error = (
                f"it is a {kind[:24].decode(errors='replace')} socket, here is a {self._kind} for {names}"
            )
            self._say(command(b"ERROR", short(self.error.encode()[:255])))
        else:
            self.identity = identity
            self._introduced(identity)

    def _properties(self) -> bytes:
        properties = ready_property(b"Socket-Type", self._kind.encode())
        return properties + (ready_property(b"Identity", b"") if self._kind in _WITH_IDENTITY else b"")

    # -------------------------------------------------------------- commands

    def _is_command(self, flags: int, length: int) -> bool:
        """True if this frame can be a command; else ``error`` says why not."""
        if flags & ~LONG != COMMAND:
            self.error = f"broken ZMTP: a frame with flags {flags:#04x}" + (
                "" if self.ready else " where READY belongs"
            )
        elif length > (most := _MOST_SUBSCRIPTION if self._kind == "XPUB" else _MOST_COMMAND):
            self.error = f"a command of {length} bytes, more than {most}: a frame over the limit"
        return not self.error

    def _obey(self, body: bytes) -> list[M]:
        """Carry out a command; unknown ones are ignored."""
        name, about = split(body)
        if name == b"PING":
            self.knows_ping = True
            self._say(command(b"PONG", about[2:18]))
        elif name == b"PONG":
            self.knows_ping = True
            self.answered(about)
        elif name == b"ERROR":
            self.error = complaint(about)
        elif name in _AS_MESSAGE and self._kind == "XPUB":
            return [self._message(_AS_MESSAGE[name] + about)]
        elif not name:
            self.error = "broken ZMTP: a command without a name"
        return []


def _unheard(_context: bytes) -> None:
    """Ignore a PONG."""


def _mapped(beginning: bytearray, size: int) -> mmap:
    """Return a mapping of ``size`` bytes, of which only filled pages take memory."""
    mapping = mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    mapping[: len(beginning)] = beginning
    return mapping


def too_large(size: int, most_bytes: int) -> str:
    """Return the error for a message of too many bytes or frames."""
    if size > most_bytes:
        return f"a frame over the limit, or a message of too many bytes: {size}, more than {most_bytes}"
    return f"a message of too many frames: more than {MOST_FRAMES}"
