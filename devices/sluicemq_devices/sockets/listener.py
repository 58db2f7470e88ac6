"""Accepting and dialling connections, within a budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from time import thread_time

import gevent
from gevent import socket as sockets
from gevent.event import Event

from sluicemq_devices.hub import NEXT_TURN, Mishap, TimeUsed, nothing
from sluicemq_devices.sockets import resolving
from sluicemq_devices.sockets.endpoints import Endpoint, tcp_address
from sluicemq_devices.sockets.switchboard import Switchboard

_log = logging.getLogger("devices")

_BREATH = 0.1  # seconds before the next accept() after one that failed: no storm at the limit of files
_BACKOFF = (0.1, 5.0)  # seconds between dials: first and longest
_STEADY = 6.0  # seconds; a connection that lasted as long is dialled again without backing off

#: Takes a connection, the name of its peer, and a callback for its end.
Welcome = Callable[[sockets.socket, str, Callable[[], None]], None]


class Entrance:
    """One address: accepts or dials connections and hands each to ``welcome``, which must not block."""

    def __init__(
        self, board: Switchboard, endpoint: Endpoint, welcome: Welcome, *, kept: bool = False
    ) -> None:
        """``kept``: some connections are kept for this address, which others can't use up."""
        self.address = endpoint.address
        self._board = board
        self._endpoint = endpoint
        self._welcome = welcome
        self._kept = kept
        self._connections = 0
        self._time_used = TimeUsed()
        self._lost_at: float | None = None  # when the connection to a dialled address was lost
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._listener: sockets.socket | None = None
        self._accepting = Event()
        self._accepting.set()

    def start(self) -> None:
        """Bind or begin to dial; OSError names the address that can't be bound."""
        if self._greenlet:
            return
        if self._endpoint.bind:
            self._listener, self.address = resolving.listen(self._endpoint.address)
            self._greenlet = gevent.spawn(self._accept, self._listener)
        else:
            self._greenlet = gevent.spawn(self._dial)

    def pause(self) -> None:
        """Accept no more: new connections wait in the kernel, where a dead one costs no file."""
        self._accepting.clear()

    def resume(self) -> None:
        """Accept again."""
        self._accepting.set()

    def stop(self) -> None:
        """Accept no more; connections that were handed over stay."""
        if self._greenlet:
            self._greenlet.kill()
            self._greenlet = None
        if self._listener:
            self._listener.close()
            self._listener = None
            resolving.leave(self._endpoint.address, self.address)

    def _accept(self, listener: sockets.socket) -> None:
        while True:
            self._accepting.wait()
            try:
                outside, address = listener.accept()
            except OSError as error:
                self._board.notice(Mishap.CONNECTIONS_REFUSED, f"{self.address}: {error.strerror}")
                gevent.sleep(_BREATH)
                continue
            began = thread_time()
            self._admit(outside, _peer_name(outside, address), nothing)
            self._board.strangers_time.used(thread_time() - began)
            self._wait_for_a_turn()

    def _wait_for_a_turn(self) -> None:
        """Wait until the files of a connection are open, and a crowd starves nobody else."""
        time = self._board.strangers_time
        if time.is_over:
            turn = Event()
            time.wait(turn.set, self._time_used)
            turn.wait()
        else:
            gevent.sleep(NEXT_TURN)

    def _admit(self, outside: sockets.socket, peer: str, ended: Callable[[], None]) -> bool:
        client = peer if self._endpoint.bind else ""
        why = self._board.admit(outside.fileno(), self._connections, kept=self._kept, peer=client)
        if why:
            outside.close()
            self._board.notice(Mishap.CONNECTIONS_REFUSED, f"{peer} at {self.address}: {why}")
            return False
        self._connections += 1
        left = partial(self._left, client, ended)
        try:
            _tune(outside)
        except OSError as error:  # it has gone already
            outside.close()
            left()
            self._board.notice(Mishap.CONNECTIONS_REFUSED, f"{peer} at {self.address}: {error}")
        else:
            self._welcome(outside, peer, left)
        return True

    def _left(self, client: str, ended: Callable[[], None]) -> None:
        self._connections -= 1
        self._board.release(client)
        ended()

    def _dial(self) -> None:
        pause, longest = _BACKOFF
        while True:
            began = time.monotonic()
            self._dial_once()
            pause = _BACKOFF[0] if time.monotonic() - began > _STEADY else min(2 * pause, longest)
            gevent.sleep(pause)

    def _dial_once(self) -> None:
        """Connect, and wait until the connection has ended."""
        try:
            outside = resolving.connect(self._endpoint.address)
        except OSError as error:
            self._board.notice(Mishap.DIAL_FAILED, f"{self.address}: {error.strerror or error}")
            self._lost_at = self._lost_at or time.monotonic()
            return
        ended = Event()
        if self._admit(outside, self.address, ended.set):
            if self._lost_at is not None:
                without = time.monotonic() - self._lost_at
                _log.warning("%s: connected again, after %.1f s without", self.address, without)
                self._lost_at = None
            ended.wait()
            self._lost_at = time.monotonic()
            _log.warning("%s: the connection is lost, and dialled again", self.address)


def _tune(outside: sockets.socket) -> None:
    """Send small frames without delay; notice a machine that has vanished after a minute."""
    outside.settimeout(None)
    if outside.family == sockets.AF_UNIX:
        return
    outside.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    outside.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    outside.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPIDLE, 30)
    outside.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPINTVL, 10)
    outside.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPCNT, 3)


def _peer_name(outside: sockets.socket, address: tuple[str, int]) -> str:
    return "ipc" if outside.family == sockets.AF_UNIX else tcp_address(address[0], address[1])
