"""Words that requests and answers choose from; each is the text that goes over the wire."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """States in which jobs are counted and shown; ``scheduled`` is a ready job that is not due yet."""

    READY = "ready"
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    RESERVED = "reserved"
    DONE = "done"
    DEAD = "dead"


class Flow(StrEnum):
    """Ways of jobs that can be paused: out of a queue to workers, and into it."""

    DELIVERY = "delivery"
    INTAKE = "intake"


class Misfire(StrEnum):
    """Treatment of runs of a schedule that were missed: none, the last one, or all are made up for."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class Span(StrEnum):
    """Spans of time by which history is counted."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class OperationState(StrEnum):
    """States of an operation on many jobs.

    ::

        RUNNING ── carried out ────────────────▶ DONE
           ├────── cancelled by an operator ───▶ CANCELLED
           ├────── MongoDB refuses it ─────────▶ FAILED
           └────── its broker has died, and it
                   can't be taken up ──────────▶ INTERRUPTED
    """

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
