"""Rows of jobs, of what became of them, and of orders on dead letters."""

from __future__ import annotations

from typing import Any

from sluicemq.protocol.rows.base import Row


class AttemptRow(Row, frozen=True, kw_only=True):
    """One attempt that failed, ``at`` its end: its number, why, at which worker, and where that runs.

    ``type`` and ``place``: of the exception, and the function that raised it; with its ``traceback``, of the
    last three attempts. None: the worker has not said it.
    """

    at: float | None = None
    attempt: int | None = None
    reason: str = ""
    worker: str | None = None
    began_at: float | None = None
    host: str | None = None
    pid: int | None = None
    type: str | None = None
    place: str | None = None
    traceback: str | None = None


class ProgressRow(Row, frozen=True, kw_only=True):
    """How far a job is, as its worker said last in this ``attempt``; ``total`` None: not known."""

    done: float
    total: float | None = None
    note: str | None = None
    at: float | None = None
    attempt: int | None = None


class ChildrenRow(Row, frozen=True, kw_only=True):
    """The children of a parent: how many, and how many of them have not ended."""

    total: int
    left: int
    by: Any = None
    queues: tuple[str, ...] = ()
    room: int | None = None


class JoinedRow(Row, frozen=True, kw_only=True):
    """A child that has ended, as a job notes it that joins its children."""

    id: str
    result: bytes | None = None
    error: str | None = None


class ParentRow(Row, frozen=True, kw_only=True):
    """The job that waits for a child."""

    queue: str
    id: str
    seq: int | None = None
    by: Any = None
    told: Any = None
    may_fail: Any = None


class PassedRow(Row, frozen=True, kw_only=True):
    """A queue that a job came from: when it was accepted there, and left it."""

    queue: str
    accepted_at: float | None = None
    at: float | None = None
    attempts: int | None = None
    worker: str | None = None
    hold: Any = None


class JobRow(Row, frozen=True, kw_only=True):
    """A job. What is None does not apply to it, or its answer leaves it out.

    ``payload_bytes``, ``result_bytes``: how long they are, where only a beginning or nothing of them is
    there. ``eligible_at``: when it is, or was, due. ``head``: the group whose first job it is. ``losses``,
    ``unanswered``: attempts that ended without a word of the worker. ``errors``: its last failures.
    ``unreadable``: why the document is no job. ``raw_headers``, ``size``: of a message that was none.
    ``suspect``: a worker died with it, so it runs alone. ``seq``, ``owner``, ``hold``, ``slot``, ``asked``,
    ``remember``: of brokers, for those who look into them.
    """

    id: str
    state: str
    payload: bytes | None = None
    payload_bytes: int | None = None
    result: bytes | None = None
    result_bytes: int | None = None
    priority: int | None = None
    attempts: int | None = None
    max_attempts: int | None = None
    visibility_timeout: float | None = None
    soft_time_limit: float | None = None
    hard_time_limit: float | None = None
    created_at: float | None = None
    eligible_at: float | None = None
    expires_at: float | None = None
    reserved_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    remove_at: float | None = None
    keep_done: float | None = None
    worker: str | None = None
    done_by: str | None = None
    group: str | None = None
    head: str | None = None
    tenant: str | None = None
    kind: str | None = None
    dedupe_id: str | None = None
    dedupe_until: float | None = None
    pushed_by: str | None = None
    headers: dict[str, Any] | None = None
    backoff: dict[str, Any] | None = None
    progress: ProgressRow | None = None
    errors: tuple[AttemptRow, ...] | None = None
    losses: int | None = None
    unanswered: int | None = None
    wait: dict[str, Any] | None = None
    parent: ParentRow | None = None
    children: ChildrenRow | None = None
    joined: tuple[JoinedRow, ...] | None = None
    passed: tuple[PassedRow, ...] | None = None
    forwarded_to: str | None = None
    unreadable: str | None = None
    raw_headers: bytes | None = None
    size: int | None = None
    seq: int | None = None
    suspect: Any = None
    owner: str | None = None
    hold: Any = None
    slot: dict[str, Any] | None = None
    asked: Any = None
    remember: float | None = None


class JobPage(Row, frozen=True, kw_only=True):
    """Some jobs; ``next``: ``after`` of the next page, None: this is the last one."""

    jobs: tuple[JobRow, ...]
    next: str | None


class EndRow(Row, frozen=True, kw_only=True):
    """How a job ended at this broker: ``committed``, ``forwarded``, ``cancelled`` or ``expired``.

    ``seconds``: how long its last ``worker`` had it. None: not known, or no worker had it. ``to``: the queue
    to which it was forwarded.
    """

    id: str
    end: str
    at: float
    worker: str | None = None
    attempt: int | None = None
    seconds: float | None = None
    kind: str | None = None
    to: str | None = None


class EndsRow(Row, frozen=True, kw_only=True):
    """Ends of jobs of a queue, the last first."""

    ends: tuple[EndRow, ...]


class FoundJobRow(JobRow, frozen=True, kw_only=True):
    """A job that a search has found, with the beginning of its payload; ``queue``: where it is."""

    queue: str


class FoundEndRow(EndRow, frozen=True, kw_only=True):
    """How a job ended that was looked for by its id; ``queue``: where."""

    queue: str


class FoundPage(Row, frozen=True, kw_only=True):
    """Jobs that a search has found so far, in ``queues`` queues that the caller may read.

    ``searched``: jobs looked at since its first page, of about ``total``. ``unread``: those among them that
    are too large to be looked into. ``ends``: of a search by id, how such a job has ended at this broker.
    ``next``: ``after`` of the next page, None: all is searched. A page may have no job and a next one.
    """

    jobs: tuple[FoundJobRow, ...]
    searched: int
    total: int
    queues: int
    unread: int = 0
    ends: tuple[FoundEndRow, ...] = ()
    next: str | None = None


class CountRow(Row, frozen=True, kw_only=True):
    """A count; ``exact``: it is no estimate."""

    count: int
    exact: bool


class ReasonRow(Row, frozen=True, kw_only=True):
    """A reason for which jobs died, and how many did."""

    reason: str
    count: int


class ReasonsRow(Row, frozen=True, kw_only=True):
    """The reasons for which the latest dead letters died, the most frequent first."""

    reasons: tuple[ReasonRow, ...]


class DeadErrorRow(Row, frozen=True, kw_only=True):
    """An error of dead letters: what was raised, and in which function; as looked at.

    ``count``: dead letters with it; ``exact``: all were looked at, else the latest stand for the others.
    ``reason``: of the latest, ``job`` of ``queue``. ``queues``, ``kinds``, ``workers``, ``hosts``: where it
    occurs, ten at most.
    """

    type: str
    place: str
    count: int
    exact: bool
    reason: str
    queue: str
    job: str
    first_at: float
    last_at: float
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    workers: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class ErrorsRow(Row, frozen=True, kw_only=True):
    """Errors of dead letters, the most frequent first; ``looked``: dead letters looked at, of ``dead``."""

    errors: tuple[DeadErrorRow, ...]
    looked: int
    dead: int


class RefusedRow(Row, frozen=True, array_like=True):
    """A job that an order could not change: its id, and the error's code and text."""

    id: str
    code: str
    text: str


class RedriveRow(Row, frozen=True, kw_only=True):
    """The outcome of a redrive: jobs moved, those that match and are left, and some that can't be moved."""

    moved: int
    left: int
    refused: tuple[RefusedRow, ...]


class EventRow(Row, frozen=True, kw_only=True, rename={"source": "from"}):
    """An event of a job, or of a number of ``jobs`` of a ``state``.

    ``source``, on the wire ``from``: the queue from which they came; ``to``: the one to which a job went.
    ``due_at``: when it may be delivered again. ``children``: for how many it waits.
    """

    at: float
    event: str
    queue: str
    job: str | None = None
    jobs: int | None = None
    state: str | None = None
    attempt: int | None = None
    worker: str | None = None
    reason: str | None = None
    source: str | None = None
    to: str | None = None
    due_at: float | None = None
    children: int | None = None


class EventsRow(Row, frozen=True, kw_only=True):
    """Events behind a number, ``after`` of the next read, and how many of all queues were ``missed``."""

    events: tuple[EventRow, ...]
    after: int
    missed: int
