"""By which names a browser may reach the HTTP door, and from which page it may give an order.

A page of another site can send a request, but must not read the answer, which browsers see to. But a name
of that site which leads to this address would make it one site ("DNS rebinding"). So a door for this machine
alone, and one that has ``[broker] http_hosts``, are called by an address, as localhost, or by one of those
names.

A proxy before the door keeps the ``Host`` of the browser, or puts the door's address there; the browser's
``Origin`` stays what it is. Hence an order may come from the page of this ``Host``, or of one of those names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[[0-9a-f:.]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")


class Names:
    """The names of a door at ``address``: ``hosts`` beside its own, as ``name`` or ``name:port``."""

    def __init__(self, address: str, hosts: Sequence[str]) -> None:
        self._hosts = frozenset(each.lower() for each in hosts)
        self._names = frozenset(_name(each) for each in self._hosts)
        self._any = not hosts and not _is_local(address)

    def may_be_called(self, host: str) -> bool:
        """True if a request may have this ``Host`` header; it may have none."""
        name = _name(host)
        return self._any or (name is not None and (name in self._names or _is_literal(name)))

    def is_own_page(self, origin: str, host: str) -> bool:
        """True if an ``Origin`` header names a page of this door, which was asked as ``host``."""
        try:
            place = urlsplit(origin).netloc.lower()
        except ValueError:
            return False
        return bool(place) and (place == host.lower() or place in self._hosts)


def _name(host: str) -> str | None:
    """The name in a ``Host`` header, without its port and a last dot; None: there is none."""
    found = _HOST.fullmatch(host.strip().lower())
    return found[1].removesuffix(".") if found else None


def _is_literal(name: str) -> bool:
    """True for an address or for this machine: a stranger's page has a name of its own."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name in ("localhost", "")
    return True


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
