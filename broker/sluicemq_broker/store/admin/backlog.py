"""Backlog: what the jobs of a queue are that wait, by kind, tenant and group.

Neither kinds nor tenants are in an index of every queue, so the first jobs in the order of claims are looked
at, and no more than :data:`MOST_LOOKED_AT`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sluicemq_broker.job import State
from sluicemq_broker.store.admin.job_view import order_shown
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import FOR_CHILDREN, collection
from sluicemq_broker.store.jobs.indexes import may_have
from sluicemq_broker.store.values import Document, Jobs, date, seconds

#: Jobs of each state that are looked at.
MOST_LOOKED_AT: Final = 10_000
#: A pack is one document of several jobs, which have one kind and no tenant.
_COUNT: Final = {"$sum": {"$ifNull": ["$left", 1]}}


class Waiting(NamedTuple):
    """Jobs of one name; ``oldest``: since when the first of them waits, None: that is not known."""

    name: str
    jobs: int
    oldest: float | None


class Backlog(NamedTuple):
    """The largest kinds and tenants of ready jobs, the largest groups of waiting ones.

    ``looked``: how many jobs were looked at, of the state with the most.
    """

    kinds: list[Waiting]
    tenants: list[Waiting]
    groups: list[Waiting]
    looked: int


def backlog(database: Documents, queue: str, now: float, most: int = MOST_LOOKED_AT) -> Backlog:
    """Return what the jobs are that wait in a queue; ``most``: of a state that are looked at."""
    jobs = durable(database)[collection(queue)]
    due: Document = {"eligible_at": {"$lte": date(now)}}
    behind: Document = {"wait.group": {"$ne": FOR_CHILDREN}}
    with translated():
        ready = _first(jobs, State.READY, most, due, "$eligible_at", kinds="$kind", tenants="$tenant")
        waiting = _first(jobs, State.WAITING, most, behind, "$created_at", groups="$wait.group")
    looked = max(row["jobs"] for rows in (ready, waiting) for row in rows.pop("all", []) or [{"jobs": 0}])
    found = {name: [_waiting(row) for row in rows] for name, rows in (ready | waiting).items()}
    return Backlog(found.get("kinds", []), found.get("tenants", []), found.get("groups", []), looked)


def _first(
    jobs: Jobs, state: State, most: int, those: Document, since: str, **names: str
) -> dict[str, list[dict[str, Any]]]:
    """Return the first jobs of a state by each of these fields; under ``all`` how many there were."""
    if not may_have(jobs, state):
        return {}
    facets = {
        name: [
            {"$group": {"_id": path, "jobs": _COUNT, "oldest": {"$min": since}}},
            {"$sort": {"jobs": -1, "_id": 1}},
            {"$limit": 50},
        ]
        for name, path in names.items()
    }
    steps: list[Document] = [
        {"$match": {"state": state}},
        {"$limit": most},
        {"$match": those},
        {"$facet": {"all": [{"$group": {"_id": None, "jobs": _COUNT}}], **facets}},
    ]
    (found,) = jobs.aggregate(steps, hint=order_shown(jobs, state).by, maxTimeMS=1000)
    return dict(found)


def _waiting(row: dict[str, Any]) -> Waiting:
    name, oldest = row["_id"], row.get("oldest")
    return Waiting("" if name is None else str(name), row["jobs"], oldest and seconds(oldest))
