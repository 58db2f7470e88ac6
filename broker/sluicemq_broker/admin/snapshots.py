"""The broker at one moment, as dashboards show it: one snapshot for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gevent.lock import BoundedSemaphore

from sluicemq.protocol.errors import BadFrames
from sluicemq.protocol.json_values import dumps
from sluicemq.protocol.permissions import EVERY, Action
from sluicemq_broker.job import State
from sluicemq_broker.runtime import Count, Gauge
from sluicemq_broker.security import Caller, visible
from sluicemq_broker.store import SHOWN_STATES
from sluicemq_devices.hub import let_others_run

#: Rows of queues in one answer.
MOST_ROWS: Final = 200
#: Queues in one answer that need attention; a queue does when a job waits longer than these seconds.
_MOST_ATTENTION: Final = 8
_MOST_DYING: Final = 100
#: Views whose JSON is kept for others with an equal view, while a snapshot is the latest one.
_MOST_VIEWS: Final = 50
_LONG: Final = 60.0
#: Queues whose names are held against patterns in one turn of the hub: up to some milliseconds.
_ROWS_A_TURN: Final = 1000
#: Seconds for which a snapshot answers single questions.
FRESH: Final = 1.0

#: Keys for sorting queues, and whether the largest value stands first.
_KEYS: Final[dict[str, tuple[Callable[[dict[str, Any]], Any], bool]]] = {
    "name": (lambda row: row["name"], False),
    **{
        state: (lambda row, state=state: row[state], True)  # type: ignore[misc]
        for state in SHOWN_STATES
    },
    "in": (lambda row: row["rates"][Count.PUSHED], True),
    "out": (lambda row: row["rates"][Count.COMMITTED], True),
    "workers": (lambda row: row[Gauge.WORKERS], True),
    "oldest": (lambda row: row[Gauge.OLDEST_READY_AGE] or 0.0, True),
}
_SUMMED: Final = (
    *SHOWN_STATES,
    *(Gauge.WORKERS, Gauge.IN_FLIGHT),
)
_RATED: Final = (Count.PUSHED, Count.DELIVERED, Count.COMMITTED)


#: What a caller sees: the patterns of the queues that it may read, and whether it may operate.
_Sight = tuple[tuple[str, ...], bool]
_EVERYTHING: Final = ((EVERY,), True)
#: Facts of the broker that callers without ``operate`` see, too.
_OF_EVERYBODY: Final = frozenset({"name", "version", Gauge.UPTIME, "store", Gauge.STORE_SILENT})


class View(NamedTuple):
    """The queues that one dashboard shows: names with ``contains``, sorted, from ``offset`` on."""

    sort: str = "name"
    contains: str = ""
    offset: int = 0
    limit: int = 0
    reverse: bool = False
    only: str = ""
    """The whole name of one queue to show."""

    def check(self) -> View:
        """Return this view; raises BadFrames for a value that is not allowed."""
        if self.sort not in _KEYS:
            raise BadFrames(f"queues are sorted by {', '.join(_KEYS)}")
        if not (0 <= self.limit <= MOST_ROWS and self.offset >= 0):
            raise BadFrames(f"limit is from 0 to {MOST_ROWS}, offset at least 0")
        return self


class Snapshot:
    """One moment. ``rows``: all queues; ``about``: the broker, its health and its counters.

    ``dying``: queues whose jobs became dead letters in the last minutes, and how many did.
    """

    def __init__(self, rows: list[dict[str, Any]], about: dict[str, Any], dying: Mapping[str, int]) -> None:
        self._rows = rows
        self._plain = about
        self._all_dying = dying
        self._seen: dict[_Sight, Snapshot] = {}
        self._one_at_a_time = BoundedSemaphore()
        most = sorted(dying, key=lambda name: -dying[name])[:_MOST_DYING]
        self._about = {
            **about,
            "totals": _totals(rows),
            "attention": _attention(rows, dying),
            "dying": {name: dying[name] for name in most},
        }
        self._texts: dict[View, str] = {}

    def of(self, caller: Caller) -> Snapshot:
        """Return the snapshot as this caller sees it; callers with equal permissions share one.

        Without ``operate`` it has nothing of the broker but its name, version, uptime and health.
        """
        caller = caller.as_now()
        sight = caller.principal.permissions.patterns(Action.READ), caller.may(Action.OPERATE)
        if sight == _EVERYTHING:
            return self
        with self._one_at_a_time:  # those that wait find it made
            seen = self._seen.get(sight) or self._for(caller)
            if len(self._seen) < _MOST_VIEWS:
                self._seen[sight] = seen
        return seen

    def _for(self, caller: Caller) -> Snapshot:
        may_read = visible.names(caller, Action.READ)
        rows = visible_in_turns(caller, self._rows)
        dying = {name: count for name, count in self._all_dying.items() if may_read(name)}
        about = self._plain
        if not caller.may(Action.OPERATE):
            broker = {name: each for name, each in about["broker"].items() if name in _OF_EVERYBODY}
            about = {**about, "broker": broker, "counters": {}}
        return Snapshot(rows, about, dying)

    def page(self, view: View) -> dict[str, Any]:
        """Return ``{matching, queues}``: how many queues match a view, and those on its page."""
        if view.only:
            rows = [row for row in self._rows if row["name"] == view.only]
        else:
            words = view.contains.lower()
            rows = [row for row in self._rows if words in row["name"].lower()] if words else self._rows
        key, most_first = _KEYS[view.sort]
        if view.sort != "name" or view.reverse:
            rows = sorted(rows, key=key, reverse=most_first != view.reverse)
        return {"matching": len(rows), "queues": rows[view.offset : view.offset + view.limit]}

    def whole(self, view: View) -> dict[str, Any]:
        """Return all that a dashboard with this view shows."""
        return {**self._about, **self.page(view)}

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


def visible_in_turns(caller: Caller, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the queues that a caller may read, with pauses for other greenlets."""
    shown: list[dict[str, Any]] = []
    for first in range(0, len(rows), _ROWS_A_TURN):
        if first:
            let_others_run()
        shown += visible.queues(caller, rows[first : first + _ROWS_A_TURN])
    return shown


def _attention(rows: list[dict[str, Any]], dying: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return queues whose jobs die, that are paused, or whose jobs wait: the longest wait first."""
    found = [row for row in rows if row["name"] in dying or row["paused"] or _waits(row) > _LONG]
    found.sort(key=lambda row: (row["name"] in dying, _waits(row)), reverse=True)
    return found[:_MOST_ATTENTION]


def _waits(row: dict[str, Any]) -> float:
    return float(row[Gauge.OLDEST_READY_AGE] or 0.0) if row[State.READY] else 0.0


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {str(name): sum([row[name] for row in rows]) for name in _SUMMED}
    rates = {str(name): round(sum([row["rates"][name] for row in rows]), 3) for name in _RATED}
    ages = [row[Gauge.OLDEST_READY_AGE] for row in rows]
    return {
        **sums,
        "rates": rates,
        Gauge.OLDEST_READY_AGE: max((age for age in ages if age is not None), default=None),
        "queues": len(rows),
        "paused": sum([bool(row["paused"]) for row in rows]),
        "exact": all(row["exact"] for row in rows),
    }
