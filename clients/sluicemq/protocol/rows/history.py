"""Rows of what was counted over time, and of incidents."""

from __future__ import annotations

from sluicemq.protocol.rows.base import Row


class PointRow(Row, frozen=True, kw_only=True):
    """Counters of the span of time that began ``at``; those that are 0 are left out."""

    at: float
    counted: dict[str, int]


class HistoryRow(Row, frozen=True, kw_only=True):
    """The history of a queue, a stream, a device or a host's brokers, by ``span``."""

    subject: str
    name: str
    span: str
    since: float
    until: float
    total: dict[str, int]
    points: tuple[PointRow, ...]


class SeriesRow(Row, frozen=True, kw_only=True):
    """Curves for a chart: a number for each ``step`` of seconds; of ``ready`` the highest.

    ``waited`` and ``worked`` are in milliseconds. ``latency``: percentiles in seconds, such as
    ``time_in_queue_p95``; None where no job came.
    """

    since: float
    step: float
    curves: dict[str, tuple[int, ...]]
    latency: dict[str, tuple[float | None, ...]]


class RecentRow(Row, frozen=True, kw_only=True):
    """Jobs that were pushed and committed in each minute of the last hour, by queue."""

    since: float
    step: float
    queues: dict[str, dict[str, tuple[int, ...]]]


class IncidentRow(Row, frozen=True, kw_only=True):
    """Something unusual, at a queue or (``queue`` empty) at brokers, from ``at`` until it was seen last.

    ``figures``: such as count, pushed, usual, ready, longest, and the latest reason.
    """

    kind: str
    queue: str
    at: float
    until: float
    brokers: tuple[str, ...]
    figures: dict[str, float | str]


class IncidentsRow(Row, frozen=True, kw_only=True):
    """The incidents of a span of time, the latest first."""

    since: float
    until: float
    incidents: tuple[IncidentRow, ...]
