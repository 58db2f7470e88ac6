"""Choice of the broker: the program's endpoint, ``SLUICEMQ_ENDPOINT``, or the default door here."""

from __future__ import annotations

import os
import re
from typing import Final

from sluicemq.protocol import hosts
from sluicemq.protocol.readable import is_utf8

#: The broker binds the endpoint that this names, everybody else connects to it.
VARIABLE: Final = "SLUICEMQ_ENDPOINT"
DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5550"

#: Its former name: ignoring it would send jobs to another broker.
_FORMER: Final = "SLUICEMQ_BROKER"
_FORM: Final = "write tcp://HOST:PORT or ipc://PATH"
#: Every interface, for a door; clients on this machine use its own addresses.
_HERE: Final = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - nothing is bound


def chosen(endpoint: str | None) -> str:
    """Return the endpoint to connect to; None: that of the environment, or the default.

    Raises ValueError, which says what is wrong with it.
    """
    if endpoint is not None:
        return checked(endpoint)
    if _FORMER in os.environ:
        raise ValueError(f"the variable {_FORMER} is called {VARIABLE} now: name the broker there")
    given = os.environ.get(VARIABLE)
    if not given:
        return DEFAULT_ENDPOINT
    try:
        return checked(_as_seen_from_here(given))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


def checked(endpoint: str) -> str:
    """Return the endpoint, if it can be connected to; raises ValueError."""
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
    if len(re.findall("(?:tcp|ipc)://", endpoint)) > 1 or (endpoint.startswith("tcp://") and "," in endpoint):
        return "it is a list; a program connects to one broker, so name one"
    if endpoint.startswith("ipc://"):
        path = endpoint.removeprefix("ipc://")
        problem = hosts.problem_of_path("" if path == "*" else path)
        return problem and f"{problem}; {_FORM}"
    return _problem_of_place(endpoint) if endpoint.startswith("tcp://") else _FORM


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
