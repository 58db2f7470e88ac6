"""The caller of each HTTP request: by bearer token, by the cookie of a session, or anonymous."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import falcon

from sluicemq.protocol.errors import BadFramesError, UnavailableError
from sluicemq.protocol.names import HTTP_TOKEN
from sluicemq.protocol.permissions import Permissions
from sluicemq_broker.config import BrokerSettings
from sluicemq_broker.http.route import EVENT_STREAM
from sluicemq_broker.http.sessions import Session, Sessions
from sluicemq_broker.runtime import Buckets, Count, Counters, Timer
from sluicemq_broker.security import (
    LONGEST_LOGIN,
    MOST_ENDED,
    NOT_ADMITTED,
    Caller,
    Door,
    Principal,
    Security,
)
from sluicemq_devices.sockets import owner_of

log = logging.getLogger("broker.http")

#: Characters of a token, a user or a password that are looked at.
_LONGEST: Final = 1024


class Callers:
    """Finds the callers of requests, logs them in and out. ``timer``: of wrong tries."""

    def __init__(
        self,
        settings: BrokerSettings,
        security: Security,
        counters: Counters,
        timer: Timer | None = None,
    ) -> None:
        self._security = security
        self._counters = counters
        self._timer = timer or Timer()
        # Wrong tokens and passwords of one address, and of all: each second, and at once
        self._tries = Buckets((1.0, 20.0), (10.0, 200.0))
        # Wrong passwords of a user from an address that it has logged in from, and of all such pairs:
        # behind an Ingress all clients have one address
        self._tries_of_known = Buckets((2.0, 100.0), (20.0, 1000.0))
        self._owner = Principal(HTTP_TOKEN, Permissions.all())
        self.sessions = Sessions(settings.http_idle, security.logins, self._named)
        self.reconfigure(settings)

    def reconfigure(self, settings: BrokerSettings) -> None:
        """Use another token and idle time; sessions that were opened with the former token end."""
        self._token = _digest(settings.http_token.text) if settings.http_token else b""
        self._owner.change(Permissions.all(), keys=frozenset({self._token.hex()}))
        self._owner.exists = bool(self._token)
        self.sessions.idle = settings.http_idle

    @property
    def any(self) -> bool:
        """True if there is a token or a password with which something can be changed."""
        return bool(self._token) or self._security.has_logins

    def find(self, request: falcon.Request) -> None:
        """Set ``caller``, ``session`` and ``is_permitted()`` of a request's context.

        ``is_permitted``: whether the caller still has the permissions with which the request began. Raises an
        HTTPError for a wrong token.
        """
        context, peer = request.context, request.remote_addr
        scheme, _, token = (request.get_header("Authorization") or "").partition(" ")
        session = None
        if scheme.lower() == "bearer":
            caller = self._by_token(request, token.strip())
        else:  # a proxy may pass on a password of its own
            session = self._session(request)
            caller = session.caller.at(peer) if session else self._security.caller(peer)
        context.caller, context.session = caller, session
        context.is_permitted = self._watch(caller, session)

    def log_in(self, request: falcon.Request, response: falcon.Response, body: dict[str, Any]) -> Caller:
        """Begin a session by ``{token}`` or ``{user, password}``; raises an HTTPError for wrong ones."""
        given = {name: body[name] for name in ("token", "user", "password") if name in body}
        if not all(isinstance(text, str) and len(text) <= _LONGEST for text in given.values()):
            raise BadFramesError(f"token, user and password are strings of up to {_LONGEST} characters")
        if given.keys() == {"token"}:
            caller = self._by_token(request, given["token"].strip())
        elif given.keys() == {"user", "password"}:
            caller = self._by_password(request, given["user"], given["password"])
        else:
            raise BadFramesError("a login has a token, or a user and a password")
        if not self._security.logins.may_begin(caller.name):
            raise falcon.HTTPTooManyRequests(
                description=f"{caller.name} has logged out {MOST_ENDED} times within "
                f"{LONGEST_LOGIN / 3600:.0f} hours: a program shows its token instead of a login",
                retry_after=3600,
            )
        cookie = self.sessions.begin(caller, tls=_is_over_tls(request))
        if former := self._session(request):
            with suppress(UnavailableError):  # it has ended here
                self.sessions.end(former)
        self._set_cookie(response, cookie, secure=_is_over_tls(request))
        self._security.audit.login(caller, Door.HTTP)
        log.info("%s has logged in from %s", caller.name, caller.peer)
        return caller

    def log_out(self, request: falcon.Request, response: falcon.Response) -> None:
        """End the session of a request, if it has one; raises Unavailable if other brokers can't know yet."""
        response.unset_cookie(self._cookie, same_site="Strict", path="/")
        if session := request.context.session:
            self._security.audit.logout(session.caller.at(request.remote_addr), Door.HTTP)
            log.info("%s has logged out from %s", session.caller.name, request.remote_addr)
            try:
                self.sessions.end(session)
            except UnavailableError as error:
                raise UnavailableError(
                    f"logged out here; other brokers hear of it as soon as MongoDB answers: {error}"
                ) from error

    def renew(self, request: falcon.Request, response: falcon.Response) -> None:
        """Give the browser a newer cookie, where the one that it has shown says too little of its use."""
        session = request.context.get("session")
        if session and (cookie := self.sessions.renewed(session)):
            self._set_cookie(response, cookie, secure=session.login.tls)

    def _session(self, request: falcon.Request) -> Session | None:
        cookies = request.get_cookie_values(self._cookie)
        # No use of the session is what a page asks by itself, with a header, or as an event stream, which the
        # browser opens again
        by_itself = request.get_header("X-SluiceMQ-Idle") or request.accept == EVENT_STREAM
        return self.sessions.find(cookies[0], used=not by_itself) if cookies else None

    def _set_cookie(self, response: falcon.Response, cookie: str, *, secure: bool) -> None:
        response.set_cookie(self._cookie, cookie, secure=secure, http_only=True, same_site="Strict", path="/")

    @property
    def _cookie(self) -> str:
        return f"sluicemq-{self._security.logins.cookie}"

    def _named(self, name: str) -> Caller | None:
        if name == HTTP_TOKEN:
            return Caller(self._owner, refused=self._security.refused)
        return self._security.named(name)

    def _by_token(self, request: falcon.Request, token: str) -> Caller:
        """Return the caller with this token; who knows one is never refused for the guesses of others."""
        if self._token and hmac.compare_digest(_digest(token), self._token):
            return Caller(self._owner, request.remote_addr, self._token.hex(), self._security.refused)
        caller = self._security.by_token(token, request.remote_addr) if token else None
        if caller is None:
            self._count_try(request, self._tries, owner_of(request.remote_addr))
            raise self._wrong(request, "that token is wrong")
        return caller

    def _by_password(self, request: falcon.Request, user: str, password: str) -> Caller:
        """Return the caller with this password; after too many wrong ones it is not looked at.

        A user who has logged in from this address before has more tries, which nothing else there uses up:
        guesses at other users, and tokens, do not keep it out.
        """
        tries, key = self._tries, owner_of(request.remote_addr)
        if self._security.passwords.knows(user, request.remote_addr):
            tries, key = self._tries_of_known, f"{key} {user}"
        self._count_try(request, tries, key)
        caller = self._security.by_password(user, password, request.remote_addr)
        if caller is None:
            raise self._wrong(request, "user or password is wrong", user)
        tries.give_back(key)
        return caller

    def _count_try(self, request: falcon.Request, tries: Buckets, key: str) -> None:
        if not tries.take(key, self._timer.now()):
            # Code of a login that is not looked at, in the audit
            self._security.audit.failed_login(request.remote_addr, Door.HTTP, "", "TOO_MANY_TRIES")
            raise falcon.HTTPTooManyRequests(
                description="too many wrong tokens or passwords: try again in a moment", retry_after=1
            )

    def _wrong(self, request: falcon.Request, why: str, user: str = "") -> falcon.HTTPUnauthorized:
        known = user if self._security.principals.login(user) else ""  # a password may stand in its place
        self._security.audit.failed_login(request.remote_addr, Door.HTTP, known, NOT_ADMITTED)
        about = f"{request.method} {request.path[:200]} from {request.remote_addr}: {why}"
        self._counters.notice(Count.HTTP_LOGINS_REFUSED, about)
        return unauthorized(why)

    def _watch(self, caller: Caller, session: Session | None) -> Callable[[], bool]:
        granted = caller.principal.permissions

        def is_permitted() -> bool:
            return (
                caller.is_known
                and caller.principal.permissions == granted
                and (session is None or self.sessions.is_valid(session))
            )

        return is_permitted


def unauthorized(why: str) -> falcon.HTTPUnauthorized:
    """Return the error for a request that needs a token or a login."""
    return falcon.HTTPUnauthorized(description=why, challenges=["Bearer"])


def _is_over_tls(request: falcon.Request) -> bool:
    """Return True for a browser that uses TLS, perhaps to a proxy: its cookie is sent only over TLS."""
    return "https" in (request.scheme, (request.get_header("Origin") or "").partition(":")[0])


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
