"""HTTP requests that may change something: those with the token, from no page but the dashboard."""

from __future__ import annotations

import hmac
import logging
import time
from typing import Final

import falcon

from sluicemq_broker.http.host_names import HostNames
from sluicemq_broker.runtime import Bucket

log = logging.getLogger("broker.http")

#: A header of every request that changes something. Forms of other sites can't set it; scripts of other sites
#: must ask the door first (CORS), and are refused.
HEADER: Final = "X-SluiceMQ-Action"
#: Wrong tokens a second, and in a burst; more are refused without a look.
_WRONG_EACH_SECOND: Final = 1.0
_WRONG_AT_ONCE: Final = 20.0


class Authorization:
    """The rule for changes. ``token``: without one nothing can be changed; ``names``: of the door."""

    def __init__(self, token: str | None, names: HostNames) -> None:
        self._token = (token or "").encode()
        self._names = names
        self._wrong = Bucket(_WRONG_EACH_SECOND, _WRONG_AT_ONCE)

    @property
    def any(self) -> bool:
        """True if changes are allowed at all."""
        return bool(self._token)

    def check(self, request: falcon.Request) -> None:
        """Raise an HTTPError if this request may not change anything."""
        if not self._token:
            raise falcon.HTTPForbidden(
                title="Read only", description="nothing can be changed here: [broker] http_token is not set"
            )
        if not self._is_own_page(request):
            raise falcon.HTTPForbidden(
                title="Cross site", description="another site can't change anything here"
            )
        if (request.content_type or "").partition(";")[0].strip() != falcon.MEDIA_JSON:
            raise falcon.HTTPUnsupportedMediaType(description="a request that changes something must be JSON")
        scheme, _, given = (request.get_header("Authorization") or "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if not hmac.compare_digest(given.encode(), self._token):
            self._refuse(request, given)

    def _refuse(self, request: falcon.Request, given: str) -> None:
        if not self._wrong.take(time.monotonic()):
            raise falcon.HTTPTooManyRequests(description="too many wrong tokens: try again in a moment")
        what = "a wrong token" if given else "no token"
        log.warning("%s %s from %s: %s", request.method, request.path, request.remote_addr, what)
        raise falcon.HTTPUnauthorized(
            description=("that token is wrong: " if given else "")
            + "a change needs the token of [broker] http_token",
            challenges=["Bearer"],
        )

    def _is_own_page(self, request: falcon.Request) -> bool:
        if not request.get_header(HEADER):
            return False
        if request.get_header("Sec-Fetch-Site") not in (None, "same-origin", "none"):
            return False
        origin = request.get_header("Origin")
        return origin is None or self._names.is_own_page(origin, request.get_header("Host") or "")
