"""Sockets at endpoints: those that listen there, and connections to them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket as names
import struct
import tempfile
from pathlib import Path

from gevent import socket as sockets

from sluicemq_devices.doors.endpoints import host_and_port, source_of, tcp_address, unix_path

_BACKLOG = 1024
_EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - only where the endpoint says *
_DIAL = 5.0  # seconds for one dial
_SIOCGIFADDR = 0x8915  # asks Linux for the IPv4 address of an interface
_ANY_IPC = "ipc://*"


def listen(address: str) -> tuple[sockets.socket, str]:
    """A socket that listens there, and where that is: with a port, a path, the address of an interface.

    OSError names the address that can't be bound.
    """
    try:
        return _listen_ipc(address) if is_ipc(address) else _listen_tcp(address)
    except OSError as error:
        raise OSError(error.errno, f"{address} can't be bound: {error.strerror}") from error


def connect(address: str) -> sockets.socket:
    """A connection to there; OSError."""
    if is_ipc(address):
        outside = sockets.socket(sockets.AF_UNIX)
        return _connected(outside, unix_path(address))
    source = source_of(address)
    if source is None:
        return sockets.create_connection(host_and_port(address), timeout=_DIAL)
    return _connect_from(source, host_and_port(address))


def leave(wanted: str, address: str) -> None:
    """Take away the file of a socket that listened at an address that was wanted so."""
    path = unix_path(address)
    if not is_ipc(address) or path.startswith("\0"):
        return
    with contextlib.suppress(OSError):
        Path(path).unlink()
        if wanted == _ANY_IPC:
            Path(path).parent.rmdir()


def host_address(host: str) -> str:
    """The IPv4 address of an interface of this machine; every other host is given as it is.

    OSError: the interface has none.
    """
    if host not in [name for _, name in names.if_nameindex()]:
        return host
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as asks:
        try:
            answer = fcntl.ioctl(asks.fileno(), _SIOCGIFADDR, struct.pack("256s", host.encode()))
        except OSError as error:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL)) from error
    return names.inet_ntoa(answer[20:24])


def is_ipc(address: str) -> bool:
    """True if it is one of this machine, a unix socket."""
    return address.startswith("ipc://")


def _listen_tcp(address: str) -> tuple[sockets.socket, str]:
    written, port = host_and_port(address)
    host = host_address(written) or _EVERY_INTERFACE
    family, _, _, _, place = sockets.getaddrinfo(
        host, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE
    )[0]
    listener = sockets.socket(family, sockets.SOCK_STREAM)
    listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    if family == sockets.AF_INET6:  # [::] is IPv4 too, whatever the system's default is
        listener.setsockopt(sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY, 0)
    bound = _bound(listener, place)
    return bound, tcp_address(host, bound.getsockname()[1])


def _listen_ipc(address: str) -> tuple[sockets.socket, str]:
    if address == _ANY_IPC:
        address = f"ipc://{tempfile.mkdtemp(prefix='sluicemq-')}/socket"
    path = unix_path(address)
    if path.startswith("\0"):
        return _bound(sockets.socket(sockets.AF_UNIX), path), address
    with sockets.socket(sockets.AF_UNIX) as probe:
        if probe.connect_ex(path) != 0:  # left behind by a process that was killed
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
    return _bound(sockets.socket(sockets.AF_UNIX), path), f"ipc://{Path(path).absolute()}"


def _bound(listener: sockets.socket, place: object) -> sockets.socket:
    try:
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _connect_from(source: tuple[str, int], target: tuple[str, int]) -> sockets.socket:
    """From an address of this machine; the target's is of the same family."""
    host = host_address(source[0]) or _EVERY_INTERFACE
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    place = sockets.getaddrinfo(*target, family=family, type=sockets.SOCK_STREAM)[0][4]
    outside = sockets.socket(family, sockets.SOCK_STREAM)
    outside.settimeout(_DIAL)
    outside.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    return _connected(outside, place, (host, source[1]))


def _connected(outside: sockets.socket, place: object, source: object = None) -> sockets.socket:
    try:
        if source:
            outside.bind(source)
        outside.connect(place)
    except OSError:
        outside.close()
        raise
    return outside
