"""Hosts, ports and paths of endpoints: what is wrong with them, and the addresses of an interface."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from typing import Final

LAST_PORT: Final = 65535
#: Bytes of a path in a sockaddr_un, without the closing zero.
LONGEST_PATH: Final = 107

_LONGEST_NAME: Final = 253
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_ZONE: Final = re.compile(r"[A-Za-z0-9._-]{1,15}")
_SCOPES: Final = {"00": 0, "10": 1, "20": 2}  # the whole net, this machine, a link: best first


def problem_of_host(host: str) -> str:
    """Return what is wrong with a host (name, IPv4 address, IPv6 address in brackets); empty: nothing."""
    if host.startswith("[") and host.endswith("]"):
        return "" if _is_ipv6(host[1:-1]) else f"{host[:_LONGEST_NAME]} is no IPv6 address"
    if ":" in host:
        return "an IPv6 host needs brackets, as in tcp://[::1]:5550"
    if is_ipv6_literal(host) is False:
        return "" if _is_address(socket.AF_INET, host) else f"{host[:_LONGEST_NAME]!r} is no IPv4 address"
    labels = host.removesuffix(".").split(".")
    if len(host) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)) or not host[:1].isalnum():
        return f"{host[:_LONGEST_NAME]!r} is no host: letters and digits of ASCII, full stops, - and _"
    return ""


def problem_of_source(source: str, target: str) -> str:
    """Return what is wrong with a host to connect from: its family differs from the target's."""
    kinds = {is_ipv6_literal(source), is_ipv6_literal(target)} - {None}
    return "it connects from an address of one family, IPv4 or IPv6, to the other" if len(kinds) > 1 else ""


def is_ipv6_literal(host: str) -> bool | None:
    """Return True for an IPv6 address in brackets, False for an IPv4 address, None for a name."""
    if host.startswith("["):
        return True
    return False if host.replace(".", "").isdigit() else None


def problem_of_path(path: str) -> str:
    """Return what is wrong with the path of a unix socket, or its abstract name, which begins with @."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "the path is no text in UTF-8"
    if "\0" in path:
        return "a path has no zero bytes"
    if size > LONGEST_PATH:
        return f"the path is longer than {LONGEST_PATH} bytes, the most that unix sockets allow"
    return "the path is missing" if path in ("", "@") else ""


def as_port(text: str) -> int | None:
    """Return the number of a port, from 0 on; None if it is none."""
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(LAST_PORT))
    return int(text) if digits and int(text) <= LAST_PORT else None


def interface_addresses(host: str) -> list[str]:
    """Return the addresses of an interface of this machine, IPv4 first; an empty list for another host.

    Raises OSError if the interface has no address.
    """
    if host not in [name for _, name in socket.if_nameindex()]:
        return []
    found = [address for address in (_ipv4_of(host), _ipv6_of(host)) if address is not None]
    if not found:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return found


def _ipv4_of(interface: str) -> str | None:
    import fcntl  # noqa: PLC0415 - Windows has none, and only interfaces need it

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        try:
            # Asks Linux for the IPv4 address of an interface
            answer = fcntl.ioctl(asks.fileno(), 0x8915, struct.pack("256s", interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6_of(interface: str) -> str | None:
    from pathlib import Path  # noqa: PLC0415 - 5 ms to load, and only interfaces need it

    try:
        # Address, index, length, scope, flags, interface
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    except OSError:
        return None
    found = [(_SCOPES.get(row[3], len(_SCOPES)), row[0]) for row in rows if row[-1] == interface]
    if not found:
        return None
    scope, digits = min(found)
    address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return f"{address}%{interface}" if scope == _SCOPES["20"] else address


def _is_ipv6(host: str) -> bool:
    """Return whether this is an IPv6 address without brackets; a link-local one may have a ``%zone``."""
    address, percent, zone = host.partition("%")
    if not _is_address(socket.AF_INET6, address):
        return False
    return not percent or (address[:3].lower() == "fe8" and bool(_ZONE.fullmatch(zone)))


def _is_address(family: int, text: str) -> bool:
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True
