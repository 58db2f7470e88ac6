"""Ends of jobs that applications write, each within a transaction of their own.

A broker says which statements end a job. The application sends them in the transaction that changes its own
data, to the MongoDB of both::

    job, by {_id, owner, hold}         ──▶ done, as a commit of a job that is kept
    its parent, as the broker read it  ──▶ one child fewer; with the last one done, or ready for a join

No document gets a form that a commit by a broker would not give it. A statement that does not find its
document is a reason to abort: the reservation has ended, or another child has been counted meanwhile.

Killed before the transaction commits: the job is reserved as before. Killed after: it is done. A broker that
hears of it removes it, if it need not be kept; else MongoDB does a minute later. Other writes to the job wait
while the transaction is open. If its program is killed or stands still, MongoDB ends it after
``transactionLifetimeLimitSeconds``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import bson
from pymongo import UpdateOne

from sluicemq.protocol.errors import LeaseLostError, SluiceError
from sluicemq_broker.job import Job
from sluicemq_broker.store.errors import applied, translated
from sluicemq_broker.store.jobs.outcomes import Completed, end_of, reserved_as, taken_over, uncertain
from sluicemq_broker.store.jobs.parents import EndedParent, counting_down
from sluicemq_broker.store.jobs.queue_store import QueueStore
from sluicemq_broker.store.values import BY_ID, Document, date

#: Seconds for which a job is kept beyond what it asks for: a transaction may commit as much later.
_LATER: Final = 60.0


class NotCommitted(LeaseLostError):
    """The transaction that was to end the job has not committed."""


def statements_of_end(
    source: QueueStore, completed: Completed, size: int, now: float, queue: Callable[[str], QueueStore]
) -> tuple[bytes, list[EndedParent]]:
    """Return the statements that end a job with a result of ``size`` bytes, in BSON, and parents that end.

    ``queue`` opens a parent's queue by name. Its parents are read now; a job without one reads nothing.
    A job that lay in a pack is ``moved``: a transaction that has begun before does not find it.
    """
    moved = {"moved": True} if completed.job.pack is not None else {}
    source.lift([completed.job])
    until = (completed.job.kept_until(now) or now) + _LATER
    end = end_of(completed, now, until)
    own = _statement(source, reserved_as(completed.job), end, ("$set", "result"))
    with translated():
        parents = list(counting_down(completed.job, size, now, _LATER, queue))
    above = [_statement(parent.store, parent.filter, parent.update, parent.result_at) for parent in parents]
    ends = [end for parent in parents for end in parent.ended]
    return bson.encode({"statements": [own, *above], **moved}), ends


def _statement(
    store: QueueStore, which: Document, update: Document, result_at: Sequence[str | int]
) -> Document:
    jobs = store.jobs
    return {
        "database": jobs.database.name,
        "collection": jobs.name,
        "filter": which,
        "update": update,
        "result_at": list(result_at),
    }


def confirm_ends(store: QueueStore, jobs: Sequence[Job], now: float) -> dict[str, SluiceError]:
    """Remove jobs of one owner that their transactions have ended, or note how long they are kept.

    Return the ids of others, and why: :class:`NotCommitted` for those that are reserved still, LeaseLost,
    and Uncertain for missing ones, which MongoDB may have removed a minute after their end. Lost reply: a
    repetition finds removed ones missing.
    """
    removed = [job for job in jobs if job.kept_until(now) is None]
    kept = {job.id: until for job in jobs if (until := job.kept_until(now)) is not None}
    gone = noted = 0
    with translated():
        if removed:
            these = {
                "_id": {"$in": [job.id for job in removed]},
                "done_by": removed[0].owner,
                "hold": {"$in": list({job.reservation.number for job in removed})},
            }
            # failpoint jobs.confirm
            gone = store.jobs.delete_many(these, hint=BY_ID).deleted_count
        if kept:
            notes = [
                UpdateOne(_done_by(job), {"$set": {"ended_at": date(now), "remove_at": date(kept[job.id])}})
                for job in jobs
                if job.id in kept
            ]
            # failpoint jobs.confirm_kept
            noted = store.jobs.bulk_write(notes, ordered=False).matched_count
        if gone + noted == len(jobs):
            return {}
        with applied():
            numbers = {job.id: job.seq for job in jobs}  # a later job of an id has another one
            wanted = {"owner": 1, "hold": 1, "done_by": 1, "seq": 1}
            found = store.jobs.find({"_id": {"$in": list(numbers)}}, wanted, hint=BY_ID)
            there = {
                document["_id"]: document
                for document in found
                if numbers[document["_id"]] == document.get("seq")
            }
    missing = [job.id for job in jobs if job.id not in there]
    problems: dict[str, SluiceError] = {}
    if len(missing) > gone:
        problems = {job_id: uncertain(job_id) for job_id in missing}
    return problems | {
        job.id: why for job in jobs if job.id in there and (why := _problem(job, there[job.id])) is not None
    }


def _done_by(job: Job) -> Document:
    return {"_id": job.id, "done_by": job.owner, "hold": job.reservation.number}


def _problem(job: Job, stored: Document) -> SluiceError | None:
    if (stored.get("owner"), stored.get("hold")) == job.reservation:
        return NotCommitted(f"job {job.id} is given back: its transaction has not committed")
    ended = (stored.get("done_by"), stored.get("hold")) == job.reservation
    return None if ended else taken_over(job.id)
