"""The host names of the HTTP door: which ``Host`` a request may name, and which pages may change something.

Browsers keep a page of another site from reading an answer. But if a name of that site resolves to this
address ("DNS rebinding"), browsers take both for one site. Therefore a door on a loopback address, and one
with ``[broker] http_hosts``, must be called by an address, as localhost, or by one of those names.

A proxy keeps the browser's ``Host``, or puts the door's address there, and leaves ``Origin`` as it is.
Therefore a change may come from a page of this ``Host``, or of one of those names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[[0-9a-f:.]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")


class HostNames:
    """The names of a door at ``address``. ``hosts``: more of them, as ``name`` or ``name:port``."""

    def __init__(self, address: str, hosts: Sequence[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._names = frozenset(_name(host) for host in self._hosts)
        self._any = not hosts and not _is_local(address)

    def may_be_called(self, host: str) -> bool:
        """Return True if a request may have this ``Host`` header; it may have none."""
        name = _name(host)
        return self._any or (name is not None and (name in self._names or _is_literal(name)))

    def is_own_page(self, origin: str, host: str) -> bool:
        """Return True if ``Origin`` names a page of this door, which the request calls ``host``."""
        try:
            place = urlsplit(origin).netloc.lower()
        except ValueError:
            return False
        return bool(place) and (place == host.lower() or place in self._hosts)


def _name(host: str) -> str | None:
    """Return the name in a ``Host`` header without port and last dot; None if it has none."""
    found = _HOST.fullmatch(host.strip().lower())
    return found[1].removesuffix(".") if found else None


def _is_literal(name: str) -> bool:
    """Return True for an address or localhost, which no other site can have as its name."""
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
