"""What can be changed over HTTP, and by whom: orders at a real broker, with the token and without."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator

from sluicemq import Publisher, Reject, Worker
from sluicemq_broker.http import BASE
from sluicemq_broker.http.handler import MOST_BODY_BYTES
from support.broker_under_test import serving
from support.http_reader import Answer, Web
from support.http_site import description
from support.own_queue import TOKEN, OwnQueue
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

DOCUMENT = description()
V1 = BASE
Order = Callable[..., Any]


@pytest.fixture
def order(web: Web, jobs: OwnQueue) -> Order:
    """Give an order for the test's queue with the token; its answer, which is as the document says."""

    def give(path: str, said: dict[str, Any] | None = None, **names: str) -> Any:
        address = path.replace("{queue}", jobs.queue)
        for name, value in names.items():
            address = address.replace(f"{{{name}}}", quote(value, safe=""))
        answer = web.post(V1 + address, said, TOKEN)
        assert answer.status == 200, answer.body
        schema = DOCUMENT["paths"][V1 + path]["post"]["responses"]["200"]["content"]["application/json"]
        whole = {**schema["schema"], "components": DOCUMENT["components"]}
        Draft202012Validator(whole).validate(answer.json)
        return answer.json["answer"]

    return give


def kill(jobs: OwnQueue, *ids: str, reason: str = "no such address") -> None:
    for job_id in ids:
        jobs.push(id=job_id)

    def handler(_job: Any) -> None:
        raise Reject(reason)

    with Worker(jobs.queue, handler, prefetch=50, endpoint=jobs.endpoint):
        wait_until(lambda: set(ids) <= set(jobs.ids("dead")), what="the deaths")


# ------------------------------------------------------------------------ orders


def test_delivery_and_intake_are_paused_and_resumed(order: Order, jobs: OwnQueue) -> None:
    jobs.push()
    assert order("/queues/{queue}/pause") == ["delivery"]
    assert order("/queues/{queue}/pause", {"what": "intake"}) == ["delivery", "intake"]
    assert order("/queues/{queue}/resume") == ["intake"]
    assert order("/queues/{queue}/resume", {"what": "intake"}) == []


def test_settings_are_set_shown_and_taken_back(order: Order, web: Web, jobs: OwnQueue) -> None:
    jobs.push()
    rows = order("/queues/{queue}/settings/set", {"settings": {"max_attempts": 2, "ttl": "1h"}})
    assert {row["key"]: row["value"] for row in rows} == {"max_attempts": 2, "ttl": 3600.0}
    path = f"{V1}/queues/{jobs.queue}/settings"
    answer = web.get(path)
    schema = DOCUMENT["paths"][V1 + "/queues/{queue}/settings"]["get"]["responses"]["200"]["content"]
    whole = {**schema["application/json"]["schema"], "components": DOCUMENT["components"]}
    Draft202012Validator(whole).validate(answer.json)
    shown = {row["key"]: row["source"] for row in answer.json["settings"]}
    assert (shown["ttl"], shown["rate"]) == ("mongodb", "default")
    [row] = order("/queues/{queue}/settings/unset", {"keys": ["ttl"]})
    assert row == {"key": "ttl", "value": None, "source": "default"}
    wrong: list[dict[str, Any]] = [{}, {"settings": []}, {"settings": {"ttl": "soon"}}]
    for said in (*wrong, {"settings": {"database": "x"}}):
        assert web.post(f"{V1}/queues/{jobs.queue}/settings/set", said, TOKEN).status == 400


def test_a_delayed_job_is_promoted(order: Order, jobs: OwnQueue) -> None:
    jobs.push(id="a/b c", delay=1000)
    order("/queues/{queue}/jobs/{job_id}/promote", job_id="a/b c")
    assert jobs.state("a/b c") == "ready"


def test_a_job_that_waits_is_cancelled(order: Order, jobs: OwnQueue) -> None:
    jobs.push(id="x")
    order("/queues/{queue}/jobs/{job_id}/cancel", job_id="x")
    assert jobs.state("x") == "gone"


def test_a_dead_letter_is_retried_alone(order: Order, jobs: OwnQueue) -> None:
    kill(jobs, "x", "y")
    answer = order("/queues/{queue}/jobs/{job_id}/redrive", job_id="x")
    assert (answer["moved"], jobs.state("x"), jobs.state("y")) == (1, "ready", "dead")


def test_whatever_no_worker_has_is_deleted(order: Order, web: Web, jobs: OwnQueue) -> None:
    kill(jobs, "dead")
    jobs.push(id="done", keep_done=1000.0)
    jobs.take().commit()
    wait_until(lambda: jobs.state("done") == "done", what="the commit")
    jobs.push(id="waits", delay=1000)
    for name in ("dead", "done", "waits"):
        order("/queues/{queue}/jobs/{job_id}/delete", job_id=name)
        assert jobs.state(name) == "gone"
    jobs.push(id="busy")
    with jobs.reserve(1):
        answer = web.post(f"{V1}/queues/{jobs.queue}/jobs/busy/delete", {}, TOKEN)
        assert (answer.status, answer.json["code"]) == (404, "NOT_FOUND")


def test_dead_letters_are_redriven_and_deleted_by_what_is_said_of_them(order: Order, jobs: OwnQueue) -> None:
    kill(jobs, "a", "b", reason="no such address")
    kill(jobs, "c", "d", reason="disk full")
    assert order("/queues/{queue}/dead-letters/redrive", {"ids": ["a"]})["moved"] == 1
    assert order("/queues/{queue}/dead-letters/redrive", {"reason": "disk", "limit": 1})["moved"] == 1
    assert set(jobs.ids("ready")) == {"a", "c"}
    assert order("/queues/{queue}/dead-letters/discard", {"reason": "disk"}) == 1
    assert jobs.ids("dead") == ["b"]
    assert order("/queues/{queue}/dead-letters/discard", {"until": 1.0}) == 0
    assert order("/queues/{queue}/dead-letters/discard", {"all": True}) == 1
    assert jobs.ids("dead") == []


def test_a_state_is_purged(order: Order, jobs: OwnQueue) -> None:
    jobs.push()
    jobs.push(delay=1000)
    assert order("/queues/{queue}/purge", {"state": "scheduled"}) == 1
    assert len(jobs.ids("ready")) == 1


def test_a_schedule_is_paused_resumed_and_run(order: Order, jobs: OwnQueue) -> None:
    name = f"s-{jobs.queue}"
    jobs.client.schedules.add(name, jobs.queue, b"go", every=1000)
    try:
        order("/schedules/{name}/pause", name=name)
        (mine,) = [schedule for schedule in jobs.client.schedules() if schedule["name"] == name]
        assert mine["paused"]
        order("/schedules/{name}/resume", name=name)
        order("/schedules/{name}/run", name=name)
        wait_until(lambda: jobs.ids("ready"), what="the run")
    finally:
        jobs.client.schedules.delete(name)


def test_an_order_stands_in_the_log_with_who_gave_it(order: Order, jobs: OwnQueue) -> None:
    jobs.push()
    order("/queues/{queue}/pause")
    jobs.broker.process.wait_log(f"http_token from 127.0.0.1 (http): pause {jobs.queue}: done")


# ------------------------------------------------------------------- what is refused


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["code"]


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, (401, "UNAUTHORIZED")),
        ({"Authorization": "Bearer wrong-token-of-a-length"}, (401, "UNAUTHORIZED")),
        ({"Authorization": f"Basic {TOKEN}"}, (401, "UNAUTHORIZED")),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}, (403, "CROSS_SITE")),
        ({"Authorization": f"Bearer {TOKEN}", "Origin": "null"}, (403, "CROSS_SITE")),
        ({"Authorization": f"Bearer {TOKEN}", "Sec_Fetch_Site": "cross-site"}, (403, "CROSS_SITE")),
        ({"Authorization": f"Bearer {TOKEN}", "Sec_Fetch_Site": "same-site"}, (403, "CROSS_SITE")),
        ({"Authorization": f"Bearer {TOKEN}", "X_SluiceMQ_Action": ""}, (403, "CROSS_SITE")),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}, (403, "FORBIDDEN")),
        ({"Authorization": f"Bearer {TOKEN}", "Content_Type": "text/plain"}, (415, "UNSUPPORTED_MEDIA_TYPE")),
        (
            {"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/x-www-form-urlencoded"},
            (415, "UNSUPPORTED_MEDIA_TYPE"),
        ),
    ],
)
def test_whoever_may_not_changes_nothing(
    web: Web, jobs: OwnQueue, headers: dict[str, str], refused: tuple[int, str]
) -> None:
    jobs.push()
    assert code(web.post(f"{V1}/queues/{jobs.queue}/pause", {}, **headers)) == refused
    assert not jobs.counts()["paused"]


def test_the_dashboards_own_page_may(web: Web, jobs: OwnQueue) -> None:
    jobs.push()
    address = web.address
    answer = web.post(
        f"{V1}/queues/{jobs.queue}/pause", {}, TOKEN, Origin=f"http://{address}", Sec_Fetch_Site="same-origin"
    )
    assert answer.status == 200


def test_no_other_site_is_given_leave_to_ask(web: Web) -> None:
    answer = web.get(f"{V1}/token", "OPTIONS", Origin="http://evil.example")
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("pause", {"what": "everything"}),
        ("pause", {"what": 7}),
        ("dead-letters/redrive", {}),
        ("dead-letters/discard", {}),
        ("dead-letters/discard", {"all": False}),
        ("dead-letters/discard", {"limit": 0}),
        ("dead-letters/redrive", {"ids": "all"}),
        ("dead-letters/redrive", {"since": "yesterday"}),
        ("dead-letters/redrive", {"all": True, "to": 7}),
        ("purge", {"state": "reserved"}),
        ("purge", {}),
    ],
)
def test_an_order_of_nonsense_is_refused(web: Web, jobs: OwnQueue, path: str, said: dict[str, Any]) -> None:
    kill(jobs, "x")
    assert code(web.post(f"{V1}/queues/{jobs.queue}/{path}", said, TOKEN)) == (400, "BAD_FRAMES")
    assert jobs.ids("dead") == ["x"]


@pytest.mark.parametrize("body", [b"[]", b"{", b"7", b"\xff"])
def test_an_order_that_is_no_object_is_refused(web: Web, body: bytes) -> None:
    headers = {
        "Content_Type": "application/json",
        "X_SluiceMQ_Action": "t",
        "Authorization": f"Bearer {TOKEN}",
    }
    assert web.get(f"{V1}/token", "POST", body, **headers).status == 400


def test_a_body_is_bounded_and_whole(web: Web) -> None:
    head = f"POST {V1}/token HTTP/1.1\r\nHost: localhost\r\n"
    long = f"{head}Content-Length: {MOST_BODY_BYTES + 1}\r\n\r\n".encode()
    chunks = f"{head}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n".encode()
    expects = f"{head}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{{}}".encode()
    for request in (long, chunks, expects):
        assert web.send(request)[:12] == b"HTTP/1.1 400"
    assert web.post(f"{V1}/token", {"padding": "x" * 100_000}, TOKEN).status == 200


def test_without_a_token_in_the_configuration_nothing_can_be_changed(mongo_uri: str) -> None:
    with serving(mongo_uri, [], http="127.0.0.1:0") as broker:
        web = Web(broker.process.http)
        for token in ("", "None", TOKEN):
            assert code(web.post(f"{V1}/token", {}, token)) == (403, "READ_ONLY")
        assert web.get(f"{V1}/overview").json["actions"] is False


def test_the_token_is_in_no_answer_and_in_no_log(web: Web, jobs: OwnQueue) -> None:
    web.post(f"{V1}/token", {}, "a-wrong-token-of-a-length")
    for path in ("/", "/metrics", f"{V1}/broker", f"{V1}/overview"):
        assert TOKEN.encode() not in web.get(path).body
    log = jobs.broker.process.log_text()
    assert TOKEN not in log
    assert "a-wrong-token" not in log
    assert json.dumps(web.get(f"{V1}/overview").json["actions"]) == "true"


def test_a_schedule_is_shown_with_its_next_and_latest_runs(order: Order, web: Web, jobs: OwnQueue) -> None:
    name = f"nightly-{jobs.queue}"
    said = {"queue": jobs.queue, "payload": "all", "cron": "0 3 * * *", "timezone": "UTC"}
    order("/schedules/{name}/add", said, name=name)
    job = order("/schedules/{name}/run", {}, name=name)
    try:
        shown = web.get(f"{V1}/schedules/{name}").json
    finally:
        order("/schedules/{name}/delete", {}, name=name)
    assert (shown["schedule"]["name"], shown["payload"]) == (name, "all")
    assert [later - earlier for earlier, later in pairwise(shown["next"])] == [86_400.0] * 4
    assert [row["id"] for row in shown["runs"]] == [job]
    assert web.get(f"{V1}/schedules/{name}").status == 404


def test_messages_are_read_and_a_subscription_is_moved(order: Order, web: Web, jobs: OwnQueue) -> None:
    stream = f"s-{jobs.queue}"
    path = f"{V1}/streams/{stream}/messages"
    with Publisher(endpoint=jobs.endpoint) as publisher:
        for number in range(30):
            publisher.publish(stream, f"orders.{'eu' if number % 10 else 'us'}", b"x" * 3000).wait(60)
    # When and then: the newest; from a number on; those of a topic
    newest = web.get(f"{path}?limit=5").json
    assert [entry["number"] for entry in newest["messages"]] == [26, 27, 28, 29, 30]
    assert (newest["first"], newest["newest"], newest["more"]) == (1, 30, False)
    assert (newest["messages"][0]["size"], len(newest["messages"][0]["body"])) == (3000, 2048)
    page = web.get(f"{path}?after=9&limit=2").json
    assert ([entry["number"] for entry in page["messages"]], page["after"], page["more"]) == (
        [10, 11],
        11,
        True,
    )
    some = web.get(f"{path}?after=0&topic=orders.us").json
    assert [entry["number"] for entry in some["messages"]] == [1, 11, 21]
    later = web.get(f"{path}?since={newest['messages'][-1]['at'] + 1000}").json
    assert later["messages"] == []
    # And
    seek = "/streams/{stream}/subscriptions/{name}/seek"
    order(seek, {"watermark": 12}, stream=stream, name="sums")
    (row,) = jobs.client.subscriptions.list(stream)
    assert (row.name, row.watermark) == ("sums", 12)
