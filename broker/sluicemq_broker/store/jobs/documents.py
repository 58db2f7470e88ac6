"""Documents of jobs in MongoDB.

Each job is one document from its insert to its end::

    {_id, state, priority, eligible_at, seq, attempts, created_at, payload,
     max_attempts?, visibility_timeout?, keep_done?,
     backoff?: {kind, base, factor, cap, jitter},      where they differ from the queue's settings
     losses?, unanswered?, suspect?, headers?, expires_at?, remember?,
     group?,                                           one job of a group goes out at a time
     tenant?,                                          the tenant in a fair queue
     kind?,                                            what sort of work it is
     soft_time_limit?, hard_time_limit?,               its own, in seconds; its queue may have smaller ones
     wait?: {group, place, expires_at?},               while waiting: its place in the line of its group;
                                                       of a parent: FOR_CHILDREN, and its seq
     head?,                                            its group, while ready or reserved
     asked?,                                           a client waits for its result at some broker
     dedupe_id?, dedupe_until?,                        together, until another job takes them over
     passed?: [{queue, accepted_at, at, attempts, worker, hold?}],   the last 20 queues before this one
     pushed_by?,                                       the principal whose job it is: who pushed, forwarded
                                                       or scheduled it
     parent?: {queue, id, seq, by?, told?, may_fail?}, the job that waits for it; told: of its death;
                                                       may_fail: it goes on without it
     children?: {total, left, by, queues?, room?},     of a parent; the queues that got its children; room:
                                                       bytes left for what they return, if it is to be joined
     joined?: [{id, result} or {id, error}, ...],      of such a parent: its children that have ended
     forwarded_to?,                                    of a trace: the queue that the job moved to
     owner?, reserved_at?, hold?,                      while reserved; hold: while done, too
    slot?: {tenant, n},                               while reserved: its slot of its tenant
     progress?: {done, total?, note?, at, attempt},    the last report of the worker of that attempt
     errors?: [{at, attempt, reason, worker, type?, place?, began_at?, host?, pid?}],   the last 10 failures
     traceback_0?: {at, text}, traceback_1?, traceback_2?,   of the failures at these times, the last 3
     result?, done_by?, worker?, started_at?,          once done
     ended_at?, remove_at?,                            once done or dead
     unreadable?}                                      why the document is no job

Rule for changes: :mod:`~sluicemq_broker.store.cluster.schema`.
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
from sluicemq.protocol.rules import BACKOFF_BOUNDS, BACKOFF_KINDS
from sluicemq_broker.job import Backoff, ChildEnd, Job, OnExpiry, Parent, State
from sluicemq_broker.store.set_aside import Unreadable
from sluicemq_broker.store.values import Document, date, seconds

#: Prefixes of the collections of queues, and of those that are put aside while their queue is removed.
QUEUE_PREFIX: Final = "queue."
PUT_ASIDE: Final = "removed."


#: Fields that only packs have (:mod:`~sluicemq_broker.store.jobs.packs`).
PACK_FIELDS: Final = ("count", "left", "jobs", "first", "last", "d0", "d1", "d2", "d3")


#: How many former queues of a job are kept, the last ones.
PASSED_KEPT: Final = 20


#: Beginning of the names of fields with tracebacks. They are apart from the history, of which lists show the
#: end; and no array, to which nothing could be added where somebody has made it another thing.
TRACEBACK: Final = "traceback_"

#: The group of a job that waits for its children. It is no string, so no line has this name; yet the job is
#: in the index of lines.
FOR_CHILDREN: Final = 0


class QueueDefaults(NamedTuple):
    """A queue's settings, which its jobs don't repeat: a change holds for waiting jobs, too."""

    max_attempts: int = OPTIONS["max_attempts"].default
    visibility_timeout: float = OPTIONS["visibility_timeout"].default
    keep_done: float = OPTIONS["keep_done"].default
    on_expiry: str = OnExpiry.DROP
    fair: bool = False
    weights: Mapping[str, int] | None = None
    tenant_max_running: int | None = None
    tenant_rate: float | None = None
    tenant_burst: int | None = None
    packs: bool = True
    limited: bool = False

    @property
    def limits_tenants(self) -> bool:
        """True if each tenant has limits."""
        return self.fair and (self.tenant_max_running is not None or self.tenant_rate is not None)

    @property
    def gives_slots(self) -> bool:
        """True if each reserved job has a slot of its tenant."""
        return self.fair and self.tenant_max_running is not None

    @classmethod
    def of(cls, settings: Any) -> QueueDefaults:
        """Pick the settings of a queue that jobs take."""
        return cls._make(getattr(settings, name) for name in cls._fields)


#: The order in which jobs are handed out: higher priority first, then the earliest, then FIFO.
ORDER: Final = [("priority", -1), ("eligible_at", 1), ("seq", 1)]


#: True of every job. Without a condition on the index's first field the whole index would be scanned, delayed
#: jobs included; with it, a scan steps over the delayed jobs of each priority by one key.
ANY_PRIORITY: Final = {"priority": {"$gte": -(2**31)}}


#: True of every job and of a priority that is no number: a claim must find documents that are no jobs.
WHATEVER_PRIORITY: Final = {"priority": {"$not": {"$lt": -(2**31)}}}


def stored_size(headers: Mapping[str, Any]) -> int:
    """Return how many bytes headers take in a document; raises ValueError if they can't be stored."""
    try:
        return len(bson.encode(headers))
    except (bson.errors.BSONError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error


#: Fields of options that a job does not need once it is handed out.
_NOT_READ: Final = frozenset({"_id", "eligible_at", "dedupe_id", "state", "wait", "tenant"})


#: Fields of a job that is handed out, without its dates and its history. All values are 1: any other
#: projection costs the server half as much again for each job.
HANDED_OUT: Final = dict.fromkeys(
    (
        *("payload", "seq", "attempts", "losses", "unanswered", "suspect", "parent", "pushed_by", "joined"),
        *PACK_FIELDS,
        *(field for option in OPTIONS.values() for field in option.stored if field not in _NOT_READ),
    ),
    1,
)


#: Fields of a job that is handed out in a fair queue.
HANDED_OUT_FAIRLY: Final = {**HANDED_OUT, "tenant": 1}


#: True of a job whose history is an array, or has not begun: a job that is claimed must be able to fail.
HISTORY_IS_A_LIST: Final[Document] = {"$or": [{"errors": {"$exists": False}}, {"errors": {"$type": "array"}}]}


# As plain strings: the driver writes those a little faster.
_READY: Final = State.READY.value


_RESERVED: Final = State.RESERVED.value


_WAITING: Final = State.WAITING.value


def document(job: Job, now: datetime, defaults: QueueDefaults) -> Document:
    """Return the document of a new job: ``reserved`` if it has an owner, else ``ready``.

    A job of a group is ``waiting`` in any case.
    """
    owner = job.reservation.owner
    stored: Document = {
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
        stored["max_attempts"] = job.max_attempts
    if job.visibility_timeout != defaults.visibility_timeout:
        stored["visibility_timeout"] = job.visibility_timeout
    if job.keep_done != defaults.keep_done:
        stored["keep_done"] = job.keep_done
    if job.backoff is not None:
        stored["backoff"] = job.backoff._asdict()
    if owner:
        stored["owner"] = owner
        stored["hold"] = job.reservation.number
        stored["reserved_at"] = now
    if job.headers:
        stored["headers"] = job.headers
    if job.expires_at is not None:
        stored["expires_at"] = date(job.expires_at)
    if job.remember is not None or job.result_wanted or job.story or job.parent or job.joined:
        stored |= _beside(job)
    if job.dedupe or not (
        job.group is job.tenant is job.kind is None is job.soft_time_limit is job.hard_time_limit
    ):
        stored |= _named(job, fair=defaults.fair)
    return stored


def in_line(job: Job) -> Document:
    """Return the place of a job in the line of its group; raises ValueError if it has none."""
    if job.place is None:
        raise ValueError(f"job {job.id!r} has no place in its group")
    expiry = {} if job.expires_at is None else {"expires_at": date(job.expires_at)}
    return {"group": job.group, "place": Int64(job.place), **expiry}


def _beside(job: Job) -> Document:
    """Return the fields of rare jobs: of a principal, with a result to keep, a parent, or a history."""
    fields = dict(job.story or {})
    if job.parent:
        fields["parent"] = job.parent._asdict()
        if not job.parent.may_fail:
            del fields["parent"]["may_fail"]
    if job.joined:  # popped, and pushed again
        fields["joined"] = [stored_end(end) for end in job.joined]
    if job.remember is not None:
        fields["remember"] = job.remember
    return {**fields, "asked": True} if job.result_wanted else fields


def parent_of(stored: Mapping[str, Any]) -> Parent | None:
    """Return the parent of a stored job, if it has one."""
    match stored.get("parent"):
        case {"queue": str() as queue, "id": str() as job_id, "seq": int() as seq, **more}:
            return Parent(queue, job_id, seq, str(more.get("by", "")), bool(more.get("may_fail")))
    return None


def queue_of(collection: str) -> str:
    """Return the queue of a collection."""
    return collection.removeprefix(QUEUE_PREFIX)


def _named(job: Job, *, fair: bool) -> Document:
    """Return the fields of jobs with a ``dedupe_id``, a group, a tenant, a kind or time limits."""
    named: Document = {}
    if job.dedupe:
        named = {"dedupe_id": job.dedupe.id, "dedupe_until": date(job.dedupe_until)}
    if job.group is not None:
        named |= {"state": _WAITING, "group": job.group, "wait": in_line(job)}
    if job.tenant is not None or (fair and job.turn):
        named["tenant"] = job.turn
    for name in ("kind", "soft_time_limit", "hard_time_limit"):
        if (value := getattr(job, name)) is not None:
            named[name] = value
    return named


def job(stored: Document, defaults: QueueDefaults) -> Job:
    """Read a job from a document with the fields of ``HANDED_OUT``, without ``eligible_at``, as it is due.

    Raises :class:`Unreadable`, or any error of reading, for what this version can't deliver, settle and
    count.
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
    # The types that this version writes need no check: a seq has 64 bits.
    if not (type(seq) is Int64 and type(priority) is type(attempts) is int):
        priority, seq, attempts = (_whole(key, stored[key]) for key in ("priority", "seq", "attempts"))
    loaded.restore(priority, seq, attempts)
    return loaded


#: How many fields of ``HANDED_OUT`` every job has; most jobs have no others.
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
        kind=_name("kind", stored.get("kind")),
        soft_time_limit=stored.get("soft_time_limit"),
        hard_time_limit=stored.get("hard_time_limit"),
        size=len(payload) + (_deliverable_size(headers) if headers is not None else 0),
    )
    if isinstance(by := stored.get("pushed_by"), str):  # of a popped job that is pushed again
        loaded.belong_to(by, None)
    if not _RECALLED.isdisjoint(stored):
        until = stored.get("dedupe_until")
        loaded.restore_rare(
            losses=stored.get("losses", 0),
            unanswered=stored.get("unanswered", 0),
            isolated=bool(stored.get("suspect")),
            result_wanted=bool(stored.get("asked")),
            dedupe_until=0.0 if until is None else seconds(until),
            parent=parent_of(stored),
        )
    if "joined" in stored:
        loaded.join(map(_end_of_child, stored["joined"]))
    return loaded


def stored_end(end: ChildEnd) -> Document:
    """Return what a parent notes of a child that has ended."""
    return {"id": end.id, "error": end.error} if end.error else {"id": end.id, "result": end.result}


def _end_of_child(stored: Any) -> ChildEnd:
    match stored:
        case {"id": str() as job_id, "result": bytes() as result}:
            return ChildEnd(job_id, result)
        case {"id": str() as job_id, "error": str() as error}:
            return ChildEnd(job_id, error=error)
    raise Unreadable("what it notes of its children is not readable")


#: Fields for :meth:`Job.restore_rare`.
_RECALLED: Final = frozenset({"losses", "unanswered", "suspect", "asked", "dedupe_until", "parent"})


#: Numbers that a job may have; ``remember`` may be null.
_NUMBERS: Final = frozenset(
    {"losses", "unanswered", "remember", "soft_time_limit", "hard_time_limit"}
    | set(QueueDefaults._fields) & OPTIONS.keys()
)


def _check_number(key: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 <= value <= TEN_YEARS) and not (key == "remember" and value is None):
        raise Unreadable(f"its {key} {str(value)[:64]!r} is no number, or out of range")


def _name(key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Unreadable(f"its {key} is no string, but {type(value).__name__}")
    return value


def _tenant(stored: Document) -> str | None:
    """Return the tenant that the producer gave; without one a fair queue stores the group."""
    tenant = _name("tenant", stored.get("tenant"))
    return None if tenant == stored.get("group") else tenant


def _whole(key: str, value: Any) -> int:
    if not isinstance(value, int | float) or isinstance(value, bool) or value != int(value):
        raise Unreadable(f"its {key} {str(value)[:64]!r} is no whole number")
    return int(value)


def _backoff(stored: Any) -> Backoff:
    backoff = Backoff(**stored)
    for key, (least, most) in BACKOFF_BOUNDS.items():
        if not least <= getattr(backoff, key) <= most:
            raise Unreadable(f"its backoff's {key} is not from {least} to {most}")
    if backoff.kind not in BACKOFF_KINDS:
        raise Unreadable(f"its backoff {str(backoff.kind)[:64]!r} is none that this version knows")
    return backoff


def _deliverable_size(headers: Any) -> int:
    if not isinstance(headers, dict):
        raise Unreadable(f"its headers are no map, but {type(headers).__name__}")
    job_headers.encode(headers)  # a value without a form on the wire can't be delivered
    return stored_size(headers) if headers else 0


def failure(job: Job, reason: str, worker: str, now: datetime) -> Document:
    """Return an entry for a job's history."""
    return {"at": now, "attempt": job.attempts, "reason": reason[:MOST_REASON], "worker": worker}


def collection(queue: str) -> str:
    """The name of a queue's collection."""
    return QUEUE_PREFIX + queue
