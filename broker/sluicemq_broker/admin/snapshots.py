"""The broker at one moment, as dashboards show it: one snapshot for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

from gevent.lock import BoundedSemaphore
from msgspec import Meta, Struct

from sluicemq.protocol.json_values import dumps
from sluicemq.protocol.permissions import EVERY, Action
from sluicemq.protocol.rows import CountersRow, OverviewRow, QueuePage, QueueRow, RatesRow, TotalsRow
from sluicemq.protocol.wire import ShownState
from sluicemq_broker.runtime import Gauge
from sluicemq_broker.security import Caller, visible
from sluicemq_broker.store import SHOWN_STATES
from sluicemq_devices.hub import in_pieces

#: Views whose JSON is kept for others with an equal view, while a snapshot is the latest one.
_MOST_VIEWS: Final = 50
#: Seconds for which a snapshot answers single questions.
FRESH: Final = 1.0


class Sorting(StrEnum):
    """The columns by which queues are sorted; ``in`` and ``out``: their rates."""

    NAME = "name"
    READY = ShownState.READY.value
    SCHEDULED = ShownState.SCHEDULED.value
    WAITING = ShownState.WAITING.value
    RESERVED = ShownState.RESERVED.value
    DONE = ShownState.DONE.value
    DEAD = ShownState.DEAD.value
    IN = "in"
    OUT = "out"
    WORKERS = "workers"
    OLDEST = "oldest"


#: Keys for sorting queues, and whether the largest value stands first.
_KEYS: Final[Mapping[str, tuple[Callable[[QueueRow], Any], bool]]] = {
    Sorting.NAME: (attrgetter("name"), False),
    **{state: (attrgetter(state), True) for state in SHOWN_STATES},
    Sorting.IN: (attrgetter("rates.pushed"), True),
    Sorting.OUT: (attrgetter("rates.committed"), True),
    Sorting.WORKERS: (attrgetter("workers"), True),
    Sorting.OLDEST: (lambda row: row.oldest_ready_age or 0.0, True),
}


#: What a caller sees: the patterns of the queues that it may read, and whether it may operate.
_Sight = tuple[tuple[str, ...], bool]
#: Facts of the broker that callers without ``operate`` see, too.
_OF_EVERYBODY: Final = frozenset({"name", "version", Gauge.UPTIME, "store", Gauge.STORE_SILENT})


class View(Struct, frozen=True):
    """The queues that one dashboard shows: names with ``contains``, sorted, from ``offset`` on."""

    sort: Sorting = Sorting.NAME
    contains: str = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=0, le=200)] = 0
    reverse: bool = False
    only: Annotated[str, Meta(description="the whole name of one queue")] = ""


class About(NamedTuple):
    """A broker at one moment, without its queues; ``actions``: whether changes are possible."""

    at: float
    broker: CountersRow
    problems: dict[str, str]
    actions: bool


class Snapshot:
    """One moment. ``rows``: all queues; ``about``: the broker, its health and its counters.

    ``dying``: queues whose jobs became dead letters in the last minutes, and how many did.
    """

    def __init__(self, rows: list[QueueRow], about: About, dying: Mapping[str, int]) -> None:
        self._rows = rows
        self._about = about
        self._dying = dying
        self._seen: dict[_Sight, Snapshot] = {}
        self._one_at_a_time = BoundedSemaphore()
        self._totals = _totals(rows)
        self._attention = _attention(rows, dying)
        self._texts: dict[View, str] = {}

    def of(self, caller: Caller) -> Snapshot:
        """Return the snapshot as this caller sees it; callers with equal permissions share one.

        Without ``operate`` it has nothing of the broker but its name, version, uptime and health.
        """
        caller = caller.as_now()
        sight = caller.principal.permissions.patterns(Action.READ), caller.may(Action.OPERATE)
        if sight == ((EVERY,), True):
            return self
        with self._one_at_a_time:  # those that wait find it made
            seen = self._seen.get(sight) or self._for(caller)
            if len(self._seen) < _MOST_VIEWS:
                self._seen[sight] = seen
        return seen

    def _for(self, caller: Caller) -> Snapshot:
        may_read = visible.names(caller, Action.READ)
        rows = visible_in_turns(caller, self._rows)
        dying = {name: count for name, count in self._dying.items() if may_read(name)}
        about = self._about
        if not caller.may(Action.OPERATE):
            figures = {name: value for name, value in about.broker.broker.items() if name in _OF_EVERYBODY}
            about = about._replace(broker=CountersRow(broker=figures, counters={}))
        return Snapshot(rows, about, dying)

    def page(self, view: View) -> QueuePage:
        """Return how many queues match a view, and those on its page."""
        if view.only:
            rows = [row for row in self._rows if row.name == view.only]
        else:
            words = view.contains.lower()
            rows = [row for row in self._rows if words in row.name.lower()] if words else self._rows
        key, most_first = _KEYS[view.sort]
        if view.sort != Sorting.NAME or view.reverse:
            rows = sorted(rows, key=key, reverse=most_first != view.reverse)
        return QueuePage(matching=len(rows), queues=tuple(rows[view.offset : view.offset + view.limit]))

    def whole(self, view: View) -> OverviewRow:
        """Return all that a dashboard with this view shows."""
        about, dying, page = self._about, self._dying, self.page(view)
        most = sorted(dying, key=lambda name: -dying[name])[:100]
        return OverviewRow(
            at=about.at,
            broker=about.broker.broker,
            counters=about.broker.counters,
            problems=about.problems,
            actions=about.actions,
            totals=self._totals,
            attention=self._attention,
            dying={name: dying[name] for name in most},
            matching=len(page.queues) if page.matching is None else page.matching,
            queues=page.queues,
        )

    def text(self, view: View) -> str:
        """Return :meth:`whole` as JSON, which is made once for all with an equal view."""
        text = self._texts.get(view)
        if text is None:
            text = dumps(self.whole(view))
            if len(self._texts) < _MOST_VIEWS:
                self._texts[view] = text
        return text


class Snapshots:
    """The latest snapshot; ``make`` makes another."""

    def __init__(self, make: Callable[[], Snapshot]) -> None:
        self._make = make
        self._latest: Snapshot | None = None
        self._at = 0.0

    def latest(self) -> Snapshot:
        """Return a snapshot that is not older than :data:`FRESH`."""
        if self._latest is None or time.monotonic() - self._at > FRESH:
            return self.renew()
        return self._latest

    def renew(self) -> Snapshot:
        """Make a new snapshot."""
        self._latest, self._at = self._make(), time.monotonic()
        return self._latest


def visible_in_turns(caller: Caller, rows: list[QueueRow]) -> list[QueueRow]:
    """Return the queues that a caller may read, with pauses for other greenlets."""
    return visible.queues(caller, in_pieces(rows))


def _attention(rows: list[QueueRow], dying: Mapping[str, int]) -> tuple[QueueRow, ...]:
    """Return eight queues whose jobs die, that are paused, or whose jobs wait: the longest wait first."""
    # Nobody needs to look at a wait of less than a minute
    found = [row for row in rows if row.name in dying or row.paused or _waits(row) > 60.0]
    found.sort(key=lambda row: (row.name in dying, _waits(row)), reverse=True)
    return tuple(found[:8])


def _waits(row: QueueRow) -> float:
    return (row.oldest_ready_age or 0.0) if row.ready else 0.0


def _totals(rows: list[QueueRow]) -> TotalsRow:
    ages = [row.oldest_ready_age for row in rows]
    return TotalsRow(
        **{
            name: sum([getattr(row, name) for row in rows])
            for name in (*SHOWN_STATES, "workers", str(Gauge.IN_FLIGHT))
        },
        rates=RatesRow(
            **{
                name: round(sum([getattr(row.rates, name) for row in rows]), 3)
                for name in RatesRow.__struct_fields__
            }
        ),
        oldest_ready_age=max((age for age in ages if age is not None), default=None),
        queues=len(rows),
        paused=sum([bool(row.paused) for row in rows]),
        exact=all(row.exact for row in rows),
    )
