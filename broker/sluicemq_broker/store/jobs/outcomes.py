"""Updates that verdicts and sweeps write into the documents of jobs, and what is read back from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from pymongo import UpdateMany, UpdateOne

from sluicemq.protocol.errors import DuplicateError, LeaseLostError, UncertainError
from sluicemq_broker.job import (
    ERRORS_KEPT,
    FIRST,
    NOT_DESCRIBED,
    TRACEBACKS_KEPT,
    Failure,
    Job,
    State,
)
from sluicemq_broker.store.jobs.documents import TRACEBACK, QueueDefaults, document, failure, in_line
from sluicemq_broker.store.values import Document, date, seconds

#: The reason of a job that died as no worker took it in time.
EXPIRED: Final = "expired"

#: Fields of a reserved job, as an update removes them.
RESERVATION: Final = {"owner": "", "reserved_at": "", "hold": "", "slot": ""}
#: The update that gives back a job that no worker has started: its attempt does not count.
RELEASE: Final = {"$set": {"state": State.READY}, "$unset": RESERVATION, "$inc": {"attempts": -1}}
#: Fields by which a job of a group keeps the next one waiting.
_TURN: Final = {"head": "", "wait": ""}
#: Fields that a done job loses. It keeps the number of its reservation: with ``done_by`` that tells a
#: repeated commit from a late one.
_UNRESERVED: Final = {"owner": "", "reserved_at": "", "slot": "", "head": ""}
_OUTCOME = dict.fromkeys(("done_by", "hold", "worker", "started_at", "ended_at", "result", "remove_at"), "")


class Completed(NamedTuple):
    """A job that its worker has done; ``started_at``: when the worker got it, by the server's clock."""

    job: Job
    result: bytes
    worker: str
    started_at: float


@dataclass(slots=True)
class RolledBack:
    """A job that returns to its queue, or dies; ``due``: when it is due again (None: it keeps its place).

    ``reason``: what its history says; empty: it has not failed, and nothing is said.
    ``counted``: the attempt counts; otherwise the worker had not started. ``answered``: the worker has said
    something of it. ``failure``: the exception behind it. ``began_at``: when the attempt began, in seconds of
    the server's clock, in which ``process``, a host and process id; None where they are not known.
    """

    job: Job
    reason: str
    worker: str
    due: float | None = None
    isolated: bool = False
    dead: bool = False
    counted: bool = True
    answered: bool = True
    failure: Failure = NOT_DESCRIBED
    began_at: float | None = None
    process: tuple[str, int] | None = None


class Progressed(NamedTuple):
    """The progress of a job, as its worker reports it; ``total``: None where it is not known."""

    job: Job
    done: float
    total: float | None
    note: str
    at: float


_REPORTED: Final = Progressed._fields[1:4]


@dataclass(frozen=True, slots=True)
class Found:
    """A job that was found by its id; ``expired``: it is dead, as no worker took it in time.

    ``expires_at``: when a ready job dies so; None: never. ``forwarded_to``: the queue that it moved to.
    ``progress``: the worker's last report, in words. ``large``: bytes of a result that is left out for its
    size.
    """

    state: State
    owner: str
    result: bytes
    reason: str
    expired: bool = False
    expires_at: float | None = None
    forwarded_to: str = ""
    progress: str = ""
    large: int = 0


def reserved_as(job: Job) -> Document:
    """Return the filter for this reservation of a job: no later one, and no other job of its id."""
    return {"_id": job.id, "owner": job.owner, "hold": job.reservation.number}


def all_reserved_as(jobs: Sequence[Job]) -> Document:
    """Return the filter for these reservations, all of one owner.

    It can't match an id with the number of another job: each number was given to a claim or an insert before
    this statement was made, so a later reservation of the id has a number that is not in the list.
    """
    return {
        "_id": {"$in": [job.id for job in jobs]},
        "owner": jobs[0].owner,
        "hold": {"$in": list({job.reservation.number for job in jobs})},
    }


def done_alike(completed: Iterable[Completed], now: float) -> list[UpdateMany]:
    """Return updates from ``reserved`` to ``done``, one for all jobs with equal results, workers and times.

    That marks a thousand jobs of one message without results twice as fast.
    """
    alike: dict[tuple[object, ...], list[Completed]] = defaultdict(list)
    for entry in completed:
        job = entry.job
        alike[(*entry[1:], job.owner, job.kept_until(now), job.keep_done > 0)].append(entry)
    return [
        UpdateMany(all_reserved_as([entry.job for entry in group]), _done(group[0], now))
        for group in alike.values()
    ]


def done(completed: Completed, now: float) -> UpdateOne:
    """Return the update from ``reserved`` to ``done``, with the result."""
    return UpdateOne(reserved_as(completed.job), _done(completed, now))


def _done(completed: Completed, now: float) -> Document:
    until = completed.job.kept_until(now) or now
    return _ended(
        completed.job, completed.worker, completed.started_at, now, until, {"result": completed.result}
    )


def end_of(completed: Completed, now: float, until: float) -> Document:
    """Return the update from ``reserved`` to ``done``, but for the result; the job is kept ``until``."""
    return _ended(completed.job, completed.worker, completed.started_at, now, until, {})


def traced(job: Job, worker: str, started_at: float, now: float, until: float, to: str) -> Document:
    """Return the update that leaves a trace of a job that moved to queue ``to``: ``done``, kept ``until``."""
    return _ended(job, worker, started_at, now, until, {"forwarded_to": to})


def _ended(job: Job, worker: str, started_at: float, now: float, until: float, with_: Document) -> Document:
    ended = {
        "state": State.DONE,
        "done_by": job.owner,  # tells a repeated commit from a late one under another owner
        "worker": worker,
        **with_,
        "started_at": date(started_at),
        "ended_at": date(now),
        "remove_at": date(until),
    }
    return {"$set": ended, "$unset": _UNRESERVED if job.keep_done else {**_UNRESERVED, "payload": ""}}


def taken_over(job_id: str) -> LeaseLostError:
    """Return the error of a verdict on a job that is not reserved so any more."""
    return LeaseLostError(f"job {job_id} is no longer held under this receipt")


def uncertain(job_id: str) -> UncertainError:
    """Return the error of a verdict on a job that is missing."""
    return UncertainError(f"job {job_id} is gone, whether by this verdict is not known")


def already_there(queue: str, job_id: str) -> DuplicateError:
    """Return the error of a job whose id the queue has already."""
    return DuplicateError(f"queue {queue!r} has a job {job_id!r} already", job_id)


def not_done(job: Job) -> UpdateOne:
    """Return the update from ``done`` back to ``ready``: the job was popped and kept, but could not be sent.

    A job of a group waits at the front of its line. A child was counted when it was done, so it has no parent
    now.
    """
    back: Document = {"state": State.READY}
    if job.group is not None:
        job.line_up(FIRST)
        back = {"state": State.WAITING, "wait": in_line(job)}
    ready = {
        "$set": {**back, "payload": job.payload},
        "$unset": {**_OUTCOME, "parent": ""},
        "$inc": {"attempts": -1},
    }
    return UpdateOne(
        {"_id": job.id, "state": State.DONE, "done_by": job.owner, "hold": job.reservation.number}, ready
    )


def progressed(report: Progressed) -> UpdateOne:
    """Return the update that notes progress in a job that is reserved as it was."""
    reported = {
        key: value for key, value in zip(_REPORTED, report[1:4], strict=True) if value not in (None, "")
    }
    progress = {**reported, "at": date(report.at), "attempt": report.job.attempts}
    return UpdateOne({**reserved_as(report.job), "state": State.RESERVED}, {"$set": {"progress": progress}})


def rolled_back(entry: RolledBack, now: float) -> UpdateOne:
    """Return the update from ``reserved`` to ``ready`` or ``dead``, with one more entry in the history."""
    changed: Document = {"state": State.READY}
    unset = RESERVATION
    if entry.dead:
        unset = {**RESERVATION, **_TURN}
        changed = dead(now)
    elif entry.due is not None:
        changed["eligible_at"] = date(max(entry.due, now))
    if entry.isolated:
        changed["suspect"] = True
    if not entry.answered:
        changed["unanswered"] = entry.job.unanswered + 1
    update: Document = {"$set": changed, "$unset": unset}
    if entry.reason:
        update["$push"] = {"errors": {"$each": [_failure(entry, now)], "$slice": -ERRORS_KEPT}}
        if trace := entry.failure.traceback:
            place = entry.job.attempts % TRACEBACKS_KEPT
            changed[f"{TRACEBACK}{place}"] = {"at": date(now), "text": trace}
    if not entry.counted:
        update["$inc"] = {"attempts": -1}
    return UpdateOne(reserved_as(entry.job), update)


def _failure(entry: RolledBack, now: float) -> Document:
    """Return the entry of a failed attempt in a job's history."""
    what = entry.failure
    known: Document = {"type": what.type, "place": what.place}
    if entry.process is not None:
        known["host"], known["pid"] = entry.process
    began = entry.began_at if what.seconds is None else now - what.seconds
    if began is not None:
        known["began_at"] = date(began)
    return {
        **failure(entry.job, entry.reason, entry.worker, date(now)),
        **{name: value for name, value in known.items() if value},
    }


def death(now: float, reason: str, *, losses: int = 0) -> list[Document]:
    """Return the update that lets jobs die without a verdict: a pipeline, as each has its own attempts."""
    changed = {**dead(now), "errors": with_entry(now, "$attempts", reason)}
    if losses:
        changed["losses"] = _added("losses", losses)
    return [{"$set": changed}, {"$unset": [*RESERVATION, *_TURN]}]


def with_entry(now: float, attempt: str | int, reason: str) -> Document:
    """Return the expression for a history with one more entry; what is no array counts as empty."""
    entry = {"at": date(now), "attempt": attempt, "reason": {"$literal": reason}, "worker": ""}
    history = {"$concatArrays": [{"$cond": [{"$isArray": "$errors"}, "$errors", []]}, [entry]]}
    return {"$slice": [history, -ERRORS_KEPT]}


def reclaimed() -> list[Document]:
    """Return the update from ``reserved`` to ``ready`` after a broker died: one loss more, one attempt less.

    Not ``$inc``, which fails as a whole if the field of one document is no number.
    """
    return [
        {"$set": {"state": State.READY, "losses": _added("losses", 1), "attempts": _added("attempts", -1)}},
        {"$unset": list(RESERVATION)},
    ]


def _added(key: str, count: int) -> Document:
    """Return the expression that adds to a number; a value that is no number counts as 0."""
    return {"$add": [{"$cond": [{"$isNumber": f"${key}"}, f"${key}", 0]}, count]}


def dead_letter(unreadable: Document, now: datetime, defaults: QueueDefaults) -> Document:
    """Return the document of a message that never became a job, with all fields of one."""
    entry = {"at": now, "attempt": 0, "reason": unreadable["reason"], "worker": ""}
    empty = Job(unreadable["_id"], unreadable["payload"])
    ended = {**dead(seconds(now)), "errors": [entry], "size": unreadable["size"]}
    if unreadable["raw_headers"]:
        ended["raw_headers"] = unreadable["raw_headers"]
    if unreadable.get("pushed_by"):
        ended["pushed_by"] = unreadable["pushed_by"]
    return {**document(empty, now, defaults), "eligible_at": now, **ended}


def dead(now: float) -> Document:
    """Return the fields of a job that dies now."""
    return {"state": State.DEAD, "ended_at": date(now)}


# ---------------------------------------------------------------------------- read back

#: Bytes of a result that is read together with its job, at most: a thousand may be read at once.
LARGE_RESULT: Final = 16_384
_RESULT_SIZE: Final = {"$bsonSize": {"result": "$result"}}
#: Fields that :func:`found` reads.
FOUND: Final[Document] = {
    **dict.fromkeys(("state", "owner", "expires_at", "forwarded_to", "progress"), 1),
    "errors": {"$slice": -1},
    "result": {"$cond": [{"$gt": [_RESULT_SIZE, LARGE_RESULT]}, b"", "$result"]},
    "result_size": _RESULT_SIZE,
}


def found(stored: dict[str, Any]) -> Found:
    """Read the outcome of a job from a document with the fields of :data:`FOUND`."""
    expires_at = stored.get("expires_at")
    waits = stored["state"] in (State.READY, State.WAITING)
    last = _last_failure(stored)
    return Found(
        State(stored["state"]),
        stored.get("owner", ""),
        result_of(stored),
        str(last.get("reason", "")),
        expired=last.get("reason") == EXPIRED and not last.get("worker") and stored["state"] == State.DEAD,
        expires_at=seconds(expires_at) if waits and isinstance(expires_at, datetime) else None,
        forwarded_to=str(stored.get("forwarded_to", "")),
        progress=_progress_text(stored.get("progress")) if stored["state"] == State.RESERVED else "",
        large=stored["result_size"] if stored["result_size"] > LARGE_RESULT else 0,
    )


def result_of(stored: Document) -> bytes:
    """Return the result in a document; a value that somebody wrote by hand is returned as text."""
    result = stored.get("result", b"")
    return result if isinstance(result, bytes) else str(result).encode()


def last_reason(stored: Document) -> str:
    """Return why the job failed the last time."""
    return str(_last_failure(stored).get("reason", ""))


def _last_failure(stored: Document) -> Document:
    errors = stored.get("errors")
    return errors[-1] if isinstance(errors, list) and errors and isinstance(errors[-1], dict) else {}


def _progress_text(progress: Any) -> str:
    """Return a report in words: ``3 of 10, resizing``."""
    if not isinstance(progress, dict):
        return ""
    done, total, note = (progress.get(key) for key in _REPORTED)
    text = str(done) if total is None else f"{done} of {total}"
    return f"{text}, {note}" if note else text
