"""Liveness of a peer: its handshake in time, its heartbeats, and its end while it is paused."""

from __future__ import annotations

import _socket
from collections.abc import Callable
from typing import Any, Protocol

from gevent import get_hub

from sluicemq_devices.sockets.kernel_state import unacknowledged, unread
from sluicemq_devices.zmtp import PING, Peer

_TIMEOUT = 0.1  # part of the time for a handshake after which our whole greeting is sent unasked
_MOST_TRIES = 9  # to send it, while what the peer sent waits to be read
_NEVER = 1e9  # seconds; the first timer is not started


class Watched(Protocol):
    """The connection, as :class:`Life` needs it."""

    @property
    def reading(self) -> bool:
        """True while reading is not paused."""

    @property
    def awaits_arrival(self) -> bool:
        """True while a PONG is awaited that the peer may have no room to send."""

    def say(self, data: bytes) -> None:
        """Send what is no message."""

    def look_for_its_end(self) -> bool:
        """True if the peer has left; the connection has handled that then."""

    def cut(self, why: str) -> None:
        """End the connection at once, and log the reason."""


class Life:
    """The timer of a connection, which serves one purpose at a time: handshake, heartbeat, or its end."""

    __slots__ = (
        "_clock",
        "_connection",
        "_handshake",
        "_heartbeat",
        "_silence",
        "_socket",
        "_tries",
        "_unanswered",
        "_zmtp",
        "alive",
    )

    def __init__(
        self,
        connection: Watched,
        socket: _socket.socket,
        zmtp: Peer[Any],
        heartbeat: float | None,
        silence: float | None,
    ) -> None:
        self.alive = True
        """True if the peer has sent or taken bytes since the last look; set by the connection."""
        self._connection = connection
        self._socket = socket
        self._zmtp = zmtp
        self._handshake = 0.0
        self._tries = 0  # to send the whole greeting unasked
        self._heartbeat = heartbeat or 0.0
        self._silence = silence or heartbeat or 0.0
        self._unanswered = 0.0  # seconds without a sign of life
        self._clock = get_hub().loop.timer(_NEVER)

    def begin_handshake(self, seconds: float) -> None:
        """Cut the peer if it has not finished its handshake by then."""
        self._handshake = seconds
        self._tries = 1
        self.after(_TIMEOUT * seconds, self._greet_on)

    def end_handshake(self) -> None:
        """Start the heartbeats, if the connection has any."""
        self._clock.stop()
        if self._heartbeat:
            self.after(self._heartbeat, self.beat, repeat=self._heartbeat)

    def gave_sign(self, *, is_read: bool) -> bool:
        """True if the peer has sent or taken bytes since the last call, or could not: it is not read."""
        alive, self.alive = self.alive or not is_read, False
        return alive

    def look_every(self, seconds: float) -> None:
        """Check every ``seconds`` for the peer's end, unless a heartbeat or something else is due."""
        if not (self._heartbeat or self._clock.active):
            self.after(seconds, self._glance, repeat=seconds)

    def after(self, seconds: float, callback: Callable[[], None], repeat: float = 0.0) -> None:
        """Call ``callback`` after ``seconds``, instead of the one that was due before."""
        self.stop()
        self._clock = get_hub().loop.timer(seconds, repeat)
        self._clock.start(callback)

    def stop(self) -> None:
        """Stop the timer."""
        self._clock.stop()
        self._clock.close()

    def forget(self) -> None:
        """Let go of the connection, which has ended."""
        self.stop()
        del self._connection

    def _greet_on(self) -> None:
        """Send the rest of our greeting: some peers read all of it before they send their own.

        Not while bytes of the peer wait here to be read, as in a flood: they may name another mechanism.
        """
        if unread(self._socket) and self._tries < _MOST_TRIES:
            self._tries += 1
            self.after(_TIMEOUT * self._handshake, self._greet_on)
            return
        self._zmtp.greet_on()
        self.after((1 - self._tries * _TIMEOUT) * self._handshake, self._late)

    def _late(self) -> None:
        self._connection.cut(self._zmtp.late)

    def beat(self) -> None:
        """Send a heartbeat, or look at the kernel; cut a peer that gave no sign of life for too long."""
        connection = self._connection
        answers_pings = self._zmtp.knows_ping and not connection.awaits_arrival
        alive = self.alive if answers_pings else not unacknowledged(self._socket, self._heartbeat)
        alive = alive or not connection.reading  # its answers are not read
        self._unanswered = 0.0 if alive else self._unanswered + self._heartbeat
        self.alive = False
        if not connection.reading and connection.look_for_its_end():
            return
        if self._unanswered >= self._silence:
            what = "no answer to heartbeats" if answers_pings else "what was sent is not acknowledged"
            connection.cut(f"{what} for {self._silence} s")
        elif answers_pings:
            connection.say(PING)

    def _glance(self) -> None:
        """Check whether the peer of a paused connection has left.

        Its end may come behind bytes that there is no room to read. Then only a write shows it: the kernel
        of a peer that has left answers with a reset.
        """
        connection = self._connection
        if connection.reading:
            self._clock.stop()
        elif not connection.look_for_its_end() and self._zmtp.knows_ping and unread(self._socket):
            connection.say(PING)
