"""Choice of the brokers: the program's endpoints, those of ``SLUICEMQ_ENDPOINT``, or the default door."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from sluicemq import arguments
from sluicemq.protocol import hosts
from sluicemq.protocol.readable import is_utf8

#: The broker binds the endpoint that this names, everybody else connects to it.
VARIABLE: Final = "SLUICEMQ_ENDPOINT"
DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5550"

#: Its former name: ignoring it would send jobs to another broker.
_FORMER: Final = "SLUICEMQ_BROKER"
_FORM: Final = "write tcp://HOST:PORT, dns+tcp://NAME:PORT or ipc://PATH"
_TCP: Final = "tcp://"
#: Begins an endpoint that stands for all addresses of a name: a broker is at each.
_ALL_OF: Final = "dns+tcp://"
_SCHEME: Final = r"(?:dns\+tcp|tcp|ipc)://"
#: A comma without a scheme behind it belongs to the path of an ipc endpoint.
_BETWEEN: Final = re.compile(rf"\s*,\s*(?=@?{_SCHEME})")
#: Endpoints of one program: more are a mistake, and each costs a try when all brokers are away.
_MOST: Final = 1000
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
    variable = os.environ.get(VARIABLE)
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
        shown = "this" if "@" in endpoint[1:] else repr(endpoint)  # it may be a URI with a password
        raise ValueError(f"{shown} is no endpoint to connect to: {problem}")
    return endpoint


def families(endpoint: str) -> tuple[bool, ...]:
    """Return for each try in turn whether it uses IPv6: a name may have addresses of both families.

    libzmq tries one address of one family. Without this, it would never reach a name that has only IPv6, or a
    broker that listens only at the IPv6 address of a name with both.
    """
    if not endpoint.startswith("tcp://"):
        return (False,)
    ends = endpoint.removeprefix("tcp://").split(";")
    kinds = {hosts.is_ipv6_literal(each.rpartition(":")[0]) for each in ends} - {None}
    if kinds:
        return (True in kinds,)
    return (False, True)


def dialled(endpoint: str) -> str:
    """Return the endpoint for libzmq, with an interface replaced by its address."""
    if not endpoint.startswith("tcp://"):
        return endpoint
    source, between, place = endpoint.removeprefix("tcp://").rpartition(";")
    host, _, port = place.rpartition(":")
    try:
        here = next(iter(hosts.interface_addresses(host)), None)
    except OSError:
        return endpoint  # no address: nobody is there
    if here is None:
        return endpoint
    return f"tcp://{source}{between}{f'[{here}]' if ':' in here else here}:{port}"


def _as_seen_from_here(door: str) -> str:
    """Return an endpoint for a client: ``@tcp://*:5550`` of a broker becomes ``tcp://127.0.0.1:5550``."""
    address = door.removeprefix("@").removeprefix(">")
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    return f"tcp://{_HERE[host]}{colon}{port}" if address.startswith("tcp://") and host in _HERE else address


def _problem(endpoint: str) -> str:
    is_tcp = endpoint.startswith((_TCP, _ALL_OF))
    if len(re.findall(_SCHEME, endpoint)) > 1 or (is_tcp and "," in endpoint):
        return "between the endpoints of a list is a comma, and each has its tcp:// or ipc://"
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
