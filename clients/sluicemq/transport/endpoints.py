"""Choice of the brokers: the program's endpoints, those of ``SLUICEMQ_ENDPOINT``, or the default door."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sluicemq import arguments
from sluicemq.protocol import environment, hosts
from sluicemq.protocol.readable import is_utf8

#: The broker binds the endpoint that this names, everybody else connects to it.
VARIABLE: Final = environment.OF_CLIENTS["endpoint"]
DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5550"

#: Its former name: ignoring it would send jobs to another broker.
_FORMER: Final = "SLUICEMQ_BROKER"
_FORM: Final = "write tcp://HOST:PORT, dns+tcp://NAME:PORT or ipc://PATH"
_TCP: Final = "tcp://"
#: Begins the endpoint of a broker in the memory of this process, which sluicemq.testing makes.
IN_MEMORY: Final = "memory://"
#: Begins an endpoint that stands for all addresses of a name: a broker is at each.
_ALL_OF: Final = "dns+tcp://"
_SCHEME: Final = r"(?:dns\+tcp|tcp|ipc|memory)://"
#: A comma without a scheme behind it belongs to the path of an ipc endpoint.
_BETWEEN: Final = re.compile(rf"\s*,\s*(?=@?{_SCHEME})")
#: Endpoints of one program: more are a mistake, and each costs a try when all brokers are away.
_MOST: Final = 1000
#: Endpoints that a message names.
_SHOWN: Final = 4
#: Every interface, for a door; clients on this machine use its own addresses.
_HERE: Final = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - nothing is bound


def chosen(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the endpoints to connect to; None: those of the environment, or the default.

    Raises ValueError, which says what is wrong with one, and TypeError.
    """
    if given is not None:
        return checked(given)
    if _FORMER in os.environ:
        raise ValueError(f"the variable {_FORMER} is called {VARIABLE} now: name the broker there")
    variable = environment.given(VARIABLE)
    if not variable:
        return (DEFAULT_ENDPOINT,)
    try:
        return checked(map(_as_seen_from_here, _BETWEEN.split(variable)))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


def checked(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the endpoints, each once, if they can be connected to.

    ``given``: one text, which may name several with commas between them, or several such texts. Raises
    ValueError, which names what is wrong, and TypeError.
    """
    found: dict[str, None] = {}
    for text in _texts(given):
        arguments.text("endpoint", text)
        found.update(dict.fromkeys(map(_checked, _BETWEEN.split(text))))
        if len(found) > _MOST:
            raise ValueError(f"these are more than {_MOST} endpoints")
    if not found:
        raise ValueError("the list of endpoints is empty: name a broker")
    return tuple(found)


def _texts(given: object) -> Iterable[str]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray | memoryview):
        return given
    raise TypeError(f"endpoint is a str or a list of str, not {type(given).__name__}")


def _checked(endpoint: str) -> str:
    problem = _problem(endpoint) if is_utf8(endpoint) else "it is no UTF-8"
    if problem:
        printed = "this" if "@" in endpoint[1:] else repr(endpoint)  # it may be a URI with a password
        raise ValueError(f"{printed} is no endpoint to connect to: {problem}")
    return endpoint


class Place(NamedTuple):
    """One endpoint in its parts. ``address`` is what libzmq gets, unless a ``host`` is to be looked up."""

    endpoint: str
    address: str = ""
    ipv6: bool = False
    host: str = ""
    port: str = ""
    source: str = ""
    """The address to connect from, with a semicolon behind it."""
    families: tuple[bool, ...] = (False, True)
    """Families that a lookup may bring: whether they are IPv6."""
    all_of: bool = False
    """A broker is at each address of the host."""


def place(endpoint: str) -> Place:
    """Return the parts of an endpoint; an interface is replaced by its address."""
    all_of = endpoint.startswith(_ALL_OF)
    tcp = endpoint.removeprefix("dns+")
    if not tcp.startswith(_TCP):
        return Place(endpoint, endpoint)
    source, between, rest = tcp.removeprefix(_TCP).rpartition(";")
    host, _, port = rest.rpartition(":")
    host = _of_interface(host)
    kinds = {hosts.is_ipv6_literal(text) for text in (host, source.rpartition(":")[0])} - {None}
    if hosts.is_ipv6_literal(host) is not None:
        return Place(endpoint, f"{_TCP}{source}{between}{host}:{port}", True in kinds)
    families = (True in kinds,) if kinds else (False, True)
    return Place(endpoint, host=host, port=port, source=source + between, families=families, all_of=all_of)


def most_brokers(given: Sequence[str]) -> int:
    """Return how many brokers these endpoints may lead to; a name that stands for several has any number."""
    return len(given) + (_MOST if any(endpoint.startswith(_ALL_OF) for endpoint in given) else 0)


def printable(endpoints: Sequence[str]) -> str:
    """Return endpoints as a message has them: a few, and the number of the others."""
    more = len(endpoints) - _SHOWN
    return ",".join(endpoints[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _of_interface(host: str) -> str:
    """Return the address of an interface; any other host as it is."""
    try:
        here = next(iter(hosts.interface_addresses(host)), host)
    except OSError:
        return host  # no address: nobody is there
    return f"[{here}]" if ":" in here and not here.startswith("[") else here


def _as_seen_from_here(door: str) -> str:
    """Return an endpoint for a client: ``@tcp://*:5550`` of a broker becomes ``tcp://127.0.0.1:5550``."""
    address = door.removeprefix("@").removeprefix(">")
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    return f"tcp://{_HERE[host]}{colon}{port}" if address.startswith("tcp://") and host in _HERE else address


def _problem(endpoint: str) -> str:
    is_tcp = endpoint.startswith((_TCP, _ALL_OF))
    if len(re.findall(_SCHEME, endpoint)) > 1 or (is_tcp and "," in endpoint):
        return "between the endpoints of a list is a comma, and each has its tcp:// or ipc://"
    if endpoint.startswith(IN_MEMORY):
        return "" if re.fullmatch(r"[\w.-]+", endpoint.removeprefix(IN_MEMORY)) else f"write {IN_MEMORY}NAME"
    if endpoint.startswith("ipc://"):
        path = endpoint.removeprefix("ipc://")
        problem = hosts.problem_of_path("" if path == "*" else path)
        return problem and f"{problem}; {_FORM}"
    if endpoint.startswith(_ALL_OF) and ";" in endpoint:
        return f"{_ALL_OF} takes no address to connect from"
    return _problem_of_place(endpoint.removeprefix("dns+")) if is_tcp else _FORM


def _problem_of_place(endpoint: str) -> str:
    source, between, place = endpoint.removeprefix("tcp://").rpartition(";")
    host, _, port = place.rpartition(":")
    if not host or host == "*":
        return f"the host or the port is missing; {_FORM}"
    if problem := hosts.problem_of_host(host):
        return problem
    if not hosts.as_port(port):
        return f"{port[:64]!r} is no port from 1 to {hosts.LAST_PORT}"
    return _problem_of_source(source, host) if between else ""


def _problem_of_source(source: str, host: str) -> str:
    """Return what is wrong with a source address; libzmq ignores a wrong one and never connects."""
    own, _, port = source.rpartition(":")
    if not own or (port != "*" and hosts.as_port(port) is None):
        return f"{source[:64]!r} is no address to connect from: write HOST:0 before the semicolon"
    if own == "*":
        return "to connect from any address leave out what is before the semicolon"
    return hosts.problem_of_host(own) or hosts.problem_of_source(own, host)
