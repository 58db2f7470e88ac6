"""``client.schedules``."""

from __future__ import annotations

import builtins
from functools import partial
from typing import Any, Unpack

from sluicemq.arguments import checked
from sluicemq.headers import as_bytes, as_headers
from sluicemq.namespaces.namespace import CalledBefore
from sluicemq.namespaces.words import MisfireWord
from sluicemq.protocol import wire
from sluicemq.protocol.durations import Duration, in_seconds
from sluicemq.protocol.enums import Misfire
from sluicemq.protocol.errors import NotFoundError
from sluicemq.protocol.options import JobOptions
from sluicemq.protocol.rows import ScheduleRow


@checked()
class Schedules(CalledBefore, verb="list"):
    """Schedules: jobs that are pushed again and again."""

    __slots__ = ()

    def list(self) -> builtins.list[ScheduleRow]:
        """Return all schedules: next runs (``next_at``, Unix seconds), and how many jobs they pushed."""
        return self._calls.read(builtins.list[ScheduleRow], wire.SCHEDULE, wire.LIST, {})

    def get(self, name: str) -> ScheduleRow:
        """Return one schedule; raises :class:`~sluicemq.NotFoundError`."""
        return self._calls.read(ScheduleRow, wire.SCHEDULE, wire.LIST, {}, pick=partial(_named, name))

    def add(
        self,
        name: str,
        queue: str,
        payload: bytes,
        *,
        cron: str | None = None,
        timezone: str = "UTC",
        every: Duration | None = None,
        misfire: MisfireWord = Misfire.ONE,
        **options: Unpack[JobOptions],
    ) -> ScheduleRow:
        """Push a job again and again: at the times of a ``cron`` expression, or at intervals of ``every``.

        Each run is pushed once, by one of all brokers. A schedule with this name is replaced. ``cron`` has
        five fields, in the hours of ``timezone``. ``misfire`` says what happens to runs that no broker was
        there for: ``skip``, ``one`` (the last) or ``all``. ``options`` are those of
        :meth:`~sluicemq.Producer.push` without ``dedupe_id`` and ``not_before``. Raises
        :class:`~sluicemq.BadHeadersError` for wrong values.
        """
        if (cron is None) == (every is None):
            raise TypeError("a schedule has either cron or every")
        when: dict[str, Any] = {"cron": cron, "timezone": timezone}
        if every is not None:
            when = {"every": in_seconds(every)}
        headers, _ = as_headers(options)
        about = {"name": name, "queue": queue, "payload": as_bytes(payload), "misfire": misfire, **when}
        return self._calls.read(ScheduleRow, wire.SCHEDULE, wire.ADD, {**about, "options": headers or {}})

    def delete(self, name: str) -> None:
        """Remove a schedule; jobs that it has pushed stay. Raises :class:`~sluicemq.NotFoundError`."""
        self._calls.act(wire.SCHEDULE, wire.REMOVE, {"name": name})

    def pause(self, name: str) -> None:
        """Push no jobs of a schedule until it is resumed; raises :class:`~sluicemq.NotFoundError`."""
        return self._calls.act(wire.SCHEDULE, wire.SUSPEND, {"name": name}, repeat=True)

    def resume(self, name: str) -> ScheduleRow:
        """Resume a schedule; runs in between are skipped. Raises :class:`~sluicemq.NotFoundError`."""
        return self._calls.read(ScheduleRow, wire.SCHEDULE, wire.GO_ON, {"name": name})

    def run(self, name: str) -> str:
        """Push one job of a schedule now, also while it is paused; returns the job's id.

        Raises :class:`~sluicemq.NotFoundError`.
        """
        return self._calls.change(str, wire.SCHEDULE, wire.RUN, {"name": name})


def _named(name: str, rows: builtins.list[dict[str, Any]]) -> dict[str, Any]:
    for row in rows:
        if row["name"] == name:
            return row
    raise NotFoundError(f"there is no schedule {name!r}")
