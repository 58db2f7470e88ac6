"""Recurring jobs: listed, added, removed, paused, resumed, run by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import isfinite
from typing import Any, ClassVar, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFramesError, NotFoundError
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import JobRow, ScheduleDetailRow, ScheduleRow, from_document
from sluicemq.protocol.rules import kept, number, one_of
from sluicemq_broker.job import Misfire, Timetable
from sluicemq_broker.queues import Schedules
from sluicemq_broker.runtime import TEXT, read_options
from sluicemq_broker.security import Caller, Effect, Need, Unchanged, pay_for_one
from sluicemq_broker.store import Schedule
from sluicemq_devices.hub import in_pieces

#: Runs of a schedule that are shown, before and behind now.
_RUNS: Final = 5


class ScheduleAdmin:
    """The recurring jobs of all brokers on this database."""

    actions: ClassVar[frozenset[str]]
    """Names of what :meth:`do` can."""
    effects: ClassVar[tuple[Effect, ...]] = (
        Effect(Action.PUSH, "the queue of a schedule that is added"),
        Effect(Action.CREATE, "that queue, if it is not there"),
    )
    """Permissions that they may need besides."""

    def __init__(self, schedules: Schedules) -> None:
        self.schedules = schedules

    def needs(self, action: str, about: dict[str, Any]) -> list[Need]:
        """Return the permissions that an action needs, on the queues of its schedule; waits for MongoDB.

        A schedule may be replaced by one of another queue: both are asked. Raises NotFound.
        """
        if action == wire.LIST or action not in _ACTIONS:
            return []
        needs: list[Need] = []
        try:
            needs.append((Action.MANAGE, self.queue_of(_named(about))))
        except NotFoundError:
            if action != wire.ADD:
                raise
        queue = about.get("queue")
        if action == wire.ADD and isinstance(queue, str):
            needs += [(Action.MANAGE, queue), (Action.PUSH, queue)]
            if not self.schedules.is_made(queue):
                needs.append((Action.CREATE, queue))
        return needs

    def queue_of(self, name: str) -> str:
        """Return the queue of a schedule; raises NotFound."""
        return self.schedules.store.queue_of(name)

    def show(self, name: str) -> ScheduleDetailRow:
        """Return a schedule with its next five runs and the jobs of its latest ones; waits for MongoDB."""
        schedule = self.schedules.store.one(name)
        table, runs = schedule.timetable, [schedule.next_at]
        while not table.problem and len(runs) < _RUNS and isfinite(following := table.after(runs[-1])):
            runs.append(following)
        return ScheduleDetailRow(
            schedule=_row(schedule),
            payload=schedule.payload,
            next=() if table.problem else tuple(runs),
            runs=tuple(from_document(JobRow, run) for run in self.schedules.runs(schedule, _RUNS)),
        )

    def do(self, action: str, about: dict[str, Any], caller: Caller) -> Any:
        """Carry out one action of the verb SCHEDULE; waits for MongoDB. Raises BadFrames.

        What is added is the caller's.
        """
        do = _ACTIONS.get(action)
        if do is None:
            raise BadFramesError(f"a SCHEDULE can't {action[:32]!r}, only {', '.join(_ACTIONS)}")
        return do(self, about, caller)


def _list(admin: ScheduleAdmin, _about: dict[str, Any], _caller: Caller) -> list[ScheduleRow]:
    return [_row(schedule) for schedule in in_pieces(admin.schedules.store.all())]


def _add(admin: ScheduleAdmin, about: dict[str, Any], caller: Caller) -> ScheduleRow | Unchanged:
    read = read_options(about, _OPTIONS, "a schedule")
    if missing := {"name", "queue", "payload"} - read.keys():
        raise BadFramesError(f"a schedule needs a {min(missing)}")
    when = Timetable(read.get("cron", ""), read.get("timezone", "UTC"), read.get("every", 0.0))
    misfire = Misfire(read.get("misfire", Misfire.ONE))
    headers = read.pop("options", {})
    of_job = {key: read[key] for key in ("name", "queue", "payload")}
    schedule = Schedule(**of_job, timetable=when, headers=headers, misfire=misfire)
    return _changed(admin, schedule.name, admin.schedules.put(schedule, caller))


def _pause(admin: ScheduleAdmin, about: dict[str, Any], _caller: Caller) -> Unchanged | None:
    return None if admin.schedules.store.pause(_named(about)) else Unchanged()


def _resume(admin: ScheduleAdmin, about: dict[str, Any], _caller: Caller) -> ScheduleRow | Unchanged:
    name = _named(about)
    return _changed(admin, name, admin.schedules.resume(name))


def _changed(admin: ScheduleAdmin, name: str, changed: bool) -> ScheduleRow | Unchanged:  # noqa: FBT001
    row = _row(admin.schedules.store.one(name))
    return row if changed else Unchanged(row)


def _run(admin: ScheduleAdmin, about: dict[str, Any], caller: Caller) -> str:
    pay_for_one(caller.principal)
    return admin.schedules.run_now(_named(about))


def _named(about: dict[str, Any]) -> str:
    name = about.get("name")
    if not isinstance(name, str):
        raise BadFramesError("name of a schedule is a string")
    return name


def _row(schedule: Schedule) -> ScheduleRow:
    table = schedule.timetable
    return ScheduleRow(
        name=schedule.name,
        queue=schedule.queue,
        every=table.every or None,
        cron=None if table.every else table.cron,
        timezone=None if table.every else table.timezone,
        misfire=str(schedule.misfire),
        next_at=schedule.next_at,
        last_at=schedule.last_at,
        pushed=schedule.pushed,
        skipped=schedule.skipped,
        paused=schedule.paused,
        options=dict(schedule.headers),
        from_configuration=schedule.from_configuration,
        added_by=schedule.added_by or None,
        problem=table.problem or None,
    )


_OPTIONS: Final = {
    **dict.fromkeys(("name", "queue", "cron", "timezone"), TEXT),
    "payload": kept("bin", lambda value: isinstance(value, bytes)),
    "every": number(-sys.float_info.max, sys.float_info.max, "a number of seconds"),
    "misfire": one_of(*Misfire),
    "options": kept("a map of headers", lambda value: isinstance(value, dict)),
}
_ACTIONS: Final[dict[str, Callable[[ScheduleAdmin, dict[str, Any], Caller], Any]]] = {
    wire.LIST: _list,
    wire.ADD: _add,
    wire.REMOVE: lambda admin, about, _caller: admin.schedules.store.remove(_named(about)),
    wire.SUSPEND: _pause,
    wire.GO_ON: _resume,
    wire.RUN: _run,
}
ScheduleAdmin.actions = frozenset(_ACTIONS)
