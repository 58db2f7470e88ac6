"""Jobs that can't be taken: refused where somebody can hear it, else kept with the reason; always counted.

Every door says the same of the same mistake: REQ gets ``["ERROR"][JSON]``, SMQ/1 a refusal by
position, and what a PUSH sent is among the dead letters.
"""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import zmq

from support.broker_under_test import BrokerUnderTest, Doors, serving, spare
from support.raw_sockets import code, message, receive
from support.waiting import wait_until

#: Cases of one test differ in a name or a value.
pytestmark = pytest.mark.one_in(4)

LIMIT = 64 * 1024
MIB = 2**20


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(pop=4, ask=1), max_job_bytes=LIMIT, max_queues=20) as broker:
        yield broker


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """Whatever a test sends, the broker serves afterwards and none of its code has failed."""
    yield shared
    shared.close_sockets()
    assert shared.serves()
    assert "Traceback" not in shared.process.log_text()


@pytest.fixture(scope="module")
def front(shared: BrokerUnderTest) -> str:
    """The REQ door that all tests share: nothing they ask is taken."""
    return shared.take("ask").front


@pytest.fixture(scope="module")
def deaf(shared: BrokerUnderTest) -> Doors:
    """The PUSH door that tests of single jobs share."""
    return shared.take("pop")


def refused(broker: BrokerUnderTest, front: str, deaf: Doors, *frames: bytes) -> tuple[str, str]:
    """What a REQ client and the dead letters say of this job; it is counted twice."""
    before = broker.counter("unreadable")
    heard = broker.ask(front, *frames)
    broker.push(deaf.front, *frames)
    letter = broker.dead_letter(deaf.queue)
    broker.admin.queues.purge(deaf.queue, "dead").result()
    assert letter["reason"] == f"{code(heard)}: {message(heard)}"
    assert letter["size"] == sum(map(len, frames))
    assert broker.counter("unreadable") == before + 2
    return code(heard), message(heard)


# --------------------------------------------------------------------- queues

BAD_NAMES = [
    b".hidden", b"ends.", b"a..b", b"two words", b"x" * 65, b"a/b", b"a\0b", b"new\nline",
    "größe".encode(), b"\xff\xfe", b"$cmd", b"x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name[:12]))
def test_a_bad_queue_name_is_refused(broker: BrokerUnderTest, front: str, deaf: Doors, name: bytes) -> None:
    refusal, text = refused(broker, front, deaf, name, b"work")
    assert refusal == "BAD_QUEUE"
    assert len(text) < 500


@pytest.mark.parametrize("name", ["", ".hidden", "ends.", "a..b", "two words", "x" * 65, "a\0b", "größe"])
def test_a_bad_queue_name_is_refused_by_every_verb_of_the_library(broker: BrokerUnderTest, name: str) -> None:
    library = broker.smq()
    for verb, rest in ((b"PUSH", [[[None, b"work", None]]]), (b"READY", [1]), (b"PURGE", ["dead"])):
        answer = library.ask(verb, name, *rest)
        assert (answer.verb, answer.fields[0]) == (b"ERROR", "BAD_QUEUE")


def test_no_more_queues_are_made_than_max_queues(broker: BrokerUnderTest, front: str) -> None:
    answers = []
    wanted = 25  # max_queues is 20
    for number in range(wanted):
        answers.append(broker.ask(front, b"many-%d" % number, b'{"reply": "accepted"}', b"work"))
        if answers[-1][0] == b"ERROR":
            break

    assert code(answers[-1]) == "QUEUE_FULL"
    assert len(broker.admin.queues.list()) == 18  # a tenth is kept for the library
    library = broker.smq()
    names = [f"more-{number}" for number in range(3)]
    pushed = [library.ask(b"PUSH", name, [[None, b"work", None]]) for name in names]
    assert [answer.verb for answer in pushed] == [b"OK", b"OK", b"ERROR"]
    assert pushed[-1].fields[0] == "QUEUE_FULL"
    for name in [f"many-{number}" for number in range(len(answers) - 1)] + names[:2]:
        broker.admin.queues.delete(name).result()


# -------------------------------------------------------------------- headers


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def packed_nested(levels: int) -> bytes:
    return b"\x91" * (levels - 1) + b"\x90"


BAD_HEADERS: dict[str, tuple[bytes, str]] = {
    # what can't be read at all
    "broken JSON": (b'{"id": ', "not JSON"),
    "JSON that goes on": (b'{"id": "x"} {', "not JSON"),
    "JSON in latin-1": (b'{"id": "\xe4"}', "not JSON"),
    "JSON too deep": (b'{"headers": ' + nested(30_000).encode() + b"}", "not JSON"),
    "JSON with an endless number": (b'{"priority": ' + b"9" * 5000 + b"}", "not JSON"),
    "a JSON list": (b'["id", "x"]', "headers"),
    "text": (b"priority=1", "headers"),
    "half a msgpack map": (b"\x82\xa2id\xa1x", "msgpack"),
    "msgpack that goes on": (b"\x80\x80", "msgpack"),
    "a msgpack list": (msgpack.packb(["id", "x"]), "expected a map"),
    "msgpack with broken UTF-8": (b"\x81\xa2id\xa1\xff", "msgpack"),
    "msgpack with a number as key": (msgpack.packb({1: "x"}), "msgpack"),
    "msgpack that announces 4 GiB": (b"\xdf\xff\xff\xff\xff", "msgpack"),
    "msgpack with bytes as key": (msgpack.packb({b"id": "x"}), "unknown header"),
    # keys
    "an unknown key": (b'{"prio": 1}', "unknown header 'prio'"),
    "a long unknown key": (json.dumps({"x" * 10_000: 1}).encode(), "unknown header 'xxx"),
    "a key with NUL": (b'{"id\\u0000": "x"}', "unknown header"),
    "a lone surrogate as key": (b'{"\\ud800": 1}', "unknown header"),
    "an empty key": (b'{"": 1}', "unknown header ''"),
    # types and ranges
    "a number as id": (b'{"id": 7}', "'id'"),
    "an empty id": (b'{"id": ""}', "'id'"),
    "an id of 129 bytes": (json.dumps({"id": "ä" * 64 + "x"}).encode(), "'id'"),
    "a lone surrogate in the id": (b'{"id": "\\ud83d"}', "'id'"),
    "bytes as id": (msgpack.packb({"id": b"x"}), "'id'"),
    "a priority of 256": (b'{"priority": 256}', "'priority'"),
    "a negative priority": (b'{"priority": -1}', "'priority'"),
    "a fraction as priority": (b'{"priority": 1.5}', "'priority'"),
    "true as priority": (b'{"priority": true}', "'priority'"),
    "a priority over 64 bits": (b'{"priority": 18446744073709551616}', "'priority'"),
    "a negative delay": (b'{"delay": -0.1}', "'delay'"),
    "an endless delay": (b'{"delay": Infinity}', "'delay'"),
    "a delay that is no number": (b'{"delay": NaN}', "'delay'"),
    "a delay as text": (b'{"delay": "5"}', "'delay'"),
    "a delay that is far too deep": (b'{"delay": ' + nested(900).encode() + b"}", ""),
    "a packed delay that is far too deep": (b"\x81\xa5delay" + packed_nested(1010), ""),
    "not before a date without a zone": (b'{"not_before": "2030-01-01T00:00:00"}', "'not_before'"),
    "not before no date": (b'{"not_before": "tomorrow"}', "'not_before'"),
    "not before the year 10000": (b'{"not_before": 253402300800}', "'not_before'"),
    "not before the epoch": (b'{"not_before": "0001-01-01T00:00:00+14:00"}', "'not_before'"),
    "a packed date": (msgpack.packb({"not_before": msgpack.Timestamp(1)}), "'not_before'"),
    "no time to live": (b'{"ttl": 0}', "'ttl'"),
    "a null time to live": (b'{"ttl": null}', "'ttl'"),
    "negative max_attempts": (b'{"max_attempts": -1}', "'max_attempts'"),
    "a visibility timeout of nothing": (b'{"visibility_timeout": 0}', "'visibility_timeout'"),
    "a visibility timeout of a year": (b'{"visibility_timeout": 31536000}', "'visibility_timeout'"),
    "an unknown reply": (b'{"reply": "maybe"}', "'reply'"),
    "a list as reply": (b'{"reply": ["result"]}', "'reply'"),
    # the user's own
    "own headers as a list": (b'{"headers": ["x"]}', "'headers'"),
    "an own key with NUL": (b'{"headers": {"a\\u0000b": 1}}', "'headers'"),
    "an own number over 64 bits": (b'{"headers": {"n": 9223372036854775808}}', "'headers'"),
    "an own number far over 64 bits": (b'{"headers": {"n": 1e400, "m": ' + b"9" * 99 + b"}}", "headers"),
    "an own lone surrogate": (b'{"headers": {"a": "\\udc00"}}', "headers"),
    "an own packed date": (msgpack.packb({"headers": {"at": msgpack.Timestamp(1)}}), "'headers'"),
    "an own extension": (msgpack.packb({"headers": {"x": msgpack.ExtType(5, b"x")}}), "'headers'"),
    "own headers 30 levels deep": (b'{"headers": {"a": ' + nested(30).encode() + b"}}", "'headers'"),
    "own headers far too deep": (b'{"headers": {"a": ' + nested(900).encode() + b"}}", ""),
    "own packed headers far too deep": (b"\x81\xa7headers\x81\xa1a" + packed_nested(1010), ""),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_bad_headers_are_refused(broker: BrokerUnderTest, front: str, deaf: Doors, what: str) -> None:
    headers, expected = BAD_HEADERS[what]
    refusal, text = refused(broker, front, deaf, b"", headers, b"work")
    assert refusal == "BAD_HEADERS"
    assert expected in text
    assert len(text) < 1000


BAD_ENTRIES: list[Any] = [
    [None, b"work", {"prio": 1}],
    [None, b"work", {"priority": 256}],
    [None, b"work", {b"id": "x"}],
    [None, b"work", {"headers": {"a\0b": 1}}],
    [None, b"work", {"headers": {"n": 2**64 - 1}}],
    [None, b"work", {"headers": msgpack.unpackb(b"\x81\xa1a" + packed_nested(400))}],
    [None, b"work", {"delay": msgpack.unpackb(packed_nested(400))}],
    ["x" * 129, b"work", None], [7, b"work", None], [b"x", b"work", None], [None, "text", None],
    [None, b"work", []], [None, b"work"], [None, b"work", None, None], [], "work", None,
]  # fmt: skip


def test_bad_jobs_of_the_library_are_refused_by_position_alone(broker: BrokerUnderTest) -> None:
    before = broker.counter("unreadable")
    entries = [["good 1", b"work", None], *BAD_ENTRIES, ["good 2", b"work", None]]
    answer = broker.smq().ask(b"PUSH", "neighbours", entries)
    (problems,) = answer.fields
    assert [at for at, _, _ in problems] == list(range(1, 1 + len(BAD_ENTRIES)))
    assert {problem for _, problem, _ in problems} == {"BAD_HEADERS", "BAD_FRAMES"}
    assert [job.id for job in broker.admin.jobs.list("neighbours")] == ["good 1", "good 2"]
    assert broker.counter("unreadable") == before + len(BAD_ENTRIES)


def test_a_push_that_wants_an_answer_is_refused(broker: BrokerUnderTest, deaf: Doors) -> None:
    broker.push(deaf.front, b"", b'{"reply": "accepted"}', b"work")
    letter = broker.dead_letter(deaf.queue)
    broker.admin.queues.purge(deaf.queue, "dead").result()
    assert letter["reason"].startswith("BAD_HEADERS")
    assert "REQ and DEALER" in letter["reason"]


# ---------------------------------------------------------------------- parts


@pytest.mark.parametrize("parts", [4, 5, 1000, 20_000])
def test_too_many_parts_are_refused(broker: BrokerUnderTest, front: str, deaf: Doors, parts: int) -> None:
    refusal, text = refused(broker, front, deaf, *[b"x"] * parts)
    assert (refusal, f"this one has {parts}" in text) == ("BAD_FRAMES", True)


def test_an_envelope_and_nothing_after_it_is_no_question(broker: BrokerUnderTest, front: str) -> None:
    probes, dealer = broker.counter("probes"), broker.socket(zmq.DEALER, front)
    for question in ([b"number", b""], [b""], [b"number", b"", b"a queue", b"{", b"work"]):
        dealer.send_multipart(question)
    assert receive(dealer)[:3] == [b"number", b"", b"ERROR"]  # the answer to the third
    assert broker.counter("probes") == probes + 2


# ----------------------------------------------------------------------- size


def test_an_over_long_job_keeps_its_headers_and_first_kib(broker: BrokerUnderTest, front: str) -> None:
    doors = broker.take("pop")
    payload = b"0123456789abcdef" * (LIMIT // 16) + b"!"
    headers = b'{"headers": {"of": "mine"}}'
    answer = broker.ask(front, b"", headers, payload)
    broker.push(doors.front, b"", headers, payload)
    assert code(answer) == "TOO_LARGE"
    assert str(LIMIT) in message(answer)
    letter = broker.dead_letter(doors.queue)
    assert letter["reason"].startswith("TOO_LARGE: ")
    assert letter["payload"] == payload[:1024]
    assert letter["raw_headers"] == headers
    assert letter["size"] == len(headers) + len(payload)


def test_headers_count_for_the_size_of_a_job(broker: BrokerUnderTest, front: str, deaf: Doors) -> None:
    headers = json.dumps({"headers": {"padding": "x" * LIMIT}}).encode()
    assert refused(broker, front, deaf, b"", headers, b"")[0] == "TOO_LARGE"


def test_a_bad_queue_name_takes_nothing_from_the_messages_that_came_with_it(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    names = [b"", b"ends.", b"", b"a..b", b""] * 20
    producer = broker.socket(zmq.PUSH, doors.front)
    for name in names:
        producer.send_multipart([name, b"work"])
    broker.await_count(doors.queue, "ready", names.count(b""))
    broker.await_count(doors.queue, "dead", 40)


def test_headers_count_with_their_bytes_in_mongodb(broker: BrokerUnderTest, front: str, deaf: Doors) -> None:
    headers = msgpack.packb({"headers": {"a": [1] * 990}})
    payload = bytes(LIMIT - 4096)
    assert len(headers) + len(payload) < LIMIT
    assert refused(broker, front, deaf, b"", headers, payload)[0] == "TOO_LARGE"


def test_over_long_jobs_of_the_library_are_refused_by_position(broker: BrokerUnderTest) -> None:
    entries = [[None, b"x" * size, None] for size in (LIMIT, LIMIT + 1, 1)]
    (problems,) = broker.smq().ask(b"PUSH", "sizes", entries).fields
    assert [(at, problem) for at, problem, _ in problems] == [(1, "TOO_LARGE")]
    assert len(broker.admin.jobs.list("sizes")) == 2


def test_the_default_limit_is_12_mib(mongo_uri: str) -> None:
    with serving(mongo_uri, spare(ask=1, pop=1)) as broker:
        doors, pops = broker.take("ask"), broker.take("pop")
        asker, worker = broker.socket(zmq.REQ, doors.front), broker.socket(zmq.REP, doors.back)
        longest = bytes(12 * MIB)
        asker.send(longest)
        assert receive(worker) == [longest]
        worker.send(longest)
        assert receive(asker) == [longest]
        asker.send(longest + b"!")
        assert code(receive(asker)) == "TOO_LARGE"
        broker.push(pops.front, longest + b"!")
        assert broker.dead_letter(pops.queue)["size"] == 12 * MIB + 1
        assert broker.serves()


# ---------------------------------------------------------------------- floods


def test_a_flood_of_bad_jobs_is_counted_but_fills_neither_log_nor_store(broker: BrokerUnderTest) -> None:
    doors = broker.take("pop")
    before = broker.counter("unreadable"), lines(broker, "bad_headers"), time.monotonic()
    producer = broker.socket(zmq.PUSH, doors.front)
    for _ in range(1500):
        producer.send_multipart([b"", b'{"prio": 1}', b"work"])
    wait_until(lambda: broker.counter("unreadable") == before[0] + 1500)
    broker.await_count(doors.queue, "dead", 1000)
    assert lines(broker, "bad_headers") - before[1] <= 2 + time.monotonic() - before[2]
    assert broker.counter("unreadable") == before[0] + 1500


def lines(broker: BrokerUnderTest, kind: str) -> int:
    """How many lines of the broker's log are about this kind of mistake."""
    return len(re.findall(rf"WARNING broker: {kind}: ", broker.process.log_text()))
