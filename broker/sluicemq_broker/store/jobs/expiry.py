"""Expiry: a job that waits when its time to live is over is ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluicemq_broker.job import OnExpiry, State
from sluicemq_broker.store.jobs.documents import QueueDefaults
from sluicemq_broker.store.jobs.indexes import has_lines
from sluicemq_broker.store.jobs.outcomes import EXPIRED, death
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date

_GROUP = {"group": 1}


class ExpiredJobs(NamedTuple):
    """The ids of expired jobs that have ended, and the groups whose next job may go."""

    ids: list[str]
    groups: frozenset[str]


def expire(
    jobs: Jobs, defaults: QueueDefaults, now: float, limit: int, ids: Sequence[str] | None
) -> ExpiredJobs:
    """End expired jobs: see :meth:`QueueStore.expire`. Raises the driver's errors."""
    over: Document = {"expires_at": {"$lte": date(now)}, "state": {"$in": [State.READY, State.WAITING]}}
    if ids is None:
        found = _expired(jobs, now, limit)
    else:
        found = list(jobs.find({"_id": {"$in": list(ids)}, **over}, _GROUP, hint=BY_ID).limit(limit))
    groups = frozenset(document["group"] for document in found if isinstance(document.get("group"), str))
    all_ids = [document["_id"] for document in found]
    names = [
        job_id for job_id in all_ids if isinstance(job_id, str)
    ]  # nobody waits for a document that is no job
    if not found or _end(jobs, defaults, {"_id": {"$in": all_ids}, **over}, now) == len(found):
        return ExpiredJobs(names, groups)
    states = {
        document["_id"]: document["state"] for document in jobs.find({"_id": {"$in": names}}, {"state": 1})
    }
    return ExpiredJobs([name for name in names if states.get(name, State.DEAD) == State.DEAD], groups)


def will_expire(jobs: Jobs) -> bool:
    """Return True if any waiting job has a time to live. Raises the driver's errors."""
    ready = {"state": State.READY, "expires_at": {"$gt": date(0)}}
    if jobs.find_one(ready, {"_id": 1}) is not None:
        return True
    in_line = {"wait.expires_at": {"$gt": date(0)}}
    return has_lines(jobs) and jobs.find_one(in_line, {"_id": 1}) is not None


def _expired(jobs: Jobs, now: float, limit: int) -> list[Document]:
    """Return the first expired jobs: ready ones, then those that wait in their groups."""
    ready = {"expires_at": {"$lte": date(now)}, "state": State.READY}
    found = list(jobs.find(ready, _GROUP).limit(limit))
    if len(found) < limit and has_lines(jobs):
        in_line = jobs.find({"wait.expires_at": {"$lte": date(now)}}, _GROUP)
        found += in_line.limit(limit - len(found))
    return found


def _end(jobs: Jobs, defaults: QueueDefaults, expired: Document, now: float) -> int:
    dying = death(now, EXPIRED)
    if defaults.on_expiry == OnExpiry.DEAD:
        # failpoint jobs.expire_to_dead
        return jobs.update_many(expired, dying, hint=BY_ID).modified_count
    alone, child = ({**expired, "parent": {"$exists": there}} for there in (False, True))
    # failpoint jobs.expire
    removed = jobs.delete_many(alone, hint=BY_ID).deleted_count
    if removed < len(expired["_id"]["$in"]):  # a child stays as a dead letter until its parent is notified
        # failpoint children.expire
        removed += jobs.update_many(child, dying, hint=BY_ID).modified_count
    return removed
