"""Pages of the jobs of one queue, and how many there are: for people who leaf through them.

Each page goes on behind the last job of the one before, by what is sorted by, and never by a count of jobs to
pass over: so no job is shown twice or left out though others come and go, and the thousandth page costs what
the first did. Jobs that wait are in the order in which they would be handed out; those that wait for others
of their group by groups; those that have ended with the latest first, and inside one millisecond by their
ids. A page has no payloads but small ones.

A reason is not in an index. So of a page with one, and of a count, only so many jobs are looked at; a page
says where to go on, a count becomes an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

from pymongo.collection import Collection
from pymongo.errors import ExecutionTimeout

from sluicemq.protocol.errors import BadFrames
from sluicemq_broker.job import State
from sluicemq_broker.store.admin.counting import COUNTED_EXACTLY
from sluicemq_broker.store.admin.dead_letters import DeadLetters, chosen
from sluicemq_broker.store.admin.job_view import alive, order_of, selects, shown, state_at, stored_state
from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.errors import translated
from sluicemq_broker.store.jobs.documents import FOR_CHILDREN, collection
from sluicemq_broker.store.jobs.index_models import ENDED_INDEX, LINE_INDEX, READY_INDEX, RESERVED_INDEX
from sluicemq_broker.store.jobs.indexes import may_have
from sluicemq_broker.store.values import BY_ID, Document, date, seconds

#: Payloads up to so many bytes are shown in a page.
_SMALL: Final = 256
#: Jobs with a reason are looked for among so many at a time, so many times for one page.
_WINDOW: Final = 2_000
_WINDOWS: Final = 3
#: Milliseconds for a count, before a sample of so many jobs says about how many there are; and for each
#: sample: a random one of what is in no cache takes seconds, so a smaller one follows, then the latest ones.
_MOST_MS: Final = 50
_SAMPLE: Final = 900
_RANDOM_SAMPLES: Final = (_SAMPLE, 60)

_ENDED: Final = (State.DONE, State.DEAD)
_HINTS: Final[dict[str, str]] = {
    State.READY: READY_INDEX,
    State.WAITING: LINE_INDEX,
    State.RESERVED: RESERVED_INDEX,
}
_IS_BINARY: Final = {"$eq": [{"$type": "$payload"}, "binData"]}
_SIZE: Final = {"$cond": [_IS_BINARY, {"$binarySize": "$payload"}, _SMALL + 1]}
#: What a page has of a job.
_SHOWN: Final[Document] = {
    **dict.fromkeys(
        (
            *("state", "priority", "eligible_at", "seq", "attempts", "max_attempts", "created_at"),
            *("reserved_at", "ended_at", "expires_at", "worker", "done_by", "losses", "unreadable"),
            *("group", "tenant", "wait", "head", "children"),
        ),
        1,
    ),
    "errors": {"$slice": -1},
    "payload_bytes": {"$cond": [_IS_BINARY, {"$binarySize": "$payload"}, "$$REMOVE"]},
    "payload": {"$cond": [{"$lte": [_SIZE, _SMALL]}, "$payload", "$$REMOVE"]},
}

_LAST_MILLISECOND: Final = 253_370_000_000_000  # of the year 9998

_Jobs = Collection[dict[str, Any]]
#: Where a page has ended: the values of what is sorted by, of its last job. Plain numbers and strings.
Place = list[Any]


class _Ended(NamedTuple):
    """A place among the jobs that have ended: behind this one, or (None) behind all of that time."""

    at: datetime
    job_id: str | None


class JobPage(NamedTuple):
    """Some jobs, and where the next page begins: None behind the last one."""

    jobs: list[Document]
    next: Place | None


class HowMany(NamedTuple):
    """How many there are; not ``exact``: about so many."""

    number: int
    exact: bool


class Listing:
    """Reads over the queue collections of one database.

    ``exactly``: so many dead letters are counted; of more, samples of sizes ``random`` say about how many
    there are, one after the other, or the ``latest`` do.
    """

    def __init__(
        self,
        database: Documents,
        *,
        exactly: int = COUNTED_EXACTLY,
        random: Sequence[int] = _RANDOM_SAMPLES,
        latest: int = _SAMPLE,
    ) -> None:
        self._database = durable(database)
        self._exactly = exactly
        self._random, self._latest = random, latest

    def page(self, queue: str, state: str, limit: int, after: Place | None, now: float) -> JobPage:
        """Jobs of a state; raises BadFrames if ``after`` is no :attr:`JobPage.next` of that state."""
        if state in _ENDED:
            return self.ended(queue, state, DeadLetters(), limit, after, now)
        found: list[Document] = []
        jobs = self._jobs(queue)
        with translated():
            for these in _ranges(state, after, now) if may_have(jobs, state) else ():
                rows = jobs.find(these, _SHOWN, hint=_HINTS.get(stored_state(state)))
                found += rows.sort(order_of(state)).limit(limit + 1 - len(found))
                if len(found) > limit:
                    break
        last = found[limit - 1] if len(found) > limit else None
        place = None if last is None else _in_line(last) if state == State.WAITING else _place(last)
        return JobPage([_row(each, state) for each in found[:limit]], place)

    def ended(
        self, queue: str, state: str, letters: DeadLetters, limit: int, after: Place | None, now: float
    ) -> JobPage:
        """Jobs that are done or dead, the latest first, and of them those that ``letters`` says.

        A page may have fewer than ``limit``, even none, and go on all the same: others had another reason.
        """
        jobs, place = self._jobs(queue), _ended_place(after)
        found: list[Document] = []
        with translated():
            for _ in range(_WINDOWS):
                window = _Window(jobs, state, letters, place, now, limit)
                found += window.read(limit + 1 - len(found))
                place = window.end
                if place is None or len(found) > limit:
                    break
        if len(found) > limit:
            last = found[limit - 1]
            place = _Ended(last["ended_at"], last["_id"])
        next_ = None if place is None else [_milliseconds(place.at), place.job_id]
        return JobPage([_row(each, state) for each in found[:limit]], next_)

    def with_ids(self, queue: str, beginning: str, limit: int, now: float) -> JobPage:
        """Jobs of whatever state whose id begins so, by their ids."""
        these = {"_id": {"$gte": beginning, "$lt": beginning + "\U0010ffff"}}
        with translated():
            found = self._jobs(queue).find(these, _SHOWN, hint=BY_ID).sort("_id", 1).limit(limit)
            return JobPage([_row(each, state_at(each, now)) for each in found], None)

    def count(self, queue: str, letters: DeadLetters, now: float, known: int | None = None) -> HowMany:
        """How many dead letters these are; ``known``: about how many there are in all, if that is."""
        jobs, these = self._jobs(queue), chosen(letters, now)
        hint = BY_ID if letters.ids is not None else ENDED_INDEX
        with translated():
            try:
                count = jobs.count_documents(these, hint=hint, limit=self._exactly, maxTimeMS=_MOST_MS)
            except ExecutionTimeout:
                count = self._exactly
            if count < self._exactly:
                return HowMany(count, exact=True)
            if known is not None and known >= self._exactly and letters == DeadLetters():
                return HowMany(known, exact=False)
            total = jobs.estimated_document_count()
            return HowMany(int(total * self._share(jobs, these, total)), exact=False)

    def reasons(self, queue: str, letters: DeadLetters, now: float) -> list[Document]:
        """Why the latest dead letters died: ``[{reason, count}]`` of up to 900, the most frequent first."""
        all_of_it = {"$cond": [{"$isArray": "$errors"}, "$errors.reason", []]}
        last: Document = {"$ifNull": [{"$last": all_of_it}, ""]}
        steps: list[Document] = [
            {"$match": chosen(letters._replace(reason=None), now)},
            {"$sort": {"ended_at": -1}},
            {"$limit": _SAMPLE},
            {"$group": {"_id": {"$substrCP": [{"$toString": last}, 0, 200]}, "count": {"$sum": 1}}},
            {"$sort": {"count": -1, "_id": 1}},
            {"$limit": 10},
        ]
        with translated():
            found = self._jobs(queue).aggregate(steps, hint=ENDED_INDEX)
            return [{"reason": each["_id"], "count": each["count"]} for each in found]

    def _share(self, jobs: _Jobs, these: Document, total: int) -> float:
        """About which part of all jobs these are."""
        of_what: list[Document] = [{"$match": these}, {"$count": "count"}]
        for size in self._random:
            with suppress(ExecutionTimeout):
                random: list[Document] = [{"$sample": {"size": size}}, *of_what]
                return _hits(jobs.aggregate(random, maxTimeMS=_MOST_MS)) / min(size, max(1, total))
        # In words of which the index is known to have all: without a time MongoDB read and sorted a million.
        dead: Document = {"state": State.DEAD, "ended_at": {"$gte": date(0)}}
        latest: list[Document] = [{"$match": dead}, {"$sort": {"ended_at": -1}}, {"$limit": self._latest}]
        found = jobs.aggregate([*latest, *of_what], hint=ENDED_INDEX)
        return _hits(found) / min(self._latest, max(1, total))

    def _jobs(self, queue: str) -> _Jobs:
        return self._database[collection(queue)]


class _Window:
    """A stretch of the jobs that have ended, from the latest on; ``end``: where the next one begins.

    Jobs that ended in one millisecond are never torn apart, so a window may have a few more than its size.
    """

    def __init__(
        self, jobs: _Jobs, state: str, letters: DeadLetters, place: _Ended | None, now: float, limit: int
    ) -> None:
        self._jobs = jobs
        these = chosen(letters._replace(ids=None), now)
        self._why = {name: value for name, value in these.items() if name == "$expr"}
        when: Document = {"$gte": date(0), **these["ended_at"]}
        behind = when if place is None else {**when, "$lt": place.at}
        size = _WINDOW if self._why else limit + 1
        edge = self._edge({"state": state, "ended_at": behind}, size)
        first = when["$gte"] if edge is None else edge
        self._these: Document = {"state": state, "ended_at": {**behind, "$gte": first}}
        if place is not None and place.job_id is not None:  # and what is left of that millisecond
            self._these["ended_at"] = {**when, "$gte": first, "$lte": place.at}
            self._these["$nor"] = [{"ended_at": place.at, "_id": {"$lte": place.job_id}}]
        self.end = None if edge is None else _Ended(edge, None)

    def read(self, limit: int) -> list[Document]:
        """The first of them, in order."""
        found = self._jobs.find({**self._these, **self._why}, _SHOWN, hint=ENDED_INDEX)
        return list(found.sort([("ended_at", -1), ("_id", 1)]).limit(limit))

    def _edge(self, these: Document, size: int) -> datetime | None:
        """When the last of so many jobs ended, from the index alone; None: there are not so many."""
        times = self._jobs.find(these, {"_id": 0, "state": 1, "ended_at": 1}, hint=ENDED_INDEX)
        for each in times.sort("ended_at", -1).skip(size - 1).limit(1):
            return each["ended_at"]  # type: ignore[no-any-return]
        return None


def _hits(found: Iterable[Document]) -> int:
    return next((int(each["count"]) for each in found), 0)


def _ranges(state: str, after: Place | None, now: float) -> Iterator[Document]:
    """What comes behind a job in the order of its state: ranges of the index, one after the other."""
    these = selects(state, now) | (alive(now) if stored_state(state) == State.READY else {})
    if after is None:
        yield these
        return
    if state == State.WAITING:
        group, place = _line_of(after)
        yield {"wait.group": group, "wait.place": {"$gt": place}}
        yield {"wait.group": {"$gt": group}}
        if not isinstance(group, str):  # first those that wait for their children, then the lines
            yield {"wait.group": {"$gte": ""}}
        return
    priority, due, seq = _place_of(after)
    when = these.get("eligible_at", {})
    later = {**when, "$gt": max(date(due), when["$gt"]) if "$gt" in when else date(due)}
    yield {**these, "priority": priority, "eligible_at": date(due), "seq": {"$gt": seq}}
    yield {**these, "priority": priority, "eligible_at": later}
    yield {**these, "priority": {"$gte": -(2**31), "$lt": priority}}


def _place(job: Document) -> Place | None:
    try:
        return [job["priority"], _milliseconds(job["eligible_at"]), int(job["seq"])]
    except (KeyError, TypeError, ValueError):  # it is no job: there is no way behind it
        return None


def _place_of(after: Place) -> tuple[int, float, int]:
    if len(after) != 3 or not all(isinstance(each, int) for each in after):
        raise BadFrames("after is not what the last page of this state gave as next")
    return after[0], _moment(after[1]), after[2]


def _in_line(job: Document) -> Place | None:
    try:
        group = job["wait"]["group"]
        return [group if group == FOR_CHILDREN else str(group), int(job["wait"]["place"])]
    except (KeyError, TypeError, ValueError):
        return None


def _line_of(after: Place) -> tuple[str | int, int]:
    if len(after) != 2 or not isinstance(after[0], str | int) or not isinstance(after[1], int):
        raise BadFrames("after is not what the last page of this state gave as next")
    return after[0], after[1]


def _ended_place(after: Place | None) -> _Ended | None:
    if after is None:
        return None
    if len(after) != 2 or not isinstance(after[0], int) or not isinstance(after[1], str | None):
        raise BadFrames("after is not what the last page of this state gave as next")
    return _Ended(date(_moment(after[0])), after[1])


def _moment(milliseconds: int) -> float:
    """Seconds of a time in a place; raises BadFrames for one that no date can have."""
    if not 0 <= milliseconds < _LAST_MILLISECOND:
        raise BadFrames("after is not what the last page of this state gave as next")
    return milliseconds / 1000


def _milliseconds(when: datetime) -> int:
    return round(seconds(when) * 1000)


def _row(stored: Document, state: str) -> Document:
    row = shown(stored, state)
    row.pop("seq", None)
    if not isinstance(row.get("errors", []), list):  # it is no job
        del row["errors"]
    return row
