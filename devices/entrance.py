"""Entrances: where clients' connections are accepted, or dialled, within a budget."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gevent
from gevent import socket as sockets
from gevent.event import Event

from devices.callbacks import nothing
from devices.endpoints import Endpoint, host_and_port, tcp_address
from devices.switchboard import Switchboard

_BACKLOG = 1024
_EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - only where the endpoint says *
_BREATH = 0.1  # seconds before the next accept() after one that failed: no storm at the limit of files
_BACKOFF = (0.1, 5.0)  # seconds between dials: first and longest
_MOMENT = 1e-9  # seconds
_DIAL = 5.0  # seconds for one dial
_STEADY = 1.0  # seconds; a dialled connection that lasted so long is redialled without backing off

#: Given a connection, who is there, and what to call, once, when it has been closed.
Welcome = Callable[[sockets.socket, str, Callable[[], None]], None]


class Entrance:
    """One address: accepts or dials connections and hands each to ``welcome``, which must not block."""

    def __init__(self, board: Switchboard, endpoint: Endpoint, welcome: Welcome) -> None:
        self.address = endpoint.address
        self._board = board
        self._endpoint = endpoint
        self._welcome = welcome
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._listener: sockets.socket | None = None
        self._accepting = Event()
        self._accepting.set()

    def start(self) -> None:
        """Bind or begin to dial; OSError names the address that can't be bound."""
        if self._greenlet:
            return
        if self._endpoint.bind:
            self._listener = _listen(self._endpoint.address)
            self.address = _real_address(self._endpoint.address, self._listener)
            self._greenlet = gevent.spawn(self._accept, self._listener)
        else:
            self._greenlet = gevent.spawn(self._dial)

    def pause(self) -> None:
        """Accept no more: who comes waits in the kernel, where a dead one costs no file."""
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
            _unlink(self._endpoint.address)

    def _accept(self, listener: sockets.socket) -> None:
        while True:
            self._accepting.wait()
            try:
                outside, address = listener.accept()
            except OSError as error:
                self._board.notice("connections_refused", f"{self.address}: {error.strerror}")
                gevent.sleep(_BREATH)
                continue
            self._admit(outside, _peer_name(outside, address), nothing)
            gevent.sleep(_MOMENT)  # it opens its files before the next comes; and a crowd starves nobody

    def _admit(self, outside: sockets.socket, peer: str, ended: Callable[[], None]) -> bool:
        if not self._board.admit(outside.fileno()):
            outside.close()
            text = f"{self._board.connections} connections are open, or too many files"
            self._board.notice("connections_refused", f"{peer} at {self.address}: {text}")
            return False
        left = partial(self._left, ended)
        try:
            _tune(outside)
        except OSError as error:  # it has gone already
            outside.close()
            left()
            self._board.notice("connections_refused", f"{peer} at {self.address}: {error}")
        else:
            self._welcome(outside, peer, left)
        return True

    def _left(self, ended: Callable[[], None]) -> None:
        self._board.release()
        ended()

    def _dial(self) -> None:
        pause, longest = _BACKOFF
        while True:
            began = time.monotonic()
            self._dial_once()
            pause = _BACKOFF[0] if time.monotonic() - began > _DIAL + _STEADY else min(2 * pause, longest)
            gevent.sleep(pause)

    def _dial_once(self) -> None:
        """Connect, and stay until the connection has ended."""
        try:
            outside = _connect(self._endpoint.address)
        except OSError as error:
            self._board.notice("dial_failed", f"{self.address}: {error.strerror or error}")
            return
        ended = Event()
        if self._admit(outside, self.address, ended.set):
            ended.wait()


def _listen(address: str) -> sockets.socket:
    try:
        return _listen_ipc(address.removeprefix("ipc://")) if _is_ipc(address) else _listen_tcp(address)
    except OSError as error:
        raise OSError(error.errno, f"{address} can't be bound: {error.strerror}") from error


def _listen_tcp(address: str) -> sockets.socket:
    host, port = host_and_port(address)
    family, _, _, _, place = sockets.getaddrinfo(
        host or _EVERY_INTERFACE, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE
    )[0]
    listener = sockets.socket(family, sockets.SOCK_STREAM)
    listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    return _bound(listener, place)


def _listen_ipc(path: str) -> sockets.socket:
    with sockets.socket(sockets.AF_UNIX) as probe:
        if probe.connect_ex(path) != 0:  # left behind by a process that was killed
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
    return _bound(sockets.socket(sockets.AF_UNIX), path)


def _bound(listener: sockets.socket, place: object) -> sockets.socket:
    try:
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _connect(address: str) -> sockets.socket:
    if not _is_ipc(address):
        return sockets.create_connection(host_and_port(address), timeout=_DIAL)
    outside = sockets.socket(sockets.AF_UNIX)
    try:
        outside.connect(address.removeprefix("ipc://"))
    except OSError:
        outside.close()
        raise
    return outside


def _tune(outside: sockets.socket) -> None:
    """No delay for small frames; a peer whose machine has vanished is noticed after a minute."""
    outside.settimeout(None)
    if outside.family == sockets.AF_UNIX:
        return
    outside.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    outside.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    outside.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPIDLE, 30)
    outside.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPINTVL, 10)
    outside.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_KEEPCNT, 3)


def _real_address(address: str, listener: sockets.socket) -> str:
    """With the port that the kernel chose, where 0 was asked for."""
    if _is_ipc(address):
        return address
    return tcp_address(host_and_port(address)[0], listener.getsockname()[1])


def _peer_name(outside: sockets.socket, address: tuple[str, int]) -> str:
    return "ipc" if outside.family == sockets.AF_UNIX else tcp_address(address[0], address[1])


def _is_ipc(address: str) -> bool:
    return address.startswith("ipc://")


def _unlink(address: str) -> None:
    if _is_ipc(address):
        with contextlib.suppress(FileNotFoundError):
            Path(address.removeprefix("ipc://")).unlink()
