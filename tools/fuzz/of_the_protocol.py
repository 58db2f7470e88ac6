"""Targets of what the library and the broker read alike: headers, messages, times, keys, permissions."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import bson
import msgpack

from fuzz.attempts import target
from fuzz.choices import Choices
from sluicemq.protocol import job_headers, keys, msgpack_count, msgpack_values, packed, permissions, wire
from sluicemq.protocol.durations import TEN_YEARS, check_span, seconds_of
from sluicemq.protocol.errors import (
    BadFramesError,
    BadHeadersError,
    BadTopicError,
    BadVersionError,
    SluiceError,
    TooLargeError,
    from_code,
)
from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq.transport import endpoints
from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import Misfire, Timetable, plan
from sluicemq_broker.queue import JobMaker, check_headers
from sluicemq_broker.runtime import read_json
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import QueueDefaults
from sluicemq_broker.store.jobs.documents import document
from sluicemq_broker.store.jobs.documents import job as job_of
from sluicemq_broker.streams import Topics
from sluicemq_devices.sockets import host_and_port, parse_endpoint, unix_path
from sluicemq_devices.sockets.endpoints import source_of
from sluicemq_devices.zmtp import encode
from support.fakes import Clock
from support.jobs import NOW
from unit.test_wanted_topics import by_expression

#: Texts that mean something in headers.
WORDS: Final = (
    *(option.name for option in OPTIONS.values()),
    *("kind", "base", "factor", "cap", "jitter", "exponential", "none", "result", "1h30m", "90s", "$ref"),
    *("2030-01-31T12:00:00Z", "2030-01-31T24:00:00+23:59", "9998-12-31T23:59:59-23:59", ""),
)
#: The beginning of an array of two, with its first value.
_BEFORE: Final = b"\x92\xc5\x04\x00" + bytes(1024)
_MAKER: Final = JobMaker(Clock(), 1 << 20)
_QUEUE: Final = QueueSettings()
_DEFAULTS: Final = QueueDefaults.of(_QUEUE)


@target("job-headers", BadHeadersError, TooLargeError)
def headers(data: bytes) -> None:
    """The headers frame of a job, JSON or msgpack: what is taken is what others read, and can be stored."""
    given = job_headers.decode(data)
    if data:
        try:
            other = json.loads(data)
        except ValueError:
            other = msgpack.unpackb(data, ext_hook=lambda *_: NotImplemented)
        assert repr(other) == repr(given), "another reader finds other headers"
    stored(given)


@target("job-options", BadHeadersError, TooLargeError)
def options(data: bytes) -> None:
    """Headers made of values that are nearly right."""
    given = Choices(data)
    made = {given.one_of(WORDS[: len(OPTIONS)]): given.value(WORDS) for _ in range(1 + given.byte() % 4)}
    stored(made)


def stored(made: dict[Any, Any]) -> None:
    """Make a job of headers, store it as MongoDB does, and make it again of that."""
    job = _MAKER.make(ANYBODY, _QUEUE, b"payload", made)
    assert check_headers(made).keys() == made.keys()
    if job.group is not None:
        job.line_up(1)
    written = document(job, datetime.fromtimestamp(NOW, UTC), _DEFAULTS)
    again = job_of(bson.decode(bson.encode(written)), _DEFAULTS)
    assert (again.id, again.priority, again.max_attempts) == (job.id, job.priority, job.max_attempts)
    assert bson.encode(again.headers or {}) == bson.encode(job.headers or {})
    assert again.backoff == job.backoff
    assert job_headers.thaw(job_headers.encode(job.headers or {})).keys() == (job.headers or {}).keys()


@target("smq-decode", BadFramesError, BadVersionError)
def decode(data: bytes) -> None:
    """Three frames as a request of SMQ/1; a reader of msgpack without bounds finds the same."""
    given = Choices(data)
    verbs = [wire.PUSH, wire.PING, wire.READ, given.piece()]
    frames = [wire.VERSION, given.one_of(verbs), given.rest()]
    number = wire.number_of(frames)
    assert 0 <= number <= wire.MAX_NUMBER
    message = wire.decode_request(frames)
    assert number == message.number
    assert len(msgpack.unpackb(frames[2], ext_hook=lambda *_: None, strict_map_key=False)) == 1 + len(
        message.fields
    )


@target("msgpack-bounds")
def bounds(data: bytes) -> None:
    """The bounds of msgpack: a text is whole if msgpack can skip it."""
    inside = msgpack_count.within(data, msgpack_values.MOST_VALUES, msgpack_values.MOST_OTHER_BYTES)
    reader = msgpack.Unpacker(max_buffer_size=len(data) or 1)
    reader.feed(data)
    try:
        reader.skip()
        is_whole = True
    except (ValueError, msgpack.UnpackException):
        is_whole = False
    assert inside or not is_whole or len(data) > msgpack_values.MOST_VALUES
    for text in (data, _BEFORE + data):  # a text of a kilobyte is skipped through before it is read
        with suppress(BadFramesError):
            msgpack_values.unpack_bounded(text, BadFramesError, "it")


@target("packed-messages", BadFramesError)
def messages(data: bytes) -> None:
    """Messages of a PUBLISH: scanned, taken apart and put together again."""
    ends, topics, further = packed.survey(data)
    whole = packed.unpack(data)
    assert len(ends) == len(topics) == len(whole)
    assert [frames[0][: packed.LONGEST_TOPIC] for frames in whole] == topics
    assert sum(max(0, len(frames) - 2) for frames in whole) <= further + len(whole)
    slices = packed.slices(data, ends)
    assert b"".join(slices) == data
    for sliced, message in zip(slices, whole, strict=True):
        assert packed.frames(sliced) == message
        assert packed.frames(packed.extended(sliced, b"last")) == [*message, b"last"]
    again = b"".join(map(encode, whole))
    assert packed.unpack(again) == whole


@target("topic-patterns", BadTopicError)
def patterns(data: bytes) -> None:
    """Filters of topics: they want what regular expressions of the same rules want."""
    given = Choices(data)
    wanted = [given.piece() for _ in range(given.byte() % 8)]
    mine = Topics(wanted)
    for topic in given.pieces():
        assert mine.want(topic) == by_expression(wanted, topic)


@target("permissions", ValueError)
def permitted(data: bytes) -> None:
    """Permissions as a text: written and read again they are the same, and patterns mean what they say."""
    given = Choices(data)
    name = given.text()
    text = given.rest().decode("utf-8", "surrogateescape")
    mine = Permissions.read(text)
    assert Permissions.read(str(mine)) == mine
    assert Permissions.read(mine.plain()) == mine
    assert mine.allow(Action.PUSH, name) == any(
        permissions.matches(pattern, name) for pattern in mine.patterns(Action.PUSH)
    )


@target("permission-tables", ValueError)
def permission_tables(data: bytes) -> None:
    """Permissions as TOML, JSON and msgpack have them."""
    mine = Permissions.read(Choices(data).value((*Action, "*", "mail.*", "all", "none")))
    assert Permissions.read(mine.plain()) == mine
    assert Permissions.read(str(mine)) == mine
    mine.allow(Action.PUSH, "mail")


@target("permission-matches")
def matches(data: bytes) -> None:
    """A pattern and a name: as a regular expression says, in time that does not explode."""
    given = Choices(data)
    pattern, name = given.piece().decode("latin-1")[:128], given.rest().decode("latin-1")
    found = permissions.matches(pattern, name)
    if pattern.count("*") < 4 and len(name) <= 128:  # else the expression takes too long, not the pattern
        expression = ".*".join(map(re.escape, pattern.split("*")))
        assert found == bool(re.fullmatch(expression, name, re.DOTALL))


@target("keys", ValueError)
def z85(data: bytes) -> None:
    """Keys as text: what is read is what was written."""
    text = data.decode("latin-1")
    found = keys.decode(text)
    assert keys.encode(found) == text
    assert len(found) * 5 == len(text) * 4
    assert len(keys.key_id(found)) == 12
    assert len(keys.read_key(text)) == keys.KEY_BYTES


@target("endpoints", ValueError)
def places(data: bytes) -> None:
    """Endpoints of the configuration: what is taken names a place, and is written as it was read."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        end = parse_endpoint(text)
    except ValueError:
        endpoints.checked(text)
        return
    assert parse_endpoint(str(end)) == end
    if end.address.startswith("tcp://"):
        host, port = host_and_port(end.address)
        assert 0 <= port <= 65_535
        assert "[" not in host
        source_of(end.address)
        assert isinstance(end.is_any, bool)
    else:
        assert unix_path(end.address)
    if not end.bind:
        endpoints.checked(end.address)


@target("durations", ValueError)
def durations(data: bytes) -> None:
    """Spans of time, and all other options of a job, as people type them."""
    text = data.decode("utf-8", "surrogateescape")
    for option in OPTIONS.values():
        try:
            value = option.rule.of_text(text)
        except ValueError:
            continue
        assert repr(option.rule.read(value)) == repr(value), "a value that was read is read otherwise"
    seconds = seconds_of(text)
    assert seconds >= 0
    check_span("it", text)
    assert seconds <= TEN_YEARS


@target("timetable", ValueError)
def timetable(data: bytes) -> None:
    """Cron expressions and intervals: runs follow each other, and a plan ends."""
    given = Choices(data)
    zones = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", given.text())
    every = given.one_of((0.0, 0.0, 0.0, 1.0, 3.5, 86_400.0, 1e9))
    zone, misfire = given.one_of(zones), given.one_of(list(Misfire))
    since = NOW + given.byte() * 86_400.0 + given.byte()
    cron = given.rest().decode("utf-8", "surrogateescape")
    table = Timetable("" if every else cron, zone, every, 0.0)
    table.check()
    first = table.after(since)
    if math.isinf(first):
        return
    second = table.after(first)
    assert since < first < second
    made = plan(table, first, first + 10 * 86_400.0, misfire)
    assert made.next_at > first + 10 * 86_400.0 or misfire is Misfire.ALL
    assert len(made.runs) <= 100
    assert made.runs == sorted(set(made.runs))


@target("json", ValueError)
def json_values(data: bytes) -> None:
    """JSON of strangers: what is taken can be written as UTF-8, and read again."""
    value = read_json(data)
    text = json.dumps(value, ensure_ascii=False).encode()
    assert repr(read_json(text)) == repr(value)


@target("error-texts")
def errors(data: bytes) -> None:
    """Errors of the broker, as the library makes them of codes and texts."""
    given = Choices(data)
    code = given.one_of((*(subclass.code for subclass in SluiceError.__subclasses__()), given.text()))
    assert isinstance(from_code(code, given.text(), given.text()), SluiceError)
