"""How a job lies in MongoDB: its document, its indexes, its schema number.

One document per job from birth to end::

    {_id, state, priority, eligible_at, seq, attempts, created_at, payload,
     max_attempts?, visibility_timeout?, keep_done?,
     backoff?: {kind, base, factor, cap, jitter},      where they are not the queue's own
     losses?, suspect?, headers?, expires_at?, remember?,
     group?,                                           of whose jobs one at a time goes out
     tenant?,                                          whose turn it waits for in a fair queue
     wait?: {group, place, expires_at?},               while waiting: its place in the line of its group;
                                                       of a parent FOR_CHILDREN, and its seq
     head?,                                            its group, while ready or reserved
     asked?,                                           somebody waits for its result at some broker
     dedupe_id?, dedupe_until?,                        together, until another job takes them over
     passed?: [{queue, accepted_at, at, attempts, worker, hold?}],   the last 20 queues that it came through
     parent?: {queue, id, seq, by?, told?},            who waits for it to be done; told that it is dead
     children?: {total, left, by, queues?},            of that one, while it waits and after; where they
                                                       went first
     forwarded_to?,                                    of what it left behind in one of these: a trace
     owner?, reserved_at?, hold?,                      while reserved; hold: while done, too
    slot?: {tenant, n},                               while reserved: which of those that its tenant may have
     progress?: {done, total?, note?, at, attempt},    as the worker of that attempt said last
     errors?: [{at, attempt, reason, worker}],         the last 10 failures
     result?, done_by?, worker?, started_at?,          once done
     ended_at?, remove_at?,                            once done or dead
     unreadable?}                                      what is wrong with it, if it is no job

Rule for changes: a new optional field keeps the schema number, and so does a partial index over one,
which no older document is in; a field that changes its meaning or any other new index raises
``SCHEMA`` and comes with a step that carries old documents over, and a test that loads one of every
past number. A broker refuses a database with a higher number than its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import bson
from bson.int64 import Int64

from sluicemq.protocol import job_headers
from sluicemq.protocol.durations import TEN_YEARS
from sluicemq.protocol.options import OPTIONS
from sluicemq.protocol.readable import MOST_REASON
from sluicemq_broker.job import BOUNDS, KINDS, Backoff, Job, OnExpiry, Parent, State
from sluicemq_broker.store.values import Document, date, seconds

#: 2: the indexes that nearly no job is in are sparse.
SCHEMA: Final = 2


#: Prefixes of the collections of queues, and of those that are put aside while their queue is removed.
QUEUE_PREFIX: Final = "queue."
PUT_ASIDE: Final = "removed."


#: How many of the queues through which a job has come are told, the last ones.
PASSED_KEPT: Final = 20


#: What a job that waits for its children has in place of a group: it is no string, so no line is called so;
#: and yet the job is in the index of the lines, where it is found.
FOR_CHILDREN: Final = 0


#: Seconds for which a dead letter stays at least that goes on into another queue: it may have to wait for
#: that, as for an asker at another broker, or a MongoDB that is away.
MOVING: Final = 24 * 3600.0


class QueueDefaults(NamedTuple):
    """A queue's own settings, which its jobs don't repeat: a change holds for those that wait, too."""

    max_attempts: int = OPTIONS["max_attempts"].default
    visibility_timeout: float = OPTIONS["visibility_timeout"].default
    keep_done: float = OPTIONS["keep_done"].default
    dead_retention: float | None = None
    on_expiry: str = OnExpiry.DROP
    fair: bool = False
    weights: Mapping[str, int] | None = None
    tenant_max_running: int | None = None
    tenant_rate: float | None = None
    tenant_burst: int | None = None

    @property
    def limits_tenants(self) -> bool:
        """True if its tenants are limited, each for itself."""
        return self.fair and (self.tenant_max_running is not None or self.tenant_rate is not None)

    @property
    def gives_slots(self) -> bool:
        """True if each job of a tenant that is reserved has a slot."""
        return self.fair and self.tenant_max_running is not None

    @classmethod
    def of(cls, settings: Any, queue: str) -> QueueDefaults:
        """Those among all the settings of this queue."""
        found = cls._make(getattr(settings, name) for name in cls._fields)
        if found.dead_retention is None or settings.on_dead in (None, queue):
            return found
        return found._replace(dead_retention=max(found.dead_retention, MOVING))


#: The order in which jobs are handed out: higher priority first, then the earliest, then FIFO.
ORDER: Final = [("priority", -1), ("eligible_at", 1), ("seq", 1)]


#: True of every job. Without a condition on its first field, the whole index would be scanned, all
#: delayed jobs included; with it, a scan steps over those of each priority with one key.
ANY_PRIORITY: Final = {"priority": {"$gte": -(2**31)}}


#: The same, and true of what is no number too: a claim must come upon what is no job.
WHATEVER_PRIORITY: Final = {"priority": {"$not": {"$lt": -(2**31)}}}


def stored_size(headers: Mapping[str, Any]) -> int:
    """How many bytes a job's headers take in its document; raises ValueError if they can't be stored."""
    try:
        return len(bson.encode(headers))
    except (bson.errors.BSONError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error


#: Fields that options make and of which a job that is handed out has no need any more.
_NOT_READ: Final = frozenset({"_id", "eligible_at", "dedupe_id", "state", "wait", "tenant"})


#: What is read of a job that is handed out; its dates and its history stay where they are. Nothing but
#: ones: any other projection costs the server half as much again for every job.
HANDED_OUT: Final = dict.fromkeys(
    (
        *("payload", "seq", "attempts", "losses", "suspect", "parent"),
        *(field for option in OPTIONS.values() for field in option.stored if field not in _NOT_READ),
    ),
    1,
)


#: The same in a fair queue.
HANDED_OUT_FAIRLY: Final = {**HANDED_OUT, "tenant": 1}


#: True of a job whose history is one, or has not begun: what is claimed must be able to fail.
HISTORY_IS_A_LIST: Final[Document] = {"$or": [{"errors": {"$exists": False}}, {"errors": {"$type": "array"}}]}


# As plain strings: the driver writes those a little faster.
_READY: Final = State.READY.value


_RESERVED: Final = State.RESERVED.value


_WAITING: Final = State.WAITING.value


def document(job: Job, now: datetime, defaults: QueueDefaults) -> Document:
    """The document of a job that is born: ``reserved`` if it has an owner, else ``ready``.

    One of a group is ``waiting``, whatever else it is.
    """
    owner = job.reservation.owner
    born: Document = {
        "_id": job.id,
        "state": _RESERVED if owner else _READY,
        "priority": job.priority,
        "eligible_at": now if job.eligible_at == job.created_at else date(job.eligible_at),
        "seq": job.seq,
        "attempts": job.attempts,
        "created_at": now,
        "payload": job.payload,
    }
    if job.max_attempts != defaults.max_attempts:
        born["max_attempts"] = job.max_attempts
    if job.visibility_timeout != defaults.visibility_timeout:
        born["visibility_timeout"] = job.visibility_timeout
    if job.keep_done != defaults.keep_done:
        born["keep_done"] = job.keep_done
    if job.backoff is not None:
        born["backoff"] = job.backoff._asdict()
    if owner:
        born["owner"] = owner
        born["hold"] = job.reservation.number
        born["reserved_at"] = now
    if job.headers:
        born["headers"] = job.headers
    if job.expires_at is not None:
        born["expires_at"] = date(job.expires_at)
    if job.remember is not None or job.result_wanted or job.story or job.parent:
        born |= _beside(job)
    if job.dedupe or job.group is not None or job.tenant is not None:
        born |= _named(job, fair=defaults.fair)
    return born


def in_line(job: Job) -> Document:
    """Where a job waits that has a group; raises ValueError if nobody has given it a place."""
    if job.place is None:
        raise ValueError(f"job {job.id!r} has no place in its group")
    expiry = {} if job.expires_at is None else {"expires_at": date(job.expires_at)}
    return {"group": job.group, "place": Int64(job.place), **expiry}


def _beside(job: Job) -> Document:
    """Who wants its result, anybody for so many seconds or somebody who waits; its life in other queues."""
    told = dict(job.story or {})
    if job.parent:
        told["parent"] = job.parent._asdict()
    if job.remember is not None:
        told["remember"] = job.remember
    return {**told, "asked": True} if job.result_wanted else told


def parent_of(stored: Mapping[str, Any]) -> Parent | None:
    """The job that waits for this one, if one does."""
    match stored.get("parent"):
        case {"queue": str() as queue, "id": str() as job_id, "seq": int() as seq, **more}:
            return Parent(queue, job_id, seq, str(more.get("by", "")))
    return None


def queue_of(collection: str) -> str:
    """The queue whose jobs lie in this collection."""
    return collection.removeprefix(QUEUE_PREFIX)


def _named(job: Job, *, fair: bool) -> Document:
    """What it is called for what nobody else does, and whose turn it waits for."""
    named: Document = {}
    if job.dedupe:
        named = {"dedupe_id": job.dedupe.id, "dedupe_until": date(job.dedupe_until)}
    if job.group is not None:
        named |= {"state": _WAITING, "group": job.group, "wait": in_line(job)}
    if job.tenant is not None or (fair and job.turn):
        named["tenant"] = job.turn
    return named


class Unreadable(Exception):
    """A document is no job; the text says what is wrong with it."""


def job(stored: Document, defaults: QueueDefaults) -> Job:
    """The job of a stored document, read with ``HANDED_OUT``; ``eligible_at`` has passed and is not kept.

    Raises :class:`Unreadable`, or whatever comes of reading it, for what this version can't deliver,
    settle and count.
    """
    job_id, payload = stored["_id"], stored.get("payload", b"")
    if type(job_id) is not str:
        raise Unreadable(f"its _id is no string, but {type(job_id).__name__}")
    if not isinstance(payload, bytes):
        raise Unreadable(f"its payload is not binary, but {type(payload).__name__}")
    if len(stored) != _FEWEST:
        loaded = _special(stored, payload, defaults)
    else:
        loaded = Job(
            job_id,
            payload,
            max_attempts=defaults.max_attempts,
            visibility_timeout=defaults.visibility_timeout,
            keep_done=defaults.keep_done,
        )
    priority, seq, attempts = stored["priority"], stored["seq"], stored["attempts"]
    # As this version writes them, without a look at each: a seq has 64 bits.
    if not (type(seq) is Int64 and type(priority) is type(attempts) is int):
        priority, seq, attempts = (_whole(key, stored[key]) for key in ("priority", "seq", "attempts"))
    loaded.restore(priority, seq, attempts)
    return loaded


#: Fields of ``HANDED_OUT`` that every job has: most have no others.
_FEWEST: Final = len(("_id", "payload", "priority", "seq", "attempts"))


def _special(stored: Document, payload: bytes, defaults: QueueDefaults) -> Job:
    expires_at, headers, backoff = stored.get("expires_at"), stored.get("headers"), stored.get("backoff")
    for key in _NUMBERS & stored.keys():
        _check_number(key, stored[key])
    loaded = Job(
        stored["_id"],
        payload,
        headers,
        expires_at=None if expires_at is None else seconds(expires_at),
        max_attempts=stored.get("max_attempts", defaults.max_attempts),
        visibility_timeout=stored.get("visibility_timeout", defaults.visibility_timeout),
        backoff=_backoff(backoff) if backoff is not None else None,
        remember=stored.get("remember"),
        keep_done=stored.get("keep_done", defaults.keep_done),
        group=_name("group", stored.get("group")),
        tenant=_tenant(stored),
        size=len(payload) + (_deliverable_size(headers) if headers is not None else 0),
    )
    if not _RECALLED.isdisjoint(stored):
        until = stored.get("dedupe_until")
        loaded.restore_rare(
            losses=stored.get("losses", 0),
            isolated=bool(stored.get("suspect")),
            result_wanted=bool(stored.get("asked")),
            dedupe_until=0.0 if until is None else seconds(until),
            parent=parent_of(stored),
        )
    return loaded


#: Fields for :meth:`Job.recall`.
_RECALLED: Final = frozenset({"losses", "suspect", "asked", "dedupe_until", "parent"})


#: Those that a job may have; ``remember`` may be null.
_NUMBERS: Final = frozenset({"losses", "remember"} | set(QueueDefaults._fields) & OPTIONS.keys())


#: No time is longer than what a producer may ask for, and no count is larger.
_LARGEST: Final = TEN_YEARS


def _check_number(key: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 <= value <= _LARGEST) and not (key == "remember" and value is None):
        raise Unreadable(f"its {key} {str(value)[:64]!r} is no number, or out of range")


def _name(key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Unreadable(f"its {key} is no string, but {type(value).__name__}")
    return value


def _tenant(stored: Document) -> str | None:
    """As its producer has said; a fair queue has written its group there, if that was nothing."""
    tenant = _name("tenant", stored.get("tenant"))
    return None if tenant == stored.get("group") else tenant


def _whole(key: str, value: Any) -> int:
    if not isinstance(value, int | float) or isinstance(value, bool) or value != int(value):
        raise Unreadable(f"its {key} {str(value)[:64]!r} is no whole number")
    return int(value)


def _backoff(stored: Any) -> Backoff:
    backoff = Backoff(**stored)
    for key, (least, most) in BOUNDS.items():
        if not least <= getattr(backoff, key) <= most:
            raise Unreadable(f"its backoff's {key} is not from {least} to {most}")
    if backoff.kind not in KINDS:
        raise Unreadable(f"its backoff {str(backoff.kind)[:64]!r} is none that this version knows")
    return backoff


def _deliverable_size(headers: Any) -> int:
    if not isinstance(headers, dict):
        raise Unreadable(f"its headers are no map, but {type(headers).__name__}")
    job_headers.encode(headers)  # what has no form on the wire can't be delivered
    return stored_size(headers) if headers else 0


def failure(job: Job, reason: str, worker: str, now: datetime) -> Document:
    """One entry of a job's history."""
    return {"at": now, "attempt": job.attempts, "reason": reason[:MOST_REASON], "worker": worker}


def collection(queue: str) -> str:
    """The name of a queue's collection."""
    return QUEUE_PREFIX + queue
