"""Jobs of one queue that no worker took in time: what waits, and whose time to live is over, is ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pymongo.collection import Collection

from sluicemq_broker.job import OnExpiry, State
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import QueueDefaults
from sluicemq_broker.store.jobs.indexes import has_lines
from sluicemq_broker.store.jobs.outcomes import EXPIRED, death
from sluicemq_broker.store.values import BY_ID, Document, date

_WAITS = [State.READY, State.WAITING]
_GROUP = {"group": 1}


class ExpiredJobs(NamedTuple):
    """The ids of jobs whose time to live was over and that have ended; the groups whose next one may go."""

    ids: list[str]
    groups: frozenset[str]


class Expiry:
    """The time to live of the jobs of one queue, by which a job ends that waits in it."""

    def __init__(self, jobs: Collection[Document], defaults: QueueDefaults) -> None:
        self.jobs = jobs
        self._defaults = defaults

    def reconfigure(self, defaults: QueueDefaults) -> None:
        """Let the queue's settings be these from the next statement on."""
        self._defaults = defaults

    def end(self, now: float, limit: int, ids: Sequence[str] | None) -> ExpiredJobs:
        """As :meth:`QueueStore.expire`, which says what it does."""
        over: Document = {"expires_at": {"$lte": date(now)}, "state": {"$in": _WAITS}}
        with translated():
            found = self._over(now, limit) if ids is None else self._over_of(ids, over, limit)
            groups = frozenset(each["group"] for each in found if isinstance(each.get("group"), str))
            all_ids = [each["_id"] for each in found]
            names = [each for each in all_ids if isinstance(each, str)]  # nobody waits for what is no job
            if not found or self._end({"_id": {"$in": all_ids}, **over}, now) == len(found):
                return ExpiredJobs(names, groups)
            alive = {each for each, state in self._states(names).items() if state != State.DEAD}
        return ExpiredJobs([each for each in names if each not in alive], groups)

    def will_come(self) -> bool:
        """True if any job that waits has an end of its time to live."""
        with translated():
            ready = {"state": State.READY, "expires_at": {"$gt": date(0)}}
            if self.jobs.find_one(ready, {"_id": 1}) is not None:
                return True
            in_line = {"wait.expires_at": {"$gt": date(0)}}
            return has_lines(self.jobs) and self.jobs.find_one(in_line, {"_id": 1}) is not None

    def _over(self, now: float, limit: int) -> list[Document]:
        """The first of those whose time is over: ready ones, and those that wait in their groups."""
        ready = {"expires_at": {"$lte": date(now)}, "state": State.READY}
        found = list(self.jobs.find(ready, _GROUP).limit(limit))
        if len(found) < limit and has_lines(self.jobs):
            in_line = self.jobs.find({"wait.expires_at": {"$lte": date(now)}}, _GROUP)
            found += in_line.limit(limit - len(found))
        return found

    def _over_of(self, ids: Sequence[str], over: Document, limit: int) -> list[Document]:
        return list(self.jobs.find({"_id": {"$in": list(ids)}, **over}, _GROUP, hint=BY_ID).limit(limit))

    def _end(self, expired: Document, now: float) -> int:
        if self._defaults.on_expiry == OnExpiry.DEAD:
            dying = death(now, EXPIRED, self._defaults)
            return self.jobs.update_many(expired, dying, hint=BY_ID).modified_count
        alone, child = ({**expired, "parent": {"$exists": there}} for there in (False, True))
        removed = self.jobs.delete_many(alone, hint=BY_ID).deleted_count
        if removed < len(expired["_id"]["$in"]):  # a child, whose parent waits to hear of it
            dying = death(now, EXPIRED, self._defaults)
            removed += self.jobs.update_many(child, dying, hint=BY_ID).modified_count
        return removed

    def _states(self, ids: list[str]) -> dict[str, str]:
        return {each["_id"]: each["state"] for each in self.jobs.find({"_id": {"$in": ids}}, {"state": 1})}
