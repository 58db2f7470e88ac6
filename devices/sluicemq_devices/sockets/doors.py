"""Doors: addresses where clients connect. Every connection is a lane, which speaks ZMTP itself."""

from __future__ import annotations

import _socket
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from gevent import socket as sockets
from gevent.event import Event

from sluicemq_devices.hub import Watermark
from sluicemq_devices.sockets.endpoints import Endpoint
from sluicemq_devices.sockets.guard import OPEN, Guard
from sluicemq_devices.sockets.lane import Lane, RawLane
from sluicemq_devices.sockets.listener import Entrance
from sluicemq_devices.sockets.switchboard import Switchboard
from sluicemq_devices.zmtp import CURVE, load_curve

__all__ = ["Lane", "LaneDoor", "RawDoor", "RawLane"]

_AnyLane = TypeVar("_AnyLane", Lane, RawLane)


class _Door(Generic[_AnyLane]):
    """One address; every connection is a lane."""

    _lane: type[_AnyLane]

    def __init__(
        self,
        board: Switchboard,
        endpoint: Endpoint,
        kind: str,
        opened: Callable[[_AnyLane], None],
        *,
        max_frame: int,
        heartbeat: float | None = None,
        silence: float | None = None,
        held: Callable[[str], Watermark] | None = None,
        kept: bool = False,
        answers: bool = False,
        guard: Guard = OPEN,
    ) -> None:
        """``opened(lane)`` is called when a client has finished its handshake.

        ``max_frame``: bytes of all frames of a message above which its connection is cut.
        ``heartbeat``: seconds between ZMTP pings; ``silence``: seconds without any sign of life after
        which the connection is cut. ``held(peer)``: makes the mark that counts a lane's backlog.
        ``kept``: some connections are kept for this door, which others can't use up. ``answers``: a peer that
        leaves too much of what it is sent unread is not read either, as at every ROUTER. ``guard``: the
        mechanisms that are spoken, and who gets in. Raises Unavailable if one is CURVE and PyNaCl is missing.
        """
        self._board = board
        self._kind = kind
        self._opened: Callable[[_AnyLane], None] = opened
        self._max_frame = max_frame
        self._heartbeat = heartbeat
        self._silence = silence
        self._held = held
        self._answers = answers
        self._guard = guard
        self._dials = not endpoint.bind
        if CURVE in guard.spoken(dials=self._dials):
            load_curve()
        self.lanes: dict[_AnyLane, Callable[[], None]] = {}
        self._received = 0
        self._paused = False
        self._paused_at = self._paused_before = 0.0
        self._all_gone = Event()
        self.entrance = Entrance(board, endpoint, self._enter, kept=kept)

    @property
    def address(self) -> str:
        """Address of the door; after :meth:`start` with the port that the kernel chose, if that was 0."""
        return self.entrance.address

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self.lanes)

    @property
    def received(self) -> int:
        """Messages handed over so far, by all lanes."""
        return self._received + sum(lane.received for lane in self.lanes)

    @property
    def paused_for(self) -> float:
        """Seconds for which the door was not read, up to now."""
        return self._paused_before + (monotonic() - self._paused_at if self._paused else 0.0)

    def start(self) -> None:
        """Open the entrance; OSError names the address that can't be bound."""
        self.entrance.start()
        self._board.doors.add(self)

    def pause(self) -> None:
        """Stop reading every lane, and accepting."""
        if not self._paused:
            self._paused, self._paused_at = True, monotonic()
        self.entrance.pause()
        for lane in list(self.lanes):
            lane.pause(self)

    def resume(self) -> None:
        """Read all lanes again, except those that are paused for a reason of their own."""
        self._paused_before, self._paused = self.paused_for, False
        self.entrance.resume()
        for lane in list(self.lanes):
            lane.resume(self)

    def stop(self) -> None:
        """Accept no more and close every lane, which flushes what was sent (about a second at most).

        Messages that were read are handed over, and those that lanes which are not paused still receive.
        """
        self.entrance.stop()
        self._all_gone.clear()
        for lane in list(self.lanes):
            lane.close()
        if self.lanes:
            self._all_gone.wait()
        self._board.doors.discard(self)

    def _enter(self, outside: sockets.socket, peer: str, left: Callable[[], None]) -> None:
        socket = _socket.socket(fileno=outside.detach())
        socket.setblocking(False)  # noqa: FBT003 - that is how it is called
        lane = self._lane(
            socket,
            peer,
            self._kind,
            self._opened,
            self._left,
            max_frame=self._max_frame,
            held=self._held(peer) if self._held else None,
            heartbeat=self._heartbeat,
            silence=self._silence,
            board=self._board,
            answers=self._answers,
            guard=self._guard,
            dials=self._dials,
        )
        self.lanes[lane] = left
        if self._paused:  # accepted before, and only now here
            lane.pause(self)
        lane.start(self._board.handshake)

    def _left(self, lane: _AnyLane, kind: str, why: str) -> None:
        self._received += lane.received
        left = self.lanes.pop(lane)
        left()
        if not self.lanes:
            self._all_gone.set()
        if why:
            self._board.notice(kind, f"{lane.peer} at {self.address}: {why}")
        elif kind:
            self._board.count(kind)


class LaneDoor(_Door[Lane]):
    """A door whose messages are lists of frames, for readers that look into them."""

    _lane = Lane


class RawDoor(_Door[RawLane]):
    """A door whose messages stay encoded, for relays that pass them on as they are."""

    _lane = RawLane
