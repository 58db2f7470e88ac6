"""Recurring jobs: listed, added, removed, paused, resumed, run by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames
from sluicemq.protocol.rules import kept, number, one_of
from sluicemq_broker.job import Misfire, Timetable
from sluicemq_broker.queues import Schedules
from sluicemq_broker.runtime import TEXT, read_options
from sluicemq_broker.store import Schedule


class ScheduleAdmin:
    """The recurring jobs of all brokers on this database."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    def queue_of(self, name: str) -> str:
        """Return the queue of a schedule; raises NotFound."""
        return self._schedules.queue_of(name)

    def do(self, action: str, about: dict[str, Any]) -> Any:
        """Carry out one action of the verb SCHEDULE; waits for MongoDB. Raises BadFrames."""
        do = _ACTIONS.get(action)
        if do is None:
            raise BadFrames(f"a SCHEDULE can't {action[:32]!r}, only {', '.join(_ACTIONS)}")
        return do(self._schedules, about)


def _list(schedules: Schedules, _about: dict[str, Any]) -> list[dict[str, Any]]:
    return [_row(each) for each in schedules.all()]


def _add(schedules: Schedules, about: dict[str, Any]) -> dict[str, Any]:
    read = read_options(about, _OPTIONS, "a schedule")
    if missing := {"name", "queue", "payload"} - read.keys():
        raise BadFrames(f"a schedule needs a {min(missing)}")
    when = Timetable(read.get("cron", ""), read.get("timezone", "UTC"), read.get("every", 0.0))
    misfire = Misfire(read.get("misfire", Misfire.ONE))
    headers = read.pop("options", {})
    of_job = {key: read[key] for key in ("name", "queue", "payload")}
    return _row(schedules.put(Schedule(**of_job, timetable=when, headers=headers, misfire=misfire)))


def _named(about: dict[str, Any]) -> str:
    name = about.get("name")
    if not isinstance(name, str):
        raise BadFrames("name of a schedule is a string")
    return name


def _row(schedule: Schedule) -> dict[str, Any]:
    table = schedule.timetable
    when = {"every": table.every} if table.every else {"cron": table.cron, "timezone": table.timezone}
    return {
        "name": schedule.name,
        "queue": schedule.queue,
        **when,
        "misfire": str(schedule.misfire),
        "next_at": schedule.next_at,
        "last_at": schedule.last_at,
        "pushed": schedule.pushed,
        "paused": schedule.paused,
        "options": dict(schedule.headers),
        "from_configuration": schedule.from_configuration,
    }


_LARGEST: Final = sys.float_info.max
_OPTIONS: Final = {
    **dict.fromkeys(("name", "queue", "cron", "timezone"), TEXT),
    "payload": kept("bin", lambda value: isinstance(value, bytes)),
    "every": number(-_LARGEST, _LARGEST, "a number of seconds"),
    "misfire": one_of(*Misfire),
    "options": kept("a map of headers", lambda value: isinstance(value, dict)),
}
_ACTIONS: Final[dict[str, Callable[[Schedules, dict[str, Any]], Any]]] = {
    wire.LIST: _list,
    wire.ADD: _add,
    wire.REMOVE: lambda schedules, about: schedules.remove(_named(about)),
    wire.SUSPEND: lambda schedules, about: schedules.pause(_named(about)),
    wire.GO_ON: lambda schedules, about: _row(schedules.resume(_named(about))),
    wire.RUN: lambda schedules, about: schedules.run_now(_named(about)),
}
