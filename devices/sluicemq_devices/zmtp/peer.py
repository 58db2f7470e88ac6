"""One end of a ZMTP 3 connection (ZeroMQ RFC 23 and 37): bytes in, messages out.

Its handshake (:mod:`.handshake`) comes first. Frames (:mod:`.frames`) follow, read in one of the forms of
:mod:`.messages`; those of CURVE are opened first, and from then on nothing differs.
This module touches no socket, never waits, and raises nothing for what a stranger sends.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import ClassVar, Generic, TypeVar

from sluicemq_devices.zmtp.credentials import Credentials
from sluicemq_devices.zmtp.frames import COMMAND, LONG, command, encode
from sluicemq_devices.zmtp.greeting import complaint, split
from sluicemq_devices.zmtp.handshake import Handshake
from sluicemq_devices.zmtp.large_frame import LargeFrame
from sluicemq_devices.zmtp.mechanism import Traffic
from sluicemq_devices.zmtp.terms import NULL_TERMS, Terms

#: Frames of one message, at most: room for any envelope.
MOST_FRAMES = 65_536

_MOST_COMMAND = 65_536  # bytes
_MOST_SUBSCRIPTION = 1 << 20  # bytes of a command at XPUB: topics that are too long are refused, not cut
_LONG_HEADER = 9  # bytes
_FRAME = 64  # bytes that a frame takes beyond its own: as an object, and its place in a list

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
        "_handshake",
        "_kind",
        "_large",
        "_large_has_more",
        "_minor",
        "_most_bytes",
        "_rest",
        "_say",
        "_size",
        "answered",
        "behind",
        "error",
        "identity",
        "idle",
        "knows_ping",
        "missing",
        "most",
        "peer_kind",
        "ready",
        "traffic",
        "unfinished",
    )

    def __init__(
        self,
        kind: str,
        most_bytes: int,
        say: Callable[[bytes], None],
        terms: Terms = NULL_TERMS,
        *,
        dials: bool = False,
    ) -> None:
        """``kind``: type of this end's socket; ``most_bytes``: limit of one message; ``say``: sends bytes.

        ``terms``: mechanisms and keys of this end; ``dials``: it has dialled, and is the client.
        """
        self.error = ""
        """Reason why the connection must be cut, for the log."""
        self.ready = False
        """True once the handshake is done."""
        self.traffic: Traffic | None = None
        """Encryption of what follows the handshake; None: frames go as they are."""
        self.behind = False
        """True if there may be more messages in what was taken: call :meth:`take` again without bytes."""
        self.idle = False
        """True if a turn's worth of commands came and no message, as no honest peer sends."""
        self.most = self.first
        """Messages of one :meth:`take` now, at most; see :meth:`pace`."""
        self.identity = b""
        """Routing id that the peer has announced, or empty."""
        self.peer_kind = b""
        """Type of the peer's socket, as it has announced it."""
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
        most_of_frame = max(most_bytes, _most_command(kind))
        self._handshake: Handshake | None = Handshake(kind, most_of_frame, say, terms, dials=dials)
        self._rest = b""
        self._minor = 0
        self._large = LargeFrame()
        self._large_has_more = False
        self._size = 0  # bytes of the frames of a message, the large one that is coming included

    @property
    def credentials(self) -> Credentials | None:
        """Credentials of the peer that wait for :meth:`decide`; nothing is read meanwhile."""
        return self._handshake.credentials if self._handshake else None

    def decide(self, why: str) -> None:
        """Admit the peer, or tell it that it is refused; then :meth:`take` goes on with what came."""
        if self._handshake:
            self._handshake.decide(why)

    @property
    def late(self) -> str:
        """Reason for cutting the peer when the time for its handshake is over."""
        return self._handshake.late if self._handshake else ""

    @property
    def has_failed(self) -> bool:
        """True if the error is that the keys or names of its handshake don't fit."""
        return self._handshake is not None and self._handshake.failed

    @property
    def echoes(self) -> bool:
        """True if the peer announced ZMTP 3.1, as libzmq does since 4.3.3: its PONG returns the context."""
        return self._minor > 0

    @property
    def offered(self) -> str:
        """Description of what came of an unfinished handshake; empty if nothing did."""
        return self._handshake.offered if self._handshake else ""

    def greet(self) -> None:
        """Send the first part of the greeting; call this first."""
        if self._handshake:
            self._handshake.greet()

    def greet_on(self) -> None:
        """Send the rest of the greeting, if it was not sent yet."""
        if self._handshake:
            self._handshake.greet_on()

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
        if self._handshake is not None:
            self._shake_hands(self._handshake, data)
            return []
        if self.traffic is not None:
            return self._take_sealed(self.traffic, data)
        if self._rest:
            data = self._rest + data
        return self._read(data, 0)

    def take_of_large(self, data: bytes | memoryview) -> list[M]:
        """Read the next bytes of a large frame (while some are ``missing``); they are copied."""
        try:
            if self.traffic is not None:
                return self._take_sealed(self.traffic, data)
            messages = self._add_to_large(data)
        except (OSError, MemoryError):
            self.error = f"no memory for a frame of which {self.missing} bytes were missing"
            return []
        self._weigh()
        return messages

    def forget(self) -> None:
        """Free what is incomplete, and the callbacks: the connection has ended."""
        self._say = self.answered = _unheard
        self._rest = b""
        self._large.clear()
        self._handshake = self.traffic = None
        self.missing = self.unfinished = 0

    @abc.abstractmethod
    def _read(self, data: bytes, at: int) -> list[M]:
        """Read frames from ``at`` on, keep what is incomplete, set ``behind``."""

    @abc.abstractmethod
    def _end_large(self, large: bytearray | mmap | memoryview, *, has_more: bool) -> list[M]:
        """Add a large frame that is complete; return the message that it ends, if it does."""

    @abc.abstractmethod
    def _message(self, frame: bytes) -> M:
        """Return a message of this one frame."""

    def _introduced(self, identity: bytes) -> None:
        """Note the identity that the peer of a ROUTER announced, if it did."""

    @property
    def begun(self) -> Sequence[bytes]:
        """Return the frames that came of the message that is not complete, as far as they are read."""
        return ()

    @property
    @abc.abstractmethod
    def _frames_begun(self) -> int:
        """Number of frames that came of the incomplete message."""

    def _weigh(self) -> None:
        """Note the memory of the incomplete message."""
        self.unfinished = self._size - self._large.missing + _FRAME * self._frames_begun

    def _begin_large(self, size: int, beginning: bytes, *, has_more: bool) -> None:
        """Take the next bytes as the rest of a large frame."""
        self._large_has_more = has_more
        self._large.begin(size, beginning)
        self.missing = self._large.missing

    def _add_to_large(self, data: bytes | memoryview) -> list[M]:
        large = self._large.add(data)
        self.missing = self._large.missing
        return [] if large is None else self._end_large(large, has_more=self._large_has_more)

    # ------------------------------------------------------------- handshake

    def _shake_hands(self, handshake: Handshake, data: bytes) -> None:
        """Read what belongs to the handshake; what follows it is read by the next :meth:`take`."""
        rest = handshake.take(data)
        self.error = handshake.error
        if not handshake.done:
            return
        self.ready = True
        self.traffic = handshake.traffic
        self.identity, self.peer_kind = handshake.identity, handshake.peer_kind
        self._minor = handshake.minor
        self.knows_ping = self._minor > 0
        self._handshake = None  # and with it the keys of the handshake
        self._introduced(self.identity)
        self._rest = bytes(self._opened(self.traffic, rest)) if self.traffic and rest else rest
        self.behind = bool(self._rest)

    # ---------------------------------------------------------------- traffic

    def _take_sealed(self, traffic: Traffic, data: bytes | memoryview) -> list[M]:
        """Open sealed bytes and read the frames in them."""
        plain = self._opened(traffic, data) if data else b""
        if isinstance(plain, memoryview):
            messages = self._read_large(plain)
        else:
            messages = self._read(self._rest + plain if self._rest else plain, 0)
        if traffic.held:
            self._weigh()
            self.unfinished += traffic.held
        if traffic.error and not self.behind:
            self.error = self.error or traffic.error
        return messages

    def _read_large(self, frame: memoryview) -> list[M]:
        """Read a large frame that is here whole: its header as if more was to come, then its body."""
        if frame[0] & COMMAND:
            return self._read(bytes(frame), 0)
        messages = self._read(bytes(frame[:_LONG_HEADER]), 0)
        if self.missing:
            large = frame[_LONG_HEADER - self._large.held :]  # a relay holds the header, too
            self._large.clear()
            self.missing = 0
            messages = self._end_large(large, has_more=self._large_has_more)
            self._weigh()
        return messages

    def _opened(self, traffic: Traffic, data: bytes | memoryview) -> bytes | memoryview:
        """Return the frames that are complete with these bytes."""
        plain = traffic.open(data)
        self.missing = traffic.missing
        return plain

    # -------------------------------------------------------------- commands

    def _is_command(self, flags: int, length: int) -> bool:
        """True if this frame can be a command; else ``error`` says why not."""
        if flags & ~LONG != COMMAND:
            self.error = f"broken ZMTP: a frame with flags {flags:#04x}"
        elif length > (most := _most_command(self._kind)):
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


def _most_command(kind: str) -> int:
    return _MOST_SUBSCRIPTION if kind == "XPUB" else _MOST_COMMAND


def _unheard(_context: bytes) -> None:
    """Ignore a PONG."""


def too_large(size: int, most_bytes: int) -> str:
    """Return the error for a message of too many bytes or frames."""
    if size > most_bytes:
        return f"a frame over the limit, or a message of too many bytes: {size}, more than {most_bytes}"
    return f"a message of too many frames: more than {MOST_FRAMES}"
