"""Strangers, crowds and rubbish at the HTTP door: turned away, while others are served."""

import json
import resource
import socket as sockets
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import quote

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicemq import Producer
from sluicemq_broker.http import BASE
from sluicemq_broker.http.door import MOST_CONNECTIONS
from support.broker_under_test import BrokerUnderTest, serving
from support.http_reader import Web, all_of
from support.own_queue import TOKEN
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

V1 = BASE
MIB = 1 << 20
BIG = b"\x01" * (11 * MIB)  # which JSON writes with six times as many
LONGEST_TURN = 0.06  # seconds of CPU; in one piece it takes 0.14
MOST_MEMORY = 300 * MIB
ASK = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, [], http="127.0.0.1:0", http_token=TOKEN) as broker:
        with Producer(endpoint=broker.doors["smq"]) as producer:
            producer.push("large", BIG, id="job").wait(60)
            producer.push("small", b"job", id="a/b").wait(60)
            producer.push("small", b"job", id="a\0b").wait(60)
        yield broker


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """Whatever a stranger does, the broker serves afterwards and none of its code has failed."""
    yield shared
    assert shared.serves()
    log = shared.process.log_text()
    assert "Traceback" not in log
    assert all(len(line) < 5_000 for line in log.splitlines())
    assert shared.counter("http_failures") == 0


@pytest.fixture
def web(broker: BrokerUnderTest) -> Web:
    return Web(broker.process.http)


def process(broker: BrokerUnderTest) -> psutil.Process:
    return psutil.Process(broker.process.pid)


def reset(stranger: sockets.socket) -> None:
    stranger.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()


# --------------------------------------------------------------------- crowds


def test_idle_connections_take_no_more_files_than_there_are_places(broker: BrokerUnderTest, web: Web) -> None:
    before = process(broker).num_fds()
    with ExitStack() as crowd:
        for number in range(4 * MOST_CONNECTIONS):
            stranger = crowd.enter_context(web.dial())
            if number % 3:
                stranger.sendall(b"GET /healthz HT" if number % 2 else ASK.format("/healthz").encode())
        assert web.get("/healthz").status == 200
        assert process(broker).num_fds() < before + MOST_CONNECTIONS + 20
        assert web.get(f"{V1}/queues/small").status == 200
    wait_until(lambda: process(broker).num_fds() < before + 20, what="files given back")


def test_those_who_reset_are_worth_no_line_each(broker: BrokerUnderTest, web: Web) -> None:
    before = len(broker.process.log_text())
    for number in range(300):
        stranger = web.dial()
        stranger.sendall((b"", b"GET / HT", ASK.format("/metrics").encode())[number % 3])
        reset(stranger)
    assert web.get("/healthz").status == 200
    assert len(broker.process.log_text()) - before < 10_000


def test_answers_nobody_reads_are_bounded_and_others_answered(broker: BrokerUnderTest, web: Web) -> None:
    # Given a crowd that asks for a large job and reads nothing, each again when it is cut
    over = threading.Event()
    crowd = [
        threading.Thread(target=_read_nothing, args=(web, over, f"{V1}/queues/large/jobs/job"))
        for _ in range(MOST_CONNECTIONS)
    ]
    for peer in crowd:
        peer.start()
    try:
        # When others ask meanwhile
        cut = broker.counter("http_connections_cut")
        while broker.counter("http_connections_cut") < cut + 3:
            # Then they are answered, and the broker stays small
            assert web.get("/healthz").status == 200
            assert web.get("/readyz").status == 200
            assert web.get(f"{V1}/queues/small").status == 200
            assert process(broker).memory_info().rss < MOST_MEMORY
    finally:
        over.set()
        for thread in crowd:
            thread.join()


def _read_nothing(web: Web, over: threading.Event, path: str) -> None:
    while not over.is_set():
        with suppress(OSError), web.dial() as stranger:
            stranger.sendall(ASK.format(path).encode() * 5)
            while not over.wait(0.2) and not stranger.getsockopt(sockets.SOL_SOCKET, sockets.SO_ERROR):
                pass


def test_nothing_is_made_for_those_who_have_left(broker: BrokerUnderTest, web: Web) -> None:
    for number in range(60):
        stranger = web.dial()
        stranger.sendall(ASK.format(f"{V1}/queues/large/jobs/job").encode() * 5)
        if number % 2:
            reset(stranger)
        else:
            stranger.close()
    wait_until(
        lambda: web.get(f"{V1}/queues/large/jobs/job?payload=10").status == 200, what="the honest answer"
    )


def test_event_streams_that_nobody_needs_keep_no_dashboard_out(broker: BrokerUnderTest, web: Web) -> None:
    with ExitStack() as crowd:
        idle = []
        for _ in range(MOST_CONNECTIONS):
            idle.append(crowd.enter_context(web.dial()))
            idle[-1].sendall(ASK.format(f"{V1}/live?limit=1").encode())
            assert idle[-1].recv(12) == b"HTTP/1.1 200"
        honest = crowd.enter_context(web.dial())
        honest.sendall(ASK.format(f"{V1}/live").encode())
        came = b""
        while b"data: " not in came:
            came += honest.recv(65536)
        assert b"data: " in all_of(idle[0])
        assert web.get(f"{V1}/overview").status == 200


def test_a_large_job_comes_in_pieces_and_whole(broker: BrokerUnderTest, web: Web) -> None:
    broker.ask_counters()  # which begins the measure of turns anew
    answer = web.get(f"{V1}/queues/large/jobs/job")
    assert answer.json["payload"].encode() == BIG
    assert answer.json["payload_bytes"] == len(BIG)
    assert broker.ask_counters()["broker"]["longest_turn_cpu"] < LONGEST_TURN
    assert web.get(f"{V1}/queues/large/jobs/job/payload").body == BIG
    assert len(web.get(f"{V1}/queues/large/jobs/job?payload=100").json["payload"]) == 100
    old = web.send(f"GET {V1}/queues/large/jobs/job HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
    assert json.loads(old.partition(b"\r\n\r\n")[2])["payload"].encode() == BIG


# --------------------------------------------------------------------- rubbish

DEEP = "[" * 100_000
LINES = [
    b"GET / HTTP/x", b"GET / HTTP/1.", b"GET / HTTP/1.1.1", b"GET / HTTP/", b"GET /", b"GET", b"",
    b"\xff\xfe",
    b"get / HTTP/1.1", b"GET  /  HTTP/1.1 x", b"GET /\x00 HTTP/1.1", b"GET http:// HTTP/1.1",
    b"GET * HTTP/1.1",
    b"GET //[ HTTP/1.1", b"GET /%zz%\xff HTTP/1.1", b"GET /?%=%&&=a=b#?[] HTTP/1.1",
    b"\x16\x03\x01\x02\x00",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=repr)
def test_no_first_line_is_more_than_refused(broker: BrokerUnderTest, web: Web, line: bytes) -> None:
    came = web.send(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert came[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 403", b"HTTP/1.1 404", b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "header",
    [
        b"Host: [", b"Host: localhost:99999999999", b"Host: \xff\xfe", b"Host:", b"Origin: http://[",
        b"Content-Length: x", b"Content-Length: 1\r\nContent-Length: 2", b"Content-Length: 0x1",
        b"no colon", b": empty", b" folded: x", b"A: b\r\n folded", b"X: \x00\xff", b"Accept: ;;;,=q",
        b"If-None-Match: \x80", b"Content-Type: ;", b"Transfer-Encoding: identity", b"X: y\r\n" * 200,
    ],
    ids=repr,
)  # fmt: skip
def test_no_header_is_more_than_refused(broker: BrokerUnderTest, web: Web, header: bytes) -> None:
    for path in ("/", "/metrics", f"{V1}/overview"):
        came = web.send(f"GET {path} HTTP/1.1\r\n".encode() + header + b"\r\nConnection: close\r\n\r\n")
        assert came[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1 403")
    order = f"POST {V1}/token HTTP/1.1\r\nX-SluiceMQ-Action: x\r\n".encode()
    assert web.send(order + header + b"\r\nConnection: close\r\n\r\n")[9:10] == b"4"


QUERIES = [
    "after=" + "[" * 3000, "after=[1e999]", "after=[99999999999999999999]", "after=[[1],{}]",
    "after=[null]",
    'after=["\\ud800"]', "after=%00", "after=[NaN]", "after=[-1,-1,-1,-1]", 'after=["a","b","c","d"]',
    "limit=-1",
    "limit=" + "9" * 4000, "limit=1e400", "state=%00", "state=dead&reason=%00", "id=%00", "id=%ff",
    "id=$", "id=(((",
    "reason=(", "reason=" + "(a%2B)%2B" * 100, "since=nan", "since=1e308", "since=-1",
    "until=99999999999999999999",
    "payload=-1", "payload=" + "9" * 5000, "span=odd", "span=%00", "day=%00", "day=9999-99-99", "queue=%00",
    "queue=" + "a," * 2000, "sort=%00", "offset=" + "9" * 30, "contains=%ff%00", "only=%00", "reverse=odd",
]  # fmt: skip
PATHS = [
    "/", "/metrics", "/dashboard/%00", "/openapi.json", *[f"{V1}/{name}" for name in (
        "overview", "queues", "queues/small", "queues/%00", "queues/a%2f..", "queues/small/jobs",
        "queues/small/jobs?state=dead", "queues/small/jobs?state=done", "queues/small/jobs?state=waiting",
        "queues/small/jobs?state=scheduled", "queues/small/jobs?state=reserved",
        "queues/small/jobs/%00", "queues/small/jobs/%ff", "queues/small/jobs/job/payload",
        "queues/small/dead-letters",
        "queues/small/dead-letters/count", "queues/small/dead-letters/reasons", "workers",
        "operations/%00", "operations/x",
        "incidents",
        "history/queue/%00", "history/%00/small", "history/queue/small", "series/queue/%00",
        "series/broker/*",
        "recent", "schedules", "streams", "brokers",
    )],
]  # fmt: skip


@pytest.mark.one_in(5)
@pytest.mark.parametrize("path", PATHS)
def test_no_question_is_a_failure(broker: BrokerUnderTest, web: Web, path: str) -> None:
    for query in QUERIES:
        answer = web.get(f"{path}{'&' if '?' in path else '?'}{quote(query, safe='=&%,+[]')}")
        assert answer.status in (200, 400, 404), (path, query[:100], answer.body[:300])


BODIES: list[str | bytes] = [
    DEEP, '{"a":' * 50_000, "\ufeff{}", "{", "nul", "[]", '"x"', "9" * 5000, "NaN", "{}x", '{"\\ud800": 1}',
    '{"ids": ["\\ud800"]}', '{"ids": [[]]}', '{"ids": {}}', '{"ids": [""]}', '{"ids": [1e999]}',
    '{"ids": []}',
    '{"ids": ["a\\u0000b"], "all": true}', '{"reason": "\\ud800"}', '{"reason": "\\u0000", "all": true}',
    '{"reason": 1}', '{"since": NaN}', '{"since": 1e999}', '{"since": "x"}', '{"limit": 1e999}',
    '{"limit": 99999999999999999999}', '{"limit": true}', '{"all": true, "to": "\\ud800"}',
    '{"all": true, "to": "a\\u0000b"}', '{"all": true, "to": "small"}', '{"what": "\\ud800"}',
    '{"what": null}',
    '{"state": "\\ud800"}', '{"state": []}', '{"padding": "' + "x" * 200_000 + '"}',
    b"\xed\xa0\x80", b'{"reason": "\xed\xa0\x80"}', b"\xff\xfe{\x00}\x00", b'{"reason": "\xff"}',
]  # fmt: skip
ORDERS = [
    "token", "queues/nosuch/pause", "queues/nosuch/resume", "queues/nosuch/purge",
    "queues/empty/dead-letters/redrive",
    "queues/empty/dead-letters/discard", "queues/%00/pause", "queues/empty/jobs/%00/redrive",
    "queues/empty/jobs/%ff/promote",
    "queues/empty/jobs/a%00b/cancel", "queues/empty/jobs/%ed%a0%80/delete", "schedules/%00/pause",
    "schedules/%ff/resume", "schedules/x/run", "operations/%00/cancel", "operations/%ed%a0%80/cancel",
]  # fmt: skip


@pytest.mark.parametrize("path", ORDERS)
def test_no_order_is_a_failure(broker: BrokerUnderTest, web: Web, path: str) -> None:
    headers = {
        "Content_Type": "application/json", "X_SluiceMQ_Action": "x", "Authorization": f"Bearer {TOKEN}"
    }  # fmt: skip
    for body in BODIES:
        data = body.encode() if isinstance(body, str) else body
        answer = web.get(f"{V1}/{path}", "POST", data, **headers)
        assert answer.status in (200, 400, 404), (path, data[:100], answer.body[:300])


REQUEST = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"GET ", b"POST ", b"HEAD ", b"/", b"/api/v1/queues/small/jobs", b"?after=", b"[[",
                b" HTTP/1.1",
                b"\r\n", b"\r\n\r\n", b"Host: localhost\r\n", b"Content-Length: 5\r\n", b"Origin: ",
                b"http://[",
                b"Transfer-Encoding: chunked\r\n", b"%", b"\x00", b"\xff", b" ", b":",
                b"Connection: close\r\n",
            ]
        ),
        st.binary(max_size=8),
    ),
    max_size=12,
).map(b"".join)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mangled=REQUEST)
def test_no_bytes_are_more_than_refused(broker: BrokerUnderTest, web: Web, mangled: bytes) -> None:
    with web.dial() as stranger:
        stranger.sendall(mangled)
        if len(mangled) % 2:
            reset(stranger)
            return
        stranger.shutdown(sockets.SHUT_WR)
        assert b"HTTP/1.1 5" not in all_of(stranger)


# ------------------------------------------------------------------------ names


def test_an_order_for_a_name_with_a_nul_is_for_no_slash(web: Web, broker: BrokerUnderTest) -> None:
    answer = web.get(f"{V1}/queues/small/jobs/a%00b")
    assert (answer.status, answer.json["id"]) == (200, "a\0b")
    assert web.post(f"{V1}/queues/small/jobs/a%00b/delete", {}, TOKEN).status == 200
    assert web.get(f"{V1}/queues/small/jobs/a%00b").status == 404
    assert web.get(f"{V1}/queues/small/jobs/a%2fb").json["id"] == "a/b"
    assert web.get("/%61pi/v1/queues/small/jobs/%61%2Fb").json["id"] == "a/b"


# ------------------------------------------------------------------- other doors


def test_where_no_file_is_left_a_new_connection_takes_that_of_an_idle_one(mongo_uri: str) -> None:
    with serving(mongo_uri, [], http="127.0.0.1:0") as broker, ExitStack() as crowd:
        web, broker_process = Web(broker.process.http), process(broker)
        most = broker_process.num_fds() + 10
        broker_process.rlimit(psutil.RLIMIT_NOFILE, (most, most))
        for _ in range(60):
            crowd.enter_context(web.dial())
        for _ in range(5):
            assert web.get("/healthz").status == 200
        assert broker.counter("http_connections_cut") > 0
        assert "Traceback" not in broker.process.log_text()
        assert len(broker.process.log_text()) < 20_000


@pytest.mark.full
def test_a_crowd_takes_no_files_of_other_doors_where_few_may_be_open(mongo_uri: str) -> None:
    files = {resource.RLIMIT_NOFILE: 304}
    with serving(mongo_uri, [], http="127.0.0.1:0", process={"rlimits": files}) as broker:
        web = Web(broker.process.http)
        with ExitStack() as crowd:
            for _ in range(300):
                crowd.enter_context(web.dial()).sendall(b"GET / HT")
            assert web.get("/healthz").status == 200
            assert process(broker).num_fds() < 150
            assert broker.serves()
        assert "the HTTP door accepts 30 connections" in broker.process.log_text()
        assert "Traceback" not in broker.process.log_text()
