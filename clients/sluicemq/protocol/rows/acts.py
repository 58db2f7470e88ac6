"""Rows of what is administered: schedules, operations on many jobs, principals, and the audit of it all."""

from __future__ import annotations

from typing import Any

from sluicemq.protocol.rows.base import Row
from sluicemq.protocol.rows.jobs import JobRow


class ScheduleRow(Row, frozen=True, kw_only=True):
    """A recurring job. It has a ``cron`` expression in a ``timezone``, or runs ``every`` number of seconds.

    ``skipped``: missed runs that were left out. ``options``: headers of its jobs. ``from_configuration``: it
    stands in a file. ``problem``: why this broker can't run it.
    """

    name: str
    queue: str
    misfire: str
    next_at: float
    last_at: float | None
    pushed: int
    paused: bool
    skipped: int = 0  # brokers of 0.3 do not say it
    cron: str | None = None
    timezone: str | None = None
    every: float | None = None
    options: dict[str, Any]
    from_configuration: bool
    added_by: str | None = None
    problem: str | None = None


class ScheduleDetailRow(Row, frozen=True, kw_only=True):
    """A schedule with the payload of its jobs, the times of its next runs, and the jobs of its latest runs.

    Jobs that are done and not kept are missing.
    """

    schedule: ScheduleRow
    payload: bytes
    next: tuple[float, ...]
    runs: tuple[JobRow, ...]


class SchedulesRow(Row, frozen=True, kw_only=True):
    """All schedules."""

    schedules: tuple[ScheduleRow, ...]


class ErrorRow(Row, frozen=True, kw_only=True):
    """An error: one of the broker's codes, or the HTTP status in capitals, and what is wrong."""

    code: str
    message: str


class OperationRow(Row, frozen=True, kw_only=True):
    """An operation on many jobs that takes longer than a moment.

    ``state``: ``running``, ``done``, ``cancelled``, ``failed`` (``error`` says why), or ``interrupted``: its
    broker has died, and another one may take it over. ``done``: jobs so far; ``total``: about how many there
    are, None: not known. ``looked``: dead letters that it has looked at. ``answer``: once it is done.
    """

    id: str
    kind: str
    queue: str
    state: str
    done: int
    looked: int
    total: int | None
    order: dict[str, Any] | None = None
    broker: str = ""
    started_at: float | None = None
    changed_at: float | None = None
    ended_at: float | None = None
    error: ErrorRow | None = None
    answer: Any = None


class OperationsRow(Row, frozen=True, kw_only=True):
    """The operations of the last day, of all brokers, the latest first."""

    operations: tuple[OperationRow, ...]


class BegunRow(Row, frozen=True, kw_only=True):
    """An operation that goes on: its id, jobs so far, and about how many there are."""

    task: str
    done: int
    total: int | None


class KeyRow(Row, frozen=True, kw_only=True):
    """A key of a principal; ``kind``: ``curve``, ``password`` or ``token``. ``public``: of a curve key."""

    id: str
    kind: str
    added_at: float | None
    public: str | None = None
    note: str | None = None


class PrincipalRow(Row, frozen=True, kw_only=True):
    """A principal: its keys, and the patterns of queues and streams that it may use, by action.

    ``throttled``: times that this broker did not read from it for a while, as it had sent more than its
    limits. ``token``: a new one, which nobody can read again.
    """

    name: str
    keys: tuple[KeyRow, ...]
    permissions: dict[str, tuple[str, ...]]
    tenant: str | None
    limits: dict[str, float]
    throttled: int
    changed_at: float | None
    from_configuration: bool
    token: str | None = None


class MeRow(Row, frozen=True, kw_only=True):
    """The caller: its name (empty: anonymous), and what it may do; ``session``: known by a login's cookie.

    ``actions``: changes are possible here.
    """

    name: str
    permissions: dict[str, tuple[str, ...]]
    session: bool
    actions: bool


class AuditRow(Row, frozen=True, kw_only=True):
    """An administrative act, a login or a refusal; or ``count`` that are alike, the last at ``until``.

    ``outcome``: ``done``, ``begun`` or ``refused``, with the error's ``code``. ``about``: what was given.
    """

    id: str
    at: float
    until: float
    count: int
    principal: str
    key: str
    peer: str
    door: str
    broker: str
    action: str
    name: str
    outcome: str
    code: str
    about: dict[str, Any]


class AuditPage(Row, frozen=True, kw_only=True):
    """Some records, the newest first; ``next``: ``after`` of the next page, None: this is the last one."""

    records: tuple[AuditRow, ...]
    next: str | None
