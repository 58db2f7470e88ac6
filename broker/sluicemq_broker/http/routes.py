"""The paths of the HTTP door, and rules for all of them: allowed requests, headers, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import falcon
import falcon.media
import gevent

from sluicemq.protocol.errors import (
    BadQueueError,
    ForbiddenError,
    NotFoundError,
    SluiceError,
    UnavailableError,
)
from sluicemq.protocol.json_values import dumps
from sluicemq_broker.admin import Admin, Snapshots
from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.http import openapi
from sluicemq_broker.http.answer_memory import AnswerMemory
from sluicemq_broker.http.authorization import Authorization, record_change
from sluicemq_broker.http.callers import Callers, unauthorized
from sluicemq_broker.http.connections import Connections
from sluicemq_broker.http.endpoint import Endpoint
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.health import PATHS as HEALTH
from sluicemq_broker.http.host_names import HostNames
from sluicemq_broker.http.metrics import Metrics
from sluicemq_broker.http.route import BASE, Method, Route, Table, add
from sluicemq_broker.http.sources import Sources
from sluicemq_broker.http.table import CORE
from sluicemq_broker.runtime import Count, Counters, Timer
from sluicemq_broker.security import NOTHING, Audit, Caller, Needs, Security, with_hint
from sluicemq_devices.sockets import Outgoing

#: Headers for browsers: no frames, no scripts of other sites, no reading by other sites, no guessing of
#: types, no copy in a cache.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_STATUS: Final[dict[type[SluiceError], str]] = {
    ForbiddenError: falcon.HTTP_403,
    BadQueueError: falcon.HTTP_404,
    NotFoundError: falcon.HTTP_404,
    UnavailableError: falcon.HTTP_503,
}


class Site:
    """All paths of the door; parts of the broker add theirs by :meth:`ask` and :meth:`serve`.

    ``connections``: of the door; ``outgoing``: memory that all doors share. ``timer``: of wrong tries.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        counters: Counters,
        connections: Connections,
        admin: Admin,
        metrics: Metrics,
        outgoing: Outgoing,
        security: Security,
        timer: Timer | None = None,
    ) -> None:
        self._counters = counters
        names, memory = HostNames(settings.http, settings.http_hosts), AnswerMemory(connections, outgoing)
        self.table: Table = {}
        """The paths, with what answers each."""
        self._callers = callers = Callers(settings, security, counters, timer)
        self.snapshots = Snapshots(lambda: admin.snapshot(actions=callers.any))
        turns = FairTurns(AT_ONCE, WAITING)
        self._endpoint = Endpoint(turns)
        self._closing: list[Callable[[], None]] = []
        guard = _Guard(
            names, Authorization(callers, names), memory, self.table, security.audit, callers.renew
        )
        self._app = _application(guard, self._failed)
        self.add(CORE, Sources(admin, self.snapshots, callers, metrics, turns, memory))
        self.add((DESCRIPTION,), self)

    def add(self, routes: Iterable[Route], subject: Any) -> None:
        """Let paths be answered by their functions, which get this ``subject``.

        ``request.context`` has the caller, and ``is_permitted()``: if the caller still has the permissions
        with which the request came.
        """
        for path in add(self.table, routes, subject):
            self._app.add_route(path, self._endpoint)

    def ask(self, path: str, name: str, summary: str, *about: Any, **more: Any) -> None:
        """Answer a GET of the API with the row that ``do(call, **names)`` returns.

        ``about``: ``needs``, ``answer`` and ``do`` of its :class:`Route`; ``more``: others of its fields.
        """
        self._add(Method.GET, BASE + path, name, summary, *about, **more)

    def change(self, path: str, name: str, summary: str, *about: Any, **more: Any) -> None:
        """Answer a POST as :meth:`ask` does; it has a ``body``, and ``act``, its name in the audit."""
        self._add(Method.POST, BASE + path, name, summary, *about, **more)

    def serve(
        self,
        path: str,
        name: str,
        summary: str,
        needs: Needs | None,
        serve: Callable[[falcon.Request, falcon.Response], None],
        **more: Any,
    ) -> None:
        """Let ``serve`` write the answer to a GET, which is no JSON; ``needs`` None: also before a login."""
        self._add(Method.GET, path, name, summary, needs, Any, serve, writes=True, asks_store=False, **more)

    def _add(
        self,
        method: Method,
        path: str,
        name: str,
        summary: str,
        needs: Needs | None,
        answer: Any,
        do: Callable[..., Any],
        **more: Any,
    ) -> None:
        """Add a path whose function gets no subject."""
        call = lambda _subject, *args, **names: do(*args, **names)  # noqa: E731 - as those of the tables
        self.add((Route(method, path, name, summary, needs, answer, call, **more),), None)

    @property
    def needs(self) -> dict[str, Needs | None]:
        """Return the permission that each path needs; None: everybody may, also before a login."""
        return {
            path: route.needs for path, by_method in self.table.items() for route, _ in by_method.values()
        }

    @cached_property
    def description(self) -> str:
        """Return the OpenAPI document, once all paths are there. It takes 40 ms: made beside the hub."""
        text: str = gevent.get_hub().threadpool.apply(openapi.text, (self.table,))
        return text

    def reconfigure(self, settings: BrokerSettings) -> None:
        """Use other live settings."""
        self._callers.reconfigure(settings)

    def on_close(self, step: Callable[[], None]) -> None:
        """Call ``step`` when the broker stops."""
        self._closing.append(step)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        answer: Iterable[bytes] = self._app(environ, start_response)
        return answer

    def _failed(
        self,
        request: falcon.Request,
        response: falcon.Response,
        error: Exception,
        _parameters: dict[str, Any],
    ) -> None:
        """Count and log a fault of the broker, at most one line a second, with its traceback."""
        self._counters.notice(Count.HTTP_FAILURES, f"{request.method} {request.path[:200]} failed", error)
        response.status = falcon.HTTP_500
        response.media = {
            "code": UnavailableError.code, "message": "the broker failed on this; its log says why"
        }  # fmt: skip

    def close(self) -> None:
        """End answers that would go on for ever: the broker stops."""
        for step in self._closing:
            step()


def _describe(site: Site, _request: falcon.Request, response: falcon.Response) -> None:
    response.content_type = falcon.MEDIA_JSON
    response.text = site.description


#: Requests that ask MongoDB at one time, for they share its connections with the jobs; and that wait.
AT_ONCE: Final = 4
WAITING: Final = 100
DESCRIPTION: Final = Route(
    Method.GET,
    f"{BASE}/openapi.json",
    "openapi.get",
    "This document",
    NOTHING,
    Any,
    do=_describe,
    writes=True,
    asks_store=False,
)


def _application(guard: _Guard, failed: Callable[..., None]) -> falcon.App[Any, Any]:
    app = falcon.App(middleware=[guard])
    app.resp_options.media_handlers[falcon.MEDIA_JSON] = falcon.media.JSONHandler(dumps=dumps)
    app.set_error_serializer(_serialize)
    app.add_error_handler(Exception, failed)
    app.add_error_handler(SluiceError, _refuse)
    return app


class _Guard:
    """Checks each request: its method, host name, token, and memory for an answer.

    Requests for health are always answered.
    """

    def __init__(
        self,
        names: HostNames,
        authorization: Authorization,
        memory: AnswerMemory,
        table: Table,
        audit: Audit,
        renew: Callable[[falcon.Request, falcon.Response], None],
    ) -> None:
        self._audit = audit
        self._renew = renew
        self._names = names
        self._authorization = authorization
        self._memory = memory
        self._table = table

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        if request.method not in ("GET", "HEAD", "POST"):
            raise falcon.HTTPMethodNotAllowed(["GET", "HEAD", "POST"])
        if request.path in HEALTH:
            return
        if not self._names.may_be_called(request.get_header("Host") or ""):
            raise falcon.HTTPForbidden(
                description="this door has no such host name: use its address or localhost, or add the name "
                "to [broker] http_hosts"
            )
        self._memory.for_any()

    def process_resource(
        self, request: falcon.Request, _response: falcon.Response, _resource: object, params: dict[str, str]
    ) -> None:
        """Decode ``%XX`` in names of the path, which may have slashes; ask if the caller may have it."""
        for name, value in params.items():
            params[name] = unquote(value)
        methods = self._table[str(request.uri_template)]
        method = Method.POST if request.method == Method.POST else Method.GET
        if method not in methods:
            raise falcon.HTTPMethodNotAllowed([*methods, *(["HEAD"] if Method.GET in methods else [])])
        context = request.context
        context.parameters = params
        context.route, context.subject = methods[method]
        self._authorization.check(request, context.route.needs, params)

    def process_response(
        self, request: falcon.Request, response: falcon.Response, _resource: object, _succeeded: object
    ) -> None:
        route: Route | None = getattr(request.context, "route", None)
        if route and route.former == request.uri_template:
            response.set_header("Deprecation", "true")
            response.set_header("Link", f'<{route.path}>; rel="successor-version"')
        record_change(self._audit, request, response)
        self._renew(request, response)
        for name, value in _HEADERS.items():
            if response.get_header(name) is None:
                response.set_header(name, value)
        # Browsers would come over TLS only to all other servers of this machine, too
        if request.scheme == "https" and request.host != "localhost":
            # A year: browsers that have come over TLS come over TLS only
            response.set_header("Strict-Transport-Security", "max-age=31536000")


def _refuse(
    request: falcon.Request, response: falcon.Response, error: SluiceError, _parameters: dict[str, Any]
) -> None:
    caller: Caller | None = request.context.get("caller")
    error = with_hint(caller, error) if caller else error
    if isinstance(error, ForbiddenError) and caller and not caller.name:
        raise unauthorized(f"{error}; a token or a login may help")
    status = (code for kind, code in _STATUS.items() if isinstance(error, kind))
    response.status = next(status, falcon.HTTP_400)
    if isinstance(error, UnavailableError):
        response.set_header("Retry-After", "1")
    response.media = {"code": error.code, "message": str(error)}


def _serialize(_request: falcon.Request, response: falcon.Response, error: falcon.HTTPError) -> None:
    """Write errors of HTTP itself in the form of the broker's own errors."""
    words = str(error.title or error.status).upper().split()
    code = "_".join(word for word in words if not word.isdigit())
    response.media = {"code": code, "message": error.description or error.title}
