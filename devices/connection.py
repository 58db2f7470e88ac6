"""One connection of a door, which speaks ZMTP itself."""

from __future__ import annotations

import _socket
import contextlib
import select
from collections.abc import Callable
from typing import Any, Generic

from gevent import get_hub, monkey

from devices.callbacks import nothing, shielded
from devices.flow import Watermark, boundless
from devices.outbox import Outbox
from devices.zmtp_frames import PING
from devices.zmtp_peer import M, Peer

_READ, _WRITE = 1, 2  # libev's EV_READ and EV_WRITE
_CHUNK = 65_536
_LARGE_CHUNK = 262_144  # of a large frame, read at once; then others have their turn
_MOMENT = 1e-9  # seconds; a timer of 0 would run before other timers and starve them
_GLANCE = 1.0  # seconds between looks whether the peer of a paused connection has gone
_FLUSH = 1.0  # seconds for what is held, and for the peer's own end, when it is closed

_poll = monkey.get_original("select", "poll")  # gevent's would wait, and callbacks of the hub can't


def _ignore(_messages: list[M]) -> None:
    pass


class Connection(Generic[M]):
    """A socket of any kind with one peer: the peer can be chosen, its end is seen.

    Set ``receive`` (lists of messages), ``closed`` (once: the connection has ended and all that it
    sent has been delivered) and ``unblocked`` (writable again). They run on the hub and must not
    block. It has no greenlet and, unless it is paused or has heartbeats, no timer.

    What came over a PULL is handed over in any case, for its peer would not hear that it was not:
    while it is paused what comes stays in the kernel, also when the peer has gone.
    """

    _form: type[Peer[M]]

    def __init__(
        self,
        socket: _socket.socket,
        peer: str,
        kind: str,
        opened: Callable[[Any], None],
        gone: Callable[[Any, str], None],
        *,
        max_frame: int,
        held: Watermark | None,
        heartbeat: float | None,
        silence: float | None,
    ) -> None:
        """``opened(self)``: its handshake is done. ``gone(self, why)``: it is closed, cut for that reason.

        Call :meth:`start`.
        """
        self.peer = peer
        self.receive: Callable[[list[M]], None] = _ignore
        self.closed: Callable[[], None] = nothing
        self.unblocked: Callable[[], None] = nothing
        self.received = 0
        """Messages handed over so far."""
        self._socket = socket
        self._opened = opened
        self._gone = gone
        self._heartbeat = heartbeat or 0.0
        self._silence = silence or heartbeat or 0.0
        self._unanswered = 0.0  # seconds without a sign of life
        self._alive = True
        self._is_open = False
        self._closing = False
        self._ended = False
        self._deserted = False  # the peer has gone
        self._is_router = kind == "ROUTER"
        self._keeps_all = kind == "PULL"
        self._paused_by: set[object] = set()
        self._outbox = Outbox(socket, held or boundless())
        self._zmtp = self._form(kind, max_frame, self._say)
        loop = get_hub().loop
        self._reader = loop.io(socket.fileno(), _READ)
        self._writer = loop.io(socket.fileno(), _WRITE)
        self._turn = loop.timer(_MOMENT)
        self._clock = loop.timer(_MOMENT)

    def start(self, handshake: float) -> None:
        """Begin the handshake, for which there are so many seconds."""
        self._set_clock(handshake, self._late)
        self._zmtp.greet()
        self._watch()

    @property
    def writable(self) -> bool:
        """Nothing is held; after a False, ``unblocked`` is called. Never once the lane is closing."""
        return not (self._closing or self._outbox)

    @property
    def reading(self) -> bool:
        """Whether nobody has paused it."""
        return not self._paused_by

    @property
    def backlog(self) -> int:
        """Messages held because the kernel did not take them to their end; nobody has received them."""
        return self._outbox.held.count

    @property
    def held(self) -> Watermark:
        """Count and bytes of the backlog."""
        return self._outbox.held

    def pause(self, by: object = None) -> None:
        """Stop reading this connection; with heartbeats, one paused for ``silence`` is ended.

        ``by``: whoever has a reason of its own; reading goes on when all of them have resumed.
        """
        self._paused_by.add(by)
        self._watch()

    def resume(self, by: object = None) -> None:
        """Go on reading, unless somebody else has paused it too."""
        if self._paused_by:
            self._paused_by.discard(by)
            self._watch()

    def close(self) -> None:
        """Flush what was sent (about a second at most), then end the connection; returns at once.

        What the peer sends until it sees the end is still delivered, unless the connection is paused.
        """
        if self._closing:
            return
        if not self._is_open:
            self._end()
            return
        self._closing = True
        self._set_clock(_FLUSH, self._end)
        if not self._outbox:
            self._half_close()
        self._watch()

    # --------------------------------------------------------------- reading

    def _readable(self) -> None:
        zmtp, room = self._zmtp, self._zmtp.room
        try:
            data = self._socket.recv(_CHUNK) if room is None else self._socket.recv_into(room[:_LARGE_CHUNK])
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self._alive = True
        self._deliver(zmtp.take(data) if isinstance(data, bytes) else zmtp.filled(data))

    def _take_more(self) -> None:
        self._deliver(self._zmtp.take())

    def _deliver(self, messages: list[M]) -> None:
        zmtp = self._zmtp
        if zmtp.ready and not self._is_open:
            self._open()
        if messages and not (self._closing and self._paused_by):
            self._hand_over(messages)
        if zmtp.error:
            self._end(zmtp.error)
        elif zmtp.behind or not self._reader.active:
            self._watch()

    def _hand_over(self, messages: list[M]) -> None:
        self.received += len(messages)
        shielded(self.receive, messages)

    def _open(self) -> None:
        self._is_open = True
        self._clock.stop()
        if self._heartbeat:
            self._set_clock(self._heartbeat, self._beat, repeat=self._heartbeat)
        shielded(self._opened, self)
        self._watch()

    def _watch(self) -> None:
        """Read on, or not; one that is paused does so until its handshake is done, and at its end."""
        if self._ended:
            return
        allowed = self.reading or not self._is_open or (self._at_its_end and not self._keeps_all)
        _switch(self._turn, self._take_more, on=allowed and self._zmtp.behind)
        _switch(self._reader, self._readable, on=allowed and not self._zmtp.behind)
        if not (self._heartbeat or self._clock.active or allowed or self._keeps_all):
            self._set_clock(_GLANCE, self._glance, repeat=_GLANCE)

    @property
    def _at_its_end(self) -> bool:
        return self._closing or self._deserted

    # --------------------------------------------------------------- writing

    def _say(self, data: bytes) -> None:
        if not self._outbox.say(data):
            self._stuck()

    def _stuck(self) -> None:
        """Something is held: go on when the kernel takes more, or read what is left if nobody will."""
        if self._ended:
            return
        if self._outbox.broken:
            self._writer.stop()
            self._deserted = True
            self._watch()
        else:
            _switch(self._writer, self._flush, on=True)

    def _flush(self) -> None:
        self._alive = True  # its kernel has taken something
        if not self._outbox.flush():
            self._stuck()
            return
        self._writer.stop()
        if self._closing:
            self._half_close()
        else:
            shielded(self.unblocked)

    # ---------------------------------------------------------------- clocks

    def _late(self) -> None:
        self._end(self._zmtp.late)

    def _glance(self) -> None:
        """Look, though paused, whether the peer has gone."""
        if self.reading:
            self._clock.stop()
        else:
            self._look_for_its_end()

    def _beat(self) -> None:
        """Ask for a sign of life; cut who has given none for too long."""
        self._unanswered = 0.0 if self._alive else self._unanswered + self._heartbeat
        self._alive = False
        if not self.reading:
            self._look_for_its_end()
        if self._unanswered >= self._silence:
            self._end(f"no answer to heartbeats for {self._silence} s")
        else:
            self._say(PING)

    def _look_for_its_end(self) -> None:
        look = _poll()
        look.register(self._socket.fileno(), select.POLLRDHUP)
        if look.poll(0):
            self._deserted = True
            self._watch()

    def _set_clock(self, seconds: float, callback: Callable[[], None], repeat: float = 0.0) -> None:
        self._clock.stop()
        self._clock.close()
        self._clock = get_hub().loop.timer(seconds, repeat)
        self._clock.start(callback)

    # ------------------------------------------------------------------- end

    def _half_close(self) -> None:
        """Say that nothing more comes; closed now, unread bytes would make the kernel drop what was sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(_socket.SHUT_WR)

    def _end(self, why: str = "") -> None:
        if self._ended:
            return
        self._ended = self._closing = True
        while self._keeps_all and self._zmtp.behind:
            self._hand_over(self._zmtp.take())
        for watcher in (self._reader, self._writer, self._turn, self._clock):
            watcher.stop()
            watcher.close()
        self._socket.close()
        self._gone(self, why)
        if self._is_open:
            shielded(self.closed)
        # There may be megabytes, which need not wait until Python finds the cycle that every lane is in.
        self._outbox.forget()
        self._zmtp.forget()


def _switch(watcher: Any, callback: Callable[[], None], *, on: bool) -> None:
    if on and not watcher.active:
        watcher.start(callback)
    elif watcher.active and not on:
        watcher.stop()
