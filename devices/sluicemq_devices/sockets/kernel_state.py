"""State of a connection in the kernel, read and changed without reading the socket or waiting."""

from __future__ import annotations

import _socket
import contextlib
import fcntl
import select
import struct
import sys
import termios

from gevent import monkey

_poll = monkey.get_original("select", "poll")  # gevent's would wait, and callbacks of the hub can't

# struct tcp_info of linux/tcp.h
_INFO_SIZE = 60
_UNACKED = struct.Struct("=24xI")  # segments
_LAST_ACK = struct.Struct("=56xI")  # milliseconds


def has_left(socket: _socket.socket) -> bool:
    """True if the peer has ended the connection, as far as this kernel knows."""
    look = _poll()
    look.register(socket.fileno(), select.POLLRDHUP)
    return bool(look.poll(0))


def unread(socket: _socket.socket) -> int:
    """Return the bytes that have arrived and were not read."""
    return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def outstanding(socket: _socket.socket) -> int:
    """Return the bytes written that the peer has not taken: not acknowledged or, on a Unix socket, not read.

    0 on a system that does not say (SIOCOUTQ is Linux's): all that was written counts as taken.
    """
    try:
        return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def unacknowledged(socket: _socket.socket, seconds: float) -> bool:
    """True if data is on the wire and nothing was acknowledged for ``seconds``.

    The kernel of a peer that reads nothing goes on to acknowledge, so a peer that only does not read is not
    taken for dead. TCP_USER_TIMEOUT can't tell the two apart.
    """
    if socket.family == _socket.AF_UNIX:
        return False
    info = socket.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, _INFO_SIZE)
    (segments,) = _UNACKED.unpack_from(info)
    (milliseconds,) = _LAST_ACK.unpack_from(info)
    return bool(segments) and milliseconds >= 1000 * seconds


def half_close(socket: _socket.socket) -> None:
    """End the sending side. A full close would make the kernel drop what was sent if bytes are unread."""
    with contextlib.suppress(OSError):
        socket.shutdown(_socket.SHUT_WR)
