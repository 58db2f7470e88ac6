"""The API's pages of jobs, dead letters, curves and snapshots, at a real broker."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from jsonschema import Draft202012Validator
from pymongo.database import Database

from sluicemq import Reject, Worker
from sluicemq_broker.http import BASE
from sluicemq_broker.http.door import MOST_CONNECTIONS
from sluicemq_broker.store import QueueStore, backlog
from sluicemq_broker.store.jobs.documents import collection
from support.http_reader import Web, all_of
from support.http_site import description
from support.jobs import NOW, some_jobs
from support.own_queue import TOKEN, OwnQueue
from support.waiting import wait_until

DOCUMENT = description()
V1 = BASE


class Told:
    """Answers of one path, each as the document says."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def __call__(self, path: str, name: str = "", **asked: Any) -> Any:
        words = urlencode({key: value for key, value in asked.items() if value is not None})
        answer = self._web.get(f"{V1}{path.replace('{queue}', name).replace('{name}', name)}?{words}")
        assert answer.status == 200, answer.body
        schema = DOCUMENT["paths"][f"{V1}{path}"]["get"]["responses"]["200"]["content"]["application/json"]
        schema = {**schema["schema"], "components": DOCUMENT["components"]}
        Draft202012Validator(schema).validate(answer.json)
        return answer.json


@pytest.fixture
def told(web: Web) -> Told:
    return Told(web)


def leaf(told: Told, path: str, queue: str, **asked: Any) -> list[list[str]]:
    """All pages, each as the ids of its jobs."""
    found, after = [], None
    while True:
        page = told(path, queue, after=after, **asked)
        found.append([row["id"] for row in page["jobs"]])
        after = page["next"]
        if after is None:
            return found


def kill_all(jobs: OwnQueue, count: int, reason: str = "no such address") -> None:
    def handler(_job: Any) -> None:
        raise Reject(reason)

    with Worker(jobs.queue, handler, prefetch=50, endpoint=jobs.endpoint):
        wait_until(lambda: jobs.counts()["dead"] >= count, what="the deaths")


# ------------------------------------------------------------------------- pages


@pytest.mark.one_in(4)
def test_jobs_that_wait_are_leafed_through_as_they_would_be_handed_out(told: Told, jobs: OwnQueue) -> None:
    for number in range(25):
        jobs.producer.push(jobs.queue, b"", id=f"j{number}", priority=number % 3)
    jobs.producer.flush(60)
    pages = leaf(told, "/queues/{queue}/jobs", jobs.queue, state="ready", limit=4)
    assert [len(page) for page in pages] == [4, 4, 4, 4, 4, 4, 1]
    assert [job_id for page in pages for job_id in page] == jobs.ids("ready")


@pytest.mark.one_in(4)
def test_delayed_jobs_too(told: Told, jobs: OwnQueue) -> None:
    for number in range(9):
        jobs.push(id=f"j{number}", delay=1000 + (number * 7) % 5, priority=number % 2)
    pages = leaf(told, "/queues/{queue}/jobs", jobs.queue, state="scheduled", limit=2)
    assert [job_id for page in pages for job_id in page] == jobs.ids("scheduled")


@pytest.mark.one_in(4)
def test_the_next_page_leaves_none_out_when_jobs_of_the_last_have_gone(told: Told, jobs: OwnQueue) -> None:
    for number in range(6):
        jobs.push(id=f"j{number}")
    first = told("/queues/{queue}/jobs", jobs.queue, state="ready", limit=3)
    for row in first["jobs"]:
        jobs.client.jobs.cancel(jobs.queue, row["id"])
    second = told("/queues/{queue}/jobs", jobs.queue, state="ready", limit=3, after=first["next"])
    assert [row["id"] for row in second["jobs"]] == ["j3", "j4", "j5"]


@pytest.mark.one_in(4)
def test_those_that_died_in_one_millisecond_are_not_torn_apart(told: Told, jobs: OwnQueue) -> None:
    for number in range(12):
        jobs.producer.push(jobs.queue, b"", id=f"d{number:02}")
    jobs.producer.flush(60)
    kill_all(jobs, 12)
    now = jobs.now().replace(microsecond=0, tzinfo=None)
    for number in range(12):  # three at a time, the later ones with the higher numbers
        when = now - timedelta(seconds=100 - number // 3)
        jobs.collection.update_one({"_id": f"d{number:02}"}, {"$set": {"ended_at": when}})
    pages = leaf(told, "/queues/{queue}/dead-letters", jobs.queue, limit=2)
    # Then: the latest first, and inside one millisecond by id
    assert [job_id for page in pages for job_id in page] == [
        "d09", "d10", "d11", "d06", "d07", "d08", "d03", "d04", "d05", "d00", "d01", "d02",
    ]  # fmt: skip
    assert leaf(told, "/queues/{queue}/jobs", jobs.queue, state="dead", limit=2) == pages


@pytest.mark.one_in(4)
def test_a_page_goes_on_where_it_was_when_its_dead_letters_were_deleted(told: Told, jobs: OwnQueue) -> None:
    for number in range(6):
        jobs.push(id=f"d{number}")
    kill_all(jobs, 6)
    when = jobs.now().replace(microsecond=0, tzinfo=None) - timedelta(seconds=5)
    jobs.collection.update_many({}, {"$set": {"ended_at": when}})
    first = told("/queues/{queue}/dead-letters", jobs.queue, limit=3)
    jobs.collection.delete_many({"_id": {"$in": [row["id"] for row in first["jobs"]]}})
    second = told("/queues/{queue}/dead-letters", jobs.queue, limit=3, after=first["next"])
    assert [row["id"] for row in second["jobs"]] == ["d3", "d4", "d5"]


@pytest.mark.one_in(4)
def test_a_page_has_small_payloads_and_tells_how_large_the_others_are(told: Told, jobs: OwnQueue) -> None:
    jobs.push(b"x" * 100, id="small")
    jobs.push(b"x" * 1000, id="large")
    small, large = told("/queues/{queue}/jobs", jobs.queue)["jobs"]
    assert (small["payload"], small["payload_bytes"]) == ("x" * 100, 100)
    assert ("payload" in large, large["payload_bytes"]) == (False, 1000)


@pytest.mark.one_in(4)
def test_jobs_are_found_by_the_beginning_of_ids_whatever_their_state(told: Told, jobs: OwnQueue) -> None:
    jobs.push(id="order.1")
    kill_all(jobs, 1)
    jobs.push(id="order.2", delay=1000)
    jobs.push(id="other")
    found = told("/queues/{queue}/jobs", jobs.queue, id="order.")["jobs"]
    assert [(row["id"], row["state"]) for row in found] == [("order.1", "dead"), ("order.2", "scheduled")]


@pytest.mark.one_in(4)
def test_what_is_no_job_is_shown_in_a_page_all_the_same(told: Told, jobs: OwnQueue) -> None:
    jobs.push(id="job")
    jobs.collection.insert_one(
        {"_id": "odd", "state": "ready", "priority": 0, "payload": "text", "errors": 3}
    )
    jobs.collection.update_one({"_id": "odd"}, {"$set": {"eligible_at": jobs.now(), "seq": 1}})
    assert "job" in {row["id"] for row in told("/queues/{queue}/jobs", jobs.queue)["jobs"]}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("after", ["nonsense", "{}", "[1]", '["a","b","c"]'])
def test_a_page_behind_nothing_that_is_known_is_refused(web: Web, jobs: OwnQueue, after: str) -> None:
    jobs.push()
    for path in ("jobs", "dead"):
        answer = web.get(f"{V1}/queues/{jobs.queue}/{path}?after={quote(after)}")
        assert (answer.status, answer.json["code"]) == (400, "BAD_FRAMES")


# ------------------------------------------------------------------ dead letters


@pytest.mark.one_in(4)
def test_dead_letters_are_chosen_by_reason_and_time_and_counted(told: Told, jobs: OwnQueue) -> None:
    jobs.push(id="a")
    kill_all(jobs, 1, "no such address")
    jobs.push(id="b")
    kill_all(jobs, 2, "disk is full $. (100%)")
    old = jobs.now().replace(tzinfo=None) - timedelta(hours=1)
    jobs.collection.update_one({"_id": "a"}, {"$set": {"ended_at": old}})
    middle = jobs.now().timestamp() - 1800

    def chosen(**asked: Any) -> list[str]:
        (found,) = leaf(told, "/queues/{queue}/dead-letters", jobs.queue, **asked)
        counted = told("/queues/{queue}/dead-letters/count", jobs.queue, **asked)
        assert counted == {"count": len(found), "exact": True}
        return found

    assert chosen() == ["b", "a"]
    assert chosen(reason="address") == ["a"]
    assert chosen(reason="full $. (") == ["b"]
    assert chosen(reason="nothing") == []
    assert chosen(since=middle) == ["b"]
    assert chosen(until=middle) == ["a"]
    assert told("/queues/{queue}/dead-letters/reasons", jobs.queue)["reasons"] == [
        {"reason": "disk is full $. (100%)", "count": 1}, {"reason": "no such address", "count": 1},
    ]  # fmt: skip


@pytest.mark.one_in(4)
def test_a_payload_is_cut_where_asked_for_and_can_be_had_whole(web: Web, told: Told, jobs: OwnQueue) -> None:
    payload = bytes(range(256)) * 10
    jobs.push(payload, id="a b/c")
    path = f"{V1}/queues/{jobs.queue}/jobs/{quote('a b/c', safe='')}"
    cut = web.get(f"{path}?payload=16").json
    assert (cut["payload"], cut["payload_bytes"]) == (bytes(range(16)).decode(), 2560)
    whole = web.get(f"{path}/payload")
    assert whole.body == payload
    assert whole.headers["content-type"] == "application/octet-stream"
    assert "attachment" in whole.headers["content-disposition"]


# ------------------------------------------------------------------------ snapshots


@pytest.mark.one_in(4)
def test_the_overview_has_the_queues_that_are_asked_for(told: Told, jobs: OwnQueue) -> None:
    jobs.push()
    jobs.counts()

    def mine() -> Any:
        # It tells what was counted a moment ago, while jobs were pushed.
        rows = told("/overview", only=jobs.queue, limit=1)["queues"]
        return [(row["name"], row["ready"]) for row in rows]

    wait_until(lambda: mine() == [(jobs.queue, 1)], what="one ready job")
    whole = told("/overview")
    assert whole["queues"] == []
    assert whole["matching"] == whole["totals"]["queues"] >= 1
    # A broker whose machine gives it no time is no longer sure of its lease for a while, and says so.
    wait_until(lambda: told("/overview")["problems"] == {}, what="no problems")


@pytest.mark.one_in(4)
def test_queues_are_sorted_filtered_and_given_by_the_page(told: Told, jobs: OwnQueue) -> None:
    jobs.push()
    for number in range(3):
        for _ in range(number + 1):
            jobs.producer.push(f"{jobs.queue}-{number}", b"")
    jobs.producer.flush(60)
    names = [f"{jobs.queue}-{number}" for number in range(3)]
    jobs.client.queues.list()

    def sorted_by(sort: str, **asked: Any) -> list[str]:
        page = told("/queues", sort=sort, contains=f"{jobs.queue}-".upper(), limit=10, **asked)
        assert page["matching"] in (0, 3)  # a snapshot may be a second old
        return [row["name"] for row in page["queues"]]

    wait_until(lambda: sorted_by("ready") == names[::-1], what="the counts")
    assert sorted_by("name") == names
    assert sorted_by("name", reverse="true", offset=1) == names[1::-1]
    assert told("/queues", contains=jobs.queue, limit=2)["matching"] == 4


@pytest.mark.one_in(4)
@pytest.mark.parametrize("asked", ["sort=odd", "limit=9999", "offset=-1", "limit=x"])
def test_a_view_that_can_not_be_is_refused(web: Web, asked: str) -> None:
    assert web.get(f"{V1}/overview?{asked}").status == 400


@pytest.mark.one_in(4)
def test_who_looks_on_gets_a_snapshot_again_and_again(web: Web, jobs: OwnQueue) -> None:
    with web.dial() as stranger:
        stranger.sendall(
            f"GET {V1}/live?only={jobs.queue}&limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        came = b""
        while came.count(b"data: ") < 2:
            came += stranger.recv(65536)
        assert b"content-type: text/event-stream" in came.lower()
        jobs.push()
        wait = 0
        while f'"name": "{jobs.queue}"'.encode() not in came:
            came += stranger.recv(65536)
            wait += 1
            assert wait < 100


@pytest.mark.one_in(4)
def test_a_dashboard_too_many_takes_the_place_of_the_one_that_is_open_longest(web: Web) -> None:
    most = MOST_CONNECTIONS // 2
    ask = f"GET {V1}/live HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    looking = [web.dial() for _ in range(most)]
    with web.dial() as newcomer:
        try:
            for socket in looking:
                socket.sendall(ask)
                assert socket.recv(12) == b"HTTP/1.1 200"
            newcomer.sendall(ask)
            assert newcomer.recv(12) == b"HTTP/1.1 200"
            assert all_of(looking[0])
            assert web.get("/healthz").status == 200
            assert b"data: " in looking[-1].recv(1 << 20)
        finally:
            for thread in looking:
                thread.close()


# --------------------------------------------------------------------- what else is told


@pytest.mark.one_in(4)
def test_curves_have_a_number_for_each_step(web: Web, jobs: OwnQueue) -> None:
    jobs.push()
    for span, steps, step in (("hour", 60, 60), ("day", 288, 300), ("month", 720, 3600)):
        answer = web.get(f"{V1}/series/queue/{jobs.queue}?span={span}").json
        assert answer["step"] == step
        assert {len(curve) for curve in answer["curves"].values()} == {steps}


@pytest.mark.one_in(4)
@pytest.mark.full
def test_what_was_pushed_is_in_the_curves_of_queue_and_all(web: Web, told: Told, jobs: OwnQueue) -> None:
    jobs.push()
    jobs.push(delay=1000)

    def pushed() -> int:
        return sum(web.get(f"{V1}/series/queue/{jobs.queue}").json["curves"]["pushed"])

    wait_until(lambda: pushed() == 2, what="the history's flush")
    assert sum(web.get(f"{V1}/series/broker/*?span=day").json["curves"]["pushed"]) >= 2
    small = told("/recent", queue=f"{jobs.queue},other")["queues"]
    assert sum(small[jobs.queue]["pushed"]) == 2


@pytest.mark.one_in(4)
def test_brokers_schedules_streams_and_tasks_are_told(told: Told, jobs: OwnQueue) -> None:
    assert [row["here"] for row in told("/brokers")["brokers"]].count(True) == 1
    jobs.client.schedules.add(f"s-{jobs.queue}", jobs.queue, b"go", every=1000)
    try:
        (mine,) = [row for row in told("/schedules")["schedules"] if row["queue"] == jobs.queue]
        assert mine["every"] == 1000
    finally:
        jobs.client.schedules.delete(f"s-{jobs.queue}")
    assert told("/streams").keys() == {"streams", "subscriptions", "routes"}
    assert isinstance(told("/operations")["operations"], list)


# ------------------------------------------------------------------------ the page


@pytest.mark.one_in(4)
def test_the_page_and_all_that_it_needs_come_from_the_package(web: Web) -> None:
    page = web.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert b"http://" not in page.body.replace(b"http://www.w3.org", b"")
    assert b"https://" not in page.body
    again = web.get("/", If_None_Match=page.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    for name in ("app.js", "style.css", "uplot.min.js", "uplot.min.css", "icon.svg", "uplot-LICENSE.txt"):
        assert web.get(f"/dashboard/{name}").status == 200
    assert web.get("/dashboard/../openapi.json").status == 404


def test_jobs_that_wait_are_told_by_kind_tenant_and_group(jobs: OwnQueue, web: Web) -> None:
    for number in range(3):
        jobs.push(kind="mail", tenant="north", id=f"a{number}")
        jobs.push(group="g", id=f"b{number}")
    jobs.push(kind="later", delay=1000.0)
    found = web.get(f"{BASE}/queues/{jobs.queue}/backlog").json
    numbers = {
        name: [(row["name"], row["jobs"]) for row in found[name]] for name in ("kinds", "tenants", "groups")
    }
    assert numbers["kinds"] == [("mail", 3), ("", 1)]
    assert ("north", 3) in numbers["tenants"]
    assert numbers["groups"] == [("g", 2)]
    assert (found["looked"], found["more"]) == (4, False)
    assert all(row["oldest"] for row in found["kinds"])


def test_no_more_than_the_first_jobs_are_looked_at(documents: Database[dict[str, Any]]) -> None:
    store = QueueStore(documents, collection("mail"))
    store.prepare()
    store.push(some_jobs(5), NOW)
    assert backlog(documents, "mail", NOW + 1, most=2).looked == 2


@pytest.mark.parametrize(
    ("options", "status"), [({"priority": 7}, 200), ({"priority": "high"}, 400), ({"colour": 1}, 400)]
)
def test_a_job_is_pushed_or_refused(jobs: OwnQueue, web: Web, options: dict[str, Any], status: int) -> None:
    answer = web.post(
        f"{BASE}/queues/{jobs.queue}/push", {"payload": '{"to": "ada"}', "options": options}, TOKEN
    )
    assert answer.status == status
    found = jobs.client.jobs.list(jobs.queue) if status == 200 else []
    assert [(job.payload, job.priority) for job in found] == [(b'{"to": "ada"}', 7)] * len(found)
