"""HTTP with principals at a real broker: tokens, logins, what each may do and see, and how it ends."""

import hashlib
import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from jsonschema import Draft202012Validator

from sluicemq import Client, FanOut, Forward, Job, NotFoundError, Producer, Requeue, Worker
from sluicemq.protocol.permissions import Action
from sluicemq_broker.http import BASE as V1
from support.broker_process import BrokerProcess
from support.cheap_passwords import cheap_hash
from support.http_reader import Answer, Web
from support.http_site import all_needs, description
from support.waiting import TIMEOUT, wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

DOCUMENT = description()
PASSWORD = "correct horse battery"  # noqa: S105 - of a broker of tests
#: Seconds within which a live stream ends when its caller may no longer have it; and what a machine may add.
SOON = 30.0
#: Names in the paths.
NAMES = {"queue": "mail", "job_id": "one", "subject": "queue", "name": "mail", "task_id": "nosuch"}


def token(name: str) -> str:
    return f"token-of-{name}-for-tests"


def principal(name: str, permissions: Any, **more: Any) -> dict[str, Any]:
    hashed = hashlib.sha256(token(name).encode()).hexdigest()
    return {"tokens": [f"sha256:{hashed}"], "permissions": permissions, **more}


def principals() -> dict[str, Any]:
    found = {
        "all": principal("all", "all", password=cheap_hash(PASSWORD)),
        "none": principal("none", "none"),
        "reader": principal("reader", "read=mail*"),
        "manager": principal("manager", "read=mail manage=mail"),
    }
    for action in Action:
        found[f"only-{action}"] = principal(f"only-{action}", {str(action): True})
        others = {str(other): True for other in Action if other != action}
        found[f"but-{action}"] = principal(f"but-{action}", others)
    return found


@pytest.fixture(scope="module")
def broker(mongo_uri: str) -> Iterator[BrokerProcess]:
    library = {"endpoint": "tcp://127.0.0.1:0", "anonymous": "all"}  # for these tests
    config = {
        "broker": {"endpoint": library, "http": "127.0.0.1:0", "history": True, "poll": 0.5},
        "security": {"anonymous": "none", "principals": principals()},
        "devices": [],
        "schedules": {"nightly": {"queue": "mail", "payload": "x", "every": 86400}},
        "queues": {"mail": {}, "mail.slow": {}, "sms": {}},
    }
    with BrokerProcess(mongo_uri, "test_http_principals", config=config) as broker:
        endpoint = broker.doors["smq"]
        with Producer(endpoint=endpoint) as producer:
            for queue in ("mail", "mail.slow", "sms"):
                producer.push(queue, b"{}", id="one").wait(TIMEOUT)
        with Client(endpoint=endpoint) as client:
            for queue in ("mail", "mail.slow", "sms"):
                client.queues.get(queue)  # counted
        yield broker


@pytest.fixture
def web(broker: BrokerProcess) -> Web:
    return Web(broker.http)


def bearer(name: str) -> Any:  # headers
    return {"Authorization": f"Bearer {token(name)}"}


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


# ---------------------------------------------------------------- every path


def address(path: str) -> str:
    names = {**NAMES, "name": "nightly"} if "/schedules/" in path else NAMES
    return path.format(**names)


def status(web: Web, path: str, **headers: Any) -> int:
    """Status of an answer; a change is sent without what it needs, so that nothing is changed."""
    method = "POST" if path in POSTS else "GET"
    if path == f"{V1}/live":
        return live_status(web, **headers)
    if method == "GET":
        return web.get(address(path), **headers).status
    return web.post(address(path), {"what": "nothing", "state": "nothing"}, **headers).status


def live_status(web: Web, **headers: str) -> int:
    connection = http.client.HTTPConnection(web.address, timeout=TIMEOUT)
    try:
        connection.request("GET", f"{V1}/live", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


NEEDING = [path for path, needs in all_needs().items() if needs is not None]
POSTS = {path for path, methods in DOCUMENT["paths"].items() if "post" in methods}


#: Fields with all effects that a path can have.
EFFECTS = {
    f"{V1}/queues/{{queue}}/settings/set": ("settings", {}),
    f"{V1}/queues/{{queue}}/dead-letters/redrive": ("to", "sms"),
}
#: Their other effects depend on what is there: a worker and its queues, children, a schedule, no queue.
BY_WHAT_IS_THERE = {
    f"{V1}/workers/quiet",
    f"{V1}/workers/stop",
    f"{V1}/queues/{{queue}}/jobs/{{job_id}}/cancel",
    f"{V1}/queues/{{queue}}/push",
    f"{V1}/schedules/{{name}}",
}
WALKED = [
    (path, action)
    for path in NEEDING
    if path not in BY_WHAT_IS_THERE
    if (needs := all_needs()[path]) and needs.also
    for action in (needs.action, *(entry.action for entry in needs.also))
]


@pytest.mark.parametrize(("path", "action"), WALKED)
def test_a_change_needs_each_permission(web: Web, broker: BrokerProcess, path: str, action: Action) -> None:
    key, value = EFFECTS[path]
    body = {"all": True, key: {"on_dead": f"{key}-{action}"} if isinstance(value, dict) else value}
    assert web.post(address(path), body, **bearer(f"but-{action}")).status == 403
    queues = {row["name"] for row in web.get(f"{V1}/queues", **bearer("all")).json["queues"]}
    assert f"{key}-{action}" not in queues
    assert web.post(address(path), body, **bearer("all")).status == 200
    web.post(address(f"{V1}/queues/{{queue}}/settings/unset"), {"keys": ["on_dead"]}, **bearer("all"))
    with Client(endpoint=broker.doors["smq"]) as client, suppress(NotFoundError):
        client.queues.delete(f"{key}-{action}").result()


def back(_job: Job) -> None:
    raise Requeue("not this one", delay=0)


def fans_out(job: Job) -> FanOut | None:
    return FanOut(Forward("sms", b"x", delay=1000)) if job.id == "parent" else back(job)


def test_a_worker_is_ordered_by_who_may_manage_all_of_its_queues(web: Web, broker: BrokerProcess) -> None:
    with Client(endpoint=broker.doors["smq"]) as client, Worker("sms", back, endpoint=broker.doors["smq"]):
        wait_until(lambda: client.workers.list("sms"), what="the worker")
        body = {"name": client.workers.list("sms")[0].name}
        for act in ("quiet", "stop"):
            assert web.post(f"{V1}/workers/{act}", body, **bearer("manager")).status in (403, 404)
        assert not client.workers.list("sms")[0].quiet
        assert web.post(f"{V1}/workers/quiet", body, **bearer("all")).json == {"answer": 1}


def test_children_are_cancelled_by_who_may_manage_their_queues(web: Web, broker: BrokerProcess) -> None:
    endpoint = broker.doors["smq"]
    with Client(endpoint=endpoint) as client, Producer(endpoint=endpoint) as producer:
        producer.push("mail", b"x", id="parent", priority=9).wait(TIMEOUT)
        with Worker("mail", fans_out, endpoint=endpoint):
            wait_until(lambda: client.jobs.get("mail", "parent").state == "waiting", what="the children")
        path = f"{V1}/queues/mail/jobs/parent/cancel"
        assert web.post(path, {"children": True}, **bearer("manager")).status == 403
        assert client.jobs.get("mail", "parent").state == "waiting"
        assert "parent.1" in {job.id for job in client.jobs.list("sms", "scheduled")}
        assert web.post(path, {"children": True}, **bearer("all")).status == 200
        assert "parent.1" not in {job.id for job in client.jobs.list("sms", "scheduled")}


def test_what_is_refused_is_as_the_document_says(web: Web) -> None:
    for status, caller in ((401, {}), (403, bearer("none"))):
        answer = web.get(f"{V1}/queues/sms", **caller)
        assert answer.status == status
        described = DOCUMENT["paths"][f"{V1}/queues/{{queue}}"]["get"]["responses"][str(status)]
        assert described["$ref"].rpartition("/")[2] in DOCUMENT["components"]["responses"]
        schema = DOCUMENT["components"]["schemas"]["ErrorRow"]
        Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(answer.json)
    assert web.get(f"{V1}/queues/sms").headers["www-authenticate"] == "Bearer"
    me = web.get(f"{V1}/me", **bearer("reader")).json
    Draft202012Validator(DOCUMENT["components"]["schemas"]["MeRow"]).validate(me)
    assert me["permissions"] == {"read": ["mail*"]}


def test_no_secret_that_is_sent_stands_in_the_log(web: Web, broker: BrokerProcess) -> None:
    secrets = [f"a-secret-number-{number}" for number in range(6)]
    web.get(f"{V1}/queues", Authorization=f"Bearer {secrets[0]}")
    web.post(f"{V1}/login", {"token": secrets[1]})
    web.post(f"{V1}/login", {"user": "all", "password": secrets[2]})
    web.post(f"{V1}/token", {"token": secrets[3]}, **bearer("all"))
    web.post(f"{V1}/queues/mail/pause", {"what": "delivery", "token": secrets[4]}, **bearer("all"))
    web.post(f"{V1}/queues/mail/resume", {}, **bearer("all"))
    cookie = cookie_of(web.post(f"{V1}/login", {"token": token("all")}))
    web.get(f"{V1}/me", Cookie=f"{cookie.partition('=')[0]}={secrets[5]}")
    broker.wait_log("all has logged in from 127.0.0.1")
    log = broker.log_text()
    assert not [
        secret for secret in (*secrets, PASSWORD, token("all"), cookie.partition("=")[2]) if secret in log
    ]


def test_a_refusal_names_what_is_not_permitted_and_is_counted(web: Web, broker: BrokerProcess) -> None:
    answer = web.get(f"{V1}/queues/sms", **bearer("reader"))
    assert (answer.status, answer.json["code"]) == (403, "FORBIDDEN")
    assert "reader may not read sms" in answer.json["message"]
    counted = web.get(f"{V1}/broker", **bearer("all")).json["counters"]["forbidden"]
    assert counted >= 1
    broker.wait_log("forbidden")


# ---------------------------------------------------------------- what is seen


def test_lists_counts_and_figures_have_what_the_caller_may_see(web: Web, broker: BrokerProcess) -> None:
    def names(path: str, key: str = "queues", **caller: Any) -> set[str]:
        rows = web.get(f"{V1}/{path}", **caller).json[key]
        return {row["queue"] if "queue" in row else row["name"] for row in rows}

    reader, everything = bearer("reader"), bearer("all")
    with (
        Worker("sms", lambda _job: None, endpoint=broker.doors["smq"]),
        Worker("mail", lambda _job: None, endpoint=broker.doors["smq"]),
    ):
        wait_until(lambda: len(names("workers", "workers", **everything)) == 2, what="workers")
        assert names("workers", "workers", **reader) == {"mail"}
    assert names("queues", **reader) == {"mail", "mail.slow"}
    assert names("queues", **everything) == {"mail", "mail.slow", "sms"}
    seen = web.get(f"{V1}/overview?limit=10", **reader).json
    assert (seen["totals"]["queues"], seen["matching"], seen["counters"]) == (2, 2, {})
    assert "pid" not in seen["broker"]
    assert names("queues?limit=10&contains=s", **reader) == {"mail.slow"}
    assert web.get(f"{V1}/schedules", **bearer("manager")).json["schedules"][0]["queue"] == "mail"
    assert web.get(f"{V1}/schedules", **reader).json == {"schedules": []}
    assert web.get(f"{V1}/recent?queue=mail,sms", **reader).json["queues"].keys() <= {"mail"}
    happened = web.get(f"{V1}/incidents", **reader).json["incidents"]
    assert all(row["queue"].startswith("mail") for row in happened)


def test_metrics_have_the_series_of_visible_queues_or_all(web: Web) -> None:
    text = web.get("/metrics", **bearer("reader")).body.decode()
    assert 'queue="mail"' in text
    for hidden in ("sms", 'queue="*"', "process_", "sluicemq_hub", "sluicemq_broker_info"):
        assert hidden not in text
    whole = web.get("/metrics", **bearer("only-operate")).body.decode()
    assert all(name in whole for name in ('queue="sms"', "process_cpu", "sluicemq_hub"))
    assert web.get("/metrics", **bearer("reader")).body.decode().count("sms") == 0  # after who sees all


def test_the_queue_of_a_schedule_decides_who_may_run_it(web: Web) -> None:
    assert web.post(f"{V1}/schedules/nightly/pause", **bearer("manager")).status == 200
    assert web.post(f"{V1}/schedules/nightly/resume", **bearer("reader")).status == 403


# ---------------------------------------------------------------------- logins


@pytest.mark.parametrize("shown", [{"token": token("all")}, {"user": "all", "password": PASSWORD}])
def test_a_login_by_token_or_password_is_kept_in_a_cookie_until_logout(web: Web, shown: Any) -> None:
    answer = web.post(f"{V1}/login", shown)
    assert (answer.status, answer.json["name"], answer.json["session"]) == (200, "all", True)
    attributes = {header.strip().lower() for header in answer.headers["set-cookie"].split(";")[1:]}
    assert attributes == {"httponly", "samesite=strict", "path=/"}  # not Secure: this is no TLS
    cookie = cookie_of(answer)
    assert web.get(f"{V1}/me", Cookie=cookie).json["permissions"]["read"] == ["*"]
    assert web.post(f"{V1}/queues/mail/pause", Cookie=cookie).status == 200
    assert web.post(f"{V1}/queues/mail/resume", Cookie=cookie).status == 200
    out = web.post(f"{V1}/logout", Cookie=cookie)
    assert out.status == 200
    assert cookie_of(out).endswith('=""')
    assert "expires=" in out.headers["set-cookie"].lower()
    assert web.get(f"{V1}/me", Cookie=cookie).status == 401


def test_behind_a_proxy_with_tls_the_cookie_is_sent_over_tls_only(web: Web) -> None:
    answer = web.post(
        f"{V1}/login", {"token": token("all")}, Origin=f"https://{web.address}", Host=web.address
    )
    assert "secure" in {header.strip().lower() for header in answer.headers["set-cookie"].split(";")}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "same-site"},
        {"X_SluiceMQ_Action": ""},
    ],
)
def test_another_site_neither_logs_in_nor_uses_a_login(web: Web, headers: dict[str, str]) -> None:
    cookie = cookie_of(web.post(f"{V1}/login", {"token": token("all")}))
    assert web.post(f"{V1}/login", {"token": token("all")}, **headers).status == 403
    assert web.post(f"{V1}/queues/mail/pause", Cookie=cookie, **headers).status == 403
    assert web.post(f"{V1}/logout", Cookie=cookie, **headers).status == 403
    assert web.get(f"{V1}/me", Cookie=cookie).status == 200


@pytest.mark.parametrize(
    ("shown", "refused"),
    [
        ({"token": "a-token-that-nobody-has"}, 401),
        ({"user": "all", "password": "wrong"}, 401),
        ({"user": "nobody", "password": PASSWORD}, 401),
        ({"user": "reader", "password": ""}, 401),
        ({"token": ""}, 401),
        ({}, 400),
        ({"token": 7}, 400),
        ({"user": "all"}, 400),
        ({"token": token("all"), "user": "all", "password": PASSWORD}, 400),
        ({"token": "x" * 5000}, 400),
    ],
)
def test_a_wrong_login_gets_no_cookie(web: Web, shown: Any, refused: int) -> None:
    answer = web.post(f"{V1}/login", shown)
    assert (answer.status, answer.headers.get("set-cookie")) == (refused, None)


def test_made_up_cookies_are_nobodys(web: Web) -> None:
    name = cookie_of(web.post(f"{V1}/login", {"token": token("all")})).partition("=")[0]
    for value in ("", "x", "x" * 5000, "a b", "%00", '"', "é"):
        assert web.get(f"{V1}/me", Cookie=f"{name}={value}".encode().decode("latin-1")).status == 401


# ------------------------------------------------------------- changes of principals


@contextmanager
def following(web: Web, **headers: str) -> Iterator[http.client.HTTPResponse]:
    """An open stream of live events that has had its first one."""
    connection = http.client.HTTPConnection(web.address, timeout=SOON)
    try:
        connection.request("GET", f"{V1}/live?limit=10", headers=headers)
        response = connection.getresponse()
        assert response.status == 200
        event(response)
        yield response
    finally:
        connection.close()


def event(response: http.client.HTTPResponse) -> Any:
    while line := response.readline():
        if line.startswith(b"data: "):
            return json.loads(line[6:])
    return None


def rest(response: http.client.HTTPResponse) -> None:
    """Read until the broker ends the stream; TimeoutError if it goes on."""
    while event(response) is not None:
        pass


def test_what_a_changed_principal_had_open_ends(broker: BrokerProcess, web: Web) -> None:
    # Given: a login, and streams of a principal that changes and of one that stays
    cookie = cookie_of(web.post(f"{V1}/login", {"token": token("reader")}))
    with (
        following(web, Cookie=cookie) as by_cookie,
        following(web, **bearer("reader")) as by_token,
        following(web, **bearer("manager")) as stays,
        # When it may read another queue
        configured(broker, reader=principal("reader", "read=sms")),
    ):
        rest(by_cookie)
        rest(by_token)
        # Then its login goes on, and sees that one
        rows = web.get(f"{V1}/overview?limit=10", Cookie=cookie).json["queues"]
        assert [row["name"] for row in rows] == ["sms"]
        assert [row["name"] for row in event(stays)["queues"]] == ["mail"]


def test_the_logins_by_a_token_that_is_replaced_end(broker: BrokerProcess, web: Web) -> None:
    cookie = cookie_of(web.post(f"{V1}/login", {"token": token("reader")}))
    with (
        following(web, Cookie=cookie) as open_one,
        configured(broker, reader=principal("another", "read=sms")),
    ):
        rest(open_one)
        assert web.get(f"{V1}/me", Cookie=cookie).status == 401
        assert web.get(f"{V1}/me", **bearer("reader")).status == 401
        assert web.get(f"{V1}/me", **bearer("another")).json["name"] == "reader"


def test_a_logout_ends_what_is_open(web: Web) -> None:
    cookie = cookie_of(web.post(f"{V1}/login", {"token": token("reader")}))
    with following(web, Cookie=cookie) as open_one:
        assert web.post(f"{V1}/logout", Cookie=cookie).status == 200
        rest(open_one)


@contextmanager
def configured(broker: BrokerProcess, **changed: Any) -> Iterator[None]:
    """Other principals until the end of the body."""
    before = broker.config["security"]
    try:
        _configure(broker, {**before, "principals": {**before["principals"], **changed}})
        yield
    finally:
        _configure(broker, before)


def _configure(broker: BrokerProcess, security: dict[str, Any]) -> None:
    broker.config["security"] = security
    (Path(broker.folder) / "broker.toml").write_text(tomli_w.dumps(broker.config))
    read = broker.log_text().count("SIGHUP: read")
    broker.send_signal(signal.SIGHUP)
    wait_until(lambda: broker.log_text().count("SIGHUP: read") > read, what="the other principals")
