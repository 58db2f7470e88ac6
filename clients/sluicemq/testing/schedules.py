"""Schedules of a broker in memory: the broker's own, over a store that is a dict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sluicemq.protocol.errors import NotFoundError
from sluicemq_broker.admin import ScheduleAdmin
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push
from sluicemq_broker.queues import Schedules
from sluicemq_broker.runtime import Counters
from sluicemq_broker.store import Schedule

if TYPE_CHECKING:
    from sluicemq.testing.queue import MemoryQueue
    from sluicemq.testing.queues import MemoryQueues


class ScheduleTable:
    """The schedules by name; its methods are those of the broker's ``ScheduleStore``."""

    def __init__(self) -> None:
        self._rows: dict[str, Schedule] = {}

    @property
    def times(self) -> list[float]:
        """Return when their next runs are due."""
        return [row.next_at for row in self._rows.values() if not row.paused]

    def all(self) -> list[Schedule]:
        """Return all, by name."""
        return [self._rows[name] for name in sorted(self._rows)]

    def one(self, name: str) -> Schedule:
        """Return a schedule; raises NotFoundError."""
        if name not in self._rows:
            raise NotFoundError(f"there is no schedule {name!r}")
        return self._rows[name]

    def queue_of(self, name: str) -> str:
        """Return the queue of a schedule; raises NotFoundError."""
        return self.one(name).queue

    def put(self, schedule: Schedule) -> bool:
        """Store or replace one; False: it is there, just so. One that has equal times keeps its next run."""
        stored = self._rows.get(schedule.name)
        if stored is None:
            self._rows[schedule.name] = schedule
            return True
        if stored.described == schedule.described:
            return False
        kept = ["paused", "last_at", "pushed", "skipped"]
        kept += ["timetable", "next_at"] if stored.times == schedule.times else []
        self._rows[schedule.name] = replace(schedule, **{key: getattr(stored, key) for key in kept})
        return True

    def remove(self, name: str) -> None:
        """Remove one; raises NotFoundError."""
        del self._rows[self.one(name).name]

    def pause(self, name: str) -> bool:
        """Pause one; False: it was paused."""
        before = self.one(name)
        self._rows[name] = replace(before, paused=True)
        return not before.paused

    def resume(self, name: str, next_at: float, begins_at: float) -> None:
        """Go on with the run at ``next_at``."""
        before = self.one(name)
        table = before.timetable._replace(begins_at=begins_at)
        self._rows[name] = replace(before, paused=False, next_at=next_at, timetable=table)

    def due(self, now: float) -> list[str]:
        """Return the names of those with a run that is due."""
        return [row.name for row in self.all() if not row.paused and row.next_at <= now]

    def push(
        self, schedule: Schedule, next_at: float, jobs: Sequence[Job], to: _Runs, now: float, skipped: int
    ) -> list[Job]:
        """Push the jobs of runs, and move on to the next run; return the jobs that are new."""
        last_at = now if jobs else schedule.last_at
        self._rows[schedule.name] = replace(
            schedule, next_at=next_at, last_at=last_at,
            pushed=schedule.pushed + len(jobs), skipped=schedule.skipped + skipped,
        )  # fmt: skip
        return to.push_new(jobs)


class _Runs:
    """A queue as schedules see it: its settings, whether it takes jobs, and the way into it."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue
        self.settings = queue.settings
        self.store = self.capacity = self.intake = self

    @property
    def admits(self) -> bool:
        """Return whether it takes jobs."""
        return self._queue.admits

    def admit(self) -> None:
        """Raise if it takes no jobs."""
        self._queue.admit()

    def accept(self, _jobs: Sequence[Job]) -> float:
        """Return the time: the jobs are accepted when they are pushed."""
        return self._queue.now

    def stored(self, jobs: Sequence[Job], *, existing: int) -> None:
        """Do nothing: they are in the queue."""

    def push_new(self, jobs: Sequence[Job]) -> list[Job]:
        """Push jobs, and return those that are new."""
        _, existing = self._queue.push(jobs)
        return [job for at, job in enumerate(jobs) if at not in existing]

    def push(self, push: Push) -> None:
        """Push jobs, and report the outcome."""
        push.on_stored(*self._queue.push(push.jobs))


def made(queues: MemoryQueues, table: ScheduleTable) -> ScheduleAdmin:
    """Return the broker's schedules over a table and these queues."""
    finds: Any = SimpleNamespace(
        for_push=lambda name, **_by: _Runs(queues.for_push(name)),
        settings_for_push=queues.settings_of,
        is_missing=lambda name: name not in queues.known,
    )
    context: Any = SimpleNamespace(clock=queues.clock, counters=Counters())
    store: Any = table
    return ScheduleAdmin(Schedules(store, finds, context, queues.maker.make))
