"""What a verdict, or a sweep, writes into the document of a job that it moves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from pymongo import UpdateMany, UpdateOne

from sluicemq.protocol.errors import LeaseLost, Uncertain
from sluicemq_broker.job import ERRORS_KEPT, FIRST, Job, State
from sluicemq_broker.store.jobs.documents import QueueDefaults, document, failure, in_line
from sluicemq_broker.store.values import Document, date, seconds

#: Why a job is dead that no worker took in time.
EXPIRED: Final = "expired"

HOLD: Final = {"owner": "", "reserved_at": "", "hold": "", "slot": ""}
#: An update that gives back what no worker has started: its attempt does not count.
FREED: Final = {"$set": {"state": State.READY}, "$unset": HOLD, "$inc": {"attempts": -1}}
#: What a job of a group has of it while it has not ended: the next one may go once that is gone.
_TURN: Final = {"head": "", "wait": ""}
#: A done job keeps the number of its last hold: with ``done_by`` it tells a repetition from a late verdict.
_HELD: Final = {"owner": "", "reserved_at": "", "slot": "", "head": ""}
_OUTCOME = dict.fromkeys(("done_by", "hold", "worker", "started_at", "ended_at", "result", "remove_at"), "")


class Completed(NamedTuple):
    """A job that its worker has done; when it was handed to that worker is the server's time."""

    job: Job
    result: bytes
    worker: str
    started_at: float


@dataclass(slots=True)
class RolledBack:
    """A job that goes back, or dies: why, when it is due again (None: keeps its place), on whose hands.

    ``counted``: the attempt is; else it was not started.
    """

    job: Job
    reason: str
    worker: str
    due: float | None = None
    isolated: bool = False
    dead: bool = False
    counted: bool = True


class Progressed(NamedTuple):
    """How far a job is whose worker works on it; ``total``: None where nobody knows."""

    job: Job
    done: float
    total: float | None
    note: str
    at: float


_SAID: Final = Progressed._fields[1:4]


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a job by its id; ``expired``: it is dead, as no worker took it in time.

    ``expires_at``: when that happens to a ready one, should no worker take it; None: never.
    ``forwarded_to``: the queue in which it has gone on. ``progress``: how far its worker is with it.
    ``large``: bytes of a result that is not here, for it is large.
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


def held(job: Job) -> Document:
    """The filter for this hold of a job: no later one, and no other job of the same id."""
    return {"_id": job.id, "owner": job.owner, "hold": job.reservation.number}


def all_held(jobs: Sequence[Job]) -> Document:
    """The filter for these holds, all of one owner.

    An id with the hold of another job in it can't be there: that number was given to a claim or an
    insert before this statement was made, so a later reservation of the id has a number that is not here.
    """
    return {
        "_id": {"$in": [job.id for job in jobs]},
        "owner": jobs[0].owner,
        "hold": {"$in": list({job.reservation.number for job in jobs})},
    }


def done_alike(completed: Iterable[Completed], now: float) -> list[UpdateMany]:
    """``reserved`` to ``done``, as :func:`done`: one update for all that have the same result and story.

    A thousand jobs of one message without results are marked twice as fast so.
    """
    alike: dict[tuple[object, ...], list[Completed]] = defaultdict(list)
    for each in completed:
        job = each.job
        alike[(*each[1:], job.owner, job.kept_until(now), job.keep_done > 0)].append(each)
    return [
        UpdateMany(all_held([each.job for each in group]), _done(group[0], now)) for group in alike.values()
    ]


def done(completed: Completed, now: float) -> UpdateOne:
    """``reserved`` to ``done``: the result stays for as long as somebody wants it, or the whole job."""
    return UpdateOne(held(completed.job), _done(completed, now))


def _done(completed: Completed, now: float) -> Document:
    job = completed.job
    ended = {
        "state": State.DONE,
        "done_by": job.owner,  # tells a repetition from a late verdict under another owner
        "worker": completed.worker,
        "result": completed.result,
        "started_at": date(completed.started_at),
        "ended_at": date(now),
        "remove_at": date(job.kept_until(now) or now),
    }
    return {"$set": ended, "$unset": _HELD if job.keep_done else {**_HELD, "payload": ""}}


def traced(job: Job, worker: str, started_at: float, now: float, until: float, to: str) -> Document:
    """The update that leaves a trace of a job that has gone on to queue ``to``: ``done``, till then."""
    gone_on = {
        "state": State.DONE,
        "done_by": job.owner,
        "worker": worker,
        "forwarded_to": to,
        "started_at": date(started_at),
        "ended_at": date(now),
        "remove_at": date(until),
    }
    return {"$set": gone_on, "$unset": _HELD if job.keep_done else {**_HELD, "payload": ""}}


def lost(job_id: str) -> LeaseLost:
    """What a verdict on a job hears that somebody else has by now."""
    return LeaseLost(f"job {job_id} is no longer held under this receipt")


def uncertain(job_id: str) -> Uncertain:
    """What a verdict on a job hears that is gone."""
    return Uncertain(f"job {job_id} is gone, whether by this verdict is not known")


def not_done(job: Job) -> UpdateOne:
    """``done`` back to ``ready``: the job was popped and kept, and then could not be sent.

    One of a group waits at the front of its line. A child was counted when it was done, and is nobody's now.
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


def progressed(told: Progressed) -> UpdateOne:
    """What is told of a job that is ``reserved`` still, under the same hold."""
    said = {key: value for key, value in zip(_SAID, told[1:4], strict=True) if value not in (None, "")}
    progress = {**said, "at": date(told.at), "attempt": told.job.attempts}
    return UpdateOne({**held(told.job), "state": State.RESERVED}, {"$set": {"progress": progress}})


def rolled_back(entry: RolledBack, now: float, defaults: QueueDefaults) -> UpdateOne:
    """``reserved`` to ``ready`` or ``dead``, with one more entry in its history."""
    changed: Document = {"state": State.READY}
    gone = HOLD
    if entry.dead:
        gone = {**HOLD, **_TURN}
        changed = _dead(now, defaults)
        if entry.job.parent:  # it stays until that has been told
            changed.pop("remove_at", None)
        if "remove_at" in changed:
            changed["remove_at"] = max(changed["remove_at"], date(entry.job.dedupe_until))
    elif entry.due is not None:
        changed["eligible_at"] = date(max(entry.due, now))
    if entry.isolated:
        changed["suspect"] = True
    history = {"$each": [failure(entry.job, entry.reason, entry.worker, date(now))], "$slice": -ERRORS_KEPT}
    update: Document = {"$set": changed, "$unset": gone, "$push": {"errors": history}}
    if not entry.counted:
        update["$inc"] = {"attempts": -1}
    return UpdateOne(held(entry.job), update)


#: True of a child whose parent has not been told that it is dead.
HAS_PARENT: Final = {"$and": [{"$gt": ["$parent.id", None]}, {"$lte": ["$parent.told", None]}]}


def death(now: float, reason: str, defaults: QueueDefaults, *, losses: int = 0) -> list[Document]:
    """The death of many jobs on nobody's hands: a pipeline, as each has its own number of attempts."""
    entry = {"at": date(now), "attempt": "$attempts", "reason": {"$literal": reason}, "worker": ""}
    errors = {"$concatArrays": [{"$cond": [{"$isArray": "$errors"}, "$errors", []]}, [entry]]}
    changed = {**_dead(now, defaults), "errors": {"$slice": [errors, -ERRORS_KEPT]}}
    if "remove_at" in changed:  # not before its dedupe window is over; a missing field is passed over
        kept = {"$max": [changed["remove_at"], "$dedupe_until"]}
        changed["remove_at"] = {"$cond": [HAS_PARENT, "$$REMOVE", kept]}  # nor before that has been told
    if losses:
        changed["losses"] = _added("losses", losses)
    return [{"$set": changed}, {"$unset": [*HOLD, *_TURN]}]


def reclaimed() -> list[Document]:
    """``reserved`` to ``ready``, since the broker is gone: a loss more, and this attempt is not counted.

    Not ``$inc``, which fails as a whole if that field of one document is no number.
    """
    return [
        {"$set": {"state": State.READY, "losses": _added("losses", 1), "attempts": _added("attempts", -1)}},
        {"$unset": list(HOLD)},
    ]


def _added(key: str, count: int) -> Document:
    """So many more than the document has, if that is a number."""
    return {"$add": [{"$cond": [{"$isNumber": f"${key}"}, f"${key}", 0]}, count]}


def letter(unreadable: Document, now: datetime, defaults: QueueDefaults) -> Document:
    """A dead letter has every field that a job has, so that it can be read and looked at like one."""
    entry = {"at": now, "attempt": 0, "reason": unreadable["reason"], "worker": ""}
    nobody = Job(unreadable["_id"], unreadable["payload"])
    ended = {**_dead(seconds(now), defaults), "errors": [entry], "size": unreadable["size"]}
    if unreadable["raw_headers"]:
        ended["raw_headers"] = unreadable["raw_headers"]
    return {**document(nobody, now, defaults), "eligible_at": now, **ended}


def found(stored: dict[str, Any]) -> Found:
    """What a document, read with ``FOUND``, tells."""
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
        progress=_in_words(stored.get("progress")) if stored["state"] == State.RESERVED else "",
        large=stored["result_size"] if stored["result_size"] > LARGE_RESULT else 0,
    )


def result_of(stored: Document) -> bytes:
    """The result that a document has; what somebody else has written there as text."""
    result = stored.get("result", b"")
    return result if isinstance(result, bytes) else str(result).encode()


def last_reason(stored: Document) -> str:
    """Why it failed the last time."""
    return str(_last_failure(stored).get("reason", ""))


def _last_failure(stored: Document) -> Document:
    errors = stored.get("errors")
    return errors[-1] if isinstance(errors, list) and errors and isinstance(errors[-1], dict) else {}


def _in_words(progress: Any) -> str:
    """``3 of 10, resizing``."""
    if not isinstance(progress, dict):
        return ""
    done, total, note = (progress.get(key) for key in _SAID)
    so_far = str(done) if total is None else f"{done} of {total}"
    return f"{so_far}, {note}" if note else so_far


#: Bytes of a result that is read with all else that is asked of a job, at most: there may be a thousand.
LARGE_RESULT: Final = 16_384
_RESULT_SIZE: Final = {"$bsonSize": {"result": "$result"}}
#: What is read of a job to tell what became of it.
FOUND: Final[Document] = {
    **dict.fromkeys(("state", "owner", "expires_at", "forwarded_to", "progress"), 1),
    "errors": {"$slice": -1},
    "result": {"$cond": [{"$gt": [_RESULT_SIZE, LARGE_RESULT]}, b"", "$result"]},
    "result_size": _RESULT_SIZE,
}


def _dead(now: float, defaults: QueueDefaults) -> Document:
    ended: Document = {"state": State.DEAD, "ended_at": date(now)}
    if defaults.dead_retention is not None:
        ended["remove_at"] = date(now + defaults.dead_retention)
    return ended
