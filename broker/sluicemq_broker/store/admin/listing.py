"""Listing: pages of the jobs of one queue, and how many there are, for people who browse them.

Each page goes on behind the place of the last job of the one before (:mod:`places`). Ready jobs are in the
order of claims, those of a fair queue by tenants; waiting jobs by groups; ended jobs the latest first, and
within one millisecond by their ids. Of payloads only small ones are read.

A reason is in no index. So a page with a reason looks at a limited number of jobs, and says where to go on; a
count becomes an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from heapq import nsmallest
from itertools import accumulate
from typing import Final, NamedTuple

from pymongo.errors import ExecutionTimeout

from sluicemq_broker.job import State
from sluicemq_broker.store.admin.counting import COUNTED_EXACTLY
from sluicemq_broker.store.admin.dead_letters import DeadLetters, chosen, index_of
from sluicemq_broker.store.admin.job_view import listed, not_expired, order_shown, state_at
from sluicemq_broker.store.admin.places import Place, milliseconds, moment, not_a_place, place_of, ranges
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import FOR_CHILDREN, PACK_FIELDS, collection
from sluicemq_broker.store.jobs.find_packs import packs_with
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX, PACK_INDEX
from sluicemq_broker.store.jobs.indexes import may_have
from sluicemq_broker.store.jobs.pack_contents import is_pack, opened
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date
from sluicemq_devices.hub import let_others_run

#: Bytes of payloads that are shown in a page, at most.
_SMALL: Final = 256
#: Bytes of whole jobs in a page, about.
_MOST_WHOLE: Final = 1 << 20
#: Milliseconds for a count, before a sample estimates it, and for each sample. A random sample of documents
#: that are in no cache takes seconds, so a smaller one follows, then the latest jobs.
_MOST_MS: Final = 50
SAMPLE: Final = 900

_IS_BINARY: Final = {"$eq": [{"$type": "$payload"}, "binData"]}
_SIZE: Final = {"$cond": [_IS_BINARY, {"$binarySize": "$payload"}, _SMALL + 1]}
#: Fields of a job in a page.
LISTED: Final[Document] = {
    **dict.fromkeys(
        (
            *("state", "priority", "eligible_at", "seq", "attempts", "max_attempts", "created_at"),
            *(
                "reserved_at",
                "ended_at",
                "expires_at",
                "worker",
                "done_by",
                "losses",
                "unanswered",
                "unreadable",
            ),
            *("group", "tenant", "kind", "wait", "head", "children", "pushed_by"),
            *PACK_FIELDS,
        ),
        1,
    ),
    "errors": {"$slice": -1},
    "payload_bytes": {"$cond": [_IS_BINARY, {"$binarySize": "$payload"}, "$$REMOVE"]},
    "payload": {"$cond": [{"$lte": [_SIZE, _SMALL]}, "$payload", "$$REMOVE"]},
}


class _Ended(NamedTuple):
    """A place among ended jobs: behind this one, or (None) behind all of that time."""

    at: datetime
    job_id: str | None


class JobPage(NamedTuple):
    """Some jobs, and where the next page begins; None behind the last one."""

    jobs: list[Document]
    next: Place | None


class HowMany(NamedTuple):
    """How many there are, ``exact`` or estimated."""

    number: int
    exact: bool


class Listing:
    """Reads over the queue collections of one database.

    Up to ``exactly`` dead letters are counted; of more, samples of the sizes ``random`` estimate how many
    there are, one after the other, and then the ``latest`` do.
    """

    def __init__(
        self,
        database: Documents,
        *,
        exactly: int = COUNTED_EXACTLY,
        random: Sequence[int] = (SAMPLE, 60),
        latest: int = SAMPLE,
    ) -> None:
        self._database = durable(database)
        self._exactly = exactly
        self._random, self._latest = random, latest

    def page(self, queue: str, state: str, limit: int, after: Place | None, now: float) -> JobPage:
        """Return jobs of a state; raises BadFrames if ``after`` is no :attr:`JobPage.next` of that state."""
        if state in (State.DONE, State.DEAD):
            return self.ended(queue, state, DeadLetters(), limit, after, now)
        found: list[tuple[Document, list[Document]]] = []
        jobs, count = self._jobs(queue), 0
        with translated():
            if not may_have(jobs, state):
                return JobPage([], None)
            sort, index = order_shown(jobs, state)
            for these in _ranges(state, sort, after, now):
                rows = jobs.find(these, LISTED, hint=index, batch_size=20)  # each may be a pack
                for document in rows.sort(sort).limit(limit + 1 - len(found)):
                    found.append((document, [listed(job, state) for job in jobs_in(document, now)]))
                    if is_pack(document):  # up to a MiB
                        del document["jobs"]
                        let_others_run()
                    count += document.get("left", 1)
                    if count > limit:
                        break
                if count > limit:
                    break
        last = None
        if count > limit:  # a pack is shown whole
            found = found[:-1] or found
            last = found[-1][0]
        place = None if last is None else _in_line(last) if state == State.WAITING else place_of(last, sort)
        return JobPage([row for _, rows in found for row in rows], place)

    def ended(
        self,
        queue: str,
        state: str,
        choice: DeadLetters,
        limit: int,
        after: Place | None,
        now: float,
        *,
        whole: bool = False,
    ) -> JobPage:
        """Return jobs that are done or dead, of a choice, the latest first.

        A page may have fewer than ``limit``, even none, and go on nevertheless: others had another reason.
        ``whole``: with all fields, as many as are about a MiB, and at least one; payloads above that are left
        out.
        """
        jobs, place = self._jobs(queue), _ended_place(after)
        found: list[Document] = []
        with translated():
            for _ in range(3):
                window = _Window(jobs, state, choice, place, now, limit)
                found += window.read(limit + 1 - len(found))
                place = window.end
                if place is None or len(found) > limit:
                    break
        most = _few_enough(found[:limit]) if whole else limit
        if len(found) > most:
            last = found[most - 1]
            place = _Ended(last["ended_at"], last["_id"])
        next_ = None if place is None else [milliseconds(place.at), place.job_id]
        rows = _whole(jobs, state, found[:most]) if whole else found[:most]
        return JobPage([listed(document, state) for document in rows], next_)

    def with_ids(self, queue: str, beginning: str, limit: int, now: float, *, last: bool = False) -> JobPage:
        """Return jobs of any state whose id begins so, by their ids.

        ``last``: the last ones, backwards, of ids that somebody gave: those in packs are left out.
        """
        these = {"_id": {"$gte": beginning, "$lt": beginning + "\U0010ffff"}, "left": {"$exists": False}}
        with translated():
            jobs = self._jobs(queue)
            found = list(jobs.find(these, LISTED, hint=BY_ID).sort("_id", -1 if last else 1).limit(limit))
            for first in [] if last else packs_with(jobs, beginning):
                if len(found) >= limit and first > str(found[-1]["_id"]):
                    break
                pack = jobs.find_one({"left": {"$gte": 1}, "first": first}, LISTED, hint=PACK_INDEX)
                inside = [] if pack is None else jobs_in(pack, now)
                inside = [job for job in inside if str(job["_id"]).startswith(beginning)]
                found = nsmallest(limit, [*found, *inside], key=lambda job: str(job["_id"]))
                let_others_run()
        return JobPage([listed(job, state_at(job, now)) for job in found], None)

    def count(self, queue: str, choice: DeadLetters, now: float, known: int | None = None) -> HowMany:
        """Return how many dead letters a choice has; ``known``: about how many there are in all, if known."""
        jobs, these = self._jobs(queue), chosen(choice, now)
        with translated():
            try:
                count = jobs.count_documents(
                    these, hint=index_of(these), limit=self._exactly, maxTimeMS=_MOST_MS
                )
            except ExecutionTimeout:
                count = self._exactly
            if count < self._exactly:
                return HowMany(count, exact=True)
            if known is not None and known >= self._exactly and choice == DeadLetters():
                return HowMany(known, exact=False)
            total = jobs.estimated_document_count()
            return HowMany(int(total * self._share(jobs, these, total)), exact=False)

    def reasons(self, queue: str, choice: DeadLetters, now: float) -> list[Document]:
        """Return why the latest 900 dead letters died: ``[{reason, count}]``, the most frequent first."""
        all_of_it = {"$cond": [{"$isArray": "$errors"}, "$errors.reason", []]}
        last: Document = {"$ifNull": [{"$last": all_of_it}, ""]}
        steps: list[Document] = [
            {"$match": chosen(choice._replace(reason=None), now)},
            {"$sort": {"ended_at": -1}},
            {"$limit": SAMPLE},
            {"$group": {"_id": {"$substrCP": [{"$toString": last}, 0, 200]}, "count": {"$sum": 1}}},
            {"$sort": {"count": -1, "_id": 1}},
            {"$limit": 10},
        ]
        with translated():
            found = self._jobs(queue).aggregate(steps, hint=ENDED_INDEX)
            return [{"reason": document["_id"], "count": document["count"]} for document in found]

    def _share(self, jobs: Jobs, these: Document, total: int) -> float:
        """Estimate which part of all jobs these are."""
        of_what: list[Document] = [{"$match": these}, {"$count": "count"}]
        for size in self._random:
            with suppress(ExecutionTimeout):
                random: list[Document] = [{"$sample": {"size": size}}, *of_what]
                return _hits(jobs.aggregate(random, maxTimeMS=_MOST_MS)) / min(size, max(1, total))
        # In a form that the index is known to cover: without a time MongoDB read and sorted a million.
        dead: Document = {"state": State.DEAD, "ended_at": {"$gte": date(0)}}
        latest: list[Document] = [{"$match": dead}, {"$sort": {"ended_at": -1}}, {"$limit": self._latest}]
        found = jobs.aggregate([*latest, *of_what], hint=ENDED_INDEX)
        return _hits(found) / min(self._latest, max(1, total))

    def _jobs(self, queue: str) -> Jobs:
        return self._database[collection(queue)]


def _few_enough(found: Sequence[Document]) -> int:
    """Return how many of these, at least one, are about :data:`_MOST_WHOLE` bytes."""
    history_and_tracebacks = 8 << 10
    sizes = [history_and_tracebacks + min(job.get("payload_bytes", 0), _MOST_WHOLE) for job in found]
    return max(1, len([size for size in accumulate(sizes) if size <= _MOST_WHOLE]))


def _whole(jobs: Jobs, state: str, found: Sequence[Document]) -> list[Document]:
    """Return these jobs with all their fields, in this order; those that have left meanwhile are left out."""
    fits = {"$lte": [_SIZE, _MOST_WHOLE]}
    payload = {"$cond": [_IS_BINARY, {"$cond": [fits, "$payload", "$$REMOVE"]}, "$$REMOVE"]}
    these = {"_id": {"$in": [job["_id"] for job in found]}, "state": state}
    with translated():
        steps = [{"$match": these}, {"$set": {"payload_bytes": LISTED["payload_bytes"], "payload": payload}}]
        read = {job["_id"]: job for job in jobs.aggregate(steps, hint=BY_ID)}
    return [read[job["_id"]] for job in found if job["_id"] in read]


class _Window:
    """A window of ended jobs, from the latest on; ``end``: where the next one begins.

    Jobs that ended in one millisecond are never separated, so a window may have a few more than its size.
    """

    def __init__(
        self, jobs: Jobs, state: str, choice: DeadLetters, place: _Ended | None, now: float, limit: int
    ) -> None:
        self._jobs = jobs
        these = chosen(choice._replace(ids=None), now)
        self._why = {name: value for name, value in these.items() if name == "$expr"}
        when: Document = {"$gte": date(0), **these["ended_at"]}
        behind = when if place is None else {**when, "$lt": place.at}
        size = 2000 if self._why else limit + 1
        edge = self._edge({"state": state, "ended_at": behind}, size)
        first = when["$gte"] if edge is None else edge
        self._these: Document = {"state": state, "ended_at": {**behind, "$gte": first}}
        if place is not None and place.job_id is not None:  # and the rest of that millisecond
            self._these["ended_at"] = {**when, "$gte": first, "$lte": place.at}
            self._these["$nor"] = [{"ended_at": place.at, "_id": {"$lte": place.job_id}}]
        self.end = None if edge is None else _Ended(edge, None)

    def read(self, limit: int) -> list[Document]:
        """Return the first jobs of the window, in order."""
        found = self._jobs.find({**self._these, **self._why}, LISTED, hint=ENDED_INDEX)
        return list(found.sort([("ended_at", -1), ("_id", 1)]).limit(limit))

    def _edge(self, these: Document, size: int) -> datetime | None:
        """Return when the last of ``size`` jobs ended, by the index alone; None: there are fewer."""
        times = self._jobs.find(these, {"_id": 0, "state": 1, "ended_at": 1}, hint=ENDED_INDEX)
        for document in times.sort("ended_at", -1).skip(size - 1).limit(1):
            return document["ended_at"]  # type: ignore[no-any-return]
        return None


def _hits(found: Iterable[Document]) -> int:
    return next((int(document["count"]) for document in found), 0)


def _ranges(
    state: str, sort: Sequence[tuple[str, int]], after: Place | None, now: float
) -> Iterator[Document]:
    """Yield ranges of the index behind a job, in the order of its state."""
    these = not_expired(state, now)
    if after is not None and state == State.WAITING:
        group, place = _line_of(after)
        yield {"wait.group": group, "wait.place": {"$gt": place}}
        yield {"wait.group": {"$gt": group}}
        if not isinstance(group, str):  # first the parents, then the lines
            yield {"wait.group": {"$gte": ""}}
        return
    yield from ranges(these, sort, after)


def _in_line(job: Document) -> Place | None:
    try:
        group = job["wait"]["group"]
        return [group if group == FOR_CHILDREN else str(group), int(job["wait"]["place"])]
    except (KeyError, TypeError, ValueError):
        return None


def _line_of(after: Place) -> tuple[str | int, int]:
    if len(after) != 2 or not isinstance(after[0], str | int) or not isinstance(after[1], int):
        raise not_a_place()
    return after[0], after[1]


def _ended_place(after: Place | None) -> _Ended | None:
    if after is None:
        return None
    if len(after) != 2 or not isinstance(after[0], int) or not isinstance(after[1], str | None):
        raise not_a_place()
    return _Ended(date(moment(after[0])), after[1])


def jobs_in(document: Document, now: float) -> list[Document]:
    """Return the job in a document, or those that are left in a pack, without long payloads."""
    found = opened(document, now)
    for job in found if is_pack(document) else ():
        payload = job.get("payload")
        if isinstance(payload, bytes):
            job["payload_bytes"] = len(payload)
            if len(payload) > _SMALL:
                del job["payload"]
    return found
