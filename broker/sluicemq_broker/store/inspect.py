"""What people ask of a queue in MongoDB: how many, which, since when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import bson
import gevent
from bson.datetime_ms import DatetimeMS
from gevent.event import AsyncResult
from pymongo.collection import Collection

from sluicemq.errors import NotFound, Unavailable
from sluicemq_broker.job import SCHEDULED, State
from sluicemq_broker.store.connection import Documents, durable, translated
from sluicemq_broker.store.documents import (
    ANY_PRIORITY,
    ORDER,
    QUEUE_PREFIX,
    SCHEMA,
    Document,
    date,
    seconds,
)
from sluicemq_broker.store.index_models import (
    ENDED_INDEX,
    EXPIRY_INDEX,
    LINE_EXPIRY_INDEX,
    LINE_INDEX,
    READY_INDEX,
    RESERVED_INDEX,
)
from sluicemq_broker.store.indexes import has_lines, may_have
from sluicemq_broker.store.outcomes import EXPIRED

#: Up to so many jobs of a state are counted one by one; above, the figure is an estimate.
COUNTED_EXACTLY = 10_000

#: With so many in all, a sample tells first which states are not worth counting.
_SURELY_MANY = 100_000
#: Documents of a random sample; MongoDB draws it without a scan while it is under 5 % of all.
_SAMPLE = 900
#: Jobs that are read and shown at once; one that weighs so many bytes has a turn of the hub for itself.
_PAGE = 20
_HEAVY = 100_000
#: How much dearer a byte of headers and errors is than one of a payload.
_DEARER = 8
_MOMENT = 1e-9  # seconds

#: Priorities among which the oldest ready job is looked for.
_PRIORITIES = 32

COUNTED_STATES = (State.READY, SCHEDULED, State.WAITING, State.RESERVED, State.DONE, State.DEAD)
_INDEX_OF = {
    State.READY: READY_INDEX,
    SCHEDULED: READY_INDEX,
    State.WAITING: LINE_INDEX,
    State.RESERVED: RESERVED_INDEX,
}


_Jobs = Collection[dict[str, Any]]


class Inspector:
    """Reads over the queue collections of one database."""

    def __init__(self, database: Documents) -> None:
        self._database = durable(database)

    def check_schema(self) -> None:
        """Note this broker's schema number; raises :class:`NewerSchema` if the database has a higher one."""
        with translated():
            meta = self._database["meta"]
            meta.update_one({"_id": "schema"}, {"$max": {"number": SCHEMA}}, upsert=True)
            found = meta.find_one({"_id": "schema"}) or {}
        if found.get("number", SCHEMA) > SCHEMA:
            raise NewerSchema(
                f"database {self._database.name!r} was written by a newer SluiceMQ (schema "
                f"{found['number']}, this one knows {SCHEMA}): upgrade, or use another --database"
            )

    def names(self) -> list[str]:
        """The queues that have a collection."""
        with translated():
            found = self._database.list_collection_names(filter={"name": {"$regex": "^queue\\."}})
        return sorted(name.removeprefix(QUEUE_PREFIX) for name in found)

    def counts(self, queue: str, now: float) -> dict[str, Any]:
        """``{ready, scheduled, waiting, reserved, done, dead, exact, oldest}``, in a few ms, however many.

        ``oldest``: since when the ready job is due that has been due longest, None without one.
        States with less than ``COUNTED_EXACTLY`` jobs are counted; above, ``exact`` is False and the
        figure an estimate: what is left of all documents, split between several such states as a
        random sample is (within some 5 % of all, which MongoDB counts itself). What has expired counts as
        nothing, though the sweep may not have come to it.
        """
        jobs = self._database[QUEUE_PREFIX + queue]
        with translated():
            total = jobs.estimated_document_count()  # of no use alone after a crash of MongoDB
            if total < _SURELY_MANY and (found := _all_at_once(jobs, now)):
                return found
            shares = _sampled(jobs, now) if total >= _SURELY_MANY else {}
            few = [each for each in COUNTED_STATES if shares.get(each, 0.0) * total < 3 * COUNTED_EXACTLY]
            over = _expired(jobs, now)
            counted = _together([partial(_counted, jobs, state, now) for state in few])
            counts = dict(zip(few, counted, strict=True))
            many = [each for each in COUNTED_STATES if counts.get(each, COUNTED_EXACTLY) >= COUNTED_EXACTLY]
            if len(many) > 1:
                shares = shares or _sampled(jobs, now)
        rest = total - sum(count for state, count in counts.items() if state not in many)
        counts |= _shared_out(rest, many, shares)
        counts |= {state: max(0, counts[state] - count) for state, count in over.items()}
        oldest = self.oldest_ready(queue, now) if counts[State.READY] else None
        return {**{state: counts[state] for state in COUNTED_STATES}, "exact": not many, "oldest": oldest}

    def size(self, queue: str) -> int:
        """Bytes of all its documents, before compression; MongoDB keeps that sum, and reads none of them."""
        with translated():
            found = list(
                self._database[QUEUE_PREFIX + queue].aggregate([{"$collStats": {"storageStats": {}}}])
            )
        return sum(int(each["storageStats"]["size"]) for each in found)  # one for each shard

    def oldest_ready(self, queue: str, now: float) -> float | None:
        """Since when the job is due that has been due longest; None: no job is ready.

        One step in the index for each priority in use, of the ``_PRIORITIES`` highest: more are rare.
        """
        jobs = self._database[QUEUE_PREFIX + queue]
        due, below = list[float](), float(2**31)
        with translated():
            for _ in range(_PRIORITIES):
                line = {
                    "state": State.READY,
                    "priority": {"$gte": -(2**31), "$lt": below},
                    "eligible_at": {"$gte": date(0)},
                    **alive(now),
                }
                first = jobs.find_one(line, {"priority": 1, "eligible_at": 1}, sort=ORDER)
                if first is None or not isinstance(first["priority"], int | float):
                    break
                below = first["priority"]
                due.append(_plain(first["eligible_at"]))
        return min((each for each in due if each <= now), default=None)

    def peek(self, queue: str, state: str, limit: int, most_bytes: int, now: float) -> list[Document]:
        """The first ``limit`` jobs of a state, in the order in which they would be handed out.

        Fewer, but one at least, if they come to more than ``most_bytes``; all but payloads and results
        counts ``_DEARER`` times, for it is taken apart. A few at a time, so that others have their turn.
        """
        rows: list[Document] = []
        with translated():
            jobs = self._database[QUEUE_PREFIX + queue]
            if not may_have(jobs, state):
                return []
            these = selects(state, now) | (alive(now) if stored_state(state) == State.READY else {})
            found = jobs.find(these, batch_size=_PAGE)
            for each in found.sort(order_of(state)).limit(limit):
                rows.append(shown(each, state))
                weight = _weight(each)
                most_bytes -= weight
                if most_bytes < 0:
                    break
                if weight > _HEAVY or len(rows) % _PAGE == 0:
                    gevent.sleep(_MOMENT)
        return rows

    def show(self, queue: str, job_id: str, now: float) -> Document:
        """All that is stored of one job; raises :class:`NotFound`."""
        with translated():
            found = self._database[QUEUE_PREFIX + queue].find_one({"_id": job_id})
        if found is None:
            raise NotFound(f"job {job_id!r} is not there in queue {queue!r}")
        return shown(found, state_at(found, now))


def state_at(stored: Document, now: float) -> Any:
    """The state in which a job is shown at this moment."""
    state, due, over = (
        _plain(stored.get("state")),
        _plain(stored.get("eligible_at")),
        stored.get("expires_at"),
    )
    if state not in (State.READY, State.WAITING):
        return state
    if isinstance(over, datetime) and seconds(over) <= now:
        return EXPIRED
    later = state == State.READY and isinstance(due, int | float) and due > now
    return SCHEDULED if later else state


class NewerSchema(Unavailable):
    """The database was written by a newer version, whose documents this one can't read."""


def collection(queue: str) -> str:
    """The name of a queue's collection."""
    return QUEUE_PREFIX + queue


#: The states that can be asked for; ``scheduled`` is a ``ready`` job that is not due yet.
SHOWN_STATES = (State.READY, SCHEDULED, State.WAITING, State.RESERVED, State.DONE, State.DEAD)


def stored_state(state: str) -> str:
    """The state that a shown one is stored as."""
    return State.READY if state == SCHEDULED else state


def selects(state: str, now: float) -> Document:
    """The jobs of a state, in words that MongoDB can answer from the state's own index."""
    if state in (State.DONE, State.DEAD):
        return {"state": state, "ended_at": {"$gte": date(0)}}  # not $exists, for which it reads documents
    if state == State.WAITING:
        return {"wait.group": {"$type": ["number", "string"]}}  # in no other state has it one: parents, lines
    when = {State.READY: {"$lte": date(now)}, SCHEDULED: {"$gt": date(now)}}.get(state)
    return {"state": stored_state(state)} | ({**ANY_PRIORITY, "eligible_at": when} if when else {})


def _all_at_once(jobs: _Jobs, now: float) -> dict[str, Any] | None:
    """What :meth:`Inspector.counts` tells, by one statement; None if it takes more.

    Six statements of their own, and those for the oldest job, took broker and MongoDB 10 ms of CPU. It takes
    more where a state has too many jobs, or something has expired.
    """
    lines = has_lines(jobs)
    states = [each for each in COUNTED_STATES if lines or each != State.WAITING]
    first, *others = (_counting(state, selects(state, now)) for state in states)
    others += [_counting(EXPIRED, over(now)) for over in (_over, *((_over_in_line,) if lines else ()))]
    branches = [{"$unionWith": {"coll": jobs.name, "pipeline": each}} for each in others]
    found = {each["_id"]: each for each in jobs.aggregate([*first, *branches], hint=READY_INDEX)}
    if EXPIRED in found or any(each["count"] >= COUNTED_EXACTLY for each in found.values()):
        return None
    counts = {state: found[state]["count"] if state in found else 0 for state in COUNTED_STATES}
    ready = found.get(State.READY)
    return {**counts, "exact": True, "oldest": None if ready is None else _plain(ready["oldest"])}


def _counting(name: str, these: Document) -> list[Document]:
    """Counts these jobs up to ``COUNTED_EXACTLY``; there is one index for each branch, and no other."""
    whole: Document = {"_id": {"$literal": name}, "count": {"$sum": 1}}
    if name == State.READY:
        whole["oldest"] = {"$min": "$eligible_at"}
    return [{"$match": these}, {"$limit": COUNTED_EXACTLY}, {"$group": whole}]


def _together(questions: Sequence[Callable[[], int]]) -> list[int]:
    """The answers to questions that are asked at once: one after the other takes as long as all of them."""
    answers: list[AsyncResult[int]] = [AsyncResult() for _ in questions]
    for answer, question in zip(answers, questions, strict=True):
        gevent.spawn(_answer, answer, question)
    return [answer.get() for answer in answers]


def _answer(answer: AsyncResult[int], question: Callable[[], int]) -> None:
    try:
        answer.set(question())
    except Exception as error:  # noqa: BLE001 - whoever asked hears of it
        answer.set_exception(error)


def _counted(jobs: _Jobs, state: str, now: float) -> int:
    """Jobs of a state, counted up to ``COUNTED_EXACTLY``."""
    if not may_have(jobs, state):
        return 0
    return jobs.count_documents(
        selects(state, now), hint=_INDEX_OF.get(state, ENDED_INDEX), limit=COUNTED_EXACTLY
    )


def _expired(jobs: _Jobs, now: float) -> dict[str, int]:
    """How many that would count as ready, or as scheduled, have expired: few, but for those of one moment."""
    over = _over(now)
    count = partial(jobs.count_documents, hint=EXPIRY_INDEX, limit=COUNTED_EXACTLY)
    in_line = 0
    if has_lines(jobs):
        in_line = jobs.count_documents(_over_in_line(now), hint=LINE_EXPIRY_INDEX, limit=COUNTED_EXACTLY)
    if not (both := count(over)):
        return {State.WAITING: in_line}
    later = count({**over, "eligible_at": {"$gt": date(now)}})
    return {State.READY: both - later, SCHEDULED: later, State.WAITING: in_line}


def _over(now: float) -> Document:
    return {"state": State.READY, "expires_at": {"$gte": date(0), "$lte": date(now)}}


def _over_in_line(now: float) -> Document:
    return {"wait.expires_at": {"$gte": date(0), "$lte": date(now)}}


def alive(now: float) -> Document:
    """The filter for jobs whose time to live is not over."""
    return {"expires_at": {"$not": {"$lte": date(now)}}}


def _sampled(jobs: _Jobs, now: float) -> dict[str, float]:
    """Which part of all jobs is in which state, as in a random sample."""
    later = {"$and": [{"$eq": ["$state", State.READY]}, {"$gt": ["$eligible_at", date(now)]}]}
    by_state = {"_id": {"$cond": [later, SCHEDULED, "$state"]}, "count": {"$sum": 1}}
    found = {
        each["_id"]: each["count"]
        for each in jobs.aggregate([{"$sample": {"size": _SAMPLE}}, {"$group": by_state}])
    }
    return {state: count / sum(found.values()) for state, count in found.items()}


def _shared_out(rest: int, states: list[str], shares: dict[str, float]) -> dict[str, int]:
    """How many of the rest are in each of these states, of which each has ``COUNTED_EXACTLY`` at least."""
    if len(states) == 1:
        return {states[0]: max(COUNTED_EXACTLY, rest)}
    whole = sum(shares.get(state, 0.0) for state in states) or 1.0
    return {state: max(COUNTED_EXACTLY, int(rest * shares.get(state, 0.0) / whole)) for state in states}


def order_of(state: str) -> list[tuple[str, int]]:
    """How the jobs of a state are sorted as they are shown."""
    if state == State.WAITING:
        return [("wait.group", 1), ("wait.place", 1)]
    return [("ended_at", 1)] if state in (State.DONE, State.DEAD) else ORDER


def shown(stored: Document, state: str) -> Document:
    """A job as it is shown: times as Unix seconds, and nothing but what msgpack and JSON know."""
    row = {key: _plain(value) for key, value in stored.items() if key != "_id"}
    if "children" in row:  # it has no place in any line
        row.pop("wait", None)
    if "payload" in row and not isinstance(row["payload"], bytes):
        row["payload"] = str(row["payload"]).encode()  # it is no job: so it is shown all the same
    return {
        "id": stored["_id"] if isinstance(stored["_id"], str) else str(stored["_id"]),
        **row,
        "state": state,
    }


def _weight(stored: Document) -> int:
    """About how many bytes of a plain payload it is as dear as."""
    plain = [stored.get(name) for name in ("payload", "result")]
    dear: Document = {name: stored[name] for name in ("headers", "errors", "raw_headers") if name in stored}
    size = sum(len(each) for each in plain if isinstance(each, bytes | str))
    return size + (_DEARER * len(bson.encode(dear)) if dear else 0)


def _plain(value: Any) -> Any:
    """What msgpack and JSON know: dates as Unix seconds, also inside lists and maps; all else as its text."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, datetime):
        return seconds(value)
    if isinstance(value, DatetimeMS):  # before the year 1 or after 9999
        return int(value) / 1000
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return str(value)
