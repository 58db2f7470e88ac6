"""What the kernel knows of a connection, asked and told without reading or waiting."""

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
    """True if the peer has ended the connection, as far as it is known here."""
    look = _poll()
    look.register(socket.fileno(), select.POLLRDHUP)
    return bool(look.poll(0))


def unread(socket: _socket.socket) -> int:
    """Bytes that have come and were not read."""
    return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


def outstanding(socket: _socket.socket) -> int:
    """Bytes written that the peer's kernel has not acknowledged or, on a Unix socket, the peer not read.

    The system may be one that does not say (SIOCOUTQ is Linux's): 0 then, what was written counts as gone.
    """
    try:
        return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def unacknowledged(socket: _socket.socket, seconds: float) -> bool:
    """True if something is on the wire, and nothing at all was acknowledged for so long.

    One that does not read what it is sent acknowledges all the same, so its silence is no sign of death.
    (TCP_USER_TIMEOUT can't tell the two apart: it ends a connection whose peer has no room for so long.)
    """
    if socket.family == _socket.AF_UNIX:
        return False
    info = socket.getsockopt(_socket.IPPROTO_TCP, _socket.TCP_INFO, _INFO_SIZE)
    (segments,) = _UNACKED.unpack_from(info)
    (milliseconds,) = _LAST_ACK.unpack_from(info)
    return bool(segments) and milliseconds >= 1000 * seconds


def half_close(socket: _socket.socket) -> None:
    """Say that nothing more comes; closed now, unread bytes would make the kernel drop what was sent."""
    with contextlib.suppress(OSError):
        socket.shutdown(_socket.SHUT_WR)
