"""Wrong tokens are counted out."""

from __future__ import annotations

import falcon
import pytest
from falcon.testing import create_environ

from sluicemq_broker.http.authorization import HEADER, Authorization
from sluicemq_broker.http.host_names import HostNames

NAMES = HostNames("127.0.0.1:5580", ())
RIGHT = "the-right-token-1234"


def asked(token: str) -> falcon.Request:
    headers = {HEADER: "x", "Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    return falcon.Request(create_environ(method="POST", headers=headers))


def test_who_guesses_is_refused_for_a_moment_and_who_knows_is_not() -> None:
    rights = Authorization(RIGHT, NAMES)
    for _ in range(20):
        with pytest.raises(falcon.HTTPUnauthorized):
            rights.check(asked("a-guess-1234567890"))
    with pytest.raises(falcon.HTTPTooManyRequests):
        rights.check(asked("a-guess-1234567890"))
    rights.check(asked(RIGHT))


def test_no_token_opens_a_door_that_has_none() -> None:
    for token in (None, ""):
        rights = Authorization(token, NAMES)
        assert not rights.any
        with pytest.raises(falcon.HTTPForbidden):
            rights.check(asked(""))
