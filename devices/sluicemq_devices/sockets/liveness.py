"""Whether the peer of a connection lives: its handshake in time, its heartbeats, its end if it is paused."""

from __future__ import annotations

import _socket
from collections.abc import Callable
from typing import Any, Protocol

from gevent import get_hub

from sluicemq_devices.sockets.kernel_state import unacknowledged, unread
from sluicemq_devices.zmtp import PING, Peer

_TIMEOUT = 0.1  # of the time for a handshake: so long one may wait for our greeting with its own
_NEVER = 1e9  # seconds; the first timer is not started


class Watched(Protocol):
    """What is asked of the connection, and done to it."""

    @property
    def reading(self) -> bool:
        """True while reading is not paused."""

    @property
    def awaits_arrival(self) -> bool:
        """A PONG is awaited, for which the peer may have no room yet."""

    def say(self, data: bytes) -> None:
        """Send what is no message."""

    def look_for_its_end(self) -> bool:
        """True if the peer has gone; then it is dealt with."""

    def cut(self, why: str) -> None:
        """End the connection at once, for a reason that is told."""


class Life:
    """The one timer of a connection, and what it is for: one thing at a time."""

    __slots__ = (
        "_clock",
        "_connection",
        "_handshake",
        "_heartbeat",
        "_silence",
        "_socket",
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
        """It has sent or taken bytes: set by who reads and writes."""
        self._connection = connection
        self._socket = socket
        self._zmtp = zmtp
        self._handshake = 0.0
        self._heartbeat = heartbeat or 0.0
        self._silence = silence or heartbeat or 0.0
        self._unanswered = 0.0  # seconds without a sign of life
        self._clock = get_hub().loop.timer(_NEVER)

    def begin_handshake(self, seconds: float) -> None:
        """Cut the peer if it has not finished its handshake by then."""
        self._handshake = seconds
        self.after(_TIMEOUT * seconds, self._greet_on)

    def end_handshake(self) -> None:
        """Begin with heartbeats, if there are to be any."""
        self._clock.stop()
        if self._heartbeat:
            self.after(self._heartbeat, self._beat, repeat=self._heartbeat)

    def gave_sign(self, *, is_read: bool) -> bool:
        """True if it has sent or taken bytes since the last call, or could not: nobody reads it."""
        alive, self.alive = self.alive or not is_read, False
        return alive

    def look_every(self, seconds: float) -> None:
        """Look so often whether it has gone, if neither a heartbeat nor anything else is due."""
        if not (self._heartbeat or self._clock.active):
            self.after(seconds, self._glance, repeat=seconds)

    def after(self, seconds: float, callback: Callable[[], None], repeat: float = 0.0) -> None:
        """Call this then, and forget what was to be called before."""
        self.stop()
        self._clock = get_hub().loop.timer(seconds, repeat)
        self._clock.start(callback)

    def stop(self) -> None:
        """Nothing is due any more."""
        self._clock.stop()
        self._clock.close()

    def forget(self) -> None:
        """Let go of the connection, which has ended."""
        self.stop()
        del self._connection

    def _greet_on(self) -> None:
        """The peer may be one that reads the whole of our greeting before it says its own."""
        self._zmtp.greet_on()
        self.after((1 - _TIMEOUT) * self._handshake, self._late)

    def _late(self) -> None:
        self._connection.cut(self._zmtp.late)

    def _beat(self) -> None:
        """Ask for a sign of life, or look for one; cut who has given none for too long."""
        connection = self._connection
        asked = self._zmtp.knows_ping and not connection.awaits_arrival
        alive = self.alive if asked else not unacknowledged(self._socket, self._heartbeat)
        alive = alive or not connection.reading  # its answers are not read
        self._unanswered = 0.0 if alive else self._unanswered + self._heartbeat
        self.alive = False
        if not connection.reading and connection.look_for_its_end():
            return
        if self._unanswered >= self._silence:
            what = "no answer to heartbeats" if asked else "what was sent is not acknowledged"
            connection.cut(f"{what} for {self._silence} s")
        elif asked:
            connection.say(PING)

    def _glance(self) -> None:
        """Look, though paused, whether the peer has gone.

        Its end may lie behind what is unread, with no room for it here: it is seen only by writing, for
        the kernel of one that has gone answers with a reset.
        """
        connection = self._connection
        if connection.reading:
            self._clock.stop()
        elif not connection.look_for_its_end() and self._zmtp.knows_ping and unread(self._socket):
            connection.say(PING)
