"""Which address answers what, and what holds for all of them: who may ask, and in which words."""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import falcon
import falcon.media

from sluicemq.errors import BadQueue, NotFound, SluiceError, Unavailable
from sluicemq_broker.doors import Admin
from sluicemq_broker.http import actions, api, pages
from sluicemq_broker.http.door import SLASH
from sluicemq_broker.http.health import Health, Live, Ready
from sluicemq_broker.http.live import LiveFeed
from sluicemq_broker.http.metrics import Metrics
from sluicemq_broker.http.reader import Reader
from sluicemq_broker.http.rights import Rights
from sluicemq_broker.http.snapshots import Snapshots

log = logging.getLogger("broker.http")

#: Whoever asks through a browser gets nothing for another site: no frames, no scripts from elsewhere, no
#: reading from there, no guessing of types, no copy in a cache.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_STATUS: Final[dict[type[SluiceError], str]] = {
    BadQueue: falcon.HTTP_404,
    NotFound: falcon.HTTP_404,
    Unavailable: falcon.HTTP_503,
}


class Site:
    """All that the door at ``address`` answers; ``token``: who knows it may change something."""

    def __init__(
        self, address: str, token: str | None, health: Health, metrics: Metrics, reader: Reader, admin: Admin
    ) -> None:
        rights = Rights(token)
        snapshots = Snapshots(lambda: reader.snapshot(actions=rights.any))
        self._feed = LiveFeed(snapshots)
        self._app = _application(_Guard(address, rights))
        self._app.add_route("/healthz", Live())
        self._app.add_route("/readyz", Ready(health))
        self._app.add_route("/metrics", metrics)
        for path, resource in {
            **pages.routes(),
            **api.routes(reader, snapshots, self._feed),
            **actions.routes(admin),
        }.items():
            self._app.add_route(path, resource)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """One answer, in WSGI's form."""
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer

    def close(self) -> None:
        """The broker stops: end what dashboards listen to."""
        self._feed.close()


def _application(guard: _Guard) -> falcon.App[Any, Any]:
    app = falcon.App(middleware=[guard])
    app.resp_options.media_handlers[falcon.MEDIA_JSON] = falcon.media.JSONHandler(
        dumps=partial(json.dumps, ensure_ascii=False, default=api.as_json)
    )
    app.set_error_serializer(_serialize)
    app.add_error_handler(Exception, _fail)
    app.add_error_handler(SluiceError, _refuse)
    return app


class _Guard:
    """Before and after each request. A page of another site can send one, but must not read the answer.

    No header allows it to, so browsers forbid it. But a name of its own that leads to 127.0.0.1 would make it
    the same site ("DNS rebinding"): so where only this machine is served, others' names are refused.
    """

    def __init__(self, address: str, rights: Rights) -> None:
        self._local_only = _is_local(address)
        self._rights = rights

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        if request.method not in ("GET", "HEAD", "POST"):
            raise falcon.HTTPMethodNotAllowed(["GET", "HEAD", "POST"])
        if self._local_only and not _is_literal(request.get_header("Host") or ""):
            raise falcon.HTTPForbidden(description="ask for 127.0.0.1 or localhost: this door is local")
        if request.method == "POST":
            self._rights.check(request)

    def process_resource(
        self, _request: falcon.Request, _response: falcon.Response, _resource: object, params: dict[str, str]
    ) -> None:
        for name, value in params.items():
            params[name] = value.replace(SLASH, "/")

    def process_response(
        self, _request: falcon.Request, response: falcon.Response, _resource: object, _succeeded: object
    ) -> None:
        for name, value in _HEADERS.items():
            if response.get_header(name) is None:
                response.set_header(name, value)


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_literal(host: str) -> bool:
    """True if a Host header names an address, or this machine: a stranger's page has a name of its own."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name in ("localhost", "")
    return True


def _refuse(
    _request: falcon.Request, response: falcon.Response, error: SluiceError, _parameters: dict[str, Any]
) -> None:
    status = (each for kind, each in _STATUS.items() if isinstance(error, kind))
    response.status = next(status, falcon.HTTP_400)
    response.media = {"code": error.code, "message": str(error)}


def _serialize(_request: falcon.Request, response: falcon.Response, error: falcon.HTTPError) -> None:
    """What HTTP itself refuses, in the form of the broker's own errors."""
    words = str(error.title or error.status).upper().split()
    code = "_".join(word for word in words if not word.isdigit())
    response.media = {"code": code, "message": error.description or error.title}


def _fail(
    request: falcon.Request, response: falcon.Response, error: Exception, _parameters: dict[str, Any]
) -> None:
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    response.status = falcon.HTTP_500
    response.media = {"code": Unavailable.code, "message": "the broker failed on this; its log says why"}
