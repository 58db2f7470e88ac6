"""Recurring jobs: whatever broker comes first pushes each run, once; see ``store/schedules.py``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from random import shuffle
from typing import Final

import gevent
from gevent.event import AsyncResult

from sluicemq.protocol.errors import BadHeaders, SluiceError, TooLarge, Unavailable
from sluicemq.protocol.options import SCHEDULE_OPTIONS
from sluicemq_broker.config import ScheduleSettings
from sluicemq_broker.context import Context
from sluicemq_broker.job import MOST_RUNS, Misfire, Timetable, plan
from sluicemq_broker.queue import MakeJob, Push
from sluicemq_broker.queues.queues import Queues, check_name
from sluicemq_broker.runtime import Count
from sluicemq_broker.store import Aborted, Portions, Schedule, ScheduleStore, Unclear

log = logging.getLogger("broker.schedules")

#: Bytes of the payload of a recurring job, at most: all are read again for each run.
MOST_PAYLOAD: Final = 64 * 1024
#: Seconds that whoever runs one by hand waits for MongoDB.
_WAIT: Final = 15.0
#: Seconds: what never comes again in so long is looked at then.
_FAR: Final = 50 * 366 * 86400.0


class Schedules:
    """The recurring jobs of one database, at one of its brokers.

    Each has a name, and its runs have ids made of that and of their time, as ``report@2026-11-22T03:00:00Z``:
    so a run is known by its id, and is not pushed again where that is there, whoever pushed it.
    """

    def __init__(self, store: ScheduleStore, queues: Queues, context: Context, make: MakeJob) -> None:
        self._store = store
        self._queues = queues
        self._clock = context.clock
        self._counters = context.counters
        self._make = make
        self._portions = Portions(MOST_RUNS, context.counters.notice)

    # ------------------------------------------------------------------ each poll

    def tick(self) -> None:
        """Push what is due; one that fails is counted, logged, tried again, and keeps none from its turn."""
        names = self._store.due(self._clock.now())
        shuffle(names)  # other brokers begin with others
        for name in names:
            try:
                self._run(name)
            except Exception as error:
                if isinstance(error, Unavailable) and not isinstance(error, Unclear):
                    raise  # MongoDB is away, for all of them
                text = f"schedule {name} was not run: {type(error).__name__}: {error}"
                self._counters.notice(Count.SCHEDULES_FAILED, text)

    def _run(self, name: str) -> None:
        schedule = self._store.one(name)
        queue = self._queues.for_push(schedule.queue, by=f"schedule {name}", peer="schedules")
        if schedule.paused or not queue.takes_jobs:
            return  # it is due still when that is over
        planned = plan(
            schedule.timetable, schedule.next_at, self._clock.now(), schedule.misfire, self._portions.size
        )
        jobs = [
            self._make(queue.settings, schedule.payload, schedule.headers, run_id(name, when))
            for when in planned.runs
        ]
        now = queue.accept(jobs) if jobs else self._clock.now()
        next_at = min(planned.next_at, now + _FAR)
        try:
            pushed = self._store.push(schedule, next_at, jobs, queue.store, now)
        except Aborted as error:  # the next plan has fewer runs
            self._portions.shrink(len(jobs) // 2, error)
            return
        self._portions.grow(len(jobs))
        if pushed is not None:
            self._counters.add(Count.RECURRED, len(jobs))
            queue.stored(pushed, existing=len(jobs) - len(pushed))

    # -------------------------------------------------------------------- orders

    def all(self) -> list[Schedule]:
        """All of them, by name, without their payloads."""
        return self._store.all()

    def put(self, schedule: Schedule) -> Schedule:
        """Make one, or another one of its name; as it is now. Raises what is wrong with it."""
        ready = self._checked(schedule)
        self._store.put(ready)
        return self._store.one(schedule.name)

    def configure(self, wanted: Mapping[str, ScheduleSettings]) -> None:
        """Those of the configuration, at the start; what is in it no more is removed by hand only."""
        self._store.prepare()
        for name, each in wanted.items():
            schedule = Schedule(
                name=name,
                queue=each.queue,
                payload=each.payload.encode(),
                timetable=each.timetable,
                headers=each.options or {},
                misfire=Misfire(each.misfire),
                from_configuration=True,
            )
            self._store.put_configured(self._checked(schedule))
        for found in self._store.all():
            if found.from_configuration and found.name not in wanted:
                log.warning(
                    "schedule %s came from a configuration and is not in this one: "
                    "it goes on, until it is removed with: sluicemq schedule remove %s",
                    found.name,
                    found.name,
                )

    def remove(self, name: str) -> None:
        """Push no more of it."""
        self._store.remove(name)

    def pause(self, name: str) -> None:
        """Push nothing until it is resumed, at any broker."""
        self._store.pause(name)

    def resume(self, name: str) -> Schedule:
        """Go on with the next run after now; those in between were not missed.

        A schedule that is not paused is planned anew where its next run lies too far ahead, as after a moment
        in which MongoDB's clock was wrong; a run that is overdue stays due.
        """
        schedule, now = self._store.one(name), self._clock.now()
        timetable = schedule.timetable
        if timetable.begins_at > now:
            timetable = timetable._replace(begins_at=now)
        next_at = self._next(timetable)
        if schedule.paused or next_at < schedule.next_at:
            self._store.resume(name, next_at, timetable.begins_at)
        return self._store.one(name)

    def run_now(self, name: str) -> str:
        """Push one job of it now, whatever its times; returns the job's id."""
        schedule = self._store.one(name)
        queue = self._queues.for_push(schedule.queue, by=f"schedule {name}")
        queue.admit()
        job_id = f"{run_id(name, self._clock.now())}+now"
        job = self._make(queue.settings, schedule.payload, schedule.headers, job_id)
        told: AsyncResult[SluiceError | None] = AsyncResult()
        self._counters.add(Count.RECURRED)
        queue.push(Push([job], lambda refused, _existing: told.set(refused.get(0))))
        try:
            error = told.get(timeout=_WAIT)
        except gevent.Timeout:
            raise Unavailable("MongoDB does not answer: it may be pushed, or not, and be so later") from None
        if error:
            raise error
        return job_id

    def _checked(self, schedule: Schedule) -> Schedule:
        """With its first run; raises what would make each of them fail."""
        check_name(schedule.name)
        check_name(schedule.queue)
        if len(schedule.payload) > MOST_PAYLOAD:
            raise TooLarge(
                f"the payload has {len(schedule.payload)} bytes, a schedule's at most {MOST_PAYLOAD}"
            )
        if not_allowed := schedule.headers.keys() - SCHEDULE_OPTIONS:
            raise BadHeaders(f"jobs of a schedule have no {', '.join(sorted(map(repr, not_allowed)))}")
        try:
            schedule.timetable.check()
        except ValueError as error:
            raise BadHeaders(str(error)) from error
        now = self._clock.now()
        settings = self._queues.settings_for_push(schedule.queue)
        self._make(settings, schedule.payload, schedule.headers, run_id(schedule.name, now))
        timetable = schedule.timetable._replace(begins_at=now)
        return replace(schedule, timetable=timetable, next_at=self._next(timetable))

    def _next(self, timetable: Timetable) -> float:
        now = self._clock.now()
        return min(timetable.after(now), now + _FAR)


def run_id(name: str, when: float) -> str:
    """The id of the job of one run."""
    moment = datetime.fromtimestamp(when, UTC)
    text = moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
    return f"{name}@{text.removesuffix('+00:00')}Z"
