"""A lane: a worker's or an asker's private way, an inner socket for one connection alone."""

from __future__ import annotations

from collections.abc import Callable

import gevent

from devices.callbacks import nothing, shielded
from devices.flow import Watermark
from devices.port import Message, Port
from devices.splice import Splice
from devices.switchboard import Switchboard
from devices.valve import Valve

_FLUSH = 0.5  # seconds for what is held when the lane is closed, and again for what libzmq holds


def _ignore(_messages: list[Message]) -> None:
    pass


class Lane:
    """One DEALER, PUSH or ROUTER for one connection; a free worker can be chosen, and its death is seen.

    Set ``receive`` (lists of messages), ``closed`` (once: the connection has ended and all that it
    sent has been delivered) and ``unblocked`` (writable again). They run on the hub or in a
    greenlet of the door and must not block.
    """

    def __init__(
        self,
        board: Switchboard,
        splice: Splice,
        kind: str,
        opened: Callable[[Lane], None],
        gone: Callable[[Lane], None],
        *,
        max_frame: int,
        sndhwm: int,
        held: Watermark | None,
        heartbeat: float | None,
        silence: float | None,
    ) -> None:
        """Bind the inner socket; the handshake begins when the gate connects to ``path``."""
        self.peer = splice.peer
        self.receive: Callable[[list[Message]], None] = _ignore
        self.closed: Callable[[], None] = nothing
        self.unblocked: Callable[[], None] = nothing
        self.patience = silence
        self.most_bytes = max_frame
        self._opened = opened
        self._gone = gone
        self._is_open = False
        self._closing = False
        self._paused_by: set[object] = set()
        self._splice = splice
        splice.watched = True
        socket = board.socket(kind, domain=splice.peer)
        socket.maxmsgsize = max_frame
        socket.sndhwm = sndhwm
        socket.immediate = 1
        if kind == "XPUB":
            socket.xpub_nodrop = 1  # say so when a subscriber's pipe is full
        elif kind == "ROUTER":
            socket.router_mandatory = 1  # the same for its one peer; else the message is dropped
        if heartbeat is not None:
            socket.heartbeat_ivl = int(heartbeat * 1000)
            socket.heartbeat_timeout = int((silence or heartbeat) * 1000)
        self.path = board.bind(socket)
        self._port = Port(socket, self._receive, unblocked=self._unblocked, held=held)
        self.valve = Valve(self._port)
        self._port.start()
        _ = self._port.writable  # it is not, so the port says when it is: the handshake is done.
        # A ROUTER always is: its lane opens with the first message.

    @property
    def writable(self) -> bool:
        """Nothing is held and the socket takes a message now; after a False, ``unblocked`` is called.

        Never once the lane is closing. A ROUTER says so whenever nothing is held.
        """
        return not self._closing and self._port.writable

    @property
    def backlog(self) -> int:
        """Messages held because the socket did not take them."""
        return self._port.held.count

    @property
    def held(self) -> Watermark:
        """Count and bytes of the backlog."""
        return self._port.held

    @property
    def received(self) -> int:
        """Messages handed over so far."""
        return self._port.received

    def send(self, frames: Message) -> None:
        """Send now or, in order, as soon as the socket takes it; dropped if the lane is closed."""
        self.post([frames])

    def post(self, messages: list[Message]) -> None:
        """Send several, each now or as soon as the socket takes it."""
        if not self._closing:
            self._port.post(messages)

    def pause(self, by: object = None) -> None:
        """Stop reading this connection; with heartbeats, one paused for ``silence`` is ended.

        ``by``: whoever has a reason of its own; reading goes on when all of them have resumed.
        """
        self._paused_by.add(by)
        self.valve.pause()

    def resume(self, by: object = None) -> None:
        """Go on reading, unless somebody else has paused it too."""
        self._paused_by.discard(by)
        if not self._paused_by:
            self.valve.resume()

    def close(self) -> None:
        """Flush what was sent (about a second at most), then end the connection; returns at once."""
        if self._closing:
            return
        self._closing = True
        self._splice.expect_end()
        self._finishing = gevent.spawn_later(_FLUSH if self.backlog else 0, self._finish)

    def left(self) -> None:
        """Deliver the rest: the gate says that the connection has ended and libzmq has read all of it."""
        self._closing = True
        self._port.drain()
        self._port.close(0)
        self._gone(self)
        if self._is_open:
            self._is_open = False
            shielded(self.closed)

    def _finish(self) -> None:
        self._port.drain()
        self._port.close(int(_FLUSH * 1000))
        self.valve.resume()  # lets a paused reader see that it is over
        gevent.spawn_later(_FLUSH, self._splice.end)

    def _receive(self, messages: list[Message]) -> None:
        self._open()  # a message may be read before the socket was seen to be writable
        self.receive(messages)

    def _unblocked(self) -> None:
        if self._closing:
            gevent.spawn(self._finish)
        elif self._is_open:
            self.unblocked()
        else:
            self._open()

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            shielded(self._opened, self)
