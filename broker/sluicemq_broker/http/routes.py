"""The paths of the HTTP door, and rules for all of them: allowed requests, headers, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import unquote

import falcon
import falcon.media

from sluicemq.protocol.errors import BadQueue, NotFound, SluiceError, Unavailable
from sluicemq.protocol.json_values import dumps
from sluicemq_broker.admin import Admin, Snapshots
from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.http import actions, api
from sluicemq_broker.http.answer_memory import AnswerMemory
from sluicemq_broker.http.authorization import Authorization
from sluicemq_broker.http.connections import Connections
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.health import PATHS as HEALTH
from sluicemq_broker.http.health import Live, Ready
from sluicemq_broker.http.host_names import HostNames
from sluicemq_broker.http.metrics import Metrics
from sluicemq_broker.runtime import Count, Counters
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
#: Characters of a path in the log.
_SHOWN: Final = 200
_STATUS: Final[dict[type[SluiceError], str]] = {
    BadQueue: falcon.HTTP_404,
    NotFound: falcon.HTTP_404,
    Unavailable: falcon.HTTP_503,
}


class Site:
    """All paths of the door; parts of the broker add theirs by :meth:`add` and :meth:`ask`.

    ``connections``: of the door; ``outgoing``: memory that all doors share.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        counters: Counters,
        connections: Connections,
        admin: Admin,
        metrics: Metrics,
        outgoing: Outgoing,
    ) -> None:
        self._counters = counters
        names, memory = HostNames(settings.http, settings.http_hosts), AnswerMemory(connections, outgoing)
        authorization = Authorization(settings.http_token.text if settings.http_token else None, names)
        self.snapshots = Snapshots(lambda: admin.snapshot(actions=authorization.any))
        self._turns = FairTurns(api.AT_ONCE, api.WAITING)
        self._closing: list[Callable[[], None]] = []
        self._app = _application(_Guard(names, authorization, memory), self._failed)
        self.add("/healthz", Live())
        self.add("/readyz", Ready(admin.broker))
        self.add("/metrics", metrics)
        queues = api.routes(admin, self.snapshots, self._turns, memory)
        for path, resource in {**queues, **actions.routes(admin)}.items():
            self.add(path, resource)

    def add(self, path: str, resource: object) -> None:
        """Let a resource answer a path."""
        self._app.add_route(path, resource)

    def ask(self, path: str, answer: Callable[..., Any]) -> None:
        """Answer a path of the API with ``answer(request, **names in the path)``, which may ask MongoDB."""
        self.add(api.BASE + path, api.Answer(answer, self._turns))

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
        self._counters.notice(Count.HTTP_FAILURES, f"{request.method} {request.path[:_SHOWN]} failed", error)
        response.status = falcon.HTTP_500
        response.media = {
            "code": Unavailable.code, "message": "the broker failed on this; its log says why"
        }  # fmt: skip

    def close(self) -> None:
        """End answers that would go on for ever: the broker stops."""
        for step in self._closing:
            step()


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

    def __init__(self, names: HostNames, authorization: Authorization, memory: AnswerMemory) -> None:
        self._names = names
        self._authorization = authorization
        self._memory = memory

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
        if request.method == "POST":
            self._authorization.check(request)
        self._memory.for_any()

    def process_resource(
        self, _request: falcon.Request, _response: falcon.Response, _resource: object, params: dict[str, str]
    ) -> None:
        """Decode ``%XX`` in names of the path, which may have slashes."""
        for name, value in params.items():
            params[name] = unquote(value)

    def process_response(
        self, _request: falcon.Request, response: falcon.Response, _resource: object, _succeeded: object
    ) -> None:
        for name, value in _HEADERS.items():
            if response.get_header(name) is None:
                response.set_header(name, value)


def _refuse(
    _request: falcon.Request, response: falcon.Response, error: SluiceError, _parameters: dict[str, Any]
) -> None:
    status = (each for kind, each in _STATUS.items() if isinstance(error, kind))
    response.status = next(status, falcon.HTTP_400)
    if isinstance(error, Unavailable):
        response.set_header("Retry-After", "1")
    response.media = {"code": error.code, "message": str(error)}


def _serialize(_request: falcon.Request, response: falcon.Response, error: falcon.HTTPError) -> None:
    """Write errors of HTTP itself in the form of the broker's own errors."""
    words = str(error.title or error.status).upper().split()
    code = "_".join(word for word in words if not word.isdigit())
    response.media = {"code": code, "message": error.description or error.title}
