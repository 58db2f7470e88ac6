"""Endpoints as they are written in configuration: ``@tcp://…`` binds, ``>tcp://…`` connects.

@tcp://127.0.0.1:5551   @tcp://*:5551 (every interface)   @tcp://eth0:5551   @tcp://[::]:5551
@tcp://localhost:5551   the IPv4 address of a name that has one, else its IPv6 address; eth0 likewise
@tcp://127.0.0.1:*      any free port, as port 0
>tcp://host:5551        >tcp://192.0.2.17:0;host:5551: from this address, or interface, of this machine
ipc:///run/jobs         ipc://jobs: in the working directory   ipc://@jobs: abstract, without a file
@ipc://*                a socket in a new folder for temporary files
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from sluicemq.protocol import hosts

_EXAMPLES = "write tcp://HOST:PORT or ipc:///PATH, with @ before it to bind or > to connect"
_ANY_IPC = "ipc://*"
#: Names of this machine's loopback: a host and an interface.
_HERE = ("localhost", "lo")


@dataclass(frozen=True)
class Endpoint:
    """One end of a device: where it is, and whether it is bound (or connected to)."""

    address: str
    bind: bool

    @property
    def is_any(self) -> bool:
        """True if it binds to any free port or folder: two such endpoints are two places."""
        if self.address.startswith("tcp://"):
            return self.bind and host_and_port(self.address)[1] == 0
        return self.address == _ANY_IPC

    @property
    def is_exposed(self) -> bool:
        """True if it binds where other machines may reach it. A name is such a place, but for localhost."""
        if not self.bind or not self.address.startswith("tcp://"):
            return False
        host = host_and_port(self.address)[0]
        try:
            found = ipaddress.ip_address(host)
        except ValueError:
            return host not in _HERE
        return not (getattr(found, "ipv4_mapped", None) or found).is_loopback

    def __str__(self) -> str:
        return ("@" if self.bind else ">") + self.address


def parse(text: str) -> Endpoint:
    """Read an endpoint; unmarked ones bind.

    Raises ValueError, which names what is wrong and what to write.
    """
    bind = not text.startswith(">")
    address = text[1:] if text[:1] in ("@", ">") else text
    _check(address, text, bind=bind)
    return Endpoint(address, bind)


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port: ``tcp://[::1]:5551`` -> ``("::1", 5551)``; ``*`` is host ``""`` or port 0.

    The address to connect from, if there is one, is left out.
    """
    return _place(address.removeprefix("tcp://").rpartition(";")[2])


def source_of(address: str) -> tuple[str, int] | None:
    """Return where a connection comes from: ``tcp://lo:0;host:5551`` -> ``("lo", 0)``; None: anywhere."""
    source = address.removeprefix("tcp://").rpartition(";")[0]
    return _place(source) if source else None


def unix_path(address: str) -> str:
    """Return the path: ``ipc:///run/jobs`` -> ``/run/jobs``; an abstract name begins with a zero byte."""
    path = address.removeprefix("ipc://")
    return "\0" + path[1:] if path.startswith("@") else path


def tcp_address(host: str, port: int) -> str:
    """Return the address: ``("::1", 5551)`` -> ``tcp://[::1]:5551``."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host or '*'}:{port}"


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]").replace("*", ""), int(port.replace("*", "0"))


def _check(address: str, text: str, *, bind: bool) -> None:
    if address.startswith("tcp://"):
        source, between, place = address.removeprefix("tcp://").rpartition(";")
        if "," in place:
            raise _wrong(text, "it is a list: name one place here, and others as endpoints of their own")
        if between and bind:
            raise _wrong(text, "only an end that connects can have an address to connect from")
        _check_place(place, text, may_be_any=bind)
        if between:
            _check_place(source, text, may_be_any=True)
            if problem := hosts.problem_of_source(source.rpartition(":")[0], place.rpartition(":")[0]):
                raise _wrong(text, problem)
    elif address.startswith("ipc://"):
        _check_ipc(address, text, bind=bind)
    else:
        raise _wrong(text, "it starts with neither tcp:// nor ipc://")


def _check_place(place: str, text: str, *, may_be_any: bool) -> None:
    host, colon, port = place.rpartition(":")
    if not colon or not host:
        raise _wrong(text, "host or port is missing")
    if host != "*" and (problem := hosts.problem_of_host(host)):
        raise _wrong(text, problem)
    if port != "*" and hosts.as_port(port) is None:
        raise _wrong(text, f"{port[:64]!r} is not a port from 0 to {hosts.LAST_PORT}")
    if not may_be_any and (host == "*" or not port.strip("0*")):
        raise _wrong(text, "an end that connects needs a real host and port")


def _check_ipc(address: str, text: str, *, bind: bool) -> None:
    path = address.removeprefix("ipc://")
    if problem := hosts.problem_of_path(path):
        raise _wrong(text, problem)
    if address == _ANY_IPC and not bind:
        raise _wrong(text, "an end that connects needs a real path")


def _wrong(text: str, what: str) -> ValueError:
    return ValueError(f"{text!r} is not an endpoint: {what}; {_EXAMPLES}")
