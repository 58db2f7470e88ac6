"""Addresses of names, looked up in native threads: a lookup blocks for as long as no DNS server answers.

The I/O thread of a connection asks, goes on, and is woken when an answer has come. libzmq gets addresses
only: a lookup of its own would hold up the end of its context.
"""

from __future__ import annotations

import _socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from sluicemq.transport import native

#: Lookups of one connection at one time; others wait for these.
_AT_ONCE: Final = 16
#: Addresses of one name that are used.
_MOST: Final = 256


class Address(NamedTuple):
    """An address as endpoints have it, and its family."""

    text: str
    ipv6: bool


#: Returns the addresses of a name; raises OSError.
Resolve = Callable[[str], Sequence[Address]]


def addresses_of(host: str) -> list[Address]:
    """Return the addresses of a name, those of IPv4 first; raises OSError."""
    # bytes: for a str Python would load a codec in this thread
    found = _socket.getaddrinfo(host.encode(), None, 0, _socket.SOCK_STREAM)
    inet4 = [str(place[0]) for family, _, _, _, place in found if family == _socket.AF_INET]
    inet6 = [str(place[0]) for family, _, _, _, place in found if family == _socket.AF_INET6]
    return [
        *(Address(address, ipv6=False) for address in inet4),
        *(Address(f"[{address}]", ipv6=True) for address in inet6),
    ]


class Names:
    """The addresses of names, as they were looked up last. It belongs to one I/O thread."""

    def __init__(self, ring: Callable[[], None], resolve: Resolve = addresses_of) -> None:
        """``ring`` wakes the I/O thread; a lookup calls it when it has ended."""
        self._ring = ring
        self._resolve = resolve
        self._known: dict[str, tuple[Address, ...]] = {}
        self._sought: set[str] = set()
        self._waiting: deque[str] = deque()
        self._under_way = 0
        self._ended: deque[tuple[str, tuple[Address, ...] | None]] = deque()  # filled by the lookups' threads

    def look_up(self, host: str) -> None:
        """Begin to look up a name, unless that is under way."""
        if host not in self._sought:
            self._sought.add(host)
            self._waiting.append(host)
            self._begin_next()

    def collect(self) -> None:
        """Take in the answers that have come. A failed lookup leaves the addresses that were known."""
        while self._ended:
            host, found = self._ended.popleft()
            self._under_way -= 1
            self._sought.discard(host)
            if found is not None:
                self._known[host] = found
            self._begin_next()

    def known(self, host: str) -> tuple[Address, ...]:
        """Return the addresses of the last lookup that brought any answer."""
        return self._known.get(host, ())

    def sought(self, host: str) -> bool:
        """Return whether a name is being looked up."""
        return host in self._sought

    def _begin_next(self) -> None:
        while self._waiting and self._under_way < _AT_ONCE:
            self._under_way += 1
            host = self._waiting.popleft()
            try:
                native.start_thread(partial(self._look_up, host))
            except RuntimeError:  # no thread can be started now
                self._ended.append((host, None))
                self._ring()
                return

    def _look_up(self, host: str) -> None:
        found = None
        with suppress(Exception):  # without an answer the name has the addresses of before
            found = tuple(dict.fromkeys(self._resolve(host)))[:_MOST]
        self._ended.append((host, found))
        self._ring()
