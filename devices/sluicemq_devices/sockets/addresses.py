"""Connections, unfinished handshakes and failures of each address: what strangers may take of a process.

An address may be that of many clients: of a proxy, of a network behind one address, of this machine. So no
address is locked out. An address that fails a lot waits longer for its handshakes, and the one with the most
unfinished handshakes loses the oldest of them when there are too many, as in the SYN cache of a kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_network
from typing import Final, Protocol

from sluicemq_devices.hub import Latest
from sluicemq_devices.sockets.endpoints import host_and_port

#: Addresses that have no connection and are remembered for their failures.
_MOST_REMEMBERED: Final = 4096
#: Failures that an address has free, and seconds after which one is forgotten.
_FREE: Final = 20
_FORGOTTEN_AFTER: Final = 1.0
_OF_ONE_OWNER: Final = 64  # bits of an IPv6 address that its owner has not chosen


class Stranger(Protocol):
    """A connection whose handshake is not done."""

    peer: str
    """Address of the client."""

    def give_way(self, why: str) -> None:
        """End the connection: another one needs its place."""


class Address:
    """The connections of one address, and how many of its handshakes failed lately."""

    __slots__ = ("_at", "_failures", "_now", "connections", "handshakes", "name")

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        self.name = name
        self.connections = 0
        self.handshakes: dict[Stranger, None] = {}
        """Unfinished handshakes, the oldest first."""
        self._now = now
        self._failures = self._at = 0.0

    @property
    def failures(self) -> float:
        """Failures that are not forgotten."""
        now = self._now()
        self._failures = max(0.0, self._failures - (now - self._at) / _FORGOTTEN_AFTER)
        self._at = now
        return self._failures

    @property
    def fails_often(self) -> bool:
        """True if many of its handshakes failed lately: the next ones are read in spare time."""
        return self.failures > _FREE

    def failed(self) -> None:
        """Note a handshake that came to nothing."""
        self._failures = min(2 * _FREE, self.failures + 1)


class Addresses:
    """The addresses of all connections of a process, and some of those that left after failures.

    ``most_connections``: of one address, None for any number. ``most_handshakes``: unfinished ones of all.
    """

    def __init__(self, most_connections: int | None, *, now: Callable[[], float] = time.monotonic) -> None:
        self.most_connections = most_connections
        self.most_handshakes = 0
        self.handshakes = 0
        """Unfinished handshakes of all addresses."""
        self._now = now
        self._there: dict[str, Address] = {}
        self._remembered: Latest[str, Address] = Latest(_MOST_REMEMBERED)
        self._by_handshakes: dict[int, dict[Address, None]] = {}  # addresses by how many they have
        self._most = 0  # handshakes of the address with the most

    def __len__(self) -> int:
        """Return how many addresses are known."""
        return len(self._there) + len(self._remembered)

    def refusal(self, peer: str) -> str:
        """Return why a connection of this peer is one too many of its address, or ""."""
        most, address = self.most_connections, self._there.get(address_of(peer)) if peer else None
        if most is None or address is None or address.connections < most:
            return ""
        return f"{address.connections} connections of {address.name} are open, max_connections_per_address"

    def opened(self, peer: str) -> None:
        """Count a connection of this peer."""
        self._at(address_of(peer)).connections += 1

    def closed(self, peer: str) -> None:
        """Count the end of a connection; an address without any is remembered for its failures."""
        address = self._there[address_of(peer)]
        address.connections -= 1
        if address.connections:
            return
        del self._there[address.name]
        if address.failures:
            self._remembered[address.name] = address

    def begin(self, stranger: Stranger) -> Address:
        """Count a handshake that begins; if it is one too many, the oldest of the address with most ends."""
        if self.handshakes >= self.most_handshakes:
            self._make_room()
        address = self._at(address_of(stranger.peer))
        address.handshakes[stranger] = None
        self._has(address, len(address.handshakes) - 1)
        self.handshakes += 1
        return address

    def end(self, address: Address, stranger: Stranger) -> None:
        """Count a handshake that is done, or has ended."""
        del address.handshakes[stranger]
        self._has(address, len(address.handshakes) + 1)
        self.handshakes -= 1

    def _at(self, name: str) -> Address:
        address = self._there.get(name)
        if address is None:
            address = self._remembered.pop(name, None) or Address(name, self._now)
            self._there[name] = address
        return address

    def _make_room(self) -> None:
        crowd = self._by_handshakes.get(self._most)
        if crowd:
            address = next(iter(crowd))
            next(iter(address.handshakes)).give_way(
                f"{self.handshakes} handshakes were unfinished, {self._most} of {address.name}: this one was"
                " the oldest of these"
            )

    def _has(self, address: Address, before: int) -> None:
        """Note that an address has one handshake more or less than ``before``."""
        count = len(address.handshakes)
        if before:
            crowd = self._by_handshakes[before]
            del crowd[address]
            if not crowd:
                del self._by_handshakes[before]
        if count:
            self._by_handshakes.setdefault(count, {})[address] = None
        self._most = max(self._most, count)
        if self._most not in self._by_handshakes:
            self._most = count  # it was the only one with the most


def address_of(peer: str) -> str:
    """Return what counts as one address: an IPv4 address, 64 bits of an IPv6 address, or "ipc"."""
    if not peer.startswith("tcp://"):
        return peer
    return owner_of(host_and_port(peer)[0])


def owner_of(host: str) -> str:
    """Return what counts as one of an IP address: of IPv6 its first 64 bits; another text as it is."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ip_network((address, _OF_ONE_OWNER), strict=False))
