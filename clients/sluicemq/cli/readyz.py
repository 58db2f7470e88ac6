"""A question to ``/readyz`` of a broker's HTTP door, which needs no key: for health checks of containers."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from sluicemq.protocol.errors import UnavailableError
from sluicemq.transport.connection import NOBODY_ANSWERS

_PAUSE = 0.2  # seconds between two questions to a door that is not there yet


def readiness(address: str, timeout: float, wait: float = 0.0) -> dict[str, Any]:
    """Return the answer of ``/readyz``: ``serves``, and for each of its conditions "ok" or what is wrong.

    ``address``: host and port, or a URL. ``wait``: seconds for a broker that is not ready yet. Raises
    Unavailable if none answers, and ValueError if ``address`` is none.
    """
    url = urlsplit(address if "://" in address else f"http://{address}")
    if url.scheme not in ("http", "https") or not url.hostname or url.port is None:
        raise ValueError(f"{address!r} is no host and port, as in 127.0.0.1:5580")
    end = monotonic() + wait
    while True:
        last = monotonic() >= end
        try:
            answer = _ask(_connection(url.scheme, url.hostname, url.port, timeout))
            if last or not missing(answer):
                return answer
        except (OSError, HTTPException, ValueError) as error:
            if last:
                said = str(error) or type(error).__name__
                raise UnavailableError(f"{NOBODY_ANSWERS} {url.geturl()}/readyz: {said}") from error
        sleep(_PAUSE)


def missing(answer: dict[str, Any]) -> str:
    """Return what keeps the broker from being ready; empty: nothing."""
    said = [f"{name}: {what}" for name, what in answer.items() if name != "serves" and what != "ok"]
    return "" if answer.get("serves") is True else "; ".join(said) or "it does not say why"


def _ask(connection: HTTPConnection) -> dict[str, Any]:
    try:
        connection.request("GET", "/readyz")
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise ValueError("something else than a broker answers")  # noqa: TRY004 - as for what is no JSON
    return answer


def _connection(scheme: str, host: str, port: int | None, timeout: float) -> HTTPConnection:
    if scheme == "http":
        return HTTPConnection(host, port, timeout=timeout)
    # Nothing secret goes there, and a certificate for this machine's own address is rare.
    return HTTPSConnection(host, port, timeout=timeout, context=ssl._create_unverified_context())  # noqa: S323
