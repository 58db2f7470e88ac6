"""What producers may send: whatever bytes arrive, the answer is a job or an error that says why not."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import bson
import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    BadFramesError,
    BadHeadersError,
    BadQueueError,
    SluiceError,
    TooLargeError,
)
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.doors.frames import PlainJob, split
from sluicemq_broker.job import Backoff, Dedupe, Job
from sluicemq_broker.queue import JobMaker
from sluicemq_broker.queues import check_name
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import QueueDefaults, ServerClock, date
from sluicemq_broker.store.jobs.documents import document, job
from support.fakes import Clock
from support.jobs import NOW

MOST = 1000


def make(headers: dict[Any, Any] | None = None, payload: bytes = b"x", **queue: Any) -> Job:
    return JobMaker(Clock(), MOST).make(ANYBODY, QueueSettings(**queue), payload, headers or {})


def read(frames: list[bytes]) -> Job:
    plain = split(frames)
    return make(plain.headers, plain.payload)


# ------------------------------------------------------------------------ frames


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b"x"], PlainJob("", {}, b"x")),
        ([b"mail", b"x"], PlainJob("mail", {}, b"x")),
        ([b"", b"x"], PlainJob("", {}, b"x")),
        ([b"", b"", b"x"], PlainJob("", {}, b"x")),
        ([b"mail", b'{"priority": 3}', b"x"], PlainJob("mail", {"priority": 3}, b"x")),
        ([b"mail", msgpack.packb({"id": "a"}), b""], PlainJob("mail", {"id": "a"}, b"")),
        ([b"\xff", b"x"], PlainJob("\\xff", {}, b"x")),
    ],
)
def test_a_message_is_a_payload_behind_queue_and_headers(frames: list[bytes], expected: PlainJob) -> None:
    assert split(frames) == expected


@pytest.mark.parametrize("count", [0, 4, 1000])
def test_another_number_of_frames_is_refused(count: int) -> None:
    with pytest.raises(BadFramesError, match=f"this one has {count}"):
        split([b""] * count)


@pytest.mark.parametrize("name", ["a", "mail", "A-b_c.9", "a.b.c", "-", "_", "x" * 64, "a." * 31 + "bc"])
def test_a_queue_may_have_this_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".a", "a.", "a..b", ".", "a b", "ä", "a/b", "x" * 65, "a.b\n", "\\xff", None, 3, b"a"]
)
def test_a_queue_may_not_have_this_name(name: object) -> None:
    with pytest.raises(BadQueueError, match="is no queue name"):
        check_name(name)


# ----------------------------------------------------------------------- headers


def test_a_job_without_headers_is_as_its_queue_says() -> None:
    made = make(priority=7, delay=2.0, ttl=60.0, max_attempts=3, visibility_timeout=9.0)
    assert (made.priority, made.eligible_at, made.expires_at) == (7, NOW + 2, NOW + 60)
    assert (made.max_attempts, made.visibility_timeout) == (3, 9.0)


def test_headers_win_over_the_queues_settings() -> None:
    headers = {"id": "a", "priority": 255, "delay": 1, "ttl": 5, "max_attempts": 0, "visibility_timeout": 2}
    made = make(
        {**headers, "headers": {"k": [b"\xff", None, 1.5]}}, priority=7, delay=2.0, ttl=60.0, max_attempts=3
    )
    assert (made.id, made.priority, made.eligible_at, made.expires_at) == ("a", 255, NOW + 1, NOW + 5)
    assert (made.max_attempts, made.visibility_timeout) == (0, 2.0)
    assert made.headers == {"k": [b"\xff", None, 1.5]}


@pytest.mark.parametrize(
    ("headers", "settings"),
    [
        ({"delay": 60, "ttl": 5}, {}),
        ({"delay": 5, "ttl": 5}, {}),
        ({"delay": 60}, {"ttl": 5.0}),
        ({"ttl": "5s"}, {"delay": 60.0}),
        ({"not_before": NOW + 60, "ttl": 5}, {}),
        ({}, {"delay": 60.0, "ttl": 5.0}),
    ],
)
def test_a_job_that_expires_too_early_is_refused(headers: dict[str, Any], settings: dict[str, Any]) -> None:
    with pytest.raises(BadHeadersError, match=r"would expire .* before it is due"):
        make(headers, **settings)


@pytest.mark.parametrize(
    ("headers", "dedupe"),
    [
        ({"priority": 1}, None),
        ({"dedupe_id": "ä"}, Dedupe("ä", 60.0)),
        ({"dedupe_id": "a", "dedupe_window": 5}, Dedupe("a", 5.0)),
    ],
)
def test_a_dedupe_window_is_its_queues_or_its_own(headers: dict[str, Any], dedupe: Dedupe | None) -> None:
    assert make(headers, dedupe_window=60.0).dedupe == dedupe


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("linear", Backoff("linear", 5.0, 2.0, 60.0, 0.1)),
        ({}, None),
        ("fixed", None),
        ({"kind": "fixed", "base": 5, "cap": 60}, None),
        ({"base": 1}, Backoff("fixed", 1.0, 2.0, 60.0, 0.1)),
        (
            {"kind": "exponential", "base": 2, "factor": 3, "cap": 9, "jitter": 0},
            Backoff("exponential", 2.0, 3.0, 9.0, 0.0),
        ),
    ],
)
def test_a_backoff_header_changes_what_it_names_and_is_kept_where_that_is_not_the_queues_own(
    header: Any, expected: Backoff | None
) -> None:
    made = make({"backoff": header}, backoff="fixed", backoff_base=5.0, backoff_cap=60.0)
    stored = document(made, date(NOW), QueueDefaults())
    assert made.backoff == expected
    assert ("backoff" in stored) == (expected is not None)
    assert job(stored, QueueDefaults()).backoff == expected


def test_a_job_is_kept_when_done_as_its_header_says_or_else_its_queue() -> None:
    defaults = QueueDefaults(keep_done=60.0)
    assert [make(header, keep_done=60.0).keep_done for header in ({}, {"priority": 1})] == [60.0, 60.0]
    assert "keep_done" not in document(make(keep_done=60.0), date(NOW), defaults)
    stored = document(make({"keep_done": 0}, keep_done=60.0), date(NOW), defaults)
    assert job(stored, defaults).keep_done == 0


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ({"not_before": NOW + 10}, NOW + 10),
        ({"not_before": datetime.fromtimestamp(NOW + 10, UTC).isoformat()}, NOW + 10),
        ({"not_before": "2096-10-02T09:06:50+02:00"}, NOW + 10),
        ({"not_before": "2096-10-02T07:06:50.250Z"}, NOW + 10.25),
        ({"not_before": NOW + 10, "delay": 60}, NOW + 60),
        ({"not_before": NOW + 100, "delay": 60}, NOW + 100),
        ({"delay": 0}, 0.0),
        ({"priority": 1}, 5 + NOW),
    ],
)
def test_a_job_is_due_at_the_later_of_its_times(headers: dict[str, Any], due: float) -> None:
    assert make(headers, delay=5.0 if "priority" in headers else 0.0).eligible_at == due


def test_ids_that_the_broker_gives_are_all_different_and_sort_by_time() -> None:
    maker = JobMaker(ServerClock(), MOST)
    given_ids = [maker.new_id() for _ in range(1000)]
    assert len(set(given_ids)) == 1000
    assert [text[:12] for text in given_ids] == sorted(text[:12] for text in given_ids)


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"id": ""}, "'id'"),
        ({"id": "ä" * 65}, "'id'"),
        ({"id": 7}, "'id'"),
        ({"id": "\ud800"}, "'id'"),
        ({"priority": -1}, "'priority'"),
        ({"priority": 256}, "from 0 to 255"),
        ({"priority": True}, "'priority'"),
        ({"priority": "9"}, "'9'"),
        ({"delay": -0.1}, "'delay'"),
        ({"delay": math.nan}, "'delay'"),
        ({"delay": math.inf}, "'delay'"),
        ({"delay": False}, "'delay'"),
        ({"not_before": "tomorrow"}, "RFC 3339"),
        ({"not_before": "2096-10-02T07:06:50"}, "time zone"),
        ({"not_before": 1e300}, "'not_before'"),
        ({"not_before": "0001-01-01T00:00:00+23:59"}, "'not_before'"),
        ({"not_before": "9999-12-31T23:59:59-23:59"}, "'not_before'"),
        ({"ttl": 0}, "above 0"),
        ({"max_attempts": 1.5}, "whole number"),
        ({"visibility_timeout": 0}, "'visibility_timeout'"),
        ({"dedupe_id": ""}, "'dedupe_id' is '', expected a string of 1 to 128 bytes"),
        ({"dedupe_id": "ä" * 65}, "'dedupe_id'"),
        ({"dedupe_id": 7}, "'dedupe_id'"),
        ({"dedupe_id": "a", "dedupe_window": 0}, "seconds from 0.1"),
        ({"dedupe_window": 9}, "needs a 'dedupe_id'"),
        ({"backoff": "expo"}, "'exponential', 'linear', 'fixed' or 'none'"),
        ({"backoff": {"kind": None}}, "'backoff'"),
        ({"backoff": {"kind": []}}, "'backoff'"),
        ({"backoff": {"base": -1}}, "'backoff'"),
        ({"backoff": {"factor": 0.5}}, "'backoff'"),
        ({"backoff": {"cap": math.nan}}, "'backoff'"),
        ({"backoff": {"jitter": 1.1}}, "'backoff'"),
        ({"backoff": {"speed": 1}}, "'backoff'"),
        ({"backoff": {1: 1}}, "'backoff'"),
        ({"backoff": None}, "'backoff'"),
        ({"keep_done": -1}, "'keep_done'"),
        ({"reply": "later"}, "'result' or 'accepted'"),
        ({"reply": []}, "'reply'"),
        ({"headers": [1]}, "a map"),
        ({"headers": {"a": {1: 2}}}, "text keys"),
        ({"headers": {"a\0": 1}}, "text keys"),
        ({"headers": {"$ref": "a"}}, r"not starting with \$"),
        ({"headers": {"a": 2**63}}, "64-bit"),
        ({"headers": {"a": [0] * 1000}}, "1000 values"),
        ({"headers": {"a": "\udfff"}}, "'headers'|can't be stored"),
        ({"colour": "red"}, "unknown header 'colour'.*priority"),
        ({b"id": "a"}, "unknown header"),
    ],
)
def test_a_header_that_is_wrong_is_named_with_what_it_may_be(headers: dict[Any, Any], problem: str) -> None:
    with pytest.raises(BadHeadersError, match=problem):
        make(headers)


def test_an_error_quotes_a_little_of_what_is_wrong_however_wide_and_deep_it_is() -> None:
    wrong: Any = 0
    for _ in range(5):
        wrong = [wrong] * 6
    with pytest.raises(BadHeadersError) as refused:
        make({"headers": wrong})
    assert len(str(refused.value)) < 500


def test_headers_that_are_too_deep_are_refused() -> None:
    deep: Any = 0
    for _ in range(21):
        deep = [deep]
    with pytest.raises(BadHeadersError, match="20 levels"):
        make({"headers": {"a": deep}})


@pytest.mark.parametrize(
    "frame",
    [
        b"{", b"{}}", b"[1]", b"\xc1", b"\xff\xff", b"\x93\x01", b'{"a": \xff}', msgpack.packb([1]),
        b'{"a":' * 9999,
    ],
)  # fmt: skip
def test_headers_that_can_not_be_read_are_refused(frame: bytes) -> None:
    with pytest.raises(BadHeadersError):
        read([b"", frame, b"x"])


def test_headers_count_with_the_bytes_that_they_take_in_mongodb() -> None:
    headers = {"headers": {"a": [1] * (MOST // 4)}}
    assert len(packed(headers)) < MOST // 3
    with pytest.raises(TooLargeError, match=r"the job has \d+ bytes"):
        make(headers)


def test_a_jobs_size_is_that_of_its_payload_and_its_own_headers_and_the_same_after_a_claim() -> None:
    own = {"a": "x" * 100}
    made = make({"headers": own, "priority": 1}, b"12345")
    assert made.size == 5 + len(bson.encode(own))
    assert make(None, b"12345").size == make({"priority": 1}, b"12345").size == 5
    assert job(document(made, date(NOW), QueueDefaults()), QueueDefaults()).size == made.size


def test_a_job_may_have_so_many_bytes_and_its_own_headers_count() -> None:
    assert make(payload=b"x" * MOST).payload == b"x" * MOST
    for headers, payload in [({}, b"x" * (MOST + 1)), ({"headers": {"a": "x" * MOST}}, b"x")]:
        with pytest.raises(TooLargeError, match=f"max_job_bytes is {MOST}"):
            make(headers, payload)


# ------------------------------------------------------------------ any bytes

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**65)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=8)
    | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.just("$ref"), inner, max_size=3)
    ),
    max_leaves=8,
)
keys = st.sampled_from(
    ["id", "priority", "delay", "not_before", "ttl", "max_attempts", "visibility_timeout", "reply", "headers"]
)
maps = st.dictionaries(keys | st.text(max_size=4), values, max_size=4) | st.fixed_dictionaries(
    {"headers": st.dictionaries(st.text(max_size=4), values, max_size=3)}
)


def packed(headers: Any) -> bytes:
    try:
        return bytes(msgpack.packb(headers))
    except (ValueError, OverflowError, UnicodeEncodeError):
        return b""


def damaged(frame: bytes, at: int, byte: int) -> bytes:
    at %= len(frame) + 1
    return frame[:at] + bytes([byte]) + frame[at + 1 :]


header_frames = st.one_of(
    st.binary(max_size=40),
    maps.map(packed),
    maps.map(lambda headers: json.dumps(headers, default=repr).encode()),
    st.builds(damaged, maps.map(packed), st.integers(0, 200), st.integers(0, 255)),
)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_any_frames_are_a_job_or_an_error_of_ours(frames: list[bytes]) -> None:
    only_our_errors(frames)


@settings(max_examples=2 * settings().max_examples)
@given(header_frames)
@example(b'{"delay":' + b"[" * 900 + b"]" * 900 + b"}")
@example(b'{"delay":' + b"[" * 990 + b"]" * 990 + b"}")
@example(b'{"id": "\\ud800"}')
@example(b'{"priority": ' + b"9" * 5000 + b"}")
@example(packed({"delay": msgpack.Timestamp(1)}))
@example(packed({"headers": {"a": msgpack.ExtType(4, b"x")}}))
@example(packed({"headers": {"$ref": "a", "$id": 1}}))
@example(b'{"headers": {"a": NaN}}')
def test_any_headers_are_a_job_that_can_be_stored_and_sent_or_an_error_of_ours(frame: bytes) -> None:
    only_our_errors([b"mail", frame, b"payload"])


def only_our_errors(frames: list[bytes]) -> None:
    """Read the frames; a job that is made survives MongoDB's encoding and the protocol's."""
    try:
        made = read(frames)
    except SluiceError as error:
        str(error).encode()
        return
    made.created_at = NOW
    defaults = QueueDefaults()
    stored = bson.decode(bson.encode(document(made, date(NOW), defaults)))
    loaded = job(stored, defaults)
    assert repr((loaded.id, loaded.headers)) == repr((made.id, made.headers or None))
    wire.encode(wire.DELIVER, 1, "mail", [[b"r", loaded.id, loaded.payload, loaded.headers, 1]])
