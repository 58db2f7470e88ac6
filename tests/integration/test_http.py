"""The HTTP door: health, an API that is as its document says, and generated clients."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from sluicemq import Worker
from sluicemq_broker.http import BASE
from sluicemq_broker.http.door import MOST_CONNECTIONS
from sluicemq_broker.http.reading import MOST_HEADER_BYTES
from support.broker_under_test import BrokerUnderTest
from support.http_reader import Answer, Web, all_of
from support.http_site import all_needs, description
from support.own_queue import TOKEN, OwnQueue
from support.waiting import TIMEOUT, wait_until

DOCUMENT = description()
V1 = BASE


def schema_of(path: str, status: int) -> dict[str, Any]:
    answer = DOCUMENT["paths"][path]["get"]["responses"][str(status)]
    if "$ref" in answer:
        answer = DOCUMENT["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return {**answer["content"]["application/json"]["schema"], "components": DOCUMENT["components"]}


def hold_against_the_document(path: str, answer: Answer) -> Any:
    assert answer.headers["content-type"].startswith("application/json")
    Draft202012Validator(schema_of(path, answer.status)).validate(answer.json)
    return answer.json


# ------------------------------------------------------------------------ health


@pytest.mark.one_in(4)
def test_a_broker_that_serves_is_live_and_ready(web: Web) -> None:
    assert web.get("/healthz")[0::2] == (200, b"ok\n")
    # its lease is 2 s: on a machine that stands still for so long it is not ready for a moment
    wait_until(lambda: web.get("/readyz").status == 200, what="a ready broker")
    assert hold_against_the_document("/readyz", web.get("/readyz")) == {
        "serves": True, "store": "ok", "lease": "ok", "doors": "ok",
    }  # fmt: skip


# --------------------------------------------------------------------------- api


@pytest.mark.one_in(4)
def test_the_document_has_every_path_and_no_other() -> None:
    served = {path for path in all_needs() if path.startswith(V1)}
    named = {path: methods for path, methods in DOCUMENT["paths"].items() if path.startswith(V1)}
    former = {
        path
        for path, methods in named.items()
        if all(method.get("deprecated") for method in methods.values())
    }
    assert named.keys() - former == served


@pytest.mark.one_in(4)
def test_the_document_says_where_a_caller_is_needed() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, described in methods.items():
            if described.get("deprecated"):
                continue
            is_open = all_needs()[path] is None
            assert ({"401", "403"} <= described["responses"].keys()) or is_open or path == f"{V1}/me"
            assert bool(described.get("security")) is not is_open, (method, path)


@pytest.mark.one_in(4)
def test_the_document_is_served_as_the_table_of_paths_makes_it(web: Web) -> None:
    assert web.get(f"{V1}/openapi.json").json == DOCUMENT


@pytest.mark.one_in(4)
def test_the_broker_tells_of_itself_and_what_it_has_counted(web: Web, jobs: OwnQueue) -> None:
    jobs.push()
    told = hold_against_the_document(f"{V1}/broker", web.get(f"{V1}/broker"))
    assert told["broker"]["store"] == "ok"
    assert told["counters"]["pushed"] >= 1


@pytest.mark.one_in(4)
def test_a_queue_is_told_as_the_library_has_it(web: Web, jobs: OwnQueue) -> None:
    jobs.push(b"now")
    jobs.push(b"later", delay=1000)
    told = hold_against_the_document(f"{V1}/queues/{{queue}}", web.get(f"{V1}/queues/{jobs.queue}"))
    assert (told["ready"], told["scheduled"], told["exact"]) == (1, 1, True)
    assert told.keys() == jobs.counts().keys()


@pytest.mark.one_in(4)
def test_all_queues_are_told_from_what_is_known(web: Web, jobs: OwnQueue) -> None:
    jobs.push()
    jobs.counts()
    told = hold_against_the_document(f"{V1}/queues", web.get(f"{V1}/queues"))
    assert jobs.queue in {row["name"] for row in told["queues"]}


@pytest.mark.one_in(4)
def test_jobs_are_told_by_state_with_their_payloads_as_text_or_base64(web: Web, jobs: OwnQueue) -> None:
    jobs.push(b"<script>alert(1)</script>", id="a/b?c")
    jobs.push(b"\xff\x00")
    path, address = f"{V1}/queues/{{queue}}/jobs", f"{V1}/queues/{jobs.queue}/jobs?state=ready&limit=5"
    answer = web.get(address)
    told = hold_against_the_document(path, answer)["jobs"]
    assert [row["payload"] for row in told] == ["<script>alert(1)</script>", {"base64": "/wA="}]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.one_in(4)
def test_one_job_is_found_by_its_id(web: Web, jobs: OwnQueue) -> None:
    job_id = jobs.push(b"here", priority=7)
    answer = web.get(f"{V1}/queues/{jobs.queue}/jobs/{quote(job_id, safe='')}")
    told = hold_against_the_document(f"{V1}/queues/{{queue}}/jobs/{{job_id}}", answer)
    assert (told["id"], told["payload"], told["priority"]) == (job_id, "here", 7)


@pytest.mark.one_in(4)
def test_workers_are_told_with_what_they_have(web: Web, jobs: OwnQueue) -> None:
    jobs.push(id="busy")
    with jobs.reserve(1):
        told = hold_against_the_document(f"{V1}/workers", web.get(f"{V1}/workers"))["workers"]
        (mine,) = [row for row in told if row["queue"] == jobs.queue]
        assert [row["id"] for row in mine["jobs"]] == ["busy"]


@pytest.mark.one_in(4)
def test_devices_are_told_with_their_doors(web: Web, shared_broker: BrokerUnderTest) -> None:
    assert shared_broker.serves()  # over a REQ and a REP socket of one device
    told = hold_against_the_document(f"{V1}/devices", web.get(f"{V1}/devices"))["devices"]
    assert [row["frontend"] for row in told] == [
        device["frontend"] for device in shared_broker.process.devices
    ]
    assert [row["connections"] for row in told if row["queue"] == "serves"] == [2]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("path", "asked", "status", "code"),
    [
        ("queues/{queue}", "queues/nosuch", 404, "NOT_FOUND"),
        ("queues/{queue}", "queues/%2e%2e%2fetc", 404, "BAD_QUEUE"),
        ("queues/{queue}/jobs", "queues/QUEUE/jobs?state=odd", 400, "BAD_FRAMES"),
        ("queues/{queue}/jobs", "queues/QUEUE/jobs?limit=0", 400, "BAD_FRAMES"),
        ("queues/{queue}/jobs", "queues/QUEUE/jobs?limit=1e9", 400, "BAD_FRAMES"),
        ("queues/{queue}/jobs/{job_id}", "queues/QUEUE/jobs/nosuch", 404, "NOT_FOUND"),
    ],
)
def test_what_can_not_be_told_is_refused_with_a_code(
    web: Web, jobs: OwnQueue, path: str, asked: str, status: int, code: str
) -> None:
    jobs.push()
    answer = web.get(f"{V1}/{asked.replace('QUEUE', jobs.queue)}")
    assert answer.status == status
    assert hold_against_the_document(f"{V1}/{path}", answer)["code"] == code


@pytest.mark.one_in(4)
def test_what_is_not_there_is_404_and_says_so_in_json(web: Web) -> None:
    answer = web.get("/nosuch")
    assert (answer.status, answer.json["code"]) == (404, "NOT_FOUND")


# -------------------------------------------------------------- who may ask, and how


@pytest.mark.one_in(4)
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"])
def test_nothing_but_reading_and_orders_is_answered(web: Web, method: str) -> None:
    assert web.get(f"{V1}/queues", method).status in (400, 405)


@pytest.mark.one_in(4)
def test_what_can_only_be_read_takes_no_order(web: Web) -> None:
    assert web.post(f"{V1}/queues", token=TOKEN).status == 405


@pytest.mark.one_in(4)
def test_no_other_site_may_read_what_it_tells(web: Web) -> None:
    answer = web.get(f"{V1}/queues", Origin="https://evil.example")
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("host", ["evil.example", "evil.example:5580", "127.0.0.1.evil.example"])
def test_a_name_of_another_site_that_leads_here_is_refused(web: Web, host: str) -> None:
    assert web.get(f"{V1}/queues", Host=host).status == 403


@pytest.mark.one_in(4)
@pytest.mark.parametrize("host", ["localhost:5580", "127.0.0.1", "[::1]:80", "10.0.0.7:5580"])
def test_this_machine_may_be_called_by_its_address(web: Web, host: str) -> None:
    assert web.get("/healthz", Host=host).status == 200


# ------------------------------------------------------------------------- bounds


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * MOST_HEADER_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (MOST_HEADER_BYTES // 6) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nGET /",
        b"POST / HTTP/1.1\r\nContent-Length: 0_5\r\n\r\nGET /",
        b"POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\nGET /",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nGET /",
        b"POST / HTTP/1.1\r\nX: y\r\n Content-Length: 5\r\n\r\nGET /",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y\rContent-Length: 5\r\n\r\nGET /",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y\0z\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y\x0bz\r\n\r\n",
        b"GET /\rHTTP/1.1\r\n\r\n",
        b"GET\x0b/\x0cHTTP/1.1\r\n\r\n",
        b"GET\xa0/ HTTP/1.1\r\n\r\n",
        b"GET /\x85HTTP/1.1\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: local host\r\n\r\n",
        b"\r\n" * MOST_HEADER_BYTES,
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
    ids=[
        "path", "header", "headers", "body", "chunks", "negative", "signed", "underscored", "space",
        "twice", "folded", "two hosts", "carriage return in a header", "zero in a header",
        "vertical tab in a header", "carriage return in a request line", "vertical tab and form feed",
        "no-break space", "next line", "two spaces", "odd host", "empty lines", "rubbish", "version",
    ],
)  # fmt: skip
def test_what_is_too_long_or_no_request_is_refused_and_the_connection_ended(
    web: Web, shared_broker: BrokerUnderTest, request_bytes: bytes
) -> None:
    failures = shared_broker.counter("http_failures")
    assert web.send(request_bytes)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 414", b"HTTP/1.0 400", b"")
    assert web.get("/healthz").status == 200
    assert shared_broker.counter("http_failures") == failures


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "said", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\xff" + b"\0" * 8 + b"\x7f"]
)
def test_another_protocol_is_refused_at_once(web: Web, shared_broker: BrokerUnderTest, said: bytes) -> None:
    before = shared_broker.counter("http_bad_requests")
    assert web.send(said).startswith(b"HTTP/1.1 400")
    assert shared_broker.counter("http_bad_requests") == before + 1


@pytest.mark.one_in(4)
def test_those_who_connect_and_say_nothing_keep_nobody_out(web: Web) -> None:
    silent = [web.dial() for _ in range(MOST_CONNECTIONS)]
    try:
        silent[-1].sendall(b"GET /healthz HT")
        assert web.get("/healthz").status == 200
        assert all_of(silent[0]) == b""  # the one that was silent longest
    finally:
        for socket in silent:
            socket.close()


@pytest.mark.one_in(4)
def test_a_connection_may_be_used_again(web: Web) -> None:
    with web.dial() as stranger:
        ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        stranger.sendall(ask + ask + ask.replace(b"Host", b"Connection: close\r\nHost"))
        assert all_of(stranger).count(b"ok\n") == 3


@pytest.mark.one_in(4)
def test_each_answer_on_a_connection_comes_in_one_piece(web: Web) -> None:
    with web.dial() as stranger:
        for path in ("/healthz", "/api/v1/broker", "/readyz", "/api/v1/devices"):
            stranger.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head, _, body = stranger.recv(65536).partition(b"\r\n\r\n")
            assert f"Content-Length: {len(body)}".lower().encode() in head.lower()


@pytest.mark.one_in(4)
def test_a_queue_that_is_looked_at_while_it_works_is_told_without_waiting(web: Web, jobs: OwnQueue) -> None:
    done: list[str] = []
    with Worker(jobs.queue, lambda job: done.append(job.id), prefetch=50, endpoint=jobs.endpoint):
        jobs.producer.push(jobs.queue, b"job").wait(TIMEOUT)  # it makes the queue
        for _ in range(199):
            jobs.producer.push(jobs.queue, b"job")
        rows = [web.get(f"{V1}/queues").json["queues"] for _ in range(5)]
        wait_until(lambda: len(done) == 200, what="the work")
    mine = [row for told in rows for row in told if row["name"] == jobs.queue]
    assert len(mine) == 5
    assert all(0 <= row["ready"] + row["reserved"] <= 200 for row in mine)


PROGRAM = Path(__file__).parent / "openapi" / "program.ts"
OPTIONS = ["--strict", "--noEmitOnError", "--target", "es2022", "--module", "nodenext", "--skipLibCheck"]
MODULES = Path(os.environ.get("NODE_PATH", "nowhere"))


def test_the_document_is_valid_openapi() -> None:
    validate(description())


@pytest.mark.full  # the TypeScript compiler takes seconds
@pytest.mark.skipif(not (MODULES / "openapi-fetch").is_dir(), reason="openapi-fetch for Node is not there")
def test_a_typescript_program_works(shared_broker: BrokerUnderTest, jobs: OwnQueue, tmp_path: Path) -> None:
    # Given a program over types that are made of the document
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(description()))
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(PROGRAM, tmp_path)
    run("openapi-typescript", str(document), "-o", str(tmp_path / "api.d.ts"), folder=tmp_path)
    run("tsc", *OPTIONS, "program.ts", folder=tmp_path)
    # and two dead letters
    for payload in (b"a", b"b"):
        jobs.push(payload)
        jobs.take().reject("no use")
    wait_until(lambda: jobs.counts()["dead"] == 2, what="the deaths")
    address = f"http://{shared_broker.process.http}"
    told = subprocess.run(
        ["node", "program.js", address, TOKEN, jobs.queue],
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=True,
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert (found["before"], found["moved"], found["after"]) == (2, 2, 0)
    assert (found["refused"], bool(found["first"])) == ("NOT_FOUND", True)


def run(name: str, *arguments: str, folder: Path) -> None:
    """A program of Node's packages; its output is in the error if it fails."""
    program = MODULES / ".bin" / name
    done = subprocess.run(
        [str(program), *arguments], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
