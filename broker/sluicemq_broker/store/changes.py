"""What people order for the jobs of a queue: cancel, promote, change, redrive, purge.

What may be of many jobs is done in pages: whoever iterates decides how large the next one is, and when. Each
move is one guarded statement on one document (into another queue: one transaction), so that
a job which a worker has, or which has ended, is never touched. A lost reply raises
:class:`~sluicemq_broker.store.connection.Unclear`; what repeating the order then does is said at each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pymongo.client_session import ClientSession
from pymongo.collection import Collection

from sluicemq.errors import BadFrames, Duplicate, NotFound, SluiceError
from sluicemq_broker.job import ERRORS_KEPT, State
from sluicemq_broker.store.connection import Documents, durable, translated
from sluicemq_broker.store.documents import (
    ENDED_INDEX,
    INDEXES,
    PASSED_KEPT,
    Document,
    date,
    queue_of,
    seconds,
)
from sluicemq_broker.store.groups import GroupStore
from sluicemq_broker.store.inspect import collection, selects, stored_state
from sluicemq_broker.store.transactions import Overtaken, transact

#: Bytes of the jobs in one statement, at most, unless one alone has more.
_BYTES_AT_ONCE: Final = 8 * 2**20
#: Ids that are read at once; the driver makes all of a reply in one turn of the hub.
_READ_AT_ONCE: Final = 1000
#: Dead letters that can't be redriven are told by name up to so many, and counted beyond.
_NAMED: Final = 100
#: Seconds by which one broker's measure of the server's time may be ahead of another's.
_CLOCKS_DIFFER: Final = 1.0

_BY_ID: Final = "_id_"
#: The states of a job that no broker has, and that has not ended.
_WAITS: Final = [State.READY, State.WAITING]


def _is(field: str, *types: str) -> Document:
    return {"$in": [{"$type": f"${field}"}, list(types)]}


#: Dead letters that are no jobs: their headers could not be read, their payload is kept in part, or they are
#: documents that were set aside.
_IN_PART: Final[Document] = {
    "$or": [
        {"raw_headers": {"$exists": True}},
        {"unreadable": {"$exists": True}},
        {"$expr": {"$gt": ["$size", {"$cond": [_is("payload", "binData"), {"$binarySize": "$payload"}, 0]}]}},
    ]
}

_Jobs = Collection[dict[str, Any]]
#: How many jobs the next statement is to have, at most.
PageSize = Callable[[], int]


class DeadLetters(NamedTuple):
    """Which dead letters: all, or of these ids, or with this text in their last reason; the oldest first.

    ``since`` and ``until``: that have died from then on, and before then, in Unix seconds. Of those that
    somebody asks for only those that have died before ``unasked``, where that is given, and of children only
    those whose parents have been told.
    """

    ids: tuple[str, ...] | None = None
    reason: str | None = None
    limit: int | None = None
    since: float | None = None
    until: float | None = None
    unasked: float | None = None


@dataclass(slots=True)
class Redriven:
    """What a redrive did: how many went, how many of those chosen stay dead, and which can't go, and why.

    ``groups``: those in whose lines jobs of the last page wait now.
    """

    moved: int = 0
    left: int = 0
    refused: dict[str, SluiceError] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()


class Changes:
    """Orders for the queue collections of one database."""

    def __init__(self, database: Documents) -> None:
        self._database = durable(database)

    # ------------------------------------------------------------ one that waits

    def cancel(self, queue: str, job_id: str, now: float) -> str | None:
        """Remove one job that waits; raises :class:`NotFound` if there is none or a worker has it.

        Returns its group, whose next one may go; None: it had none.

        Lost reply: it is there or gone; repeating it says NOT_FOUND of one that is gone. ``now`` spares
        another job of this id, accepted later, should the statement land late.
        """
        waits = {"_id": job_id, "state": {"$in": _WAITS}, **_accepted_by(now)}
        with translated():
            jobs = self._jobs(queue)
            cancelled = jobs.find_one_and_delete(waits, {"group": 1})
            if cancelled is None:
                raise _missing(jobs, queue, job_id, "cancelled")
        return cancelled.get("group")

    def remove_ended(self, queue: str, job_id: str, now: float) -> bool:
        """Remove a job that is done, or a dead letter; False if there is none.

        Lost reply: it is there or gone; repeating it is harmless. ``now`` spares what has ended later.
        """
        ended = {"_id": job_id, "state": {"$in": [State.DONE, State.DEAD]}, "ended_at": {"$lte": date(now)}}
        with translated():
            return self._jobs(queue).delete_one(ended).deleted_count > 0

    def promote(self, queue: str, job_id: str, now: float) -> None:
        """Make a delayed job due now; one that is due already keeps its place.

        Raises :class:`NotFound` if no such job waits. Repeating it after a lost reply changes nothing.
        """
        self._change(queue, job_id, now, {"$min": {"eligible_at": date(now)}}, "promoted")

    def change(
        self, queue: str, job_id: str, now: float, *, priority: int | None = None, due: float | None = None
    ) -> None:
        """Give a waiting job another priority, or another time at which it is due, or both.

        Raises :class:`NotFound` if no such job waits. Repeating it after a lost reply is harmless.
        """
        fields: Document = {} if priority is None else {"priority": priority}
        if due is not None:
            fields["eligible_at"] = date(due)
        self._change(queue, job_id, now, {"$set": fields}, "changed")

    def _change(self, queue: str, job_id: str, now: float, update: Document, done: str) -> None:
        waits = {"_id": job_id, "state": {"$in": _WAITS}, "expires_at": {"$not": {"$lte": date(now)}}}
        with translated():
            jobs = self._jobs(queue)
            if not jobs.update_one(waits, update).matched_count:
                raise _missing(jobs, queue, job_id, done, now)

    # ------------------------------------------------------------------- redrive

    def redriving(
        self,
        queue: str,
        letters: DeadLetters,
        now: float,
        redriven: Redriven,
        size: PageSize,
        to: _Jobs | None = None,
        *,
        by_setting: bool = False,
    ) -> Iterator[int]:
        """Make dead letters ``ready`` again, at most ``letters.limit``: attempts and ttl start anew.

        Yields how many were moved, after each page; ``redriven`` is told of it, and of what is left.

        They are due now, so they come after what was due before them; among themselves ``seq``, which
        they keep, has them in their old order. One of a group is ``waiting``, at the end of its line. The
        history stays, with one entry more. What has died later than ``now`` is not chosen, so that a job
        which dies at once again is not redriven twice.

        Crash or lost reply: each is ready or dead; repeating it goes on with those that are dead. Into
        another queue, one of this MongoDB, a transaction moves each batch whole or not at all; a job
        whose id is there already is refused by name and stays; ``by_setting``: on nobody's order, so their
        headers tell why they are dead, and they have no ttl any more. Raises :class:`DifferentStore` if this
        MongoDB has no transactions.
        """
        with translated():
            jobs, these = self._jobs(queue), chosen(letters, now)
            if not redriven.moved:  # else it goes on, and those moved before are no dead letters any more
                redriven.refused |= _not_dead(jobs, queue, letters)
            step = _Revival(jobs, now) if to is None else _Move(jobs, to, now, by_setting=by_setting)
            for ids in _pages(_whole(jobs, letters, these), size):
                before = redriven.moved
                step.run(ids, redriven)
                yield redriven.moved - before
            _look_at_what_is_left(jobs, these, redriven)

    # --------------------------------------------------------------------- purge

    def purging(self, queue: str, state: str, now: float, size: PageSize) -> Iterator[int]:
        """Remove all jobs of a state, but never those that are reserved; yields how many, after each page.

        Lost reply: some are gone; repeating it removes the rest. What is accepted later than ``now`` stays,
        also where a statement lands late.
        """
        jobs, by_now = self._jobs(queue), _accepted_by(now)
        with translated():
            while True:
                # One read for all pages: another would pass over the removed ones in the index once more.
                found = jobs.find({**selects(state, now), **by_now}, {"_id": 1}, batch_size=_READ_AT_ONCE)
                empty = True
                for ids in _pages(((each["_id"], 0) for each in found), size):
                    empty = False
                    these = {"_id": {"$in": ids}, "state": stored_state(state), **by_now}
                    yield jobs.delete_many(these, hint=_BY_ID).deleted_count
                if empty:
                    return

    def discarding(self, queue: str, letters: DeadLetters, now: float, size: PageSize) -> Iterator[int]:
        """Remove dead letters, the oldest first, at most ``letters.limit``; yields how many, after each page.

        Lost reply: some are gone; repeating it removes the rest. What has died later than ``now`` stays.
        """
        jobs, these = self._jobs(queue), chosen(letters, now)
        with translated():
            found = jobs.find(these, {"_id": 1}, hint=_index(these), batch_size=_READ_AT_ONCE).sort(
                "ended_at", 1
            )
            if letters.limit is not None:
                found = found.limit(letters.limit)
            for ids in _pages(((each["_id"], 0) for each in found), size):
                dead = {"_id": {"$in": ids}, "state": State.DEAD, "ended_at": {"$lte": date(now)}}
                yield jobs.delete_many(dead, hint=_BY_ID).deleted_count

    def drop(self, queue: str, *, shared: bool = False) -> int:
        """Remove a queue with all it holds; returns about how many jobs that were.

        ``shared``: other brokers may be pushing to it. Their next insert would make the collection
        again, without the index that keeps a ``dedupe_id`` single; so an empty one that has its indexes
        takes its place, in one step, and stays. Lost reply: repeating it is harmless.
        """
        with translated():
            jobs = self._jobs(queue)
            count: int = jobs.estimated_document_count()
            if shared:
                empty = self._database[f"deleted.{queue}.{token_hex(4)}"]
                empty.create_indexes(INDEXES)
                empty.rename(jobs.name, dropTarget=True)
            else:
                jobs.drop()
        return count

    def _jobs(self, queue: str) -> _Jobs:
        return self._database[collection(queue)]


class _Revival:
    """Dead letters become ready in their own documents, in one statement."""

    def __init__(self, jobs: _Jobs, now: float) -> None:
        self._jobs = jobs
        self._now = now
        self._update = _revived(now, "redriven")

    def run(self, ids: list[str], redriven: Redriven) -> None:
        these = {"_id": {"$in": ids}, "state": State.DEAD, "ended_at": {"$lte": date(self._now)}}
        redriven.groups = _groups(self._jobs, ids)
        update = [*self._update, *_lined_up(self._jobs, ids)] if redriven.groups else self._update
        redriven.moved += self._jobs.update_many(these, update, hint=_BY_ID).modified_count


class _Move:
    """Dead letters become ready jobs of another queue: a transaction that does all of it or nothing."""

    def __init__(self, source: _Jobs, target: _Jobs, now: float, *, by_setting: bool = False) -> None:
        self._source = source
        self._target = target
        name = queue_of(source.name)
        told: Document = {"passed": _passed(name, now)}
        if by_setting:  # whoever works on them has all the time there is
            told |= {"headers": _obituary(name), "expires_at": "$$REMOVE"}
        revived = _revived(now, f"{'dead in' if by_setting else 'redriven from'} {name}", told)
        # What has the same dedupe_id there was pushed there, and goes before it.
        self._revived = [*revived, {"$unset": ["dedupe_id", "dedupe_until", "parent"]}]
        self._update = self._revived

    def run(self, ids: list[str], redriven: Redriven) -> None:
        def look() -> list[str]:
            return self._movable(ids, redriven)

        client = self._source.database.client
        redriven.groups = _groups(self._source, ids)
        self._update = [*self._revived, *_lined_up(self._target, ids)] if redriven.groups else self._revived
        redriven.moved += transact(client, look, self._apply, "moves into another queue")

    def _movable(self, ids: list[str], redriven: Redriven) -> list[str]:
        """Those that are dead still, without those whose id the other queue has: these are refused."""
        there = {each["_id"] for each in self._target.find({"_id": {"$in": ids}}, {"_id": 1})}
        name = queue_of(self._target.name)
        redriven.refused |= {
            each: Duplicate(f"queue {name!r} has a job {each!r} already", each)
            for each in ids
            if each in there
        }
        dead = {"_id": {"$in": [each for each in ids if each not in there]}, "state": State.DEAD}
        movable = {each["_id"] for each in self._source.find(dead, {"_id": 1}, hint=_BY_ID)}
        return [each for each in ids if each in movable]

    def _apply(self, ids: list[str], session: ClientSession) -> int:
        """Move them, all; returns how many. One that has changed in the meantime overtakes all."""
        if not ids:
            return 0
        source, these = self._source, {"_id": {"$in": ids}}
        dead, ready = {**these, "state": State.DEAD}, {**these, "state": {"$in": _WAITS}}
        if source.update_many(dead, self._update, hint=_BY_ID, session=session).modified_count < len(ids):
            raise Overtaken
        self._target.insert_many(source.find(these, hint=_BY_ID, session=session), session=session)
        if source.delete_many(ready, hint=_BY_ID, session=session).deleted_count < len(ids):
            raise Overtaken
        return len(ids)


def _passed(queue: str, now: float) -> Document:
    """The queues that it came through, this one too."""
    left = {
        "queue": queue,
        "accepted_at": "$created_at",
        "at": date(now),
        "attempts": "$attempts",
        "worker": "",
    }
    passed = {"$concatArrays": [{"$cond": [{"$isArray": "$passed"}, "$passed", []]}, [left]]}
    return {"$slice": [passed, -PASSED_KEPT]}


def _obituary(queue: str) -> Document:
    """Its headers, with what killed it, and where, for whoever works on dead letters."""
    letter = {
        "queue": queue,
        "reason": {"$ifNull": [{"$last": "$errors.reason"}, ""]},
        "attempts": "$attempts",
        "at": {"$divide": [{"$toLong": "$ended_at"}, 1000]},
    }
    own = {"$cond": [_is("headers", "object"), "$headers", {}]}
    return {"$mergeObjects": [own, {"dead_letter": letter}]}


def _revived(now: float, reason: str, told: Mapping[str, Any] = MappingProxyType({})) -> list[Document]:
    """The update that makes a dead letter ready: what was of its old life goes, the history stays."""
    entry = {"at": date(now), "attempt": "$attempts", "reason": {"$literal": reason}, "worker": ""}
    history = {"$concatArrays": [{"$cond": [{"$isArray": "$errors"}, "$errors", []]}, [entry]]}
    has_ttl = {"$and": [_is("expires_at", "date"), _is("created_at", "date")]}
    ttl = {"$subtract": ["$expires_at", "$created_at"]}
    fields = {
        "state": State.READY,
        "eligible_at": date(now),
        "attempts": 0,
        "errors": {"$slice": [history, -ERRORS_KEPT]},
        "expires_at": {"$cond": [has_ttl, {"$add": [date(now), ttl]}, "$$REMOVE"]},
        **told,
    }
    return [{"$set": fields}, {"$unset": ["losses", "suspect", "ended_at", "remove_at", "size", "children"]}]


def _groups(jobs: _Jobs, ids: list[str]) -> frozenset[str]:
    found = jobs.find({"_id": {"$in": ids}, "group": {"$type": "string"}}, {"group": 1}, hint=_BY_ID)
    return frozenset(each["group"] for each in found)


def _lined_up(jobs: _Jobs, ids: list[str]) -> list[Document]:
    """The rest of that update, where some have groups: these wait at the ends of their lines in ``jobs``."""
    first = GroupStore(jobs.database, jobs).places(len(ids))
    wait = {
        "group": "$group",
        "place": {"$add": [first, {"$indexOfArray": [{"$literal": ids}, "$_id"]}]},
        "expires_at": "$expires_at",
    }
    grouped = _is("group", "string")
    return [
        {
            "$set": {
                "state": {"$cond": [grouped, State.WAITING, State.READY]},
                "wait": {"$cond": [grouped, wait, "$$REMOVE"]},
            }
        }
    ]


def chosen(letters: DeadLetters, now: float) -> Document:
    """The filter for these dead letters, but their limit; of what has died by ``now``."""
    when: Document = {"$lte": date(now)}
    if letters.since is not None:
        when["$gte"] = date(letters.since)
    if letters.until is not None:
        when["$lt"] = date(letters.until)
    these: Document = {"state": State.DEAD, "ended_at": when}
    if letters.unasked is not None:
        told = [{"parent.id": {"$exists": False}}, {"parent.told": {"$exists": True}}]
        asked = [{"asked": {"$exists": False}}, {"ended_at": {"$lt": date(letters.unasked)}}]
        these["$and"] = [{"$or": told}, {"$or": asked}]
    if letters.ids is not None:
        these["_id"] = {"$in": list(letters.ids)}
    if letters.reason is not None:  # of the last failure; an expression, so that no character is special
        last = {"$ifNull": [{"$last": "$errors.reason"}, ""]}
        these["$expr"] = {"$gte": [{"$indexOfCP": [last, {"$literal": letters.reason}]}, 0]}
    return these


def _index(chosen: Document) -> str:
    return _BY_ID if "_id" in chosen else ENDED_INDEX


def _accepted_by(now: float) -> Document:
    """The filter for jobs that had been accepted by then, at brokers whose clocks differ a little."""
    return {"created_at": {"$lte": date(now + _CLOCKS_DIFFER)}}


def _whole(jobs: _Jobs, letters: DeadLetters, chosen: Document) -> Iterator[tuple[str, int]]:
    """Id and bytes of each letter that can be redriven."""
    wanted = {**chosen, "$nor": [_IN_PART]}
    size = {"bytes": {"$bsonSize": "$$ROOT"}}
    found = jobs.find(wanted, size, hint=_index(chosen), batch_size=_READ_AT_ONCE).sort("ended_at", 1)
    if letters.limit is not None:
        found = found.limit(letters.limit)
    return ((each["_id"], each["bytes"]) for each in found)


def _pages(jobs: Iterable[tuple[str, int]], size: PageSize) -> Iterator[list[str]]:
    """Their ids, in parts that one statement takes."""
    ids: list[str] = []
    most, room = size(), _BYTES_AT_ONCE
    for job_id, weight in jobs:
        if ids and (len(ids) >= most or weight > room):
            yield ids
            ids, most, room = [], size(), _BYTES_AT_ONCE
        ids.append(job_id)
        room -= weight
    if ids:
        yield ids


def _look_at_what_is_left(jobs: _Jobs, chosen: Document, redriven: Redriven) -> None:
    redriven.left = jobs.count_documents(chosen, hint=_index(chosen))
    if redriven.left:
        for each in jobs.find({**chosen, **_IN_PART}, {"_id": 1}, hint=_index(chosen)).limit(_NAMED):
            redriven.refused[str(each["_id"])] = BadFrames(
                f"{each['_id']!r} never was a job: its message is kept in part, or can't be read"
            )


def _not_dead(jobs: _Jobs, queue: str, letters: DeadLetters) -> dict[str, SluiceError]:
    """Why those that are named, but are no dead letters, can't be redriven."""
    if letters.ids is None:
        return {}
    found = {
        each["_id"]: each["state"] for each in jobs.find({"_id": {"$in": list(letters.ids)}}, {"state": 1})
    }
    return {
        each: _refusal(each, queue, found.get(each), "a dead letter can be redriven")
        for each in letters.ids
        if found.get(each) != State.DEAD
    }


def _missing(jobs: _Jobs, queue: str, job_id: str, done: str, now: float = 0.0) -> NotFound:
    """What a job is that does not wait."""
    found = jobs.find_one({"_id": job_id}, {"state": 1, "expires_at": 1}) or {}
    state = found.get("state")
    if state == State.READY and "expires_at" in found and seconds(found["expires_at"]) <= now:
        state = "expired"
    elif state == State.READY:
        state = "ready only since this moment: a worker, or a broker for one, had it. Try again"
    return _refusal(job_id, queue, state, f"a job that waits can be {done}")


def _refusal(job_id: str, queue: str, state: str | None, rule: str) -> NotFound:
    what = f"is {state}" if state else "is not there"
    return NotFound(f"job {job_id!r} {what} in queue {queue!r}: only {rule}")
