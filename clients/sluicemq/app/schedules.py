"""Schedules that a program declares: at the broker, as they are in the code."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sluicemq.app.step import Plan, headers_of
from sluicemq.client import Client
from sluicemq.complaints import log
from sluicemq.namespaces.words import MisfireWord
from sluicemq.protocol.durations import Duration
from sluicemq.protocol.errors import NotFoundError, SluiceError, TimeoutError, UnavailableError
from sluicemq.protocol.rows import ScheduleRow

#: Header of the jobs of a schedule that an app declares: the app's name.
APP: Final = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A schedule in the code."""

    name: str
    plan: Plan
    cron: str | None
    every: Duration | None
    timezone: str
    misfire: MisfireWord


def declare(client: Client, app: str, declared: Iterable[Declared]) -> None:
    """Make the schedules at the broker as they are declared; those of the app that are not, are removed.

    One that is there just so keeps its next run and its pause. Schedules that the app has not made stay as
    they are. Raises :class:`~sluicemq.TimeoutError` and :class:`~sluicemq.UnavailableError`; other errors of
    one schedule are logged.
    """
    there = {row.name: row for row in client.schedules.list()}
    wanted = {schedule.name: schedule for schedule in declared}
    for name, schedule in wanted.items():
        if name in there and _made_by(there[name]) != app:
            log.error("schedule %s is there, and app %s has not made it: it stays as it is", name, app)
            continue
        try:
            _add(client, app, schedule)
        except (TimeoutError, UnavailableError):
            raise
        except SluiceError as error:
            log.error("schedule %s of app %s can't be made: %s", name, app, error)
    for name, row in there.items():
        if name not in wanted and _made_by(row) == app:
            log.info("schedule %s is no more in app %s: removed", name, app)
            with suppress(NotFoundError):
                client.schedules.delete(name)


def _add(client: Client, app: str, schedule: Declared) -> None:
    options: dict[str, Any] = {**schedule.plan.options, "headers": {**headers_of(schedule.plan), APP: app}}
    client.schedules.add(
        schedule.name, schedule.plan.queue, bytes(schedule.plan.arguments),
        cron=schedule.cron, every=schedule.every, timezone=schedule.timezone, misfire=schedule.misfire,
        **options,
    )  # fmt: skip


def _made_by(row: ScheduleRow) -> object:
    headers = row.options.get("headers")
    return headers.get(APP) if isinstance(headers, dict) else None
