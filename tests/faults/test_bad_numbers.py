"""Every number that a stranger may say at any door: what can't be one is refused, nothing fails on it."""

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import zmq

from sluicemq.protocol import wire
from sluicemq.protocol.options import OPTIONS
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.http_reader import Web
from support.own_queue import TOKEN
from support.raw_sockets import Smq, receive
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

QUEUE, STREAM = "numbers", "numbered"
#: No place of a number takes one of these, whatever its bounds are.
NEVER: list[Any] = [math.nan, math.inf, -math.inf, 1e308, 2**64 - 1, True, False, "5", b"5", [], {}]
#: These may be a number somewhere; but nothing may fail on them.
SOMEWHERE: list[Any] = [-(2**63), -1, -0.0, 0, 0.5, 2**31, 2**53, 2**62, 2**63 - 1, 5e-324]


def _redriven(name: str, number: Any) -> list[Any]:
    return [QUEUE, {name: number}, None]


def _with_options(about: str, name: str, number: Any) -> list[Any]:
    return [about, {name: number}]


def _pushed(name: str, number: Any) -> list[Any]:
    header = {name: number, **({"dedupe_id": "d"} if name == "dedupe_window" else {})}
    return [QUEUE, [[None, b"", header]]]


#: The verb, and what makes its fields of a number.
Case = tuple[bytes, Callable[..., list[Any]]]
CASES: dict[str, Case] = {
    "READY credit": (wire.READY, lambda number: [QUEUE, number]),
    "RESULT wait": (wire.RESULT, lambda number: [QUEUE, "no-such-id", number]),
    "SETTLE delay": (wire.SETTLE, lambda number: [[[b"r", wire.ROLLBACK, None, number]]]),
    "EXTEND seconds": (wire.EXTEND, lambda number: [[b"r"], number]),
    "PROGRESS done": (wire.PROGRESS, lambda number: [[[b"r", number, None, None]]]),
    "PROGRESS total": (wire.PROGRESS, lambda number: [[[b"r", 1, number, None]]]),
    "EVENTS after": (wire.EVENTS, lambda number: [{"after": number}]),
    "PEEK limit": (wire.PEEK, lambda number: [QUEUE, "ready", number]),
    "PURGE wait": (wire.PURGE, lambda number: [QUEUE, "done", number]),
    "DELETE wait": (wire.DELETE, lambda number: ["no-such-queue", number]),
    "CHANGE priority": (wire.CHANGE, lambda number: [QUEUE, "id", {"priority": number}]),
    "CHANGE delay": (wire.CHANGE, lambda number: [QUEUE, "id", {"delay": number}]),
    **{f"REDRIVE {name}": (wire.REDRIVE, partial(_redriven, name)) for name in ("limit", "since", "until")},
    **{
        f"DISCARD {name}": (wire.DISCARD, partial(_with_options, QUEUE, name))
        for name in ("limit", "since", "until")
    },
    "REDRIVE wait": (wire.REDRIVE, lambda number: [QUEUE, {}, None, number]),
    "DISCARD wait": (wire.DISCARD, lambda number: [QUEUE, {}, number]),
    **{
        f"READ {name}": (wire.READ, partial(_with_options, STREAM, name))
        for name in ("after", "since", "most", "bytes", "wait")
    },
    "TRIM first": (wire.TRIM, lambda number: [STREAM, number]),
    "HOLD after": (wire.HOLD, lambda number: [STREAM, "held", "update", {"after": number}]),
    "HOLD born": (wire.HOLD, lambda number: [STREAM, "held", "update", {"born": number}]),
    "MARK fence": (wire.MARK, lambda number: [STREAM, "held", number, 1]),
    "MARK watermark": (wire.MARK, lambda number: [STREAM, "held", 1, number]),
    "FREE fence": (wire.FREE, lambda number: [STREAM, "held", number]),
    "SEEK watermark": (wire.SEEK, lambda number: [STREAM, "held", number]),
    "SCHEDULE every": (
        wire.SCHEDULE,
        lambda number: ["add", {"name": "never", "queue": QUEUE, "payload": b"", "every": number}],
    ),
    **{
        f"PUSH {name}": (wire.PUSH, partial(_pushed, name))
        for name in OPTIONS
        if name not in ("headers", "reply")
    },
}
#: Texts and maps that are a value there: a name, a back-off as the queue has it.
TEXTS: dict[str, list[Any]] = {
    **{
        f"PUSH {name}": ["5"]
        for name, option in OPTIONS.items()
        if option.rule.expected.startswith(("a string", "1 to 64 visible"))
    },
    "PUSH backoff": [{}],
}


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(
        mongo_uri, spare(ask=1, received=1), http="127.0.0.1:0", http_token=TOKEN, history=True
    ) as broker:
        broker.make(QUEUE)
        broker.smq().ask(wire.PUBLISH, STREAM, _ONE_MESSAGE, {})
        yield broker


#: A topic and a payload, as ``packed.py`` has them.
_ONE_MESSAGE = b"\x01\x01t\x00\x01p"


@pytest.mark.parametrize("case", CASES)
def test_a_number_of_smq_is_taken_or_refused_as_what_it_is(shared: BrokerUnderTest, case: str) -> None:
    verb, fields = CASES[case]
    client = Smq(shared.socket(zmq.DEALER, shared.doors["smq"]))
    client.ask(wire.HELLO, {"client": "stranger"})
    taken = []
    for number in (*NEVER, *SOMEWHERE):
        answer = client.ask(verb, *fields(number))
        refusals = [answer.fields] if answer.verb == wire.ERROR else _refused(answer.fields)
        for code, text, *_ in refusals:
            assert code not in ("UNAVAILABLE", "INTERNAL"), (number, text)
            if code == "BAD_HEADERS":
                assert case.split()[1] in text
        if not refusals:
            taken.append(number)
    texts = TEXTS.get(case, ())
    assert [job for job in taken if _is_never(job) and job not in texts] == []
    assert "Traceback" not in shared.process.log_text()
    shared.close_sockets()


def _refused(fields: list[Any]) -> list[Any]:
    """The refusals by position of an answer, without that."""
    rows = fields[0] if fields and isinstance(fields[0], list) else []
    return [row[1:] for row in rows if isinstance(row, list)]


def _is_never(number: Any) -> bool:
    return any(number is never for never in NEVER)


@pytest.mark.parametrize(
    "name", [name for name in OPTIONS if name not in ("headers", "reply", "id", "dedupe_id")]
)
def test_a_number_in_json_headers_is_refused_by_name(shared: BrokerUnderTest, name: str) -> None:
    door = next(device for device in shared.process.devices if device["queue"].startswith("ask"))["frontend"]
    asker = shared.socket(zmq.REQ, door if isinstance(door, str) else door[0])
    for text in ("NaN", "Infinity", "-Infinity", "1e999", "true", "false", "-1e308", "9" * 400, "[]"):
        whole = f'{{"reply": "accepted", "{name}": {text}}}'
        asker.send_multipart([QUEUE.encode(), whole.encode(), b"x"])
        word, about = receive(asker)
        told = json.loads(about)
        assert (word, told["code"]) == (b"ERROR", "BAD_HEADERS"), (text, told)
        assert f"'{name}'" in told["message"]
    assert "Traceback" not in shared.process.log_text()
    shared.close_sockets()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *(
            (f"queues/{QUEUE}/dead/{order}", name)
            for order in ("redrive", "delete")
            for name in ("since", "until", "limit")
        )
    ],
)
def test_a_number_in_an_order_over_http_is_refused(shared: BrokerUnderTest, path: str, name: str) -> None:
    web = Web(shared.process.http)
    for text in ("NaN", "1e999", "-1e999", "true", '"5"', "[]", "9" * 400, "-1", "1e308"):
        answer = web.get(
            f"/api/v1/{path}", "POST", f'{{"{name}": {text}, "all": true}}'.encode(),
            Content_Type="application/json", X_SluiceMQ_Action="test", Authorization=f"Bearer {TOKEN}",
        )  # fmt: skip
        assert answer.status == 400, (text, answer)
    assert "Traceback" not in shared.process.log_text()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"queues/{QUEUE}/jobs", "limit"), (f"queues/{QUEUE}/dead-letters", "limit"), ("queues", "limit"),
        (f"queues/{QUEUE}/dead-letters", "since"), (f"queues/{QUEUE}/dead-letters/count", "until"),
        ("overview", "limit"),
        (f"queues/{QUEUE}/jobs/x", "payload"),
    ],
)  # fmt: skip
def test_a_number_in_a_question_over_http_is_refused(shared: BrokerUnderTest, path: str, name: str) -> None:
    web = Web(shared.process.http)
    for text in ("nan", "inf", "-inf", "-1", "1e308", "true", "0x5", "9" * 400, "9" * 5000, "%00"):
        answer = web.get(f"/api/v1/{path}?{name}={text}")
        assert answer.status in (400, 404), (text, answer)
    assert "Traceback" not in shared.process.log_text()


def test_a_broker_still_serves_after_all_of_that(shared: BrokerUnderTest) -> None:
    wait_until(shared.serves)
