"""Doors: the addresses where clients connect. One shared inner socket, or a lane for each.

A shared door has libzmq route between its connections; a lane needs none of that, and speaks ZMTP
on the connection itself at an eighth of the cost: no greenlets, no copies from socket to socket.
"""

from __future__ import annotations

import _socket
from collections.abc import Callable

import zmq
from gevent import socket as sockets
from gevent.event import Event

from devices.endpoints import Endpoint
from devices.entrance import Entrance
from devices.flow import Watermark, boundless
from devices.gate import Gate
from devices.lane import Lane
from devices.port import Message, Port
from devices.splice import Splice
from devices.switchboard import Switchboard
from devices.valve import Valve

__all__ = ["Lane", "LaneDoor", "SharedDoor"]

_SNDHWM = 1000
_LINGER = 1000  # milliseconds to flush what was sent, when a door is stopped


class SharedDoor:
    """One address and one inner socket (PULL, ROUTER, XSUB, XPUB, …) for all who connect to it."""

    path: str
    valve: Valve

    def __init__(
        self,
        board: Switchboard,
        endpoint: Endpoint,
        kind: str,
        receive: Callable[[list[Message]], None],
        *,
        max_frame: int,
        round: int = 100,  # noqa: A002 - a round of messages, nothing else fits
        sndhwm: int = _SNDHWM,
        held: Watermark | None = None,
    ) -> None:
        """``receive`` is called on the hub with up to ``round`` messages and must not block.

        ``max_frame``: bytes of a frame, or of all frames of a message, above which its connection is
        cut. ``sndhwm``: messages that
        libzmq holds for each peer. ``held``: told of what :meth:`post` has to hold.
        """
        self._board = board
        self._kind = kind
        self._receive = receive
        self.most_bytes = max_frame
        self._round = round
        self._sndhwm = sndhwm
        self.held = held or boundless()
        self._port: Port | None = None
        self._gate = Gate(board, endpoint, self._enter)
        self._received = 0

    @property
    def address(self) -> str:
        """Where it is; after :meth:`start` with the port that the kernel chose, if that was 0."""
        return self._gate.address

    @property
    def connections(self) -> int:
        """How many there are now."""
        return self._gate.connections

    @property
    def received(self) -> int:
        """Messages handed over so far."""
        return self._received + (self._port.received if self._port else 0)

    def start(self) -> None:
        """Open the socket and the gate; OSError names the address that can't be bound."""
        if self._port:
            return
        socket = self._socket()
        self.path = self._board.bind(socket)
        self._port = Port(socket, self._receive, round_size=self._round, held=self.held)
        self.valve = Valve(self._port)
        self._port.start()
        try:
            self._gate.start()
        except OSError:
            self.stop()
            raise

    def pause(self) -> None:
        """Stop reading and accepting; what is on its way, about a MiB, is still handed over."""
        if self._port:
            self.valve.pause()
            self._gate.pause()

    def resume(self) -> None:
        """Go on."""
        if self._port:
            self.valve.resume()
            self._gate.resume()

    def post(self, messages: list[Message]) -> None:
        """Send each now or, in order, as soon as the socket takes it."""
        if self._port:
            self._port.post(messages)

    def send(self, frames: Message) -> bool:
        """Send now; False: not sent. With ROUTER the peer is gone or its pipe is full (also noticed)."""
        return self.send_each([frames]) == 0

    def send_each(self, messages: list[Message]) -> int:
        """Send every one that can be sent now, as :meth:`send`; how many were not."""
        refused = self._port.send_each(messages) if self._port else len(messages)
        if self._kind == "ROUTER":
            for _ in range(refused):
                self._board.notice("replies_dropped", f"{self.address}: the asker is gone or does not read")
        return refused

    def close_gate(self) -> None:
        """Accept no more; end all connections and hand over what was read of them (about a second).

        Unsent answers go down with their connections: pause, answer, then close.
        """
        if self._port:
            self.valve.resume()
            self._gate.close()
            self._port.drain()

    def stop(self) -> None:
        """Flush what was sent (about a second at most) and close everything."""
        if not self._port:
            return
        port, self._port = self._port, None
        self._received += port.received
        self._gate.expect_end()
        port.close(_LINGER)
        self._gate.stop()

    def left(self) -> None:
        """Do nothing when a connection has ended: a shared socket stays."""

    def _enter(self, _splice: Splice) -> SharedDoor:
        return self

    def _socket(self) -> zmq.Socket[bytes]:
        socket = self._board.socket(self._kind, domain=self.address)
        socket.maxmsgsize = self.most_bytes
        socket.sndhwm = self._sndhwm
        if self._kind == "ROUTER":
            socket.router_mandatory = 1
        return socket


class LaneDoor:
    """One address; every connection is a lane, which speaks ZMTP itself: no inner socket, no libzmq."""

    def __init__(
        self,
        board: Switchboard,
        endpoint: Endpoint,
        kind: str,
        opened: Callable[[Lane], None],
        *,
        max_frame: int,
        heartbeat: float | None,
        silence: float | None,
        held: Callable[[str], Watermark] | None = None,
    ) -> None:
        """``opened(lane)`` is called when a client has finished its handshake.

        ``max_frame``: bytes of all frames of a message above which its connection is cut.
        ``heartbeat``: seconds between ZMTP pings; ``silence``: seconds without any sign of life after
        which the connection is cut. ``held(peer)``: makes what is told of a lane's backlog.
        """
        self._board = board
        self._kind = kind
        self._opened = opened
        self._max_frame = max_frame
        self._heartbeat = heartbeat
        self._silence = silence
        self._held = held
        self._lanes: dict[Lane, Callable[[], None]] = {}
        self._received = 0
        self._paused = False
        self._all_gone = Event()
        self._entrance = Entrance(board, endpoint, self._enter)

    @property
    def address(self) -> str:
        """Where it is; after :meth:`start` with the port that the kernel chose, if that was 0."""
        return self._entrance.address

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._lanes)

    @property
    def received(self) -> int:
        """Messages handed over so far, by all lanes."""
        return self._received + sum(lane.received for lane in self._lanes)

    def start(self) -> None:
        """Open the entrance; OSError names the address that can't be bound."""
        self._entrance.start()

    def pause(self) -> None:
        """Stop reading every lane, and accepting."""
        self._paused = True
        self._entrance.pause()
        for lane in list(self._lanes):
            lane.pause(self)

    def resume(self) -> None:
        """Go on, but with lanes that were paused for a reason of their own."""
        self._paused = False
        self._entrance.resume()
        for lane in list(self._lanes):
            lane.resume(self)

    def close_gate(self) -> None:
        """Accept no more and close every lane, which flushes what was sent (about a second at most)."""
        self._entrance.stop()
        self._all_gone.clear()
        for lane in list(self._lanes):
            lane.close()
        if self._lanes:
            self._all_gone.wait()

    def stop(self) -> None:
        """Close every lane, flushing what was sent (about a second at most)."""
        self.close_gate()

    def _enter(self, outside: sockets.socket, peer: str, left: Callable[[], None]) -> None:
        socket = _socket.socket(fileno=outside.detach())
        socket.setblocking(False)  # noqa: FBT003 - that is how it is called
        lane = Lane(
            socket,
            peer,
            self._kind,
            self._opened,
            self._left,
            max_frame=self._max_frame,
            held=self._held(peer) if self._held else None,
            heartbeat=self._heartbeat,
            silence=self._silence,
        )
        self._lanes[lane] = left
        if self._paused:  # accepted before, and only now here
            lane.pause(self)
        lane.start(self._board.handshake)

    def _left(self, lane: Lane, why: str) -> None:
        self._received += lane.received
        left = self._lanes.pop(lane)
        left()
        if not self._lanes:
            self._all_gone.set()
        if why:
            self._board.notice("connections_cut", f"{lane.peer} at {self.address}: {why}")
