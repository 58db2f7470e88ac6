"""Whatever one client sends, the hub serves the others a moment later: no turn of it computes for long.

What counts is the time that the broker's thread has computed, so that a loaded machine changes little.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.turns import MIB, attacked
from sluicemq.protocol import wire
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.long_forms import long, very_long
from support.raw_sockets import Smq, code, receive
from support.waiting import wait_until

KIB = 2**10


@pytest.fixture(scope="module")
def shared(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    with serving(mongo_uri, spare(ask=7, pop=2, ack=2)) as broker:
        yield broker


@pytest.fixture
def broker(shared: BrokerUnderTest) -> Iterator[BrokerUnderTest]:
    """The broker that the tests of this file attack."""
    with attacked(shared) as broker:
        yield broker


@pytest.fixture(scope="module")
def front(shared: BrokerUnderTest) -> str:
    return shared.take("ask").front


@pytest.fixture(scope="module")
def deaf(shared: BrokerUnderTest) -> str:
    return shared.take("pop").front


PACKED = {
    "empty lists": b"\x90",
    "empty maps": b"\x80",
    "numbers": b"\x01",
    "texts": b"\xa2ab",
    "times": b"\xd6\xff\0\0\0\1",
    "extensions": b"\xd4\5a",
    "payloads": b"\xc4\0",
    "lists in lists": b"\x91" * 19 + b"\x90",
    "lists deep in lists": b"\x91" * 999 + b"\x90",
    "trees": msgpack.packb([[[[[[None] * 6] * 6] * 6] * 6] * 2] * 2),
    "maps": b"\x81\xa0\x90",
    "text that is not ASCII": msgpack.packb("ä" * 500),
}

WRITTEN = {
    "empty lists": "[]",
    "empty maps": "{}",
    "numbers": "1e9",
    "long numbers": "9" * 4200,
    "texts": '"ab"',
    "lists deep in lists": "[" * 400 + "]" * 400,
    "trees": json.dumps([[[[[[None] * 6] * 6] * 6] * 6] * 2] * 2),
    "escapes": '"' + "\\ud800" * 100 + '"',
}


def packed(unit: bytes, size: int) -> bytes:
    """A list of as many such values as have this size."""
    count = max(1, size // len(unit))
    return b"\xdd" + count.to_bytes(4, "big") + unit * count


def written(unit: str, size: int) -> bytes:
    return ("[" + ",".join([unit] * max(1, size // (len(unit) + 1))) + "]").encode()


def headers_of(kind: str, unit: Any, size: int) -> Iterator[bytes]:
    """Bad headers of about this size in which such values stand everywhere that there is."""
    for name in ("delay", "backoff", "headers", "unknown"):
        if kind == "msgpack":
            values = packed(unit, size - 64)
            yield b"\x82" + msgpack.packb(name) + values + b"\xa3bad\x01"
            yield b"\x82" + msgpack.packb(name) + b"\x81\xa1a" + values + b"\xa3bad\x01"
        else:
            values = written(unit, size - 64)
            yield b'{"%s": %s, "bad": 1}' % (name.encode(), values)
            yield b'{"%s": {"a": %s}, "bad": 1}' % (name.encode(), values)


#: Of each format one that is small, one that is deep and one that is dear to read.
SHORT = ("empty lists", "trees", "long numbers", "times")
ALL = [
    (pytest.param if name in SHORT else long)(kind, name, unit, id=f"{kind}: {name}")
    for kind, units in (("msgpack", PACKED), ("JSON", WRITTEN))
    for name, unit in units.items()
]


@pytest.mark.parametrize(
    "sizes", [(60 * KIB, MIB), pytest.param((20 * MIB,), marks=pytest.mark.full)], ids=["", "large"]
)
@pytest.mark.parametrize(("kind", "name", "unit"), ALL)
def test_headers_of_whatever_kind_and_size(
    broker: BrokerUnderTest, front: str, deaf: str, kind: str, name: str, unit: Any, sizes: tuple[int, ...]
) -> None:
    asker, producer = broker.socket(zmq.REQ, front), broker.socket(zmq.PUSH, deaf, linger=10_000)
    unreadable = broker.counter("unreadable")
    sent = 0
    for size in sizes:
        for headers in list(headers_of(kind, unit, size))[: 8 if size < MIB else 2]:
            asker.send_multipart([b"", headers, b"work"])
            producer.send_multipart([b"", headers, b"work"])
            assert code(receive(asker)) in ("BAD_HEADERS", "TOO_LARGE")
            sent += 2
    wait_until(lambda: broker.counter("unreadable") == unreadable + sent)


VERBS = [
    verb
    for verb in vars(wire).values()
    if isinstance(verb, bytes) and verb not in (wire.VERSION, wire.OK, wire.ERROR, wire.DELIVER)
]


def bodies(verb: bytes, size: int) -> Iterator[bytes]:
    """Arrays of about this size that are not what this verb takes, or far too much of it."""
    for unit in PACKED.values():
        yield b"\x92\x01" + packed(unit, size - 16)
    yield b"\xdc\xff\xff" * 1000 + bytes(size - 3000)
    yield b"\x94\x01\xa1q" + packed(b"\xc4\x08receipt!", size - 32) + b"\x01"
    yield b"\x93\x01" + packed(b"\xc4\x08receipt!", size - 32) + b"\x01"
    yield b"\x93\x01\xa1q" + packed(b"\x93\xc0\xc4\0\xc0", size - 32)
    yield b"\x93\x01\xa1q" + packed(b"\x93\xc0\xc4\0\x81\xa5delay\x91\x91\x90", size - 32)
    yield b"\x92\x01" + packed(msgpack.packb([b"receipt!", "COMMIT", None, None]), size - 32)
    yield b"\x95\x01" + msgpack.packb("ä" * (size // 4)) * 2 + b"\x01\x01"


#: One of each that is bounded otherwise; the others are like HELLO.
BOUNDED = (wire.HELLO, wire.PUSH, wire.SETTLE, wire.REDRIVE, wire.EXTEND)
OTHERS = [verb for verb in VERBS if verb not in BOUNDED]
#: They read no fields, or answer each of what they have at once.
TOLERANT = (
    *(wire.PING, wire.BYE, wire.QUEUES, wire.STATS, wire.COUNTERS, wire.TASKS, wire.STREAMS),
    *(wire.BROKERS, wire.UPGRADE, wire.PUSH, wire.SETTLE),
)
SIZES = [
    *[(verb, 60 * KIB) for verb in BOUNDED],
    (wire.SETTLE, 8 * MIB),
    *[long(verb, 8 * MIB) for verb in BOUNDED if verb != wire.SETTLE],
    *[long(verb, size) for verb in BOUNDED for size in (300 * KIB, 20 * MIB)],
    *[long(verb, size) for verb in OTHERS for size in (60 * KIB, 300 * KIB)],
    *[very_long(verb, size) for verb in OTHERS for size in (8 * MIB, 20 * MIB)],
]


@pytest.mark.parametrize(
    ("verb", "size"),
    SIZES,
    ids=lambda value: value.decode() if isinstance(value, bytes) else f"{value // KIB} KiB",
)
def test_a_verb_of_the_library_with_whatever_size(broker: BrokerUnderTest, verb: bytes, size: int) -> None:
    broker.smq().ask(wire.HELLO, {})
    with contextlib.closing(broker.smq().plain) as plain:
        library = Smq(plain)
        for body in bodies(verb, size):
            library.plain.send_multipart([wire.VERSION, verb, body])
            answer = library.next(lambda message: message.verb in (wire.OK, wire.ERROR))
            assert answer.verb == wire.ERROR or verb in TOLERANT


@pytest.mark.parametrize("door", ["push", "req", "smq"])
def test_a_message_beyond_limits_is_cut(broker: BrokerUnderTest, front: str, deaf: str, door: str) -> None:
    cut = broker.counter("connections_cut")
    address, kind = {
        "push": (deaf, zmq.PUSH), "req": (front, zmq.DEALER), "smq": (broker.doors["smq"], zmq.DEALER)
    }[door]  # fmt: skip
    plain = broker.socket(kind, address)
    plain.send_multipart([b"", b"\xdd\x02\x80\0\0" + b"\x90" * (40 * MIB), b"work"])
    wait_until(lambda: broker.counter("connections_cut") > cut)


LONG_HEADERS = b'{"headers": {"a": "' + b"x" * (12 * KIB) + b'"}}'
FRAMES = {
    "as many frames as there may be": [b""] * 60_000,
    "frames of a byte": [b"x"] * 60_000,
    "a long verb": [b"COMMIT" * MIB, b"receipt", b"reason"],
    "a long receipt": [b"ROLLBACK", b"receipt" * MIB, b"reason" * MIB, b"1"],
    "a long delay": [b"ROLLBACK", b"receipt", b"reason", b"1" * (8 * MIB)],
    "a long queue": [b"queue" * MIB, b"{}", b"work"],
    "a queue that is no text": [b"\xff" * (8 * MIB), b"{}", b"work"],
    "a reason that is no text": [b"ROLLBACK", b"receipt", b"\xff" * (8 * MIB)],
    "a fan-out of too many": [b"FANOUT", b"receipt", *[b"queue", b"", b"{}"] * 21_000],
    "a fan-out with long headers": [b"FANOUT", b"receipt", *[b"queue", b"", LONG_HEADERS] * 1000],
    "a fan-out as large as may be": [
        b"FANOUT",
        b"receipt",
        *[b"queue", b"", LONG_HEADERS[:1000] + b'"}}'] * 1000,
    ],
}
#: A REP worker answers with these, without a receipt.
ANSWERS = ("frames of a byte", *(name for name in FRAMES if name.startswith("a fan-out")))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FRAMES)
def test_frames_of_any_number_and_size(broker: BrokerUnderTest, front: str, deaf: str, name: str) -> None:
    frames = FRAMES[name]
    doors = broker.take("ask") if name in ANSWERS else None
    for address, kind in ((front, zmq.REQ), (front, zmq.DEALER), (deaf, zmq.PUSH)):
        broker.socket(kind, address, linger=10_000).send_multipart(frames)
    commit = broker.process.devices[-2]["commit"][0] if broker.process.devices[-2]["commit"] else None
    if commit:
        with settled(broker):
            broker.socket(zmq.PUSH, commit, linger=10_000).send_multipart(frames)
    if doors:
        worker, asker = broker.socket(zmq.REP, doors.back), broker.socket(zmq.REQ, doors.front)
        asker.send(b"question")
        receive(worker)
        with settled(broker):
            worker.send_multipart(frames if frames[0] == b"x" else [frames[0], *frames[2:]])
    library = broker.smq()
    library.plain.send_multipart(frames)
    assert library.answer(0).fields[0] == "BAD_VERSION"


@contextlib.contextmanager
def settled(broker: BrokerUnderTest) -> Iterator[None]:
    """Wait until a verdict that is sent in the body was read, whatever becomes of it."""

    def read() -> int:
        return sum(map(broker.counter, ("bad_verdicts", "late_verdicts", "fanned_out")))

    before = read()
    yield
    wait_until(lambda: read() > before)


def test_many_receipts_are_looked_for_once_over_all_queues(broker: BrokerUnderTest) -> None:
    library = broker.smq()
    for number in range(30):
        broker.make(f"many-{number}")
        library.ask(wire.READY, f"many-{number}", 1)
    receipts = [b"%08d" % number for number in range(1000)]
    for _ in range(5):
        assert len(library.ask(wire.EXTEND, receipts, 10).fields[0]) == 1000
        verdicts = [[receipt, "COMMIT", None, None] for receipt in receipts]
        assert len(library.ask(wire.SETTLE, verdicts).fields[0]) == 1000
    assert library.ask(wire.EXTEND, [*receipts, b"one more"], 10).fields[0] == "BAD_FRAMES"


@pytest.mark.full
def test_jobs_with_the_most_headers_are_stored_shown_and_delivered(broker: BrokerUnderTest) -> None:
    library = broker.smq()
    own = {"headers": {"a": [[n] for n in range(490)]}}
    for _ in range(40):
        entries = [[None, b"", own] for _ in range(15)]
        assert library.ask(wire.PUSH, "heavy", entries).fields == [[]]
    shown = library.ask(wire.PEEK, "heavy", "ready", 1000).fields[0]
    assert 1 < len(shown) < 600
    library.ask(wire.READY, "heavy", 1000)
    left = 600
    while left:
        left -= len(library.delivery())


def test_jobs_and_results_as_large_as_they_may_be(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    largest = bytes(12 * MIB)
    worker, asker = broker.socket(zmq.REP, doors.back), broker.socket(zmq.REQ, doors.front)
    for _ in range(5):
        asker.send(largest)
        assert receive(worker) == [largest]
        worker.send(largest)
        assert receive(asker) == [largest]


@pytest.mark.full
def test_many_that_ask_very_much_at_once_and_leave(broker: BrokerUnderTest) -> None:
    doors = broker.take("ask")
    crowd = [broker.socket(zmq.DEALER, doors.front, sndhwm=0) for _ in range(20)]
    received = broker.counter("received")
    for asker in crowd:
        for _ in range(3000):
            asker.send_multipart([b"e" * 200, b"", b"work"])
    wait_until(lambda: broker.counter("received") - received >= 10_000)
    gone = broker.counter("askers_gone")
    for asker in crowd:
        asker.close()
    wait_until(lambda: broker.counter("askers_gone") > gone)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=200,
)


@pytest.mark.full
@settings(
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(value=VALUES, times=st.integers(1, 2000), name=st.sampled_from(["headers", "delay", "id", "other"]))
def test_values_of_any_form(broker: BrokerUnderTest, front: str, value: Any, times: int, name: str) -> None:
    texts = [msgpack.packb({name: [value] * times})]
    with contextlib.suppress(TypeError):
        texts.append(json.dumps({name: {"a": [value] * times}}).encode())
    for text in texts:
        answer = broker.ask(front, b"", b'{"reply": "accepted"}', b"work")
        assert answer[0] != b"ERROR"
        asker = broker.socket(zmq.REQ, front)
        asker.send_multipart([b"", text, b"work"])
        if name != "headers":
            assert code(receive(asker)) in ("BAD_HEADERS", "TOO_LARGE")
        asker.close()
    library = broker.smq()
    assert library.ask(wire.PUSH, "any", [[None, b"work", {name: [value] * times}]]).verb in (
        wire.OK,
        wire.ERROR,
    )
    library.plain.close()
