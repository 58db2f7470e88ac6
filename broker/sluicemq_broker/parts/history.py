"""The history of counters, and incidents, as a part of the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

from sluicemq.protocol import wire
from sluicemq.protocol.errors import SluiceError
from sluicemq.protocol.permissions import Action
from sluicemq.protocol.rows import HistoryRow, IncidentsRow, RecentRow, SeriesRow
from sluicemq_broker.doors import AdminVerb
from sluicemq_broker.history import History, Incidents, Series
from sluicemq_broker.process.duties import Duty
from sluicemq_broker.process.foundation import retried
from sluicemq_broker.process.part import Core, Part
from sluicemq_broker.security import Needs, visible

if TYPE_CHECKING:
    from sluicemq_broker.http import Call, Site

#: A history needs what its subject needs: of a stream ``subscribe``, of a broker ``operate``.
NEEDS: Final = {
    wire.HISTORY: Needs(Action.READ, more=lambda _history, kind, name, *_: [visible.history(kind, name)]),
    wire.INCIDENTS: Needs(Action.READ, shows=visible.incidents),
}
#: Seconds between two looks for days that are over.
_ROLL_UP: Final = 1800.0


class HistoryPart(Part):
    """Counters of each minute, and incidents.

    With ``history = false`` nothing is written; what was written before can be read.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        foundation, queues, census = core.foundation, core.jobs.queues, core.jobs.census
        self._foundation = foundation
        self._on = foundation.settings.history
        stored = (foundation.database, foundation.settings.database)
        self._history = History(queues, census, foundation.context, core.subjects, *stored, foundation.host)
        self._series = Series(self._history)
        self._incidents = Incidents(
            *(queues, census, foundation.context),
            *(*stored, foundation.name),
            lambda: core.jobs.disagreements.found,
            core.kept,
        )
        self.verbs = {
            wire.HISTORY: AdminVerb(
                lambda _session: self._history,
                History.read,
                NEEDS[wire.HISTORY],
                (str, str, str | None, str),
                reads=True,
            ),
            wire.INCIDENTS: AdminVerb(
                lambda _session: self._incidents,
                Incidents.read,
                NEEDS[wire.INCIDENTS],
                (str, str | None),
                reads=True,
            ),
        }
        foundation.owners.on_lost(lambda _owner: self._incidents.lease_lost())

    def add_paths(self, site: Site) -> None:
        """Add history, curves and incidents."""
        of_subject = Needs(
            Action.OPERATE, more=lambda _request, subject, name: [visible.history(subject, name)]
        )
        site.ask(
            "/history/{subject}/{name}",
            "history.get",
            "Counters of each minute, hour, day or month, of all brokers together",
            of_subject,
            HistoryRow,
            self._read,
            query=HistoryQuery,
        )
        site.ask(
            "/series/{subject}/{name}",
            "history.series",
            "Curves for a chart: a number for each step",
            of_subject,
            SeriesRow,
            lambda call, subject, name: self._series.of(subject, name, call.query.span, self._now()),
            query=SeriesQuery,
        )
        site.ask(
            "/recent",
            "history.recent",
            "Jobs that were pushed and committed in each minute of the last hour",
            Needs(Action.READ, shows=visible.recent_curves),
            RecentRow,
            self._recent_curves,
            query=RecentQuery,
        )
        site.ask(
            "/incidents",
            "incidents.list",
            "Up to 100 incidents, the latest first",
            NEEDS[wire.INCIDENTS],
            IncidentsRow,
            lambda call: self._incidents.read(call.query.span, call.query.queue),
            query=IncidentsQuery,
        )

    def dying(self) -> Mapping[str, int]:
        """Return how many jobs of each queue became dead letters in the last minutes."""
        return self._incidents.dying()

    def prepare(self) -> None:
        """Make the indexes, and note that the broker has started."""
        if self._on:
            retried(self._history.prepare)
            retried(self._incidents.prepare)
            self._foundation.store.on_return(self._incidents.store_returned)
            self._foundation.clock.on_jump(self._incidents.clock_set)
            self._foundation.owners.on_dead(self._incidents.found_dead)

    def duties(self) -> Iterator[Duty]:
        """Return what writes the history and looks for incidents."""
        if self._on:
            poll = self._foundation.settings.poll
            yield Duty("history of every minute", poll, self._history.tick)
            yield Duty("months and old minutes of the history", _ROLL_UP, self._history.roll_up)
            yield Duty("incidents", poll, self._incidents.tick)
            yield Duty("too many incidents", _ROLL_UP, self._incidents.trim)

    def leave(self) -> None:
        """Write what is counted and noted."""
        if self._on:
            for close in (self._history.close, self._incidents.close):
                with suppress(SluiceError):
                    close()

    def _now(self) -> float:
        return self._foundation.clock.now()

    def _read(self, call: Call, subject: str, name: str) -> HistoryRow:
        return self._history.read(subject, name, call.query.day, call.query.span)

    def _recent_curves(self, call: Call) -> RecentRow:
        names = [name for name in call.query.queue.split(",") if name]
        return self._series.recent(names, self._now())


class HistoryQuery(Struct, frozen=True):
    """A span of history."""

    span: Literal["minute", "hour", "day", "month"] = "minute"
    day: Annotated[str, Meta(description="such as 2026-01-31, in UTC; by default today")] | None = None


class SeriesQuery(Struct, frozen=True):
    """One hour by minute, one day by five minutes, 30 days by hour."""

    span: Literal["hour", "day", "month"] = "hour"


class RecentQuery(Struct, frozen=True):
    """The queues whose curves are wanted."""

    queue: Annotated[str, Meta(description="up to 100 names of queues, divided by commas")] = ""


class IncidentsQuery(Struct, frozen=True):
    """Incidents of the last hour, day, or 30 days."""

    span: Literal["hour", "day", "month"] = "day"
    queue: str | None = None
