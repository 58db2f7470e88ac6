"""Time limits of jobs: how long a handler may work on one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import Job


class TimeLimits(NamedTuple):
    """The time limits in force for one delivery, in seconds; None: none.

    ``soft``: its handler is interrupted. ``hard``: the attempt has failed, whatever its worker does.
    """

    soft: float | None = None
    hard: float | None = None


class QueueTimeLimits(NamedTuple):
    """The time limits of one queue, and of the kinds of its jobs."""

    of_all: TimeLimits = TimeLimits()
    soft: Mapping[str, float] = {}
    hard: Mapping[str, float] = {}

    @classmethod
    def of(cls, settings: QueueSettings) -> Self:
        """Return those that a queue's settings name."""
        of_all = TimeLimits(settings.soft_time_limit, settings.hard_time_limit)
        return cls(of_all, settings.kind_soft_time_limits or {}, settings.kind_hard_time_limits or {})

    def __bool__(self) -> bool:
        """True if there is any."""
        return any(self.of_all) or bool(self.soft or self.hard)

    def of_job(self, job: Job) -> TimeLimits:
        """Return the smallest of those of the queue, of the job's kind, and of the job itself."""
        kind = job.kind or ""
        return TimeLimits(
            _least(self.of_all.soft, self.soft.get(kind), job.soft_time_limit),
            _least(self.of_all.hard, self.hard.get(kind), job.hard_time_limit),
        )


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)
