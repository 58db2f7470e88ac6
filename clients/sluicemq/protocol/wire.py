"""SMQ/1, the protocol between the library and the broker, byte by byte.

A message is three ZeroMQ frames, both ways, between a DEALER (client) and the broker's door::

    +--------+---------+--------------------------------------+
    | "SMQ1" |  verb   |  one msgpack array [number, ...]      |
    +--------+---------+--------------------------------------+
      4 bytes  3 to 8     number: unsigned, chosen by the sender

Every request gets one answer with its number: ``OK [number, value]`` or
``ERROR [number, code, text]``. Codes are those of ``errors.py``. Strings are msgpack ``str``
in UTF-8; ids are strings of 1 to 128 bytes, payloads, results and receipts are ``bin``.
``|nil`` marks what may be nil. A receipt is opaque and names one delivery.

From the client::

    HELLO   [n, {client, version, id?, connection?, features?}]
                                                        -> {broker, heartbeat, silence, max_job_bytes,
                                                           features?}
    PUSH    [n, queue, [[id|nil, payload, headers|nil], ...]]
                                                        -> [[position, code, text, id?], ...]  refused
                                                           ones, id: of a DUPLICATE, the first job's;
                                                           all others are durable when this arrives;
                                                           a second element after it, if there are any:
                                                           [position, ...] of ids that existed before
    READY   [n, queue, credit, options]                 -> nil     work wanted: at most ``credit``
                                                                   unsettled jobs; 0 = no more
    RESULT  [n, queue, id, wait]                        -> result, bin, of a job that was pushed with
                                                           header reply = "result"; TIMEOUT if it has
                                                           not ended ``wait`` seconds from now; DEAD,
                                                           EXPIRED, NOT_FOUND, UNCERTAIN
    SETTLE  [n, [[receipt, verdict, detail|nil, delay|nil, onward?, options?], ...]]
                                                        -> [[position, code, text], ...]  refused ones
    EXTEND  [n, [receipt, ...], seconds]                -> [[position, code, text], ...]  refused ones
    PROGRESS [n, [[receipt, done, total|nil, note|nil], ...]]
                                                        -> [[position, code, text], ...]  refused ones;
                                                           progress of jobs: the latest is stored, about
                                                           once a second, and shown
    COMMITIN [n, receipt, size]                         -> bin: a BSON document {statements: [{database,
                                                           collection, filter, update, result_at}, ...],
                                                           moved?}: updates that end the job within a
                                                           transaction of the client's own. Each must find
                                                           its document; ``moved``: one that has begun
                                                           before does not.
                                                           result_at: keys to where the result goes, bin, of
                                                           ``size`` bytes; or empty
    PING    [n, health]                                 -> nil; with true, about the broker's MongoDB:
                                                           {store: "ok" or what is wrong, store_silent}
    BYE     [n]                                         -> nil     unsettled jobs are given back; a broker
                                                           that stops sends it to clients that move on
    PUBLISH [n, stream, messages, options]              -> number of the first message, once all are durable;
                                                           a second element, if some existed before:
                                                           [[place, number], ...]
    READ    [n, stream, options]                        -> {rows, after, gone, newest}
    SCHEDULE [n, action, {name?, ...}]                  -> recurring jobs, by its actions below
    USERS   [n, action, {name?, ...}]                   -> principals, by its actions below
    AUDIT   [n, {principal?, action?, name?, outcome?, since?, until?, after?, limit?}]
                                                        -> {records, next}: administrative acts, logins and
                                                           refusals, the newest first; ``after``: the next of
                                                           the page before

Reading state::

    QUEUES [n]
        ``[QueueRow, ...]``
    QUEUE [n, queue]
        one of these, counted now
    STATS [n]
        ``StatsRow``
    COUNTERS [n]
        ``CountersRow``. The broker asks MongoDB nothing for it
    HISTORY [n, kind, name, day|nil, span]
        ``HistoryRow``. ``span``: each ``minute`` of a day, ``hour`` of the 30 days up to it, ``day`` of a
        year, or ``month``. ``kind``: ``queue``, ``kind`` (``mail:send_receipt``), ``stream``, ``device``
        (``streamer.mail``), or ``broker`` (a host's name, or ``*``). ``day``: ``2026-01-31``, in UTC, by
        default today
    INCIDENTS [n, span, queue|nil]
        up to 100 incidents of the last ``hour``, ``day`` or ``month`` (30 days) that the caller may see,
        of all brokers, the latest first: ``IncidentsRow``. With a queue: its own, and those of brokers.
        Older brokers: ``BAD_VERB``
    WORKERS [n, queue|nil]
        the workers at this broker, 1,000 at most: ``[WorkerRow, ...]``
    ENDS [n, queue, id|nil, limit]
        how jobs of a queue, or one, ended at this broker, the last first, as far as it remembers:
        ``[EndRow, ...]``
    WORKER [n, action, name]
        ``quiet``: the workers of this name at this broker get no more jobs until they connect again;
        ``stop``: clients that know of it end, too. Answer: how many queues they work on. Needs ``manage``
        on each
    STUCK [n, [[queue, id, attempt, seconds], ...]]
        ``nil``. Jobs of former connections that handlers of this client have not ended, 100 at most; each
        message has all of them. To a broker with ``stuck`` among its ``features``
    BACKLOG [n, queue]
        what the first 10,000 jobs are that wait, by kind, tenant and group: ``BacklogRow``
    KINDS [n, queue|nil]
        the kinds of jobs, as this broker has counted them since its start: ``[KindRow, ...]``
    EVENTS [n, {after?, queue?}]
        ``EventsRow``: events of jobs at this broker
    PEEK [n, queue, state, limit]
        the first jobs of a state, ``[JobRow, ...]``, without taking them. ``state``: ``ready``,
        ``scheduled``, ``waiting``, ``reserved``, ``done`` or ``dead``. ``limit``: 1 to 1,000, up to 8
        MiB; negative: the last first. A further ``{first}``, 0 to 16,384, bounds the bytes of each
        payload and result
    SHOW [n, queue, id]
        all that is stored of one job, ``JobRow``, and ``worker`` if a worker of this broker has it.
        ``NOT_FOUND``
    DEAD [n, queue, what, {reason?, since?, until?, error?, place?, kind?}]
        dead letters chosen as by REDRIVE; ``?`` as ``error`` or ``place``: not known. ``what`` ``count``:
        how many, ``CountRow``. ``list`` and ``whole``, with ``{limit?, after?}`` more: the latest first,
        in short or with all fields (about 1 MiB), ``JobPage``; ``after`` is the ``next`` of the page
        before. ``reasons``: why the latest 900 died, ten at most, ``ReasonsRow``. Older brokers:
        ``BAD_VERB``
    FIND [n, options, limit, after|nil]
        jobs of all queues that the caller may read: ``FoundPage``. Options: ``id`` (how it begins; beside
        it only ``queue``), or any of ``words``, ``text``, ``kind``, ``tenant``, ``group``, ``headers`` (a
        map of texts), ``error``, ``states`` (an array), ``since``, ``until``, ``queue``. A search takes a
        tenth of a second at a time: ``after`` is the ``next`` of the page before
    ERRORS [n, queue|nil]
        the errors (a type and the function that raised it) of the latest dead letters, of all queues or
        one: ``ErrorsRow``

Changing jobs and queues::

    PROMOTE [n, queue, id]
        ``nil``; ``NOT_FOUND`` unless the job waits
    CANCEL [n, queue, id, {running?, children?}|nil]
        ``nil``; ``NOT_FOUND`` unless the job waits. With ``running`` (true) a worker may have it; with
        ``children`` (true) those for which it waits go with it
    CHANGE [n, queue, id, {priority?, delay?}]
        ``nil``: another priority, another delay from now, of a job that waits
    PURGE [n, queue, state, wait?]
        how many jobs were removed. The state can't be ``reserved``. Jobs accepted after the order stay
    DELETE [n, queue, wait?]
        how many jobs were removed with the queue. ``BAD_QUEUE`` while workers are connected to it at any
        broker, ``UNAVAILABLE`` while another broker removes it
    REDRIVE [n, queue, {ids?, reason?, limit?, since?, until?, error?, place?, kind?}, to|nil, wait?]
        ``RedriveRow``: dead letters become jobs again, the oldest first: all, those of ``ids`` (1,000 at
        most), those with the text ``reason`` in their last error, those that died from ``since`` on and
        before ``until``, those of ``error``, ``place`` and ``kind``; ``limit`` at most
    DISCARD [n, queue, {...}, wait?]
        how many dead letters were removed, chosen as those of a REDRIVE
    PAUSE, RESUME [n, queue, what]
        what is paused of the queue now, a list. ``what``: ``delivery`` or ``intake``
    SETTINGS [n, queue]
        ``SettingsRow``: settings of a queue. ``queue`` may be ``*`` here, in SET and in UNSET: all queues
    SET [n, queue, {key: value, ...}]
        those that were set, ``[SettingRow, ...]``. A value is one as in a file, or a text as on a command
        line; ``nil``, or ``none``: no value. ``BAD_FRAMES``, and none is set: a value is wrong or needs a
        restart
    UNSET [n, queue, [key, ...]]
        what these are now: files count again

Brokers and tasks::

    BROKERS [n]
        ``BrokersRow``, the oldest broker first
    UPGRADE [n]
        ``UpgradeRow``: the store's schema is the newest of this broker now. ``OLD_BROKER``: a broker
        lives that can't read it
    TASKS [n]
        the tasks of the last day, of all brokers, the latest first: ``[OperationRow, ...]``. ``kind``:
        ``purge``, ``redrive``, ``delete`` or ``expire``
    TASK [n, id]
        one of them. ``NOT_FOUND``
    TCANCEL [n, id]
        ``nil``: the task ends after its page; nothing is undone. ``NOT_FOUND`` if it has ended

Streams::

    STREAMS [n]
        ``[StreamRow, ...]``
    STREAM [n, stream]
        one of these, with its bounds
    TRIM [n, stream, first]
        how many messages are kept no longer: those before number ``first``
    ERASE [n, stream]
        how many messages are kept no longer: all. Its numbers go on if anything is published again

Subscriptions::

    HOLD [n, stream, name, kind, options]
        ``{fence, watermark}``. The session holds it until FREE or its own end; a second HOLD begins a new
        hold. The watermark is the number of the last message that was worked on. ``HELD``: another
        session holds it, or one of another ``kind`` held it and has vanished; the third element after the
        number is that kind. Option ``after``, a number: where to begin if there was no holder before;
        else that needs ``manage`` on the stream. Option ``born``: where to begin if the name is new. -1
        is the newest message
    MARK [n, stream, name, fence, watermark]
        ``nil``: all messages up to there are worked on. The watermark never falls. ``LEASE_LOST`` if this
        session does not hold the subscription under this fence: hold again. If the new fence is the old
        one and 1, nobody held it between, and a batch handled meanwhile may be marked under the new one
    SUBS [n, stream|nil]
        ``[SubscriptionRow, ...]``
    FREE [n, stream, name, fence|nil]
        ``nil``: the hold of that fence is given up. ``LEASE_LOST``, which changes nothing, if this
        session does not have it. A nil fence means the hold of any session, or the last one, and needs
        ``manage``; ``NOT_FOUND`` if there is none
    SEEK [n, stream, name, watermark]
        ``nil``, or ``HELD``: it goes on behind that message (-1: the newest). A new name is made
    FORGET [n, stream, name]
        ``nil``: it is removed. ``HELD``, ``NOT_FOUND``

From the broker, without a request::

    DELIVER [n, queue, [[receipt, id, payload, headers|nil, attempt, priority, accepted, max_attempts,
                         visibility_timeout, children?, [soft|nil, hard|nil]?], ...],
             now]                                          no answer; settle each. Unix seconds of the
                                                           server's clock; max_attempts: 0 for no end; soft
                                                           and hard: its time limits in seconds

    CANCEL  [0, queue, [receipt, ...], why]                no answer: these jobs were cancelled, or are over
                                                           their hard time limit; their verdicts are
                                                           refused. To clients whose HELLO has ``cancels``
                                                           among its ``features``

    STOP    [0, queue]                                     no answer: an operator wants this worker to end.
                                                           To clients with the feature ``stops``

A bulk operation (PURGE, DELETE, REDRIVE, DISCARD) that is not done after ``wait`` seconds is answered with
``{task, done, total|nil}`` and goes on as a task. With nil, or without ``wait``, the answer comes at its end.

Options of READY::

    look
        the answer comes only once all ready jobs have been sent, as far as the credit goes (within 30 s);
        with credit 0 after all jobs that have been removed
    wait
        a queue that is not there is waited for: the answer is then a text that says so. With ``credit`` 0
        it waits no more
    pop
        at most once: each job is removed before it is sent, and not settled. ``credit`` is how many more
        jobs are wanted, added to what is left of the former credit

Options of PUBLISH::

    id
        of these messages together, 1 to 128 bytes. Sent again with ``again``, they are stored once.
        ``ID/000000000012``: the client's ``id`` of HELLO and a number of 12 digits
    again
        true: they may have been sent before, to this broker or another
    ids
        ``[[place, id], ...]``: of messages with an id of their own, which within the stream's
        ``dedupe_window`` is stored once
    last
        stored only if the stream ends with this number (0: is empty). Else ``CONFLICT``, whose third
        element after the number, a string, is where it ends
    topic
        with ``last``, a ``bin``: only if this topic ends with that number

Options of READ::

    after
        a number: begin behind it; 0, and by default: with the oldest that is kept
    since
        Unix seconds: begin with the first that is not older
    new
        true: begin with what is published from now on
    topics
        ``bin``s: a beginning (``orders``), a pattern (``orders.*.paid``, ``orders.>``), or ``=`` and a
        topic
    most
        messages, 1 to 10,000
    bytes
        about this many, to 4 MiB; one message comes in any case
    wait
        seconds, to 60, until there is a message; by default the answer comes at once

Verdicts::

    COMMIT | result, ``bin``
        done
    ROLLBACK | reason, ``str``
        given back; due again ``delay`` seconds from now, with nil after the job's back-off
    REJECT | reason, ``str``
        to the dead letters
    RELEASE
        never started: given back without counting the attempt; due again ``delay`` seconds from now, with
        nil after one second, with 0 at once
    FORWARD
        on to another queue; ``onward`` is ``[queue, payload|nil, headers|nil]``, nil being as it was.
        Headers are those of a push, without ``id``, ``dedupe_id``, ``dedupe_window``, ``reply``
    FANOUT | result, ``bin``
        waits until its children are done, and has this result then; ``onward`` is ``[[queue, payload|nil,
        headers|nil], ...]``, 1,000 at most. A sixth element is a map of options. With ``allow_failures``
        a child that fails counts as one that is done. With ``join`` it is delivered once more instead,
        and its row of DELIVER has a tenth element: ``[[id, result|nil, error|nil], ...]``, how each child
        has ended

Actions of SCHEDULE::

    list | ``{}``
        ``[ScheduleRow, ...]``, by name
    add | ``{name, queue, payload, cron? or every?, timezone?, misfire?, options?}``
        this one, which takes the place of one of its name. ``BAD_HEADERS`` says what is not valid;
        ``QUEUE_FULL``: there are 1,000
    pause, remove | ``{name}``
        ``nil``, or ``NOT_FOUND``
    resume | ``{name}``
        this one. The next run is planned again. ``BAD_HEADERS``: this broker does not know its time zone
    run | ``{name}``
        the id of the job that was pushed

Actions of USERS::

    list | ``{after?, limit?}``
        ``[PrincipalRow, ...]``, by name: behind the name ``after``, 1,000 at most
    show | ``{name}``
        this one, or ``NOT_FOUND``
    add | ``{name, permissions, key?, password?, token?, tenant?, limits?, note?}``
        this one. ``key``: a public key in Z85. ``token: true``: the row has a new ``token``. ``limits``:
        ``{max_rate?, max_bytes_rate?}``
    rotate | ``{name, kind, key?, password?, drop?, note?}`` or ``{name, id}``
        this one, with a new ``token`` for that kind. ``drop: true``: other keys of this kind end; a
        password always takes the place of the one before. ``id``: this key ends
    permit | ``{name, permissions?, tenant?, limits?}``
        this one; what is not given stays as it is, ``tenant: ""`` is none
    remove | ``{name}``
        ``nil``

A side that is silent for ``silence`` seconds (HELLO's answer) counts as gone. A side with nothing to send
sends PING every ``heartbeat`` seconds, the broker too. A client does not answer the broker's PING: its next
message of any kind shows that it lives.

The broker bounds what it reads before it decodes it (:func:`decode_request`). A message has up to 1,000
jobs, verdicts or receipts, 20,000 values, and 4 MiB beside payloads and results (``msgpack_values.py``). A
job has up to 64 KiB of headers with 1,000 values (``job_headers.py``). A message beyond its bounds gets
``ERROR`` with ``BAD_FRAMES``, a job is refused by its position. Extension types of msgpack are refused.

Rule for changes: a new verb, or a new element at the end of an array, keeps the version. Any other change
raises it. ``tests/unit/test_wire.py`` holds golden bytes of every message.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sluicemq.protocol.enums import JobState, OperationState
from sluicemq.protocol.errors import BadFramesError, BadVersionError
from sluicemq.protocol.msgpack_values import first_of_array, pack, pack_array, unpack, unpack_bounded
from sluicemq.protocol.readable import MOST_REASON, said

VERSION: Final = b"SMQ1"

HELLO: Final = b"HELLO"
PUSH: Final = b"PUSH"
READY: Final = b"READY"
DELIVER: Final = b"DELIVER"
SETTLE: Final = b"SETTLE"
EXTEND: Final = b"EXTEND"
PROGRESS: Final = b"PROGRESS"
COMMITIN: Final = b"COMMITIN"
RESULT: Final = b"RESULT"
PING: Final = b"PING"
BYE: Final = b"BYE"
QUEUES: Final = b"QUEUES"
QUEUE: Final = b"QUEUE"
STATS: Final = b"STATS"
HISTORY: Final = b"HISTORY"
INCIDENTS: Final = b"INCIDENTS"
COUNTERS: Final = b"COUNTERS"
WORKERS: Final = b"WORKERS"
KINDS: Final = b"KINDS"
WORKER: Final = b"WORKER"
STUCK: Final = b"STUCK"
STOP: Final = b"STOP"
EVENTS: Final = b"EVENTS"
PEEK: Final = b"PEEK"
PURGE: Final = b"PURGE"
DELETE: Final = b"DELETE"
CANCEL: Final = b"CANCEL"
SHOW: Final = b"SHOW"
PROMOTE: Final = b"PROMOTE"
CHANGE: Final = b"CHANGE"
REDRIVE: Final = b"REDRIVE"
DISCARD: Final = b"DISCARD"
DEAD: Final = b"DEAD"
ERRORS: Final = b"ERRORS"
ENDS: Final = b"ENDS"
BACKLOG: Final = b"BACKLOG"
FIND: Final = b"FIND"
PUBLISH: Final = b"PUBLISH"
READ: Final = b"READ"
STREAMS: Final = b"STREAMS"
STREAM: Final = b"STREAM"
TRIM: Final = b"TRIM"
ERASE: Final = b"ERASE"
PAUSE: Final = b"PAUSE"
RESUME: Final = b"RESUME"
SETTINGS: Final = b"SETTINGS"
SET: Final = b"SET"
UNSET: Final = b"UNSET"
HOLD: Final = b"HOLD"
MARK: Final = b"MARK"
FREE: Final = b"FREE"
SUBS: Final = b"SUBS"
SEEK: Final = b"SEEK"
FORGET: Final = b"FORGET"
SCHEDULE: Final = b"SCHEDULE"
USERS: Final = b"USERS"
AUDIT: Final = b"AUDIT"
BROKERS: Final = b"BROKERS"
UPGRADE: Final = b"UPGRADE"
TASKS: Final = b"TASKS"
TASK: Final = b"TASK"
TCANCEL: Final = b"TCANCEL"
OK: Final = b"OK"
ERROR: Final = b"ERROR"

COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
REJECT: Final = "REJECT"
RELEASE: Final = "RELEASE"
FORWARD: Final = "FORWARD"
FAN_OUT: Final = "FANOUT"

#: Actions of a SCHEDULE.
LIST: Final = "list"
ADD: Final = "add"
REMOVE: Final = "remove"
SUSPEND: Final = "pause"
GO_ON: Final = "resume"
RUN: Final = "run"

#: Actions of a USERS, beside list, add and remove.
ONE: Final = "show"
ROTATE: Final = "rotate"
PERMIT: Final = "permit"
#: Actions that change nothing.
ONLY_LOOK: Final = (LIST, ONE)

#: Additions to the protocol that a greeting names: the exceptions behind failures are kept.
FAILURES: Final = "failures"
#: One that a HELLO names: the client takes a CANCEL of jobs that it has.
CANCELS: Final = "cancels"
#: Others: it takes a STOP; the broker takes a STUCK.
STOPS: Final = "stops"
STICKS: Final = "stuck"

#: Actions of a WORKER.
QUIET: Final = "quiet"
END: Final = "stop"

#: What a DEAD asks of dead letters.
COUNT: Final = "count"
REASONS: Final = "reasons"
LETTERS: Final = "list"
WHOLE: Final = "whole"
#: Options that choose dead letters which are looked at, or changed.
OF_DEAD: Final = ("reason", "since", "until", "error", "place", "kind")


#: States of a task.
TaskState = OperationState


class TaskField(StrEnum):
    """Fields of a task that is answered before its end: its id, jobs so far, and about how many there are."""

    TASK = "task"
    DONE = "done"
    TOTAL = "total"


#: Field of a task: dead letters that it has looked at, also those that don't match.
LOOKED: Final = "looked"


#: States in which jobs are counted and shown.
ShownState = JobState

#: What can be paused of a queue: handing jobs out, taking jobs in.
DELIVERY: Final = "delivery"
INTAKE: Final = "intake"

#: The health of a MongoDB that answers; otherwise it is a text that says what is wrong.
STORE_OK: Final = "ok"

#: Dead letters in one REDRIVE, and ids that it names, at most.
MOST_REDRIVEN: Final = 2**31 - 1
MOST_IDS: Final = 1_000

#: At most: messages in one PUBLISH; messages and bytes in the answer to one READ, and seconds that it waits.
MOST_PUBLISHED: Final = 4096
MOST_READ: Final = 10_000
MOST_READ_BYTES: Final = 4 << 20
LONGEST_WAIT: Final = 60.0

#: Characters of a progress note that are kept.
MOST_NOTE: Final = 200

#: Largest number in a message; the library starts again at 1 after it.
MAX_NUMBER: Final = 2**63 - 1


# Bytes of a message, for verbs without payloads and results.
_MOST_BYTES: Final = 64 * 1024
_MOST_BYTES_OF: Final = {
    PUSH: sys.maxsize,
    PUBLISH: sys.maxsize,
    SETTLE: sys.maxsize,
    READ: 512 * 1024,
    REDRIVE: 256 * 1024,
    DISCARD: 256 * 1024,
    SCHEDULE: 256 * 1024,
    PROGRESS: 1024 * 1024,
}


class Message(NamedTuple):
    """A decoded message: its verb, its number and the rest of the array."""

    verb: bytes
    number: int
    fields: list[Any]


#: Requests that change nothing.
LOOKS: Final = frozenset(
    (
        *(QUEUES, QUEUE, STATS, HISTORY, INCIDENTS, COUNTERS, WORKERS, KINDS, EVENTS, PEEK, SHOW, TASKS),
        *(TASK, RESULT, PING, READ, STREAMS, STREAM, SUBS, AUDIT, BROKERS, DEAD, ERRORS, ENDS, FIND, BACKLOG),
    )
)


def encode(verb: bytes, number: int, *fields: Any) -> list[bytes]:
    """Return the three frames of one message; ``fields`` follow the number in the array."""
    return [VERSION, verb, pack([number, *fields])]


def packed(verb: bytes, fields: Sequence[Any]) -> list[bytes]:
    """Pack the fields of a message; raises :class:`BadFrames` for a value that can't be sent."""
    try:
        return [pack(field) for field in fields]
    except Exception as error:
        raise unsendable(verb, error) from error


def encode_packed(verb: bytes, number: int, fields: Sequence[bytes]) -> list[bytes]:
    """Return the three frames of one message whose fields :func:`packed` has packed."""
    return [VERSION, verb, pack_array([pack(number), *fields])]


def unsendable(verb: bytes, error: Exception) -> BadFramesError:
    """Return the error for a request with a value that MessagePack can't hold."""
    return BadFramesError(f"{verb.decode()} can't be sent: {said(error, named=True)}")


def decode(frames: list[bytes]) -> Message:
    """Read one message of a trusted peer, the broker.

    Raises :class:`BadVersion` for another first frame, and :class:`BadFrames` if the rest is not a verb and a
    msgpack array that starts with a number.
    """
    return _message(frames, unpack(_body(frames), BadFramesError, "the third frame"))


def decode_request(frames: list[bytes]) -> Message:
    """Read one message of a stranger, in bounded time: 10 ms at most.

    Raises as :func:`decode` does, and :class:`BadFrames` for a message beyond the bounds.
    """
    body = _body(frames)
    most = _MOST_BYTES_OF.get(frames[1], _MOST_BYTES)
    if len(body) > most:
        raise BadFramesError(f"a {frames[1][:32]!r} has at most {most} bytes, this one has {len(body)}")
    return _message(frames, unpack_bounded(body, BadFramesError, "the third frame"))


def number_of(frames: list[bytes]) -> int:
    """Return the number of a message whose body can't be read, for the answer; 0 if it can't be read."""
    if len(frames) != 3 or frames[0] != VERSION:
        return 0
    number = first_of_array(frames[2])
    return number if _is_number(number) else 0


def verdict_row(
    receipt: bytes,
    verb: str,
    detail: bytes | str | None,
    delay: float | None,
    onward: list[Any] | None = None,
    options: dict[str, Any] | None = None,
) -> list[Any]:
    """Return one verdict of a SETTLE; a reason is cut to what a job's history keeps."""
    row = [receipt, verb, detail[:MOST_REASON] if isinstance(detail, str) else detail, delay]
    if options:
        return [*row, onward, options]
    return row if onward is None else [*row, onward]


def _body(frames: list[bytes]) -> bytes:
    if not frames or frames[0] != VERSION:
        got = frames[0][:16] if frames else b""
        raise BadVersionError(f"first frame is {got!r}, expected {VERSION!r}: this door speaks SMQ/1 only")
    if len(frames) != 3:
        raise BadFramesError(f"an SMQ/1 message has 3 frames, this one has {len(frames)}")
    return frames[2]


def _message(frames: list[bytes], body: Any) -> Message:
    if not isinstance(body, list) or not body:
        raise BadFramesError("the third frame is not a msgpack array [number, ...]")
    if not _is_number(body[0]):
        raise BadFramesError("the array's first element is not a number from 0 to 2**63 - 1")
    return Message(frames[1], body[0], body[1:])


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER
