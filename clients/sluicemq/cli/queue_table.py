"""A table of queues that fits 80 columns, for ``queues`` and ``top``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sluicemq.cli.output import span
from sluicemq.protocol.wire import ShownState

_COUNTS: Final = {
    ShownState.READY: "ready",
    ShownState.SCHEDULED: "sched",
    ShownState.WAITING: "wait",
    ShownState.RESERVED: "resv",
    ShownState.DONE: "done",
    ShownState.DEAD: "dead",
}
#: Columns that are shown only if a queue has them.
_RARE: Final = ("sched", "wait", "done", "dead", "paused", "permits", "held_back", "full")
#: Fields that have no column.
_TOLD_ELSE: Final = frozenset(
    (
        *("name", *_COUNTS, "paused", "rates", "oldest_ready_age"),
        *("exact", "estimates", "counted_ago", "in_flight"),
    )
)

Row = Mapping[str, Any]


class About(int):
    """A count that is an estimate."""

    def __str__(self) -> str:
        return f"~{int(self)}"


def queue_rows(queues: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the lines of the table; a column that is empty in all of them is left out."""
    lines = [_line(queue) for queue in queues]
    empty = [name for name in _RARE if not any(line.get(name) for line in lines)]
    return [{key: value for key, value in line.items() if key not in empty} for line in lines]


#: Columns by which a list of queues may be sorted.
KEYS: Final[dict[str, Callable[[Row], Any]]] = {
    "name": lambda row: row["name"],
    "ready": lambda row: row[ShownState.READY],
    "in": lambda row: _rate(row, "pushed"),
    "out": lambda row: _rate(row, "committed"),
    "reserved": lambda row: row[ShownState.RESERVED],
    "scheduled": lambda row: row[ShownState.SCHEDULED],
    "waiting": lambda row: row.get(ShownState.WAITING, 0),
    "dead": lambda row: row[ShownState.DEAD],
    "oldest": lambda row: row.get("oldest_ready_age") or 0.0,
    "workers": lambda row: row["workers"],
}


def in_order(queues: Sequence[Row], by: str) -> list[Row]:
    """Return the queues with the largest values first; by name, in alphabetical order."""
    names = sorted(queues, key=KEYS["name"])
    return names if by == "name" else sorted(names, key=KEYS[by], reverse=True)


def _line(row: Row) -> dict[str, Any]:
    """Return the line of one queue; fields of a newer broker are at its end."""
    line = {"name": row["name"]}
    for name, short in _COUNTS.items():
        if name in row:
            line[short] = About(row[name]) if name in row.get("estimates", ()) else row[name]
    if "oldest_ready_age" in row:
        age = row["oldest_ready_age"]
        line["oldest"] = None if age is None else span(age)
    if "rates" in row:
        line |= {"in/s": round(_rate(row, "pushed"), 1), "out/s": round(_rate(row, "committed"), 1)}
    line["paused"] = ", ".join(row.get("paused", ())) or None
    return line | {key: value for key, value in row.items() if key not in _TOLD_ELSE}


def _rate(row: Row, name: str) -> float:
    return float(row.get("rates", {}).get(name, 0.0))
