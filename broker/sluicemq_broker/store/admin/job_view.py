"""Jobs as administration shows them: their states, order and values."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from bson.datetime_ms import DatetimeMS

from sluicemq.protocol.wire import ShownState
from sluicemq_broker.job import SCHEDULED, State
from sluicemq_broker.store.jobs.documents import ANY_PRIORITY, ORDER, TRACEBACK
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX, IN_LINE, LINE_INDEX, RESERVED_INDEX
from sluicemq_broker.store.jobs.orders import SortedBy, order_there
from sluicemq_broker.store.jobs.outcomes import EXPIRED
from sluicemq_broker.store.values import Document, Jobs, date, seconds

#: The states that are shown; ``scheduled`` is a ``ready`` job that is not due yet.
SHOWN_STATES: Final[tuple[str, ...]] = tuple(ShownState)


def stored_state(state: str) -> str:
    """Return the state that a shown one is stored as."""
    return State.READY if state == SCHEDULED else state


def selects(state: str, now: float) -> Document:
    """Return the filter for jobs of a state, in a form that the state's own index answers."""
    if state in (State.DONE, State.DEAD):
        return {"state": state, "ended_at": {"$gte": date(0)}}  # not $exists, for which it reads documents
    if state == State.WAITING:
        return {
            "wait.group": {"$type": ["number", "string"]}
        }  # only waiting jobs have one: a number for parents, a string for lines
    when = {State.READY: {"$lte": date(now)}, SCHEDULED: {"$gt": date(now)}}.get(state)
    return {"state": stored_state(state)} | ({**ANY_PRIORITY, "eligible_at": when} if when else {})


def not_expired(state: str, now: float) -> Document:
    """Return the filter for jobs of a state, without ready ones that have expired."""
    return selects(state, now) | (alive(now) if stored_state(state) == State.READY else {})


def alive(now: float) -> Document:
    """Return the filter for jobs that have not expired."""
    return {"expires_at": {"$not": {"$lte": date(now)}}}


def order_shown(jobs: Jobs, state: str) -> SortedBy:
    """Return the order in which the jobs of a state are shown, and the index that has it."""
    if state == State.WAITING:
        return SortedBy(IN_LINE, LINE_INDEX)
    if state in (State.DONE, State.DEAD):
        return SortedBy([("ended_at", 1)], ENDED_INDEX)
    return SortedBy(ORDER, RESERVED_INDEX) if state == State.RESERVED else order_there(jobs)


def state_at(stored: Document, now: float) -> Any:
    """Return the state in which a job is shown at this moment."""
    state, due, over = (
        plain(stored.get("state")),
        plain(stored.get("eligible_at")),
        stored.get("expires_at"),
    )
    if state not in (State.READY, State.WAITING):
        return state
    if isinstance(over, datetime) and seconds(over) <= now:
        return EXPIRED
    later = state == State.READY and isinstance(due, int | float) and due > now
    return SCHEDULED if later else state


def shown(stored: Document, state: str) -> Document:
    """Return a job as it is shown: times as Unix seconds, and only values that msgpack and JSON have."""
    row = {key: plain(value) for key, value in stored.items() if key != "_id"}
    _join_tracebacks(row)
    if "children" in row:  # a parent has no place in a line
        row.pop("wait", None)
    if "payload" in row and not isinstance(row["payload"], bytes):
        row["payload"] = str(row["payload"]).encode()  # no job, but it is shown as one
    return {
        "id": stored["_id"] if isinstance(stored["_id"], str) else str(stored["_id"]),
        **row,
        "state": state,
    }


def listed(stored: Document, state: str) -> Document:
    """Return a job as lists show it."""
    row = shown(stored, state)
    row.pop("seq", None)
    if not isinstance(row.get("errors", []), list):  # it is no job
        del row["errors"]
    return row


def _join_tracebacks(row: Document) -> None:
    """Put each traceback to the failure of its time."""
    found = [row.pop(key) for key in list(row) if key.startswith(TRACEBACK)]
    texts = {error["at"]: error.get("text") for error in found if isinstance(error, dict) and "at" in error}
    for error in row.get("errors") or () if texts else ():
        if isinstance(error, dict) and error.get("at") in texts:
            error["traceback"] = texts[error["at"]]


def plain(value: Any) -> Any:
    """Return a value that msgpack and JSON have: dates as Unix seconds, other types as text."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, datetime):
        return seconds(value)
    if isinstance(value, DatetimeMS):  # before the year 1 or after 9999
        return int(value) / 1000
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)
