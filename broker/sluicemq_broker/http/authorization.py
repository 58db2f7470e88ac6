"""The rule for requests: each path says what it needs, and that is asked before its resource.

A change must come from no page but the dashboard, and from somebody: anonymous clients only read. Each POST
whose path needs ``manage`` or ``operate`` is recorded as an act in the audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import falcon

from sluicemq.protocol.permissions import Action
from sluicemq_broker.http.callers import Callers, unauthorized
from sluicemq_broker.http.host_names import HostNames
from sluicemq_broker.http.route import Method, Route, read_body
from sluicemq_broker.queues import Task
from sluicemq_broker.security import Audit, Caller, Door, Needs

#: A header of every request that changes something. Forms of other sites can't set it; scripts of other sites
#: must ask the door first (CORS), and are refused.
HEADER: Final = "X-SluiceMQ-Action"


class Authorization:
    """The rule for all requests. ``names``: of the door."""

    def __init__(self, callers: Callers, names: HostNames) -> None:
        self._callers = callers
        self._names = names

    def check(self, request: falcon.Request, needs: Needs | None, parameters: Mapping[str, str]) -> None:
        """Raise an error unless the caller may do this, and leave the caller in the request's context.

        ``needs``: of the path; None: everybody may, also before a login. ``parameters``: names in the path.
        The body of a change is read here, for it may say what else is needed.
        """
        if request.method == "POST":
            self._check_change(request)
        if needs is None:
            return
        self._callers.find(request)
        caller = request.context.caller
        self._require_somebody(request, caller, needs)
        name = needs.name and (parameters.get(str(needs.name)) or request.get_param(str(needs.name)))
        needs.ask(caller, name)
        request.context.ask_again = partial(needs.ask, caller, name)
        request.context.body = read_body(request) if request.method == "POST" else {}
        needs.ask_more(caller, request, **parameters)
        request.context.show = partial(needs.show, caller)

    def _require_somebody(self, request: falcon.Request, caller: Caller, needs: Needs) -> None:
        """Raise an HTTPError for an anonymous change, and where anonymous clients may do nothing."""
        if caller.name or (request.method != "POST" and caller.principal.permissions):
            return
        caller.report(needs.action or Action.READ, "")
        if request.method == "POST":
            raise unauthorized("a change needs a token, that of [broker] http_token or of a principal")
        raise unauthorized("this needs a token or a login")

    def _check_change(self, request: falcon.Request) -> None:
        """Raise an HTTPError for a change that comes from another site, or where none is allowed."""
        if not self._callers.any:
            raise falcon.HTTPForbidden(
                title="Read only",
                description="nothing can be changed here: [broker] http_token is not set, and no principal "
                "has a token or a password",
            )
        if why := self._foreign(request):
            raise falcon.HTTPForbidden(
                title="Cross site", description=f"another site can't change anything here: {why}"
            )
        if (request.content_type or "").partition(";")[0].strip() != falcon.MEDIA_JSON:
            raise falcon.HTTPUnsupportedMediaType(description="a request that changes something must be JSON")

    def _foreign(self, request: falcon.Request) -> str:
        """Return by what a request may come from another site; "" if it does not."""
        if not request.get_header(HEADER):
            return f"this request lacks the header {HEADER}, with any value, which no form can send"
        if request.get_header("Sec-Fetch-Site") not in (None, "same-origin", "none"):
            return "the browser says so in Sec-Fetch-Site"
        origin = request.get_header("Origin")
        if origin is None or self._names.is_own_page(origin, request.get_header("Host") or ""):
            return ""
        return "its Origin is not the Host that it asks, nor a name of [broker] http_hosts"


def record_change(audit: Audit, request: falcon.Request, response: falcon.Response) -> None:
    """Record a change before its answer goes out; waits for MongoDB.

    A request whose caller is not known is none: a wrong token is counted as a login.
    """
    context = request.context
    route: Route | None = getattr(context, "route", None)
    if route is None or route.method is not Method.POST or not hasattr(context, "caller"):
        return
    if not (route.needs and route.needs.administers):
        return
    parameters: dict[str, str] = context.parameters
    queue = parameters.get("queue")
    act = audit.act(
        context.caller,
        Door.HTTP,
        route.act,
        queue if queue is not None else parameters.get("name", ""),
        {**getattr(context, "body", {}), **parameters},
        queue,
    )
    outcome = getattr(context, "answer", None)
    if response.status_code >= HTTPStatus.BAD_REQUEST:
        act.refused(_code_of(response))
    elif isinstance(outcome, Task):
        act.begun(outcome.id, outcome.outcome)
    else:
        act.done(outcome)


def _code_of(response: falcon.Response) -> str:
    media: Any = response.media
    return str(media["code"]) if isinstance(media, dict) and "code" in media else str(response.status_code)
