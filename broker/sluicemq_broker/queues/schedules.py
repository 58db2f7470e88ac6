"""Recurring jobs: the first broker that sees a run due pushes it, once; see ``store/jobs/schedules.py``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from random import shuffle
from typing import Any, Final

from sluicemq.protocol.errors import BadHeadersError, NotFoundError, TooLargeError
from sluicemq.protocol.options import SCHEDULE_OPTIONS
from sluicemq_broker.config import ScheduleSettings
from sluicemq_broker.context import Context
from sluicemq_broker.job import MOST_RUNS, Misfire, Timetable, plan
from sluicemq_broker.queue import MakeJob, Queue
from sluicemq_broker.queues.attempts import attempt
from sluicemq_broker.queues.one_push import push_one
from sluicemq_broker.queues.queues import Queues, check_name
from sluicemq_broker.runtime import Count
from sluicemq_broker.security import ANYBODY, Caller, named
from sluicemq_broker.store import Aborted, Listing, Portions, Schedule, ScheduleStore, SetAside

log = logging.getLogger("broker.schedules")

#: Bytes of the payload of a recurring job, at most: it is read for each run.
MOST_PAYLOAD: Final = 64 * 1024
#: Seconds until a schedule without a next run is looked at again.
_FAR: Final = 50 * 366 * 86400.0


class Schedules:
    """The recurring jobs of one database, at one of its brokers.

    The id of a run is the schedule's name and the run's time, as ``report@2026-11-22T03:00:00Z``. So no
    broker pushes a run twice.
    """

    def __init__(
        self,
        store: ScheduleStore,
        queues: Queues,
        context: Context,
        make: MakeJob,
        caller: Callable[[str], Caller] = named,
    ) -> None:
        """``caller``: returns the caller for a principal, by its name, with the permissions that it has."""
        self.store = store
        self._caller = caller
        self._queues = queues
        self._clock = context.clock
        self._counters = context.counters
        self._make = make
        self._portions = Portions(MOST_RUNS, context.counters.notice)
        self._told: dict[str, str] = {}  # by schedule: why it was not run, which is logged once

    # ------------------------------------------------------------------ each poll

    def tick(self) -> None:
        """Push all runs that are due; a schedule that fails is tried again at the next poll."""
        names = self.store.due(self._clock.now())
        shuffle(names)  # so that brokers begin with different ones
        for name in names:
            if attempt(partial(self._run, name), partial(self._failed, name)):
                self._told.pop(name, None)

    def _failed(self, name: str, error: Exception) -> None:
        if isinstance(error, SetAside):
            return  # it was counted and logged
        text = f"schedule {name} was not run: {type(error).__name__}: {error}"
        if self._told.get(name) == text:
            self._counters.add(Count.SCHEDULES_FAILED)
            return
        self._told[name] = text
        self._counters.notice(Count.SCHEDULES_FAILED, text)

    def _run(self, name: str) -> None:
        schedule = self.store.one(name)
        queue = self._queue_of(schedule)
        if schedule.paused or not queue.capacity.admits:
            return  # it stays due
        planned = plan(
            _usable(schedule), schedule.next_at, self._clock.now(), schedule.misfire, self._portions.size
        )
        by = named(schedule.added_by)
        jobs = [
            self._make(by, queue.settings, schedule.payload, schedule.headers, run_id(name, when))
            for when in planned.runs
        ]
        now = queue.intake.accept(jobs) if jobs else self._clock.now()
        next_at = min(planned.next_at, now + _FAR)
        try:
            pushed = self.store.push(schedule, next_at, jobs, queue.store, now, planned.skipped)
        except Aborted as error:  # the next plan has fewer runs
            self._portions.shrink(len(jobs) // 2, error)
            return
        self._portions.grow(len(jobs))
        if pushed is not None:
            self._counters.add(Count.RECURRED, len(jobs))
            self._counters.add(Count.RUNS_SKIPPED, planned.skipped)
            queue.intake.stored(pushed, existing=len(jobs) - len(pushed))

    # ------------------------------------------------------------ administration

    def is_made(self, queue: str) -> bool:
        """Return True if the queue exists, at any broker; the first run makes another one."""
        return not self._queues.is_missing(queue)

    def put(self, schedule: Schedule, caller: Caller) -> bool:
        """Make or replace a caller's schedule; False: it is there, just so. Raises what is wrong with it.

        Its jobs have the caller's name and tenant.
        """
        own = {"tenant": caller.tenant} if caller.tenant is not None else {}
        schedule = replace(schedule, headers={**schedule.headers, **own}, added_by=caller.name)
        return self.store.put(self._checked(schedule))

    def runs(self, schedule: Schedule, most: int) -> list[dict[str, Any]]:
        """Return the jobs of its latest runs that are there: done ones only while they are kept."""
        try:
            queue = self._queues.get(schedule.queue)
        except NotFoundError:
            return []
        queue.store.prepare()
        listing = Listing(self._queues.database_of(queue))
        return listing.with_ids(queue.name, f"{schedule.name}@", most, self._clock.now(), last=True).jobs

    def configure(self, wanted: Mapping[str, ScheduleSettings]) -> None:
        """Store the schedules of the configuration; those no longer in it are removed by hand only."""
        self.store.prepare()
        for name, setting in wanted.items():
            schedule = Schedule(
                name=name,
                queue=setting.queue,
                payload=setting.payload.encode(),
                timetable=setting.timetable,
                headers=setting.options or {},
                misfire=Misfire(setting.misfire),
                from_configuration=True,
            )
            self.store.put(self._checked(schedule))
        for found in self.store.all():
            if found.from_configuration and found.name not in wanted:
                log.warning(
                    "schedule %s came from a configuration and is not in this one: "
                    "it goes on, until it is removed with: sluicemq schedules delete %s",
                    found.name,
                    found.name,
                )

    def resume(self, name: str) -> bool:
        """Go on with the next run after now; runs of the paused time do not count as missed.

        False: it was not paused, and stays as it is.

        A schedule that is not paused is planned again if its next run is too far ahead, as after MongoDB's
        clock was wrong; an overdue run stays due.
        """
        schedule, now = self.store.one(name), self._clock.now()
        timetable = _usable(schedule)
        if timetable.begins_at > now:
            timetable = timetable._replace(begins_at=now)
        next_at = self._next(timetable)
        if not schedule.paused and next_at >= schedule.next_at:
            return False
        self.store.resume(name, next_at, timetable.begins_at)
        return True

    def run_now(self, name: str) -> str:
        """Push one job of a schedule now; returns the job's id."""
        schedule = self.store.one(name)
        queue = self._queue_of(schedule)
        queue.capacity.admit()
        job_id = f"{run_id(name, self._clock.now())}+now"
        by = named(schedule.added_by)
        job = self._make(by, queue.settings, schedule.payload, schedule.headers, job_id)
        self._counters.add(Count.RECURRED)
        push_one(queue, job)
        return job_id

    def _queue_of(self, schedule: Schedule) -> Queue:
        """Return the queue of a run; who added the schedule makes it, with the permissions of today.

        Schedules of clients without a name, and of the configuration, may make it.
        """
        by = schedule.added_by
        caller = self._caller(by) if by else ANYBODY
        peer = by or "schedules"
        return self._queues.for_push(schedule.queue, by=f"schedule {schedule.name}", peer=peer, caller=caller)

    def _checked(self, schedule: Schedule) -> Schedule:
        """Return the schedule with its first run; raises what would make each run fail."""
        check_name(schedule.name)
        check_name(schedule.queue)
        if len(schedule.payload) > MOST_PAYLOAD:
            raise TooLargeError(
                f"the payload has {len(schedule.payload)} bytes, a schedule's at most {MOST_PAYLOAD}"
            )
        if not_allowed := schedule.headers.keys() - SCHEDULE_OPTIONS:
            raise BadHeadersError(f"jobs of a schedule have no {', '.join(sorted(map(repr, not_allowed)))}")
        try:
            schedule.timetable.check()
        except ValueError as error:
            raise BadHeadersError(str(error)) from error
        now = self._clock.now()
        settings = self._queues.settings_for_push(schedule.queue)
        self._make(ANYBODY, settings, schedule.payload, schedule.headers, run_id(schedule.name, now))
        timetable = schedule.timetable._replace(begins_at=now)
        return replace(schedule, timetable=timetable, next_at=self._next(timetable))

    def _next(self, timetable: Timetable) -> float:
        now = self._clock.now()
        return min(timetable.after(now), now + _FAR)


def _usable(schedule: Schedule) -> Timetable:
    """Return the times of a schedule; raises BadHeaders if this host does not know them."""
    if problem := schedule.timetable.problem:
        raise BadHeadersError(f"schedule {schedule.name!r} can't run at this broker: {problem}")
    return schedule.timetable


def run_id(name: str, when: float) -> str:
    """Return the id of the job of one run."""
    moment = datetime.fromtimestamp(when, UTC)
    text = moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
    return f"{name}@{text.removesuffix('+00:00')}Z"
