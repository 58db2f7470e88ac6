"""SMQ/1, the protocol between the library and the broker, byte by byte; and plain headers.

A message is three ZeroMQ frames, both ways, between a DEALER (client) and the broker's door::

    +--------+---------+--------------------------------------+
    | "SMQ1" |  verb   |  one msgpack array [number, ...]      |
    +--------+---------+--------------------------------------+
      4 bytes  3 to 8     number: unsigned, chosen by the asker

Every request gets one answer with the same number: ``OK [number, value]`` or
``ERROR [number, code, text]``. Codes are those of ``errors.py``. Strings are msgpack ``str``
in UTF-8; ids are strings of 1 to 128 bytes, payloads, results and receipts are ``bin``.
``|nil`` marks what may be nil. A receipt is opaque and names one delivery.

From the client::

    HELLO   [n, {client, version}]                      -> {broker, heartbeat, silence, max_job_bytes}
    PUSH    [n, queue, [[id|nil, payload, headers|nil], ...]]
                                                        -> [[position, code, text, id?], ...]  refused
                                                           ones, id: of a DUPLICATE, who was first;
                                                           all others are durable when this arrives;
                                                           a second element after it, if there are any:
                                                           [position, ...] of ids that were there before
    READY   [n, queue, credit, options]                 -> nil     work wanted: at most ``credit``
                                                                   unsettled jobs; 0 = no more
    RESULT  [n, queue, id, wait]                        -> result, bin, of a job that was pushed with
                                                           header reply = "result"; TIMEOUT if it has
                                                           not ended ``wait`` seconds from now; DEAD,
                                                           EXPIRED, NOT_FOUND, UNCERTAIN
    SETTLE  [n, [[receipt, verdict, detail|nil, delay|nil], ...]]
                                                        -> [[position, code, text], ...]  refused ones
    EXTEND  [n, [receipt, ...], seconds]                -> [[position, code, text], ...]  refused ones
    PING    [n]                                         -> nil
    BYE     [n]                                         -> nil     unsettled jobs are given back
    QUEUES  [n]                                         -> [{name, ready, ...}, ...]
    STATS   [n]                                         -> {...}
    PEEK    [n, queue, state, limit]                    -> [{id, state, payload, ...}, ...]
    PURGE   [n, queue, state]                           -> number of jobs removed
    DELETE  [n, queue]                                  -> number of jobs removed with the queue
    CANCEL  [n, queue, id]                              -> nil     or NOT_FOUND
    SHOW    [n, queue, id]                              -> {id, state, payload, errors, ...}
                                                           whole; times are Unix seconds
    PROMOTE [n, queue, id]                              -> nil     a delayed job is due now
    CHANGE  [n, queue, id, {priority?, delay?}]         -> nil     a job that waits; delay: from now
    REDRIVE [n, queue, {ids?, reason?, limit?}, to|nil] -> {moved, left, refused: [[id, code, text], ...]}
                                                           dead letters, the oldest first; all, or those
                                                           of ids, or with reason in their last error;
                                                           limit: at most, and by default, 10,000
    PAUSE   [n, queue, what]                            -> [what, ...] that is paused now; ``delivery``
    RESUME  [n, queue, what]                            -> the same                     or ``intake``

From the broker, unasked::

    DELIVER [n, queue, [[receipt, id, payload, headers|nil, attempt], ...]]   no answer; settle each

The options of READY may be left out; they are a map of ``look`` (true: answered only once what lies
ready has been sent, as far as the credit goes) and ``pop`` (true: each job is removed before it is
sent, and there is nothing to settle; ``credit`` is then how many more jobs are wanted, added to what
is left of the former; with 0, and with ``look``, the answer comes after all that has been removed).

Verdicts: ``COMMIT`` (detail: result, bin), ``ROLLBACK`` (detail: reason, str; delay: seconds, nil:
the job's back-off), ``REJECT`` (detail: reason), ``RELEASE`` (never started: given back without
counting the attempt).

Either side may be silent for ``silence`` seconds (HELLO's answer) before the other takes it for
gone; a side with nothing to say sends PING every ``heartbeat`` seconds, the broker included; a
client answers nothing to the broker's PING, whatever it sends next shows that it lives.

Rule for changes: a new verb or a new element at the end of an array keeps the version; anything
else raises it. ``tests/unit/test_wire.py`` holds golden bytes of every message.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import msgpack

from sluicemq.errors import BadFrames, BadHeaders, BadVersion

VERSION: Final = b"SMQ1"

HELLO: Final = b"HELLO"
PUSH: Final = b"PUSH"
READY: Final = b"READY"
DELIVER: Final = b"DELIVER"
SETTLE: Final = b"SETTLE"
EXTEND: Final = b"EXTEND"
RESULT: Final = b"RESULT"
PING: Final = b"PING"
BYE: Final = b"BYE"
QUEUES: Final = b"QUEUES"
STATS: Final = b"STATS"
PEEK: Final = b"PEEK"
PURGE: Final = b"PURGE"
DELETE: Final = b"DELETE"
CANCEL: Final = b"CANCEL"
SHOW: Final = b"SHOW"
PROMOTE: Final = b"PROMOTE"
CHANGE: Final = b"CHANGE"
REDRIVE: Final = b"REDRIVE"
PAUSE: Final = b"PAUSE"
RESUME: Final = b"RESUME"
OK: Final = b"OK"
ERROR: Final = b"ERROR"

COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
REJECT: Final = "REJECT"
RELEASE: Final = "RELEASE"

#: What of a queue can be paused: handing out jobs, taking jobs in.
DELIVERY: Final = "delivery"
INTAKE: Final = "intake"

#: Dead letters in one REDRIVE, and ids in it, at most.
MOST_REDRIVEN: Final = 10_000
MOST_IDS: Final = 1_000

#: What is said of a queue's name that is none.
QUEUE_NAME_RULE: Final = "1 to 64 of A-Z a-z 0-9 _ - and, between them, single full stops"

#: Largest number in a message; the library starts again at 1 after it.
MAX_NUMBER: Final = 2**63 - 1

_LONGEST_QUEUE_NAME: Final = 64
_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class Message(NamedTuple):
    """One decoded message: its verb, its number and the rest of the array."""

    verb: bytes
    number: int
    fields: list[Any]


def is_queue_name(value: object) -> bool:
    """Whether a queue may have this name: it becomes part of a collection's, so full stops stand alone."""
    return (
        isinstance(value, str)
        and len(value) <= _LONGEST_QUEUE_NAME
        and _QUEUE_NAME.fullmatch(value) is not None
    )


def encode(verb: bytes, number: int, *fields: Any) -> list[bytes]:
    """The three frames of one message; ``fields`` follow the number in the array."""
    return [VERSION, verb, _pack([number, *fields])]


def decode(frames: list[bytes]) -> Message:
    """Read one message.

    Raises :class:`BadVersion` if the first frame is not ours and :class:`BadFrames` if the rest
    is not a verb and a msgpack array that starts with a number.
    """
    if not frames or frames[0] != VERSION:
        got = frames[0][:16] if frames else b""
        raise BadVersion(f"first frame is {got!r}, expected {VERSION!r}: this door speaks SMQ/1 only")
    if len(frames) != 3:
        raise BadFrames(f"an SMQ/1 message has 3 frames, this one has {len(frames)}")
    body = _unpack(frames[2], BadFrames, "the third frame")
    if not isinstance(body, list) or not body:
        raise BadFrames("the third frame is not a msgpack array [number, ...]")
    number = body[0]
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_NUMBER:
        raise BadFrames("the array's first element is not a number from 0 to 2**63 - 1")
    return Message(frames[1], number, body[1:])


def decode_headers(frame: bytes) -> dict[str, Any]:
    """Read the headers frame of a plain-socket job: JSON if it starts with ``{``, else msgpack.

    An empty frame means no headers. Raises :class:`BadHeaders`.
    """
    if not frame:
        return {}
    headers = _json(frame) if frame.startswith(b"{") else _unpack(frame, BadHeaders, "headers")
    if not isinstance(headers, dict):
        raise BadHeaders(f"headers are a {type(headers).__name__}, expected a map")
    return headers


def encode_headers(headers: dict[str, Any]) -> bytes:
    """A headers frame, msgpack, as :func:`decode_headers` reads it."""
    return _pack(headers)


def _json(frame: bytes) -> Any:
    try:
        return json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise BadHeaders(f"headers start with '{{' but are not JSON: {error}") from error


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def _unpack(frame: bytes, error: type[BadFrames | BadHeaders], what: str) -> Any:
    try:
        return msgpack.unpackb(frame)
    except (ValueError, msgpack.UnpackException, RecursionError) as cause:
        raise error(f"{what} can't be read as msgpack: {cause or type(cause).__name__}") from cause
