"""Gates: each connection to a shared door is spliced to its inner socket.

libzmq 4.3.5 aborts the whole process when a peer with ZMTP heartbeats meets a full pipe; so the
inner socket is always drained, and back-pressure means that the gate stops reading TCP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from gevent import socket as sockets
from gevent.pool import Group

from devices.endpoints import Endpoint
from devices.entrance import Entrance
from devices.splice import Splice
from devices.switchboard import Switchboard
from devices.valve import Valve

_FLUSH = 1.0  # seconds for connections to end by themselves


class Inner(Protocol):
    """What a connection is joined to."""

    path: str
    valve: Valve
    most_bytes: int

    def left(self) -> None:
        """Be told that the connection has ended and libzmq has read all of it."""


class Gate:
    """One address: splices each connection to what ``enter`` gives for it."""

    def __init__(self, board: Switchboard, endpoint: Endpoint, enter: Callable[[Splice], Inner]) -> None:
        self._board = board
        self._enter = enter
        self._splices: set[Splice] = set()
        self._greenlets = Group()
        self._entrance = Entrance(board, endpoint, self._welcome)

    @property
    def address(self) -> str:
        """Where it is; after :meth:`start` with the port that the kernel chose, if that was 0."""
        return self._entrance.address

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._splices)

    def start(self) -> None:
        """Bind or begin to dial; OSError names the address that can't be bound."""
        self._entrance.start()

    def pause(self) -> None:
        """Accept no more: who comes waits in the kernel, where a dead one costs no file."""
        self._entrance.pause()

    def resume(self) -> None:
        """Accept again."""
        self._entrance.resume()

    def close(self) -> None:
        """Accept no more; end every connection once what was read of it has been passed on."""
        self._entrance.stop()
        for splice in self._splices:
            splice.end()
        self._wait()

    def stop(self) -> None:
        """Accept no more; the inner sockets are closing: pass on what they flush."""
        self._entrance.stop()
        self._wait()

    def expect_end(self) -> None:
        """All inner sockets are about to close."""
        for splice in self._splices:
            splice.expect_end()

    def _wait(self) -> None:
        self._greenlets.join(_FLUSH)
        self._greenlets.kill(timeout=_FLUSH)

    def _welcome(self, outside: sockets.socket, peer: str, left: Callable[[], None]) -> None:
        self._greenlets.spawn(self._serve, outside, peer, left)

    def _serve(self, outside: sockets.socket, peer: str, left: Callable[[], None]) -> None:
        try:
            with contextlib.closing(Splice(outside, peer)) as splice:
                self._join(splice)
        except OSError as error:
            self._board.notice("connections_refused", f"{peer} at {self.address}: {error}")
        finally:
            outside.close()
            left()

    def _join(self, splice: Splice) -> None:
        inner = self._enter(splice)
        self._splices.add(splice)
        try:
            splice.run(inner.path, inner.valve, inner.most_bytes)
        finally:
            self._splices.discard(splice)
            inner.left()
        if splice.cut or not splice.spoke_zmtp:
            self._board.notice("connections_cut", f"{splice.peer} at {self.address}: {splice.reason}")
