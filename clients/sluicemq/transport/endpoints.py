"""Where a broker is: what the program says, else ``SLUICEMQ_ENDPOINT``, else this machine's default door."""

from __future__ import annotations

import os
import re
from typing import Final

#: The broker binds what this names, everybody else connects to it.
VARIABLE: Final = "SLUICEMQ_ENDPOINT"
DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5550"

#: What it was called before: to leave it unread would send jobs to another broker.
_FORMER: Final = "SLUICEMQ_BROKER"
_LAST_PORT: Final = 65535
_FORM: Final = "write tcp://HOST:PORT or ipc://PATH"
#: Every interface, for a door; who connects from this machine takes its own.
_HERE: Final = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - nothing is bound


def chosen(endpoint: str | None) -> str:
    """The endpoint to connect to; None is that of the environment, or the default one.

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
    """The endpoint, if it can be connected to; else ValueError."""
    problem = _problem(endpoint)
    if problem:
        shown = "this" if "@" in endpoint[1:] else repr(endpoint)  # it may be a URI with a password
        raise ValueError(f"{shown} is no endpoint to connect to: {problem}")
    return endpoint


def _as_seen_from_here(door: str) -> str:
    """``@tcp://*:5550``, as a broker has it, is ``tcp://127.0.0.1:5550``."""
    address = door.removeprefix("@").removeprefix(">")
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    return f"tcp://{_HERE[host]}{colon}{port}" if address.startswith("tcp://") and host in _HERE else address


def _problem(endpoint: str) -> str:
    if len(re.findall("(?:tcp|ipc)://", endpoint)) > 1 or (endpoint.startswith("tcp://") and "," in endpoint):
        return "it is a list; a program connects to one broker, so name one"
    if endpoint.startswith("ipc://"):
        return "" if endpoint.removeprefix("ipc://") not in ("", "*") else f"the path is missing; {_FORM}"
    return _problem_of_place(endpoint) if endpoint.startswith("tcp://") else _FORM


def _problem_of_place(endpoint: str) -> str:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(";")[2].rpartition(":")
    if not host or host == "*":
        return f"the host or the port is missing; {_FORM}"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "an IPv6 host needs brackets, as in tcp://[::1]:5550"
    if not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= _LAST_PORT):
        return f"{port!r} is no port from 1 to {_LAST_PORT}"
    return ""
