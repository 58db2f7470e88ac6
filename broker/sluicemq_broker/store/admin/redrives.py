"""Redrives: dead letters become jobs again, in their queue or in another one.

In their queue each batch is one statement, guarded on each document. Into another queue each batch is one
transaction. A lost reply raises :class:`~sluicemq_broker.store.errors.Unclear`; a repetition goes on with
those that are still dead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from pymongo.client_session import ClientSession

from sluicemq.protocol.errors import BadFramesError, SluiceError
from sluicemq_broker.job import State
from sluicemq_broker.store.admin.changes import WAITS, Operations, refusal
from sluicemq_broker.store.admin.dead_letters import (
    ChosenLetter,
    DeadLetters,
    Looked,
    chosen,
    index_of,
    is_a,
    search_windows,
)
from sluicemq_broker.store.errors import Refused, translated
from sluicemq_broker.store.halving import READ_AT_ONCE, BatchSize, batches
from sluicemq_broker.store.jobs.documents import FOR_CHILDREN, PASSED_KEPT, queue_of
from sluicemq_broker.store.jobs.groups import GroupStore
from sluicemq_broker.store.jobs.indexes import has_lines
from sluicemq_broker.store.jobs.missing_children import with_all_children
from sluicemq_broker.store.jobs.outcomes import already_there, with_entry
from sluicemq_broker.store.jobs.portions import Portions
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.jobs.transactions import require_all, transact
from sluicemq_broker.store.values import BY_ID, Document, Jobs, date

#: Fields of a dead letter that no other job has.
_OF_DEATH: Final = ("losses", "unanswered", "suspect", "ended_at", "remove_at", "size")
#: Dead letters that can't be redriven are reported by name up to this number, and counted beyond it.
_NAMED: Final = 100


@dataclass(slots=True)
class Redriven:
    """The result of a redrive: how many moved, how many stay dead, which can't move and why.

    ``groups``: those in whose lines jobs of the last batch wait now.
    """

    moved: int = 0
    left: int = 0
    refused: dict[str, SluiceError] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()


class Redrives(Operations):
    """Operations that make jobs of dead letters again."""

    def redriving(
        self,
        queue: str,
        choice: DeadLetters,
        now: float,
        redriven: Redriven,
        size: BatchSize,
        to: QueueStore | None = None,
        *,
        looked: Looked = lambda _count: None,
        by_setting: bool = False,
    ) -> Iterator[int]:
        """Make dead letters ``ready`` again, up to the choice's limit: attempts and ttl start from zero.

        Yield how many were moved, after each batch; ``redriven`` has the sums, and what is left.

        They are due now, so they come after jobs that were due before; among themselves they keep ``seq``,
        and so their order. A job of a group is ``waiting``, at the end of its line. The history stays, with
        one entry more. Those that died later than ``now`` are not chosen, so a job that dies again at once is
        not redriven twice.

        Crash or lost reply: each is ready or dead, and a repetition goes on with those that are dead. Into
        another queue of this MongoDB a transaction moves each batch whole or not at all; a job whose id is
        there already is refused by name and stays. ``by_setting``: moved by a queue's ``on_dead``; the
        headers tell why the job is dead, and it has no ttl any more. Raises :class:`DifferentStore` if this
        MongoDB has no transactions.
        """
        jobs = self._jobs(queue)
        with translated():
            if not redriven.moved:  # else it goes on, and those moved before are no dead letters any more
                redriven.refused |= _not_dead(jobs, queue, choice)
            step: InPlace | IntoQueue = InPlace(jobs, now)
            if to is not None:
                portions = Portions(READ_AT_ONCE, self._notice)
                step = IntoQueue(jobs, to.jobs, now, portions, by_setting=by_setting)
            windows = _Windows(choice, redriven, search_windows(jobs, choice, now, size, looked))
            for ids in batches(windows.redrivable(), size):
                before = redriven.moved
                if ids:
                    step.run(ids, redriven)
                moved = redriven.moved - before
                if moved < len(ids):  # the others' ids exist there, or somebody else has redriven them
                    still = {"_id": {"$in": ids}, "state": State.DEAD, "ended_at": {"$lte": date(now)}}
                    redriven.left += jobs.count_documents(still, hint=BY_ID)
                yield moved
            if windows.cut_short:
                all_left = chosen(choice, now)
                redriven.left = jobs.count_documents(all_left, hint=index_of(all_left))


class _Windows:
    """The dead letters of a redrive, read in windows; notes in ``redriven`` which can't move."""

    def __init__(
        self, choice: DeadLetters, redriven: Redriven, windows: Iterator[list[ChosenLetter]]
    ) -> None:
        self.cut_short = False
        """True if nothing was read behind the limit: MongoDB counts the others by their keys."""
        self._choice = choice
        self._redriven = redriven
        self._windows = windows
        redriven.left = 0

    def redrivable(self) -> Iterator[list[tuple[str, int]]]:
        """Yield id and bytes of those that can be redriven, up to the limit; count the others as left."""
        room = sys.maxsize if self._choice.limit is None else self._choice.limit
        for window in self._windows:
            self._refuse(job.id for job in window if job.in_part)
            whole = [(job.id, job.bytes) for job in window if not job.in_part][:room]
            room -= len(whole)
            self._redriven.left += len(window) - len(whole)
            yield whole
            # With a reason MongoDB can count the others only by reading them, so it goes on in windows.
            if not room and self._choice.reason is None:
                self.cut_short = True
                return

    def _refuse(self, ids: Iterable[str]) -> None:
        for job_id in islice(ids, max(0, _NAMED - len(self._redriven.refused))):
            self._redriven.refused[str(job_id)] = BadFramesError(
                f"{job_id!r} never was a job: its message is kept in part, or can't be read"
            )


class InPlace:
    """Dead letters become ready in their own documents, in one statement."""

    def __init__(self, jobs: Jobs, now: float) -> None:
        self._jobs = jobs
        self._now = now
        self._update = _revived(now, "redriven")
        self._has_parents = has_lines(jobs)  # they have waited

    def run(self, ids: list[str], redriven: Redriven) -> None:
        """Make these ready, as far as they are still dead letters, and count them."""
        parents = with_all_children(self._jobs, ids) if self._has_parents else []
        others = [job_id for job_id in ids if job_id not in set(parents)] if parents else ids
        redriven.groups = _groups(self._jobs, others)
        update = [*self._update, *_lined_up(self._jobs, others)] if redriven.groups else self._update
        for these, change in ((parents, _waiting_again(self._now)), (others, update)):
            dead = {"_id": {"$in": these}, "state": State.DEAD, "ended_at": {"$lte": date(self._now)}}
            if these:
                # failpoint redrives.in_place
                redriven.moved += self._jobs.update_many(dead, change, hint=BY_ID).modified_count


class IntoQueue:
    """Dead letters become ready jobs of another queue, in transactions."""

    def __init__(
        self, source: Jobs, target: Jobs, now: float, portions: Portions, *, by_setting: bool = False
    ) -> None:
        self._source = source
        self._target = target
        name = queue_of(source.name)
        fields: Document = {"passed": _passed(name, now)}
        if by_setting:
            # A worker on dead letters may take all the time it needs, and does not do the work of the job: a
            # parent that has heard of its death stays a dead letter.
            untold = {"$lte": ["$parent.told", None]}
            fields |= {
                "headers": _headers_with_reason(name),
                "expires_at": "$$REMOVE",
                "parent": {"$cond": [untold, "$parent", "$$REMOVE"]},
            }
        revived = _revived(now, f"{'dead in' if by_setting else 'redriven from'} {name}", fields)
        # A job with the dedupe_id in the other queue was pushed there, and goes before it.
        self._revived = [*revived, {"$unset": ["dedupe_id", "dedupe_until"]}]
        self._update = self._revived
        self._portions = portions

    def run(self, ids: list[str], redriven: Redriven) -> None:
        """Move these, as far as they are still dead letters, and count them."""
        if GroupStore(self._source).may_have_children():
            GroupStore(self._target).prepare_for_children()
        redriven.groups = _groups(self._source, ids)
        self._update = [*self._revived, *_lined_up(self._target, ids)] if redriven.groups else self._revived
        for part, answer in self._portions.carry_out(ids, lambda part: self._run(part, redriven)):
            if isinstance(answer, Refused):
                redriven.refused[part[0]] = answer
            else:
                redriven.moved += answer

    def _run(self, ids: Sequence[str], redriven: Redriven) -> int:
        def read() -> list[str]:
            return self._movable(ids, redriven)

        client = self._source.database.client
        # failpoint redrives
        return transact(client, read, self._apply, "moves into another queue")

    def _movable(self, ids: Sequence[str], redriven: Redriven) -> list[str]:
        """Return those that are still dead; those whose id the other queue has are refused."""
        there = {document["_id"] for document in self._target.find({"_id": {"$in": ids}}, {"_id": 1})}
        name = queue_of(self._target.name)
        for job_id in islice(
            (job_id for job_id in ids if job_id in there), max(0, _NAMED - len(redriven.refused))
        ):
            redriven.refused[job_id] = already_there(name, job_id)
        dead = {"_id": {"$in": [job_id for job_id in ids if job_id not in there]}, "state": State.DEAD}
        movable = {document["_id"] for document in self._source.find(dead, {"_id": 1}, hint=BY_ID)}
        return [job_id for job_id in ids if job_id in movable]

    def _apply(self, ids: list[str], session: ClientSession) -> int:
        """Move them all and return how many; one that has changed in the meantime overtakes all."""
        if not ids:
            return 0
        source, named = self._source, {"_id": {"$in": ids}}
        dead, ready = {**named, "state": State.DEAD}, {**named, "state": {"$in": WAITS}}
        # failpoint redrives.revive
        revived = source.update_many(dead, self._update, hint=BY_ID, session=session)
        require_all(revived.modified_count, len(ids))
        # failpoint redrives.insert
        self._target.insert_many(source.find(named, hint=BY_ID, session=session), session=session)
        # failpoint redrives.remove
        require_all(source.delete_many(ready, hint=BY_ID, session=session).deleted_count, len(ids))
        return len(ids)


def _passed(queue: str, now: float) -> Document:
    """Return the expression for the queues that a job came through, with this one."""
    left = {
        "queue": queue,
        "accepted_at": "$created_at",
        "at": date(now),
        "attempts": "$attempts",
        "worker": "",
    }
    passed = {"$concatArrays": [{"$cond": [{"$isArray": "$passed"}, "$passed", []]}, [left]]}
    return {"$slice": [passed, -PASSED_KEPT]}


def _headers_with_reason(queue: str) -> Document:
    """Return the expression for a job's headers with ``dead_letter``: why, where and when it died."""
    death = {
        "queue": queue,
        "reason": {"$ifNull": [{"$last": "$errors.reason"}, ""]},
        "attempts": "$attempts",
        "at": {"$divide": [{"$toLong": "$ended_at"}, 1000]},
    }
    own = {"$cond": [is_a("headers", "object"), "$headers", {}]}
    return {"$mergeObjects": [own, {"dead_letter": death}]}


def _revived(now: float, reason: str, more: Mapping[str, Any] = MappingProxyType({})) -> list[Document]:
    """Return the update that makes a dead letter ready: its state is reset, its history stays."""
    has_ttl = {"$and": [is_a("expires_at", "date"), is_a("created_at", "date")]}
    ttl = {"$subtract": ["$expires_at", "$created_at"]}
    fields = {
        "state": State.READY,
        "eligible_at": date(now),
        "attempts": 0,
        "errors": with_entry(now, "$attempts", reason),
        "expires_at": {"$cond": [has_ttl, {"$add": [date(now), ttl]}, "$$REMOVE"]},
        # If all children have ended, it died on its second delivery, and gets that again.
        "joined": {"$cond": [{"$gt": ["$children.left", 0]}, "$$REMOVE", "$joined"]},
        **more,
    }
    # Its parent, which may have heard of its death, counts it when it is done.
    return [{"$set": fields}, {"$unset": [*_OF_DEATH, "parent.told", "children"]}]


def _waiting_again(now: float) -> list[Document]:
    """Return the update that lets dead parents wait for the children that are left."""
    fields: Document = {
        "state": State.WAITING,
        "wait": {"group": FOR_CHILDREN, "place": "$seq"},
        "errors": with_entry(now, "$attempts", "redriven: it waits for the children that are left"),
    }
    return [{"$set": fields}, {"$unset": [*_OF_DEATH, "parent.told", "expires_at"]}]


def _groups(jobs: Jobs, ids: list[str]) -> frozenset[str]:
    found = jobs.find({"_id": {"$in": ids}, "group": {"$type": "string"}}, {"group": 1}, hint=BY_ID)
    return frozenset(document["group"] for document in found)


def _lined_up(jobs: Jobs, ids: list[str]) -> list[Document]:
    """Return the update that lets jobs of groups wait at the ends of their lines in ``jobs``."""
    first = GroupStore(jobs).places(len(ids))
    wait = {
        "group": "$group",
        "place": {"$add": [first, {"$indexOfArray": [{"$literal": ids}, "$_id"]}]},
        "expires_at": "$expires_at",
    }
    grouped = is_a("group", "string")
    return [
        {
            "$set": {
                "state": {"$cond": [grouped, State.WAITING, State.READY]},
                "wait": {"$cond": [grouped, wait, "$$REMOVE"]},
            }
        }
    ]


def _not_dead(jobs: Jobs, queue: str, choice: DeadLetters) -> dict[str, SluiceError]:
    """Return why jobs that are named, but are no dead letters, can't be redriven."""
    if choice.ids is None:
        return {}
    found = {
        document["_id"]: document["state"]
        for document in jobs.find({"_id": {"$in": list(choice.ids)}}, {"state": 1})
    }
    return {
        job_id: refusal(job_id, queue, found.get(job_id), "a dead letter can be redriven")
        for job_id in choice.ids
        if found.get(job_id) != State.DEAD
    }
