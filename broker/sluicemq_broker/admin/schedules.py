"""Recurring jobs: listed, added, removed, paused, resumed, run by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sluicemq.protocol import wire
from sluicemq.protocol.errors import BadFrames
from sluicemq_broker.job import Misfire, Timetable
from sluicemq_broker.queues import Schedules
from sluicemq_broker.store import Schedule


class ScheduleAdmin:
    """The recurring jobs of all brokers on this database."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    def do(self, action: str, about: dict[str, Any]) -> Any:
        """Carry out one action of the verb SCHEDULE; waits for MongoDB. Raises BadFrames."""
        do = _ACTIONS.get(action)
        if do is None:
            raise BadFrames(f"a SCHEDULE can't {action[:32]!r}, only {', '.join(_ACTIONS)}")
        return do(self._schedules, about)


def _list(schedules: Schedules, _about: dict[str, Any]) -> list[dict[str, Any]]:
    return [_row(each) for each in schedules.all()]


def _add(schedules: Schedules, about: dict[str, Any]) -> dict[str, Any]:
    if unknown := about.keys() - _FIELDS.keys():
        raise BadFrames(f"a schedule has no {min(map(str, unknown))!r}; it has {', '.join(_FIELDS)}")
    for key, value in about.items():
        if not isinstance(value, _FIELDS[key]) or isinstance(value, bool):
            raise BadFrames(f"{key} of a schedule is a {type(value).__name__}")
    if missing := {"name", "queue", "payload"} - about.keys():
        raise BadFrames(f"a schedule has a {min(missing)}")
    misfire = about.get("misfire", Misfire.ONE)
    if misfire not in list(Misfire):
        raise BadFrames(f"misfire is {misfire[:32]!r}, expected {', '.join(Misfire)}")
    schedule = Schedule(
        name=about["name"],
        queue=about["queue"],
        payload=about["payload"],
        timetable=Timetable(
            about.get("cron", ""), about.get("timezone", "UTC"), float(about.get("every", 0.0))
        ),
        headers=about.get("options", {}),
        misfire=Misfire(misfire),
    )
    return _row(schedules.put(schedule))


def _named(about: dict[str, Any]) -> str:
    name = about.get("name")
    if not isinstance(name, str):
        raise BadFrames("name is the schedule's, a string")
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


_FIELDS: Final[dict[str, Any]] = {
    "name": str,
    "queue": str,
    "payload": bytes,
    "cron": str,
    "timezone": str,
    "every": int | float,
    "misfire": str,
    "options": dict,
}
_ACTIONS: Final[dict[str, Callable[[Schedules, dict[str, Any]], Any]]] = {
    wire.LIST: _list,
    wire.ADD: _add,
    wire.REMOVE: lambda schedules, about: schedules.remove(_named(about)),
    wire.SUSPEND: lambda schedules, about: schedules.pause(_named(about)),
    wire.GO_ON: lambda schedules, about: _row(schedules.resume(_named(about))),
    wire.RUN: lambda schedules, about: schedules.run_now(_named(about)),
}
