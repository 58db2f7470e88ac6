"""One DEALER socket for the time of one connection; a lost connection gets a new one.

It belongs to the I/O thread. With a new socket per connection, a message to a broker that died never reaches
its successor before HELLO.
"""

from __future__ import annotations

import _socket
import itertools
import os
import struct
from typing import Any, Final

import zmq

from sluicemq.transport.access import Access
from sluicemq.transport.entry import Failure

_ROUND = 200  # messages taken before timers and sends get their turn
_names = itertools.count(1)
#: An event of a monitor: a zmq.EVENT_ number and its value; the address comes in a frame of its own.
#: zmq.utils.monitor would load asyncio, a third of the time in which this library starts.
_MONITOR_EVENT: Final = struct.Struct("=Hi")
#: A name without an address causes a retry only, a refused connection also closes its socket.
_FAILED: Final = (zmq.EVENT_CLOSED, zmq.EVENT_CONNECT_RETRIED)
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
)
#: Why a handshake failed, each followed by the end of the connection.
_REFUSALS: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)


class Link:
    """A socket, its monitor, and the poll over both and the wake-up pipe."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], wakeup_fd: int) -> None:
        self.refused = False
        """A try to connect has failed: nothing listens there."""
        self.reached = False
        """Something listens there: it has shaken hands, or hung up."""
        self.handshaken = False
        """The peer has shaken hands: it speaks ZMTP."""
        self.failure: Failure | None = None
        """Why the handshake failed."""
        self._cut = False
        self._connected: tuple[int, Any] | None = None  # the number of its TCP socket, and its own address
        self._ready: set[object] = set()  # readable sources of the last poll
        self._socket = context.socket(zmq.DEALER)
        _configure(self._socket)
        self._monitor = _watch(context, self._socket)
        self._poller = zmq.Poller()
        for source in (self._socket, self._monitor, wakeup_fd):
            self._poller.register(source, zmq.POLLIN)

    def connect(self, access: Access, address: str, *, ipv6: bool) -> None:
        """Begin to connect; libzmq tries again by itself until it has been accepted once."""
        self._socket.ipv6 = ipv6
        access.secure(self._socket)
        self._socket.connect(address)

    def wait(self, seconds: float) -> None:
        """Return when something has arrived, the wake-up has been rung, or the time is over."""
        self._ready = {source for source, _ in self._poller.poll(max(0, int(seconds * 1000 + 0.999)))}

    def send(self, frames: list[bytes]) -> None:
        """Send one message; never blocks, since window and credit bound what is under way.

        A message that can't be sent is dropped with the connection: libzmq has no peer any more, which
        :meth:`broken` reports.
        """
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            self._cut = True

    def receive(self) -> list[list[bytes]]:
        """Return all messages that have arrived, up to a round."""
        messages: list[list[bytes]] = []
        readable = self._socket in self._ready
        while readable and len(messages) < _ROUND:
            messages.append(self._socket.recv_multipart(zmq.DONTWAIT))
            readable = _is_readable(self._socket)
        return messages

    @property
    def unread(self) -> bool:
        """Return whether messages wait to be received."""
        return _is_readable(self._socket)

    def broken(self) -> bool:
        """Return whether the connection has ended; drains the monitor."""
        broken = self._cut
        readable = self._monitor in self._ready
        while readable:
            event, value = _MONITOR_EVENT.unpack(self._monitor.recv_multipart(zmq.DONTWAIT)[0])
            readable = _is_readable(self._monitor)
            if event == zmq.EVENT_CONNECTED:
                self._connected = value, _own_address(value)
                continue
            if event in _REFUSALS:
                self.failure = Failure(event, value)
            broken = broken or event == zmq.EVENT_DISCONNECTED
            self.refused = event in _FAILED
            self.reached = self.reached or event not in _FAILED
            self.handshaken = self.handshaken or event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        return broken

    @property
    def tcp_fd(self) -> int | None:
        """Return the number of its TCP socket; None if another file may have that number by now."""
        fd, address = self._connected or (-1, None)
        return fd if address is not None and _own_address(fd) == address else None

    def close(self, linger: int = 0) -> None:
        """Close the sockets; ``linger`` milliseconds for bytes that are not yet written."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger)


def _own_address(fd: int) -> Any:
    """Return the address of a TCP socket, which no other one has at the time; None for other files."""
    try:
        there = _socket.socket(fileno=os.dup(fd))
    except OSError:
        return None
    try:
        return there.getsockname() if there.family in (_socket.AF_INET, _socket.AF_INET6) else None
    except OSError:
        return None
    finally:
        there.close()


def _is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a receive will succeed: a failed one raises, which takes ten times as long."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _configure(socket: zmq.Socket[bytes]) -> None:
    socket.linger = 0
    socket.sndhwm = 0
    socket.rcvhwm = 0
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 1000
    socket.tcp_keepalive = 1


def _watch(context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    address = f"inproc://sluicemq-monitor-{next(_names)}"
    socket.monitor(address, _EVENTS | sum(_REFUSALS))
    monitor = context.socket(zmq.PAIR)
    # With a bound, an unread monitor would stop libzmq's own I/O thread.
    monitor.rcvhwm = 0
    monitor.connect(address)
    return monitor
