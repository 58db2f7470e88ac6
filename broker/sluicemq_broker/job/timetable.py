"""Times at which a schedule runs: pure functions of Unix seconds, without a clock.

A cron expression has five fields (minute, hour, day of the month, month, day of the week), or is one of
:data:`NAMED`, and has a time zone. Where the clocks change it follows Debian's cron: a run at a set time runs
once that day. If its hour is left out, it runs when the clock has passed it; if its hour comes twice, the
first time. With ``*`` for minutes or hours, runs follow each other in real time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from itertools import islice, takewhile
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from sluicemq.protocol.durations import TEN_YEARS

#: Seconds after which a run counts as missed; of several runs that are due, all but the last are missed.
LATE: Final = 60.0
#: Runs of one plan, at most: the next plan goes on from there.
MOST_RUNS: Final = 100
#: Runs of a cron expression that are counted as skipped in one plan, at most: 13 ms for daily ones.
MOST_SKIPPED: Final = 500
#: Seconds between two runs, at least.
LEAST_EVERY: Final = 1.0

#: Names for expressions, in the hours of the schedule's time zone.
NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
#: The fields of an expression, and the least and the most of each.
_FIELDS: Final = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day of the month": (1, 31),
    "month": (1, 12),
    "day of the week": (0, 7),
}
_LONGEST: Final = 200  # characters of an expression


class Misfire(StrEnum):
    """Treatment of missed runs: no broker was there, or the intake of their queue was paused."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class Timetable(NamedTuple):
    """A cron expression in a time zone, or every ``every`` seconds from ``begins_at`` on."""

    cron: str = ""
    timezone: str = "UTC"
    every: float = 0.0
    begins_at: float = 0.0

    def check(self) -> None:
        """Check the values. Raises ValueError with words for the person who wrote them."""
        if bool(self.cron) == bool(self.every):
            raise ValueError("a schedule has either cron or every, and every is not 0")
        if self.every:
            within = LEAST_EVERY <= self.every <= TEN_YEARS
            if not within or abs(self.every * 1000 - round(self.every * 1000)) >= _GRAIN:
                raise ValueError(
                    f"every is {self.every:g}, expected seconds, {LEAST_EVERY:g} to ten years, "
                    "whole milliseconds"
                )
            return
        _check_zone(self.timezone)
        _check_fields(self.cron, self._spelt)
        try:
            next(CronSim(self._spelt, datetime(2024, 1, 1, tzinfo=ZoneInfo(self.timezone))))
        except CronSimError as error:
            raise ValueError(f"cron is {self.cron!r}: {error}") from error
        except StopIteration:
            raise ValueError(f"cron is {self.cron!r}: that day never comes") from None

    @property
    def problem(self) -> str:
        """Return why this host does not know its runs: others may know more time zones. Empty: it does."""
        return _problem(self._replace(begins_at=0.0))

    @property
    def _spelt(self) -> str:
        """The expression, with a name replaced by its five fields."""
        return NAMED.get(self.cron.strip(), self.cron)

    def after(self, when: float) -> float:
        """Return the first run after ``when``; infinity if there is none within fifty years."""
        return next(self._runs(when), math.inf)

    def until(self, first: float, last: float, most: int) -> list[float]:
        """Return the runs from ``first``, which is one, to ``last`` inclusive: ``most`` of them at most."""
        runs = [first] if first <= last else []
        for run in islice(self._runs(first), most):
            if run > last or len(runs) == most:
                break
            runs.append(run)
        return runs

    def how_many(self, first: float, last: float) -> int:
        """Return how many runs there are from ``first``, which is one, to ``last``.

        Of a cron expression at most :data:`MOST_SKIPPED` are counted.
        """
        if self.every:
            return self._number(last) - self._number(first) + 1
        return 1 + sum(1 for _ in takewhile(lambda run: run <= last, islice(self._runs(first), MOST_SKIPPED)))

    def last_until(self, first: float, last: float) -> float:
        """Return the last run up to ``last``; ``first`` is an earlier run, with any number between them."""
        if self.every:
            return self._run(self._number(last))
        back, run = LATE, first
        while last - back > first:
            if (found := self.after(last - back)) <= last:
                run = found
                break
            back *= 2
        return self._last_from(run, last)

    def _last_from(self, run: float, last: float) -> float:
        """Return the last run up to ``last`` by bisection: there may be thousands after ``run``."""
        end = last
        while (later := self.after(run)) <= last:
            middle = (run + end) / 2
            if (found := self.after(middle)) <= last:
                run = found
            else:
                run, end = later, middle
        return run

    def _number(self, when: float) -> int:
        """Return the number of the last run up to ``when``, counted from the beginning."""
        return math.floor((when + _GRAIN - self.begins_at) / self.every)

    def _run(self, number: int) -> float:
        """Return when a run is due, in whole milliseconds, as MongoDB keeps times."""
        return round(self.begins_at + number * self.every, 3)

    def _runs(self, when: float) -> Iterator[float]:
        if self.every:
            number = self._number(when)
            while True:
                number += 1
                yield self._run(max(0, number))
        latest = when
        for moment in CronSim(self._spelt, datetime.fromtimestamp(when, ZoneInfo(self.timezone))):
            run = moment.timestamp()
            if run > latest:  # in an hour that comes twice, cronsim may yield a run that is past
                latest = run
                yield run


#: Seconds: times are kept in whole milliseconds.
_GRAIN: Final = 0.0005


class Plan(NamedTuple):
    """Runs to push now, one job for each time; when to look again; missed runs that are left out."""

    runs: list[float]
    next_at: float
    skipped: int = 0


def plan(timetable: Timetable, due: float, now: float, misfire: Misfire, most: int = MOST_RUNS) -> Plan:
    """Plan a schedule whose next run is ``due``.

    A run is missed if a later one is due, too, or if it is :data:`LATE`. Missed runs are left out (``skip``),
    replaced by the last of them (``one``), or all made up for (``all``), ``most`` in a plan.
    """
    if due > now:
        return Plan([], due)
    if misfire is Misfire.ALL:
        runs = timetable.until(due, now, most)
        return Plan(runs, timetable.after(runs[-1]))
    last = timetable.last_until(due, now)
    runs = [] if misfire is Misfire.SKIP and now - last > LATE else [last]
    return Plan(runs, timetable.after(last), timetable.how_many(due, last) - len(runs))


@lru_cache(maxsize=2048)
def _problem(timetable: Timetable) -> str:
    try:
        timetable.check()
    except ValueError as error:
        return str(error)
    return ""


def _check_fields(written: str, cron: str) -> None:
    """Check an expression. Raises ValueError for a wrong form, or a step that its field never makes."""
    fields = cron.split()
    if len(cron) > _LONGEST or len(fields) != len(_FIELDS):
        raise ValueError(
            f"cron is {written[:_LONGEST]!r}, expected {len(_FIELDS)} fields: "
            f"minute hour day-of-month month day-of-week, or one of {', '.join(NAMED)}"
        )
    for field, (name, (least, most)) in zip(fields, _FIELDS.items(), strict=True):
        for part in field.split(","):
            step = part.partition("/")[2]
            if step.isdigit() and int(step[:_LONGEST]) > most - least:
                raise ValueError(
                    f"cron is {written!r}: {part} goes beyond the {name}, {least} to {most}: "
                    "it would run once in each round, so name that time"
                )


def _check_zone(name: str) -> None:
    """Check the name of a time zone. Raises ValueError if machines may differ about it."""
    if name not in _zones():
        raise ValueError(
            f"timezone is {name[:80]!r}, expected one of the tz database, like Europe/Berlin or UTC"
        )


@cache
def _zones() -> frozenset[str]:
    """Return the names of the zones that every machine has: those of the tz database."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii")
    return frozenset(listed.split()) - {"Factory"}
