"""The paths of the HTTP door, and rules for all of them: allowed requests, headers, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import falcon
import falcon.media

from sluicemq.protocol.errors import BadQueue, Forbidden, NotFound, SluiceError, Unavailable
from sluicemq.protocol.json_values import dumps
from sluicemq_broker.admin import Admin, Snapshots
from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.http import actions, api, login
from sluicemq_broker.http.answer_memory import AnswerMemory
from sluicemq_broker.http.authorization import Authorization, Recorded
from sluicemq_broker.http.callers import Callers, unauthorized
from sluicemq_broker.http.connections import Connections
from sluicemq_broker.http.fair_turns import FairTurns
from sluicemq_broker.http.health import PATHS as HEALTH
from sluicemq_broker.http.health import Live, Ready
from sluicemq_broker.http.host_names import HostNames
from sluicemq_broker.http.metrics import Metrics
from sluicemq_broker.http.requests import BASE
from sluicemq_broker.runtime import Count, Counters, Timer
from sluicemq_broker.security import NOTHING, Caller, Needs, Security, told
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
#: Browsers would come over TLS only to all other servers of this machine, too.
_LOCALHOST: Final = "localhost"
#: Characters of a path in the log.
_SHOWN: Final = 200
#: A year: browsers that have come over TLS come over TLS only.
_TLS_ONLY: Final = "max-age=31536000"
_STATUS: Final[dict[type[SluiceError], str]] = {
    Forbidden: falcon.HTTP_403,
    BadQueue: falcon.HTTP_404,
    NotFound: falcon.HTTP_404,
    Unavailable: falcon.HTTP_503,
}


class Site:
    """All paths of the door; parts of the broker add theirs by :meth:`add`, :meth:`ask` and :meth:`open`.

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
        self.needs: dict[str, Needs | None] = {}
        """Permission that each path needs; None: everybody may, also before a login."""
        self._callers = callers = Callers(settings, security, counters, timer)
        self.snapshots = Snapshots(lambda: admin.snapshot(actions=callers.any))
        self._turns = FairTurns(api.AT_ONCE, api.WAITING)
        self._closing: list[Callable[[], None]] = []
        recorded = Recorded(security.audit, self.needs)
        guard = _Guard(names, Authorization(callers, names), memory, self.needs, recorded, callers.renew)
        self._app = _application(guard, self._failed)
        self.open("/healthz", Live())
        self.open("/readyz", Ready(admin.broker))
        self.open(f"{BASE}/login", login.Login(callers))
        self.add("/metrics", metrics, NOTHING)
        read = api.routes(admin, self.snapshots, self._turns, memory)
        for path, route in {**read, **actions.routes(admin), **login.routes(callers)}.items():
            self.add(path, *route)

    def add(self, path: str, resource: object, needs: Needs) -> None:
        """Let a resource answer a path, for callers with the permission that it needs.

        The resource finds the caller in ``request.context``, and ``goes_on()``, which says if the caller is
        still permitted what it was when the request came.
        """
        self.needs[path] = needs
        self._app.add_route(path, resource)

    def ask(self, path: str, answer: Callable[..., Any], needs: Needs) -> None:
        """Answer a path of the API with ``answer(request, **names in the path)``, which may ask MongoDB."""
        self.add(BASE + path, api.Answer(answer, self._turns), needs)

    def open(self, path: str, resource: object) -> None:
        """Let a resource answer a path for everybody, also before a login."""
        self.needs[path] = None
        self._app.add_route(path, resource)

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

    def __init__(
        self,
        names: HostNames,
        authorization: Authorization,
        memory: AnswerMemory,
        needs: Mapping[str, Needs | None],
        recorded: Recorded,
        renew: Callable[[falcon.Request, falcon.Response], None],
    ) -> None:
        self._recorded = recorded
        self._renew = renew
        self._names = names
        self._authorization = authorization
        self._memory = memory
        self._needs = needs

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
        request.context.parameters = params
        self._authorization.check(request, self._needs[str(request.uri_template)], params)

    def process_response(
        self, request: falcon.Request, response: falcon.Response, resource: object, _succeeded: object
    ) -> None:
        self._recorded.answered(request, response, resource)
        self._renew(request, response)
        for name, value in _HEADERS.items():
            if response.get_header(name) is None:
                response.set_header(name, value)
        if request.scheme == "https" and request.host != _LOCALHOST:
            response.set_header("Strict-Transport-Security", _TLS_ONLY)


def _refuse(
    request: falcon.Request, response: falcon.Response, error: SluiceError, _parameters: dict[str, Any]
) -> None:
    caller: Caller | None = request.context.get("caller")
    error = told(caller, error) if caller else error
    if isinstance(error, Forbidden) and caller and not caller.name:
        raise unauthorized(f"{error}; a token or a login may help")
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
