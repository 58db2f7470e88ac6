"""Callers of requests: by token, by session, anonymous; wrong tries are counted out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import falcon
import pytest
from falcon.testing import create_environ

from sluicemq.protocol.errors import ForbiddenError
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.config import BrokerSettings, Config, PrincipalSettings, Secret
from sluicemq_broker.http.authorization import HEADER, Authorization
from sluicemq_broker.http.callers import Callers
from sluicemq_broker.http.host_names import HostNames
from sluicemq_broker.runtime import Counters
from sluicemq_broker.security import LONGEST_LOGIN, MOST_ENDED, NOTHING, Caller, Needs, Security
from support.cheap_passwords import cheap_hash
from support.virtual_time import VirtualTime

NAMES = HostNames("127.0.0.1:5580", ())
RIGHT = "the-right-token-1234"
IDLE = 600.0


def settings(token: str | None = RIGHT) -> BrokerSettings:
    broker = Config.default().broker
    return replace(broker, http_token=Secret(token) if token else None, http_idle=IDLE)


@pytest.fixture
def security(time: VirtualTime) -> Security:
    return Security(Counters(), now=time.now)


@pytest.fixture
def callers(security: Security, time: VirtualTime) -> Callers:
    return Callers(settings(), security, Counters(), time)


def asked(token: str = "", body: bytes = b"", **headers: str) -> falcon.Request:
    given = {HEADER: "x", "Content-Type": "application/json", **headers}
    if token:
        given["Authorization"] = f"Bearer {token}"
    return falcon.Request(create_environ(method="POST", headers=given, body=body))


def check(callers: Callers, request: falcon.Request, needs: Needs = NOTHING) -> Caller:
    Authorization(callers, NAMES).check(request, needs, {})
    caller: Caller = request.context.caller
    return caller


def logged_in(callers: Callers, **headers: str) -> tuple[str, str]:
    """Log in with the token; the name and value of the cookie."""
    response = falcon.Response()
    callers.log_in(asked("", b"", **headers), response, {"token": RIGHT})
    ((name, morsel),) = (response._cookies or {}).items()  # noqa: SLF001 - falcon shows them nowhere else
    return name, morsel.value


def with_cookie(cookie: tuple[str, str], **headers: str) -> falcon.Request:
    return asked("", b"", **{"Cookie": "=".join(cookie), **headers})


def guess_until_refused(callers: Callers) -> None:
    for _ in range(20):
        with pytest.raises(falcon.HTTPUnauthorized):
            check(callers, asked("a-guess-1234567890"))
    with pytest.raises(falcon.HTTPTooManyRequests):
        check(callers, asked("a-guess-1234567890"))


def test_who_guesses_is_refused_for_a_moment_and_who_knows_is_not(callers: Callers) -> None:
    guess_until_refused(callers)
    assert check(callers, asked(RIGHT)).name == "http_token"


def test_guesses_keep_out_nobody_who_has_logged_in_from_there(callers: Callers, security: Security) -> None:
    password = Secret(cheap_hash("right"))
    security.principals.use_file(
        {"anna": PrincipalSettings(password=password, permissions=Permissions.all())}
    )

    def log_in(password: str) -> Caller:
        return callers.log_in(asked(), falcon.Response(), {"user": "anna", "password": password})

    assert log_in("right").name == "anna"
    guess_until_refused(callers)
    assert log_in("right").name == "anna"


def test_guesses_at_a_user_from_an_address_that_it_has_logged_in_from_have_an_end(
    callers: Callers, security: Security, time: VirtualTime
) -> None:
    users = {
        name: PrincipalSettings(password=Secret(cheap_hash("right")), permissions=Permissions.all())
        for name in ("anna", "otto")
    }
    security.principals.use_file(users)

    def log_in(user: str, password: str) -> Caller:
        return callers.log_in(asked(), falcon.Response(), {"user": user, "password": password})

    # Given two users behind one address
    assert log_in("anna", "right").name == "anna"
    assert log_in("otto", "right").name == "otto"
    # When somebody there guesses at one of them
    for number in range(100):
        with pytest.raises(falcon.HTTPUnauthorized):
            log_in("anna", f"wrong-{number}")
    # Then that ends, for a moment, and the other one gets in
    with pytest.raises(falcon.HTTPTooManyRequests):
        log_in("anna", "wrong-100")
    assert log_in("otto", "right").name == "otto"
    time.value += 1
    assert log_in("anna", "right").name == "anna"


def test_no_token_opens_a_door_that_has_none(security: Security) -> None:
    for token in (None, ""):
        callers = Callers(settings(token), security, Counters())
        assert not callers.any
        with pytest.raises(falcon.HTTPForbidden):
            check(callers, asked("x"))


def test_another_token_of_the_configuration_ends_the_former_ones_sessions(callers: Callers) -> None:
    cookie = logged_in(callers)
    callers.reconfigure(settings("another-token-1234"))
    assert check(callers, asked("another-token-1234")).name == "http_token"
    for request in (asked(RIGHT), with_cookie(cookie)):
        with pytest.raises(falcon.HTTPUnauthorized):
            check(callers, request)


def test_a_proxy_may_pass_on_a_password_of_its_own(callers: Callers) -> None:
    request = asked(Authorization="Basic dTpw")
    callers.find(request)
    assert request.context.caller.name == ""


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({HEADER: ""}, "the header X-SluiceMQ-Action"),
        ({"Origin": "https://evil.example"}, "Origin"),
        ({"Sec-Fetch-Site": "same-site"}, "Sec-Fetch-Site"),
    ],
)
def test_a_change_from_another_site_hears_so(callers: Callers, headers: dict[str, str], named: str) -> None:
    with pytest.raises(falcon.HTTPForbidden) as raised:
        check(callers, asked(RIGHT, b"", **headers))
    assert named in str(raised.value.description)


def test_what_a_caller_may_not_do_is_forbidden_and_counted(callers: Callers, security: Security) -> None:
    security.anonymous.change(Permissions({Action.READ: ("mail",)}))
    needs = Needs(Action.READ, "queue")
    request = falcon.Request(create_environ())
    rule = Authorization(callers, NAMES)
    rule.check(request, needs, {"queue": "mail"})
    with pytest.raises(ForbiddenError):
        rule.check(request, needs, {"queue": "sms"})


def test_an_anonymous_caller_who_may_nothing_gets_nowhere(callers: Callers, security: Security) -> None:
    security.anonymous.change(Permissions())
    with pytest.raises(falcon.HTTPUnauthorized):
        Authorization(callers, NAMES).check(falcon.Request(create_environ()), NOTHING, {})


def test_the_body_may_say_what_else_is_needed(callers: Callers) -> None:
    seen = []
    needs = Needs(Action.MANAGE, more=lambda request: [(Action.PUSH, request.context.body["to"])])
    needs = needs._replace(more=lambda request: seen.append(request.context.body) or [])
    check(callers, asked(RIGHT, json.dumps({"to": "sms"}).encode()), needs)
    assert seen == [{"to": "sms"}]


def test_a_login_is_known_by_its_cookie_until_logout(callers: Callers) -> None:
    cookie = logged_in(callers)
    request = with_cookie(cookie)
    assert check(callers, request).name == "http_token"
    callers.log_out(request, falcon.Response())
    assert not request.context.is_permitted()
    with pytest.raises(falcon.HTTPUnauthorized):
        check(callers, with_cookie(cookie))


def test_a_session_ends_after_its_idle_time_begun_by_each_use(callers: Callers, time: VirtualTime) -> None:
    cookie = logged_in(callers)
    for _ in range(3):
        time.value += IDLE - 1
        assert check(callers, with_cookie(cookie)).name
    time.value += IDLE
    with pytest.raises(falcon.HTTPUnauthorized):
        check(callers, with_cookie(cookie))


def test_what_a_page_asks_by_itself_is_no_use(callers: Callers, time: VirtualTime) -> None:
    cookie = logged_in(callers)
    time.value += IDLE - 1
    assert check(callers, with_cookie(cookie, **{"X-SluiceMQ-Idle": "1"})).name
    time.value += 1
    with pytest.raises(falcon.HTTPUnauthorized):
        check(callers, with_cookie(cookie))


def test_a_session_ends_after_twelve_hours_however_used(callers: Callers, time: VirtualTime) -> None:
    cookie = logged_in(callers)
    for _ in range(int(LONGEST_LOGIN // 500)):
        time.value += 500
        check(callers, with_cookie(cookie))
    time.value += 500
    with pytest.raises(falcon.HTTPUnauthorized):
        check(callers, with_cookie(cookie))


def test_a_new_login_ends_the_session_before_it(callers: Callers) -> None:
    former = logged_in(callers)
    logged_in(callers, Cookie="=".join(former))
    with pytest.raises(falcon.HTTPUnauthorized):
        check(callers, with_cookie(former))


def test_a_cookie_is_renewed_in_use_and_not_for_each_request(callers: Callers, time: VirtualTime) -> None:
    cookie = logged_in(callers)
    assert renewed(callers, with_cookie(cookie)) is None
    time.value += IDLE / 2
    newer = renewed(callers, with_cookie(cookie))
    assert newer is not None
    assert renewed(callers, with_cookie((cookie[0], newer))) is None
    assert renewed(callers, with_cookie(cookie, **{"X-SluiceMQ-Idle": "1"})) is not None


def test_no_cookie_is_renewed_behind_a_logout(callers: Callers, time: VirtualTime) -> None:
    cookie = logged_in(callers)
    time.value += IDLE / 2
    request = with_cookie(cookie)
    check(callers, request)
    callers.log_out(request, falcon.Response())
    assert callers.sessions.renewed(request.context.session) is None


def test_remembered_logouts_are_bounded_by_refusing_logins(callers: Callers, time: VirtualTime) -> None:
    for _ in range(MOST_ENDED):
        request = with_cookie(logged_in(callers))
        check(callers, request)
        callers.log_out(request, falcon.Response())
    with pytest.raises(falcon.HTTPTooManyRequests):
        logged_in(callers)
    time.value += LONGEST_LOGIN + 1
    assert logged_in(callers)


@pytest.mark.parametrize(
    "spoil", [lambda text: text[:-1] + "x", lambda text: "e30=." + text, lambda _text: "x.y"]
)
def test_a_cookie_that_nobody_signed_is_nobodys(callers: Callers, spoil: Callable[[str], str]) -> None:
    name, cookie = logged_in(callers)
    with pytest.raises(falcon.HTTPUnauthorized):
        check(callers, with_cookie((name, spoil(cookie))))


def test_no_cookie_is_kept(callers: Callers) -> None:
    _name, cookie = logged_in(callers)
    assert cookie not in repr(vars(callers.sessions))


def renewed(callers: Callers, request: falcon.Request) -> str | None:
    check(callers, request)
    session = request.context.session
    return callers.sessions.renewed(session)
