"""Golden bytes of every message of SMQ/1: what stands here is what other languages implement."""

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.protocol import errors, job_headers, wire
from sluicemq.protocol.msgpack_count import within

JOB = ["id1", b"pay", {"priority": 3}]
BARE_JOB = [None, b"", None]

GOLDEN: dict[str, tuple[tuple[Any, ...], bytes, str]] = {
    "hello": (
        (wire.HELLO, 1, {"client": "python", "version": "0.1.0"}),
        b"HELLO",
        "9201 82a6636c69656e74a6707974686f6e a776657273696f6ea5302e312e30",
    ),
    "hello answered": (
        (wire.OK, 1, {"broker": "b", "heartbeat": 2.0, "silence": 6.0, "max_job_bytes": 12582912}),
        b"OK",
        (
            "9201 84 a662726f6b6572 a162 a9686561727462656174 cb4000000000000000 a773696c656e6365 "
            "cb4018000000000000 ad6d61785f6a6f625f6279746573 ce00c00000"
        ),
    ),
    "push": (
        (wire.PUSH, 2, "mail", [JOB, BARE_JOB]),
        b"PUSH",
        "9302 a46d61696c 92 93 a3696431 c403706179 81 a87072696f72697479 03 93 c0 c400 c0",
    ),
    "push answered": (
        (wire.OK, 2, [[1, "TOO_LARGE", "no"]]),
        b"OK",
        "9202 91 93 01 a9544f4f5f4c41524745 a26e6f",
    ),
    "push answered with a duplicate": (
        (wire.OK, 2, [[0, "DUPLICATE", "no", "id1"]]),
        b"OK",
        "9202 91 94 00 a94455504c4943415445 a26e6f a3696431",
    ),
    "push answered, one was there": (
        (wire.OK, 2, [[1, "TOO_LARGE", "no"]], [0, 4]),
        b"OK",
        "9302 91 93 01 a9544f4f5f4c41524745 a26e6f 92 00 04",
    ),
    "ready": ((wire.READY, 3, "mail", 1024), b"READY", "9303 a46d61696c cd0400"),
    "ready to pop": (
        (wire.READY, 3, "mail", 1, {"pop": True, "look": True}),
        b"READY",
        "9403 a46d61696c 01 82 a3706f70 c3 a46c6f6f6b c3",
    ),
    "deliver": (
        (wire.DELIVER, 0, "mail", [[b"\x00\x01", "id1", b"pay", None, 1, 9, 17e8, 0]], 17e8 + 60),
        b"DELIVER",
        "9400 a46d61696c 91 98 c4020001 a3696431 c403706179 c0 0109 cb41d954fc40000000 00 cb41d954fc4f000000",
    ),
    "settle": (
        (wire.SETTLE, 4, [[b"r", wire.COMMIT, b"42", None], [b"s", wire.ROLLBACK, "why", 1.5]]),
        b"SETTLE",
        (
            "9204 92 94 c40172 a6434f4d4d4954 c4023432 c0 94 c40173 a8524f4c4c4241434b a3776879 "
            "cb3ff8000000000000"
        ),
    ),
    "settle otherwise": (
        (wire.SETTLE, 5, [[b"r", wire.REJECT, "bad", None], [b"s", wire.RELEASE, None, None]]),
        b"SETTLE",
        "9205 92 94 c40172 a652454a454354 a3626164 c0 94 c40173 a752454c45415345 c0 c0",
    ),
    "settle by going on": (
        (
            wire.SETTLE,
            5,
            [
                [b"r", wire.FORWARD, None, None, ["next", b"new", {"priority": 3}]],
                [b"s", wire.FORWARD, None, None, ["next", None, None]],
            ],
        ),
        b"SETTLE",
        (
            "9205 92 95 c40172 a7464f5257415244 c0 c0 93 a46e657874 c4036e6577 81 a87072696f72697479 03 "
            "95 c40173 a7464f5257415244 c0 c0 93 a46e657874 c0 c0"
        ),
    ),
    "settle by fanning out": (
        (
            wire.SETTLE,
            5,
            [[b"r", wire.FAN_OUT, b"all", None, [["pages", b"1", None], ["pages", None, {"priority": 3}]]]],
        ),
        b"SETTLE",
        (
            "9205 91 95 c40172 a646414e4f5554 c403616c6c c0 92 93 a57061676573 c40131 c0 "
            "93 a57061676573 c0 81 a87072696f72697479 03"
        ),
    ),
    "join": (
        (wire.SETTLE, 5, [[b"r", wire.FAN_OUT, b"", None, [["pages", b"1", None]], {"join": True}]]),
        b"SETTLE",
        "9205 91 96 c40172 a646414e4f5554 c400 c0 91 93 a57061676573 c40131 c0 81 a46a6f696e c3",
    ),
    "extend": ((wire.EXTEND, 6, [b"r"], 30), b"EXTEND", "9306 91 c40172 1e"),
    "progress": (
        (wire.PROGRESS, 6, [[b"r", 3, 10, "page"], [b"s", 0.5, None, None]]),
        b"PROGRESS",
        "9206 92 94 c40172 03 0a a470616765 94 c40173 cb3fe0000000000000 c0 c0",
    ),
    "commit in": ((wire.COMMITIN, 6, b"r", 2), b"COMMITIN", "9306 c40172 02"),
    "result": (
        (wire.RESULT, 6, "mail", "id1", 1.5),
        b"RESULT",
        "9406 a46d61696c a3696431 cb3ff8000000000000",
    ),
    "result answered": ((wire.OK, 6, b"42"), b"OK", "9206 c4023432"),
    "ping": ((wire.PING, 7), b"PING", "9107"),
    "ping answered": ((wire.OK, 7, None), b"OK", "9207 c0"),
    "bye": ((wire.BYE, 8), b"BYE", "9108"),
    "queues": ((wire.QUEUES, 9), b"QUEUES", "9109"),
    "queue": ((wire.QUEUE, 23, "mail"), b"QUEUE", "9217 a46d61696c"),
    "stats": ((wire.STATS, 10), b"STATS", "910a"),
    "counters": ((wire.COUNTERS, 24), b"COUNTERS", "9118"),
    "history": (
        (wire.HISTORY, 24, "queue", "mail", None, "hour"),
        b"HISTORY",
        "9518 a57175657565 a46d61696c c0 a4686f7572",
    ),
    "workers": ((wire.WORKERS, 27, "mail"), b"WORKERS", "921b a46d61696c"),
    "stop": ((wire.STOP, 0, "mail"), b"STOP", "9200 a46d61696c"),
    "ends": ((wire.ENDS, 27, "mail", None, 10), b"ENDS", "941b a46d61696c c0 0a"),
    "worker": ((wire.WORKER, 27, "quiet", "mailer"), b"WORKER", "931b a57175696574 a66d61696c6572"),
    "stuck": (
        (wire.STUCK, 27, [["mail", "a", 1, 2.5]]),
        b"STUCK",
        "921b 91 94 a46d61696c a161 01 cb4004000000000000",
    ),
    "kinds": ((wire.KINDS, 27, "mail"), b"KINDS", "921b a46d61696c"),
    "backlog": ((wire.BACKLOG, 27, "mail"), b"BACKLOG", "921b a46d61696c"),
    "find": ((wire.FIND, 27, {"kind": "mail"}, 20, None), b"FIND", "941b 81 a46b696e64 a46d61696c 14 c0"),
    "incidents": ((wire.INCIDENTS, 27, "hour", None), b"INCIDENTS", "931b a4686f7572 c0"),
    "errors": ((wire.ERRORS, 27, None), b"ERRORS", "921b c0"),
    "events": (
        (wire.EVENTS, 28, {"after": 17, "queue": "mail"}),
        b"EVENTS",
        "921c 82 a56166746572 11 a57175657565 a46d61696c",
    ),
    "peek": ((wire.PEEK, 11, "mail", "dead", 10), b"PEEK", "940b a46d61696c a464656164 0a"),
    "purge": ((wire.PURGE, 12, "mail", "ready"), b"PURGE", "930c a46d61696c a57265616479"),
    "purge with a wait": (
        (wire.PURGE, 23, "mail", "ready", 1.5),
        b"PURGE",
        "9417 a46d61696c a57265616479 cb3ff8000000000000",
    ),
    "tasks": ((wire.TASKS, 24), b"TASKS", "9118"),
    "task": ((wire.TASK, 25, "a1b2"), b"TASK", "9219 a461316232"),
    "brokers": ((wire.BROKERS, 27), b"BROKERS", "911b"),
    "upgrade": ((wire.UPGRADE, 28), b"UPGRADE", "911c"),
    "tcancel": ((wire.TCANCEL, 26, "a1b2"), b"TCANCEL", "921a a461316232"),
    "delete": ((wire.DELETE, 13, "mail"), b"DELETE", "920d a46d61696c"),
    "cancel": ((wire.CANCEL, 14, "mail", "id1"), b"CANCEL", "930e a46d61696c a3696431"),
    "show": ((wire.SHOW, 16, "mail", "id1"), b"SHOW", "9310 a46d61696c a3696431"),
    "promote": ((wire.PROMOTE, 17, "mail", "id1"), b"PROMOTE", "9311 a46d61696c a3696431"),
    "change": (
        (wire.CHANGE, 18, "mail", "id1", {"priority": 9, "delay": 1.5}),
        b"CHANGE",
        "9412 a46d61696c a3696431 82 a87072696f72697479 09 a564656c6179 cb3ff8000000000000",
    ),
    "redrive": (
        (wire.REDRIVE, 19, "mail", {"ids": ["id1"], "reason": "why", "limit": 5}, None),
        b"REDRIVE",
        "9413 a46d61696c 83 a3696473 91 a3696431 a6726561736f6e a3776879 a56c696d6974 05 c0",
    ),
    "redrive elsewhere": (
        (wire.REDRIVE, 20, "mail", {}, "late"),
        b"REDRIVE",
        "9414 a46d61696c 80 a46c617465",
    ),
    "redrive answered": (
        (wire.OK, 20, {"moved": 3, "left": 1, "refused": [["id1", "DUPLICATE", "no"]]}),
        b"OK",
        ("9214 83 a56d6f766564 03 a46c656674 01 a772656675736564 91 93 a3696431 a94455504c4943415445 a26e6f"),
    ),
    "discard": (
        (wire.DISCARD, 24, "mail", {"reason": "why"}),
        b"DISCARD",
        "9318 a46d61696c 81 a6726561736f6e a3776879",
    ),
    "dead": (
        (wire.DEAD, 25, "mail", wire.COUNT, {"reason": "why"}),
        b"DEAD",
        "9419 a46d61696c a5636f756e74 81 a6726561736f6e a3776879",
    ),
    "pause": ((wire.PAUSE, 21, "mail", wire.INTAKE), b"PAUSE", "9315 a46d61696c a6696e74616b65"),
    "publish": (
        (wire.PUBLISH, 23, "prices", b"\x01\x03eur\x00\x041.08", {"id": "p/1"}),
        b"PUBLISH",
        "9417a6707269636573c40b01036575720004312e303881a26964a3702f31",
    ),
    "read": (
        (wire.READ, 25, "prices", {"after": 6, "topics": [b"eur"], "wait": 10}),
        b"READ",
        "9319a670726963657383a5616674657206a6746f7069637391c403657572a4776169740a",
    ),
    "streams": ((wire.STREAMS, 26), b"STREAMS", "911a"),
    "stream": ((wire.STREAM, 27, "prices"), b"STREAM", "921ba6707269636573"),
    "trim": ((wire.TRIM, 28, "prices", 5), b"TRIM", "931ca670726963657305"),
    "erase": ((wire.ERASE, 29, "prices"), b"ERASE", "921da6707269636573"),
    "hold": (
        (wire.HOLD, 30, "prices", "sums", "update", {"born": 0}),
        b"HOLD",
        "951ea6707269636573a473756d73a675706461746581a4626f726e00",
    ),
    "mark": ((wire.MARK, 31, "prices", "sums", 1, 2), b"MARK", "951fa6707269636573a473756d730102"),
    "subs": ((wire.SUBS, 32, "prices"), b"SUBS", "9220a6707269636573"),
    "free": ((wire.FREE, 33, "prices", "sums", 1), b"FREE", "9421a6707269636573a473756d7301"),
    "seek": ((wire.SEEK, 34, "prices", "sums", -1), b"SEEK", "9422a6707269636573a473756d73ff"),
    "forget": ((wire.FORGET, 35, "prices", "sums"), b"FORGET", "9323a6707269636573a473756d73"),
    "resume": ((wire.RESUME, 22, "mail", wire.DELIVERY), b"RESUME", "9316 a46d61696c a864656c6976657279"),
    "settings": ((wire.SETTINGS, 31, "mail"), b"SETTINGS", "921f a46d61696c"),
    "set": (
        (wire.SET, 32, "mail", {"max_running": 5}),
        b"SET",
        "9320 a46d61696c 81 ab6d61785f72756e6e696e67 05",
    ),
    "unset": (
        (wire.UNSET, 33, "mail", ["max_running"]),
        b"UNSET",
        "9321 a46d61696c 91 ab6d61785f72756e6e696e67",
    ),
    "schedule": (
        (
            *(wire.SCHEDULE, 25, wire.ADD),
            {"name": "nightly", "queue": "mail", "payload": b"go", "cron": "0 3 * * *"},
        ),
        b"SCHEDULE",
        (
            "9319a361646484a46e616d65a76e696768746c79a57175657565a46d61696ca77061796c6f6164c402676fa463"
            "726f6ea9302033202a202a202a"
        ),
    ),
    "users": (
        (*(wire.USERS, 26, wire.ADD), {"name": "mailer", "token": True, "permissions": "push=mail.*"}),
        b"USERS",
        (
            "931aa361646483a46e616d65a66d61696c6572a5746f6b656ec3ab7065726d697373696f6e73ab70757368"
            "3d6d61696c2e2a"
        ),
    ),
    "audit": (
        (wire.AUDIT, 27, {"action": "purge", "limit": 20}),
        b"AUDIT",
        "921b82a6616374696f6ea57075726765a56c696d697414",
    ),
    "error": ((wire.ERROR, 15, "BAD_QUEUE", "no"), b"ERROR", "930f a94241445f5155455545 a26e6f"),
    "largest number": ((wire.PING, wire.MAX_NUMBER), b"PING", "91cf7fffffffffffffff"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_message_has_these_bytes_and_reads_back_as_it_was(name: str) -> None:
    (verb, number, *fields), name_on_the_wire, body = GOLDEN[name]
    frames = wire.encode(verb, number, *fields)
    assert frames == [b"SMQ1", name_on_the_wire, bytes.fromhex(body)]
    assert wire.decode(frames) == (verb, number, fields)


def test_every_verb_has_golden_bytes() -> None:
    verbs = {value for value in vars(wire).values() if isinstance(value, bytes)} - {wire.VERSION}
    assert {golden[0][0] for golden in GOLDEN.values()} == verbs


@pytest.mark.parametrize("first", [b"", b"SMQ2", b"smq1", b"\xff\x00\x00\x00\x00"])
def test_another_version_is_told_apart_from_a_bad_message(first: bytes) -> None:
    with pytest.raises(errors.BadVersionError, match="SMQ/1"):
        wire.decode([first, wire.PING, b"\x91\x07"])


def test_no_frames_at_all_are_another_protocol() -> None:
    with pytest.raises(errors.BadVersionError):
        wire.decode([])


@pytest.mark.parametrize(
    "frames",
    [
        [b"SMQ1"],
        [b"SMQ1", b"PING"],
        [b"SMQ1", b"PING", b"\x91\x07", b""],
        [b"SMQ1", b"PING", b""],
        [b"SMQ1", b"PING", b"\x90"],
        [b"SMQ1", b"PING", b"\x07"],
        [b"SMQ1", b"PING", b"\x91\xc3"],
        [b"SMQ1", b"PING", b"\x91\xff"],
        [b"SMQ1", b"PING", b"\x91\xa17"],
        [b"SMQ1", b"PING", b"\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff"],
        [b"SMQ1", b"PING", b"\x91\x07\x07"],
        [b"SMQ1", b"PING", b"\x91" * 100_000],
    ],
)
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(errors.BadFramesError):
        wire.decode(frames)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_noise_never_raises_anything_else(frames: list[bytes]) -> None:
    with contextlib.suppress(errors.BadFramesError, errors.BadVersionError):
        wire.decode([wire.VERSION, *frames])


def test_plain_headers_are_json_or_msgpack_or_nothing() -> None:
    assert job_headers.decode(b"") == {}
    assert job_headers.decode(b'{"priority": 3}') == {"priority": 3}
    assert job_headers.decode(bytes.fromhex("81a87072696f7269747903")) == {"priority": 3}
    assert job_headers.encode({"priority": 3}) == bytes.fromhex("81a87072696f7269747903")


@pytest.mark.parametrize(
    "frame", [b"{", b"{]", b"\x93\x01\x02\x03", b"\x07", b"\xc1", b"[1]", b'{"a":' * 10_000]
)
def test_headers_that_are_no_map_are_refused(frame: bytes) -> None:
    with pytest.raises(errors.BadHeadersError):
        job_headers.decode(frame)


def test_headers_beyond_their_bytes_are_too_large() -> None:
    assert job_headers.decode(job_headers.encode({"headers": {"a": "x" * 65_000}}))
    for frame in (b'{"a": "' + b"x" * 65_536 + b'"}', job_headers.encode({"a": "x" * 65_536})):
        with pytest.raises(errors.TooLargeError, match="65536"):
            job_headers.decode(frame)


# ---------------------------------------------------------- what strangers send


def listing(unit: bytes, size: int) -> bytes:
    """A message's body: its number and a list of as many such values as have this size."""
    count = size // len(unit)
    return b"\x92\x07\xdd" + count.to_bytes(4, "big") + unit * count


UNITS = {
    "empty lists": b"\x90",
    "empty maps": b"\x80",
    "numbers": b"\x01",
    "texts": b"\xa2ab",
    "times": b"\xd6\xff\0\0\0\1",
    "extensions": b"\xd4\5a",
    "empty payloads": b"\xc4\0",
    "lists in lists": b"\x91" * 19 + b"\x90",
    "maps": b"\x81\xa0\x90",
}


@pytest.mark.parametrize("verb", [wire.PUSH, wire.SETTLE])
@pytest.mark.parametrize("size", [300_000, 2**20, 2**23])
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_a_message_of_too_many_values_is_refused_with_its_number(verb: bytes, size: int, unit: bytes) -> None:
    frames = [wire.VERSION, verb, listing(unit, size)]
    with pytest.raises(errors.BadFramesError, match="more than 20000 values"):
        wire.decode_request(frames)
    assert wire.number_of(frames) == 7


@pytest.mark.parametrize(
    ("size", "why"),
    [(3, "msgpack"), (3000, "ends too early"), (300_000, "ends too early"), (2**20, "is not whole")],
)
def test_lists_that_announce_more_than_they_hold_are_refused_before_room_is_made(size: int, why: str) -> None:
    with pytest.raises(errors.BadFramesError, match=why):
        wire.decode_request([wire.VERSION, wire.PUSH, b"\xdc\xff\xff" * (size // 3)])


@pytest.mark.parametrize("verb", [wire.HELLO, wire.READY, wire.EXTEND, wire.PEEK, b"NONE"])
def test_a_verb_without_payloads_has_few_bytes(verb: bytes) -> None:
    with pytest.raises(errors.BadFramesError, match="65536 bytes"):
        wire.decode_request([wire.VERSION, verb, wire.encode(wire.PUSH, 7, bytes(65_536))[2]])


def test_a_message_of_much_text_is_refused() -> None:
    frames = wire.encode(wire.PUSH, 7, "q", [[None, b"", {"headers": {"a": "ä" * (2 << 20)}}]])
    with pytest.raises(errors.BadFramesError, match="beside payloads"):
        wire.decode_request(frames)


@pytest.mark.parametrize("size", [0, 64, 1024, 8192, 2**20])
def test_as_many_jobs_as_a_message_may_have_are_read_as_the_library_reads_them(size: int) -> None:
    count = min(1000, 2**23 // max(1, size))
    jobs = [[f"{n:030x}", bytes(size), {"headers": {"n": n}, "priority": 3}] for n in range(count)]
    frames = wire.encode(wire.PUSH, 7, "q", jobs)
    assert wire.decode_request(frames) == wire.decode(frames)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.binary(min_size=300, max_size=70_000),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=60,
)


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + count(item) for item in value.values())
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@settings(max_examples=settings().max_examples // 3)
@given(VALUES)
def test_values_are_counted_as_they_are(value: Any) -> None:
    packed = msgpack.packb(value)
    values = count(value)
    assert within(packed, values, len(packed))
    assert not within(packed, values - 1, len(packed))
    assert not within(packed[:-1], values, len(packed))


@given(st.binary(max_size=400))
def test_what_is_within_is_what_msgpack_reads(text: bytes) -> None:
    stream = msgpack.Unpacker(strict_map_key=False, raw=True)
    stream.feed(text)
    try:
        stream.skip()
        whole = True
    except (ValueError, msgpack.UnpackException):
        whole = False
    assert within(text, 400, 400) >= whole


@pytest.mark.parametrize("kind", errors.SluiceError.__subclasses__())
def test_an_error_crosses_the_wire_as_itself(kind: type[errors.SluiceError]) -> None:
    back = errors.from_code(kind("text").code, "text")
    assert type(back) is kind
    assert str(back) == "text"


def test_a_duplicate_brings_the_first_ones_id_along() -> None:
    back = errors.from_code("DUPLICATE", "text", "first")
    assert isinstance(back, errors.DuplicateError)
    assert (str(back), back.id) == ("text", "first")


def test_an_unknown_code_keeps_its_name() -> None:
    back = errors.from_code("NEWER", "text")
    assert type(back) is errors.SluiceError
    assert str(back) == "NEWER: text"
