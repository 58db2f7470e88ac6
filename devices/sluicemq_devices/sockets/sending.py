"""The half of a connection that sends: messages that the kernel takes now, and those that are held."""

from __future__ import annotations

import _socket
import abc
from collections.abc import Callable

from gevent import get_hub

from sluicemq_devices.hub import Watermark, boundless, nothing, shielded, switch
from sluicemq_devices.sockets.kernel_state import half_close, has_left, outstanding
from sluicemq_devices.sockets.outbox import Outbox
from sluicemq_devices.sockets.outgoing_budget import Ration
from sluicemq_devices.sockets.sealed_outbox import SealedOutbox
from sluicemq_devices.sockets.switchboard import Switchboard
from sluicemq_devices.zmtp import Traffic

_WRITE = 2  # libev's EV_WRITE
_UNREAD = object()  # pauses a connection that has not taken its answers


class SendingHalf(abc.ABC):
    """Messages to one peer, in order; a peer that leaves its answers unread is not read either."""

    def __init__(
        self, socket: _socket.socket, board: Switchboard, held: Watermark | None, *, answers: bool
    ) -> None:
        """``answers``: the peer is not read while it leaves too much unread. ``held``: counts its backlog."""
        self.is_full = False
        """True while the peer leaves as much unread as it may: make no answers for it."""
        self._on_blocked: Callable[[], None] = nothing
        self._on_unblocked: Callable[[], None] = nothing
        self._socket = socket
        self._board = board
        self._answers = answers
        self._closing = self._ended = False
        self._outbox = Outbox(socket, held or boundless())
        self._ration: Ration | None = None  # made when it is first needed
        self._writer = get_hub().loop.io(socket.fileno(), _WRITE)

    @property
    def writable(self) -> bool:
        """True if nothing is held. Never True once it is closing.

        When it becomes False ``blocked()`` is called, perhaps more than once; then ``unblocked()``.
        """
        return not (self._closing or self._outbox)

    @property
    def peer_has_left(self) -> bool:
        """True if no answer can reach the peer; messages that it sent before may still be unread."""
        return self._ended or has_left(self._socket)

    @property
    def backlog(self) -> int:
        """Number of messages whose last byte the kernel has not taken; the peer has not received them."""
        return self._outbox.held.count

    @property
    def held(self) -> Watermark:
        """Count and bytes of the backlog."""
        return self._outbox.held

    @property
    def ration(self) -> Ration:
        """Account of the peer in the budget of outgoing bytes."""
        if self._ration is None:
            self._ration = self._board.outgoing.ration(self)
            if self._ended:
                self._ration.close()
        return self._ration

    @property
    def taken(self) -> int:
        """Bytes that the peer has taken since some moment, while bytes are held."""
        return 0 if self._ended else self._outbox.written - outstanding(self._socket)

    def filled(self) -> None:
        """Stop reading: the peer leaves as much unread as it may."""
        self.is_full = True
        if self._answers:
            self.pause(_UNREAD)

    def drained(self) -> None:
        """Read again: the peer has taken most of what it was sent."""
        self.is_full = False
        if self._answers:
            self.resume(_UNREAD)

    def say(self, data: bytes) -> None:
        """Send a command, or a part of the handshake."""
        if not self._outbox.send_command(data):
            self._stuck()

    @abc.abstractmethod
    def pause(self, by: object = None) -> None:
        """Stop reading the peer."""

    @abc.abstractmethod
    def resume(self, by: object = None) -> None:
        """Read the peer again, unless another reason to pause is left."""

    @abc.abstractmethod
    def cut(self, why: str) -> None:
        """End the connection at once, and log the reason."""

    @abc.abstractmethod
    def _sent_some(self) -> None:
        """Note a sign of life: the kernel of the peer has taken something."""

    @abc.abstractmethod
    def _takes_nothing(self) -> None:
        """Handle that the connection takes no bytes any more, because the peer has left."""

    def _seal(self, traffic: Traffic) -> None:
        """Seal from now on what is sent."""
        self._outbox = SealedOutbox(self._socket, self._outbox, traffic)

    def _stuck(self) -> None:
        """Wait for the kernel to take more of what is held, or read what is left if it never will."""
        if self._ended:
            return
        if self._outbox.broken:
            self._writer.stop()
            self._takes_nothing()
        else:
            switch(self._writer, self._flush, on=True)
            self.ration.hold(self._outbox.weight)
        shielded(self._on_blocked)

    def _drop_answers(self) -> None:
        """Free the answers that nobody will take, so that the rest of what the peer sent is handled."""
        if self._answers:
            self._outbox.drop()
            if self._ration:
                self._ration.close()
                self.drained()

    def _flush(self) -> None:
        self._sent_some()
        if not self._outbox.flush():
            self._stuck()
            return
        self._writer.stop()
        self.ration.hold(0)
        if self._closing:
            half_close(self._socket)
        else:
            shielded(self._on_unblocked)

    def _end_sending(self) -> None:
        """Free what waits: the connection has ended."""
        self._outbox.forget()
        if self._ration:
            self._ration.close()
        self._on_blocked = self._on_unblocked = nothing
