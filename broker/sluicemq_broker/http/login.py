"""``/api/v1/login``, ``logout`` and ``me``: sessions of browsers, and what the caller may do."""

from __future__ import annotations

import falcon

from sluicemq.protocol.rows import MeRow
from sluicemq_broker.http.answers import write
from sluicemq_broker.http.callers import Callers
from sluicemq_broker.http.requests import BASE, Routes, read_body
from sluicemq_broker.security import NOTHING, Caller


def routes(callers: Callers) -> Routes:
    """Return the resources by their paths, but the login itself."""
    return {f"{BASE}/logout": (_Logout(callers), NOTHING), f"{BASE}/me": (_Me(callers), NOTHING)}


class Login:
    """A path that begins a session."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        """Take ``{token}`` or ``{user, password}``; answer as :class:`_Me` does, with the cookie."""
        caller = self._callers.log_in(request, response, read_body(request))
        write(response, _shown(caller, self._callers))


class _Logout:
    """A path that ends the session."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        """Answer ``{answer: null}``; the browser forgets the cookie."""
        self._callers.log_out(request, response)
        write(response, {"answer": None})


class _Me:
    """A path that says who the caller is."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Answer ``{name, permissions, session, actions}``."""
        write(response, _shown(request.context.caller, self._callers, session=bool(request.context.session)))


def _shown(caller: Caller, callers: Callers, *, session: bool = True) -> MeRow:
    permissions = caller.principal.permissions.plain()
    return MeRow(
        name=caller.name,
        permissions={action: tuple(patterns) for action, patterns in permissions.items()},
        session=session,
        actions=callers.any,
    )
