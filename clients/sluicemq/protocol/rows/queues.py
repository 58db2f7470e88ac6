"""Rows of queues, of their settings, and of the workers on them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from sluicemq.protocol.rows.base import Row


class RatesRow(Row, frozen=True, kw_only=True):
    """Jobs a second in the last minute: at this broker, and in pages of queues at all brokers."""

    pushed: float
    delivered: float
    committed: float


class QueueRow(Row, frozen=True, kw_only=True):
    """A queue and its counts by state; ``exact``: none of them is an estimate.

    ``estimates``: states whose counts are estimates. ``counted_ago``: seconds since it was counted; None: not
    yet. ``oldest_ready_age``: seconds. ``paused``: of ``delivery`` and ``intake``. ``permits``: of
    ``max_running``, that this broker has. ``held_back``: tenants at their limit, whose jobs wait. ``full``: 1
    while it takes no jobs, because of ``max_ready`` or ``max_bytes``. ``error``: why it can't be counted.
    """

    name: str
    ready: int
    scheduled: int
    waiting: int
    reserved: int
    done: int
    dead: int
    exact: bool
    estimates: tuple[str, ...]
    counted_ago: float | None
    oldest_ready_age: float | None
    workers: int
    in_flight: int
    rates: RatesRow
    paused: tuple[str, ...]
    permits: int
    held_back: int
    full: int
    error: str | None = None


class QueuePage(Row, frozen=True, kw_only=True):
    """Queues; of a page ``matching`` says how many there are in all."""

    queues: tuple[QueueRow, ...]
    matching: int | None = None


class TotalsRow(Row, frozen=True, kw_only=True):
    """Sums over all queues, as in :class:`QueueRow`; ``queues``: how many; ``paused``: how many of them."""

    ready: int
    scheduled: int
    waiting: int
    reserved: int
    done: int
    dead: int
    workers: int
    in_flight: int
    queues: int
    paused: int
    rates: RatesRow
    oldest_ready_age: float | None
    exact: bool


class SettingRow(Row, frozen=True, kw_only=True):
    """One setting of a queue. ``source``: ``default``, ``file``, ``mongodb``, or ``mongodb *``.

    ``file``: what this broker's file says, where that is another value.
    """

    key: str
    value: Any
    source: str
    file: Any = UNSET


class DifferenceRow(Row, frozen=True, kw_only=True):
    """A setting that brokers' files say differently; ``values``: by broker."""

    queue: str
    key: str
    values: dict[str, Any]


class SettingsRow(Row, frozen=True, kw_only=True):
    """The settings of a queue, and what brokers' files say differently."""

    settings: tuple[SettingRow, ...]
    differs: tuple[DifferenceRow, ...]


class WaitingRow(Row, frozen=True, kw_only=True):
    """Jobs that wait and have one kind, tenant or group; ``name``: empty for those without.

    ``oldest``: since when the first of them waits. ``held_back``: of a tenant at its limit.
    """

    name: str
    jobs: int
    oldest: float | None
    held_back: bool = False


class BacklogRow(Row, frozen=True, kw_only=True):
    """Jobs of a queue that wait: ready ones by kind and tenant, others by group.

    ``looked``: at how many of them the broker has looked; ``more``: there are more than that.
    """

    kinds: tuple[WaitingRow, ...]
    tenants: tuple[WaitingRow, ...]
    groups: tuple[WaitingRow, ...]
    looked: int
    more: bool


class KindRatesRow(Row, frozen=True, kw_only=True):
    """Jobs of a kind a second at this broker in the last minute; ``rolled_back``: those that failed."""

    pushed: float
    committed: float
    rolled_back: float


class KindRow(Row, frozen=True, kw_only=True):
    """A kind of jobs of a queue, as this broker has counted it since its start; kind ``*``: all further ones.

    ``committed``: done, forwarded too. ``rolled_back``: attempts that failed; ``rejected``: those whose job
    is dead at once. Seconds: ``waited`` and ``worked`` on average, before a worker and there; ``p50``,
    ``p95`` and ``p99`` of ``worked``, about. None: nothing was counted.
    """

    queue: str
    kind: str
    pushed: int
    committed: int
    rolled_back: int
    rejected: int
    dead: int
    waited: float | None
    worked: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    rates: KindRatesRow
    broker: str = ""


class KindsRow(Row, frozen=True, kw_only=True):
    """The kinds at this broker, 2,000 at most."""

    kinds: tuple[KindRow, ...]


class WorkerJobRow(Row, frozen=True, kw_only=True):
    """A job that a worker has; ``seconds``: how long it has it; ``overdue``: its time is up."""

    id: str
    attempt: int
    seconds: float
    kind: str | None = None
    overdue: bool = False


class WorkerRow(Row, frozen=True, kw_only=True):
    """A worker. ``name``: its own, or its kind, with host and pid; of a plain socket its address.

    ``door``: ``library``, ``REP`` or ``PULL``. ``connected``: seconds. ``overdue``: jobs whose time is up.
    ``jobs``: the first 20 that it has, overdue ones first. ``stuck``: jobs of a former connection that its
    handlers have not ended, so that they take no others. ``quiet``: it gets no more jobs, as an operator
    wants it. ``broker``: the name of its broker.
    """

    queue: str
    name: str
    door: str
    connected: float
    prefetch: int
    in_flight: int
    overdue: int
    jobs: tuple[WorkerJobRow, ...]
    broker: str = ""
    stuck: tuple[WorkerJobRow, ...] = ()
    quiet: bool = False


class GoneWorkerRow(Row, frozen=True, kw_only=True):
    """A worker that has left its broker ``at`` this time, and how long it was connected.

    ``jobs``: how many it had when it was seen last.
    """

    queue: str
    name: str
    door: str
    at: float
    connected: float
    jobs: int = 0
    broker: str = ""


class WorkersRow(Row, frozen=True, kw_only=True):
    """The workers at this broker, 1,000 at most; ``elsewhere``: at other brokers, 300 of each at most.

    ``gone``: those that have left any of them in the last hour, the latest first.
    """

    workers: tuple[WorkerRow, ...]
    elsewhere: tuple[WorkerRow, ...] = ()
    gone: tuple[GoneWorkerRow, ...] = ()
