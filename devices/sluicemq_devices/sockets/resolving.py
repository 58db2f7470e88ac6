"""Names resolved and sockets opened: listening at an endpoint, connecting to one."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from gevent import socket as sockets

from sluicemq.protocol.hosts import interface_addresses
from sluicemq_devices.sockets.endpoints import host_and_port, source_of, tcp_address, unix_path

_BACKLOG = 1024
_EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - only where the endpoint says *
_DIAL = 5.0  # seconds for one dial
_ANY_IPC = "ipc://*"
#: Its folder begins with this, and has one socket. Seconds for which such a socket may be about to listen.
_PREFIX, _SOCKET = "sluicemq-", "socket"
_YOUNG = 60.0
_ORDER = {sockets.AF_INET: 0, sockets.AF_INET6: 1}


def listen(address: str) -> tuple[sockets.socket, str]:
    """Return a socket that listens at ``address``, and its address with port, path or interface filled in.

    OSError names the address that can't be bound.
    """
    try:
        return _listen_ipc(address) if is_ipc(address) else _listen_tcp(address)
    except OSError as error:
        raise OSError(error.errno, f"{address} can't be bound: {error.strerror}") from error


def connect(address: str) -> sockets.socket:
    """Return a connection to ``address``. Raises OSError."""
    if is_ipc(address):
        outside = sockets.socket(sockets.AF_UNIX)
        return _connected(outside, unix_path(address))
    return _connect_tcp(source_of(address), host_and_port(address))


def leave(wanted: str, address: str) -> None:
    """Remove the file of a Unix socket that listened at ``address``; ``wanted``: as it was configured."""
    path = unix_path(address)
    if not is_ipc(address) or path.startswith("\0"):
        return
    with contextlib.suppress(OSError):
        Path(path).unlink()
        if wanted == _ANY_IPC:
            Path(path).parent.rmdir()


def resolved(host: str, port: int) -> list[tuple[int, Any]]:
    """Return the addresses of a host or of an interface of this machine, with their families, IPv4 first.

    libzmq's PUSH and REQ take the IPv4 address of such a host, too. Raises OSError if there is none.
    """
    hosts = interface_addresses(host) or [host or _EVERY_INTERFACE]
    found = [
        (family, place)
        for host in hosts
        for family, _, _, _, place in sockets.getaddrinfo(
            host, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE
        )
    ]
    return sorted(found, key=lambda address: _ORDER[address[0]])


def is_ipc(address: str) -> bool:
    """True for the address of a Unix socket."""
    return address.startswith("ipc://")


def _listen_tcp(address: str) -> tuple[sockets.socket, str]:
    host, port = host_and_port(address)
    family, place = resolved(host, port)[0]
    listener = sockets.socket(family, sockets.SOCK_STREAM)
    listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    if family == sockets.AF_INET6:  # [::] is IPv4 too, whatever the system's default is
        listener.setsockopt(sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY, 0)
    bound = _bound(listener, place)
    shown = next(iter(interface_addresses(host)), host or _EVERY_INTERFACE)
    return bound, tcp_address(shown, bound.getsockname()[1])


def _listen_ipc(address: str) -> tuple[sockets.socket, str]:
    if address == _ANY_IPC:
        remove_left_over(Path(tempfile.gettempdir()))
        address = f"ipc://{tempfile.mkdtemp(prefix=_PREFIX)}/{_SOCKET}"
    path = unix_path(address)
    if path.startswith("\0"):
        return _bound(sockets.socket(sockets.AF_UNIX), path), address
    with sockets.socket(sockets.AF_UNIX) as probe:
        if probe.connect_ex(path) != 0:  # left behind by a process that was killed
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
    return _bound(sockets.socket(sockets.AF_UNIX), path), f"ipc://{Path(path).absolute()}"


def remove_left_over(temporary: Path) -> None:
    """Remove folders of ``ipc://*`` that killed processes of this user have left among temporary files.

    One in which nobody answers is left; a young one may be about to listen.
    """
    for path in temporary.glob(f"{_PREFIX}*/{_SOCKET}"):
        with contextlib.suppress(OSError), sockets.socket(sockets.AF_UNIX) as probe:
            found = path.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _YOUNG:
                continue
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
                path.parent.rmdir()


def _bound(listener: sockets.socket, place: object) -> sockets.socket:
    try:
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _connect_tcp(source: tuple[str, int] | None, target: tuple[str, int]) -> sockets.socket:
    """Connect to the first address of the target that takes it, from an address of its family."""
    own = {} if source is None else dict(reversed(_sources(*source)))
    problem = OSError(errno.EADDRNOTAVAIL, "no address to connect from is of a family of that host's")
    for family, place in resolved(*target):
        if source is not None and family not in own:
            continue
        outside = sockets.socket(family, sockets.SOCK_STREAM)
        outside.settimeout(_DIAL)
        try:
            return _connected(outside, place, own.get(family))
        except OSError as error:
            problem = error
    raise problem


def _sources(host: str, port: int) -> list[tuple[int, Any]]:
    """Return the addresses from which a connection may come; the first of each family is taken."""
    if host:
        return resolved(host, port)
    return [(sockets.AF_INET, (_EVERY_INTERFACE, port)), (sockets.AF_INET6, ("::", port))]


def _connected(outside: sockets.socket, place: object, source: object = None) -> sockets.socket:
    try:
        if source:
            outside.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
            outside.bind(source)
        outside.connect(place)
    except OSError:
        outside.close()
        raise
    return outside
