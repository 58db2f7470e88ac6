"""Headers that JSON has no words for: nothing of them is lost on any way out, and every reader reads it."""

import base64
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgpack
import pytest
import zmq

from sluicemq import BadHeadersError
from sluicemq.protocol.json_values import dumps
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.http_reader import Web
from support.own_queue import TOKEN, OwnQueue
from support.raw_sockets import receive
from support.waiting import TIMEOUT

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

#: What a producer gives, and how it stands in JSON.
OWN: dict[str, Any] = {
    "nan": math.nan, "infinite": math.inf, "less": [-math.inf, {"deep": math.nan}],
    "text as bytes": b"abc", "no text": b"\xff\x00", "text": "NaN", "base64": {"base64": "YWJj"},
    "large": 2**63 - 1, "small": -(2**63), "zero": -0.0, "most": 1e308, "headers": {"payload": b"\x00"},
    "nothing": None, "umlaut": "ü\u2028\U0001f600",
}  # fmt: skip
SHOWN: dict[str, Any] = {
    **OWN,
    "nan": {"$float": "NaN"},
    "infinite": {"$float": "Infinity"},
    "less": [{"$float": "-Infinity"}, {"deep": {"$float": "NaN"}}],
    "text as bytes": {"$bytes": "YWJj"},
    "no text": {"$bytes": "/wA="},
    "headers": {"payload": {"$bytes": "AA=="}},
}


def strictly(text: str | bytes) -> Any:
    """Read JSON as other languages do."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


def as_it_was(value: Any) -> Any:
    """What a reader in any language makes of it again."""
    if isinstance(value, list):
        return [as_it_was(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$bytes": text}:
            return base64.b64decode(text)
        case {"$float": word}:
            return float(word)
    return {key: as_it_was(item) for key, item in value.items()}


@pytest.fixture(scope="module")
def full(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask_full=2, received_full=1, pop_full=1, ack_full=1)) as broker:
        yield broker


@pytest.fixture(scope="module")
def asked(full: BrokerUnderTest) -> str:
    return full.take("ask_full").front


@pytest.mark.parametrize(
    ("shape", "kind"),
    [("ask_full", zmq.REP), ("received_full", zmq.PULL), ("pop_full", zmq.PULL), ("ack_full", zmq.PULL)],
)
def test_a_worker_of_whole_envelopes_gets_them_all(full: BrokerUnderTest, shape: str, kind: int) -> None:
    doors = full.take(shape)
    worker = full.socket(kind, doors.back)
    front = full.socket(zmq.DEALER if kind == zmq.REP else zmq.PUSH, doors.front)
    pushed = [doors.queue.encode(), msgpack.packb({"headers": OWN}), b"payload"]
    front.send_multipart([b"", *pushed] if kind == zmq.REP else pushed)
    headers = receive(worker)[-2]
    told = strictly(headers)["headers"]
    assert told == SHOWN
    assert repr(as_it_was(told)) == repr(OWN)


def test_the_api_tells_them_whole(shared_broker: BrokerUnderTest, jobs: OwnQueue) -> None:
    job_id = jobs.push(b"\xff", headers=OWN)
    web = Web(shared_broker.process.http)
    told = strictly(web.get(f"/api/v1/queues/{jobs.queue}/jobs/{job_id}").body)
    assert (told["headers"], told["payload"]) == (SHOWN, {"base64": "/w=="})
    for path in ("jobs", f"jobs?id={job_id[:6]}"):
        assert strictly(web.get(f"/api/v1/queues/{jobs.queue}/{path}").body)["jobs"][0]["id"] == job_id


def test_the_api_tells_those_of_a_large_job_too(shared_broker: BrokerUnderTest, jobs: OwnQueue) -> None:
    job_id = jobs.push(b"x" * 1_000_000, headers=OWN)
    web = Web(shared_broker.process.http)
    told = strictly(web.get(f"/api/v1/queues/{jobs.queue}/jobs/{job_id}").body)
    assert told["headers"] == SHOWN
    assert len(told["payload"]) == 1_000_000


def test_the_api_tells_those_of_schedules(shared_broker: BrokerUnderTest, jobs: OwnQueue) -> None:
    name = jobs.queue
    jobs.client.schedules.add(name, jobs.queue, b"x", every="1h", headers=OWN)
    rows = strictly(Web(shared_broker.process.http).get("/api/v1/schedules").body)["schedules"]
    assert next(row for row in rows if row["name"] == name)["options"]["headers"] == SHOWN
    assert TOKEN not in str(rows)
    jobs.client.schedules.delete(name)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["peek", "QUEUE"], lambda told: told["jobs"][0]),
        (["show", "QUEUE", "ID"], lambda told: told["job"]),
        (["show", "QUEUE", "ID", "--payload"], lambda told: told["job"]),
        (["work", "QUEUE", "--print", "--count", "1"], lambda told: told),
        (["pop", "QUEUE"], lambda told: told["jobs"][0]),
    ],
    ids=["peek", "show", "show with payload", "work", "pop"],
)
def test_a_command_prints_them_whole(jobs: OwnQueue, words: list[str], place: Any) -> None:
    job_id = jobs.push(b"\xff", headers=OWN)
    named = [{"QUEUE": jobs.queue, "ID": job_id}.get(word, word) for word in words]
    command = [sys.executable, "-m", "sluicemq", "--endpoint", jobs.endpoint, "--json", *named]
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=True)
    assert place(strictly(done.stdout.splitlines()[0]))["headers"] == SHOWN


def test_the_library_has_them_as_they_are(jobs: OwnQueue) -> None:
    jobs.push(b"", headers=OWN)
    assert repr(jobs.take().headers) == repr(OWN)


@pytest.mark.parametrize(
    "own",
    [
        {"x": msgpack.Timestamp(1)}, {"x": msgpack.ExtType(5, b"x")}, {"x": 2**63}, {"x": 2**64 - 1},
        {1: 2}, {"$bytes": "YWJj"}, {"x": {"$float": "NaN"}}, {b"x": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_what_can_not_be_told_again_is_refused_by_name(full: BrokerUnderTest, asked: str, own: Any) -> None:
    front = full.socket(zmq.REQ, asked)
    front.send_multipart([b"refused", msgpack.packb({"headers": own}), b"x"])
    word, about = receive(front)
    told = json.loads(about)
    assert (word, told["code"]) == (b"ERROR", "BAD_HEADERS")
    assert "expected a map with text keys" in told["message"] or "can't be read as msgpack" in told["message"]


@pytest.mark.parametrize(
    "own", [{"x": datetime(2030, 1, 1, tzinfo=UTC)}, {"x": 2**64}, {"x": {1, 2}}, {"x": "\ud800"}]
)
def test_the_library_refuses_what_can_not_be_sent(jobs: OwnQueue, own: Any) -> None:
    with pytest.raises(BadHeadersError, match="headers"):
        jobs.push(b"", headers=own)


def test_json_of_anything_is_read_by_every_language() -> None:
    value: dict[str, Any] = {"rate": math.inf, "payload": b"x", "result": b"\xff", "n": (1, 2)}
    value["at"] = datetime(2030, 1, 1, tzinfo=UTC)
    assert strictly(dumps(value)) == strictly(dumps(value, ascii=True)) == {
        "rate": {"$float": "Infinity"}, "payload": "x", "result": {"base64": "/w=="},
        "at": "2030-01-01 00:00:00+00:00", "n": [1, 2],
    }  # fmt: skip
    assert dumps({"a": "ü"}) == '{"a": "ü"}'
    assert dumps({"a": "ü"}, ascii=True) == '{"a": "\\u00fc"}'
