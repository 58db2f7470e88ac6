"""A job, and the one page on which its life is drawn."""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sluicemq.protocol.options import OPTIONS
from sluicemq_broker.job.backoff import Backoff


class State(StrEnum):
    """The stored states of a job and every way between them.

    ::

        push                  push while a worker waits (inserted reserved)
          │                                    │
          ▼             reserve                ▼
        ready ───────────────────────────▶ reserved ── commit ──▶ gone, or done if kept or remembered
         ▲ │ ▲                               │   │                  │  │
         │ │ ├── rollback, release, reclaim ─┘   │                  │  └─ remove_at passes, purge ▶ gone
         │ │ └── undo pop: popped, not sent ─────┼──────────────────┘
         │ ├─ cancel, purge, expire ▶ gone       │
         │ ├─ promote, change ▶ ready            ├─ forward ▶ ready, in another queue
         │ │                                     ├─ fan out ▶ waiting ── all children done ▶ gone, or done
         │ └─ expire, attempts used up ─┐        │
         │                              ▼        │
         └────── redrive ───────────── dead ◀────┴─ reject, attempts or losses used up
                                        ▲ └─ remove_at passes, purge ▶ gone
        unreadable message ─────────────┘

        push, redrive, undo pop of a job with a group ──▶ waiting ── turn ──▶ ready
                                                            └─ as ready: cancel, purge, expire, change

    A rollback makes the job ``ready`` with an ``eligible_at`` ahead: its delay, or its back-off. An
    expired one is gone or dead as the queue's ``on_expiry`` says; dead letters and done jobs that
    have a ``remove_at`` are removed by MongoDB itself, within a minute of it.
    ``waiting`` is a job that waits for its children; or for the one before it in its group: its turn comes,
    and it is ``ready``, when that one has ended: done, dead, or gone. A parent has the turn of its group
    until it has ended. A ``ready`` job whose ``eligible_at`` lies ahead is shown as ``scheduled``.
    A job is remembered for its result, and while its dedupe window is open (in every state: the
    ``dedupe_id`` is its document's, and is another's for the taking once the window is over).
    Each arrow is one MongoDB statement on one document, so a crash leaves either end of it; a forward,
    and a redrive into another queue, is one transaction. A paused queue is a guard: without delivery
    nobody walks ``reserve``, without intake nobody ``push``; both are kept in the collection ``queues``.
    """

    READY = "ready"
    WAITING = "waiting"
    RESERVED = "reserved"
    DONE = "done"
    DEAD = "dead"


#: What a ``ready`` job whose ``eligible_at`` lies ahead is shown as; no job is stored so.
SCHEDULED: Final = "scheduled"


class OnExpiry(StrEnum):
    """What becomes of a job whose time to live has run out: removed, or a dead letter."""

    DROP = "drop"
    DEAD = "dead"


#: Options that a job keeps as it goes on to another queue, by the names of its attributes.
_INHERITED: Final = (
    *("headers", "priority", "max_attempts"),
    *("visibility_timeout", "backoff", "keep_done", "tenant"),
)

#: How many failures a job remembers: time, attempt, reason and worker of each.
ERRORS_KEPT: Final = 10


#: Seconds for which a result stays that somebody waits for at another broker, which looks every second.
RESULT_WANTED_FOR: Final = 60.0


class Dedupe(NamedTuple):
    """What a producer calls this piece of work, and for how many seconds nobody may push it again."""

    id: str
    window: float


class Reservation(NamedTuple):
    """One reservation: the id under which a broker holds jobs, and a number that no other under it has.

    Together they name one hold of a job, so that a late statement can't mean another.
    """

    owner: str
    number: int


class Parent(NamedTuple):
    """The job that waits for this one to be done: in which queue, under which id, in which life of that.

    ``by``: the hold under which it has begun to wait; it may do so again, for other children.
    """

    queue: str
    id: str
    seq: int
    by: str = ""


#: The place of a job that comes back to the front of its group: all others are higher.
FIRST: Final = 0

#: Of a job that nobody here holds.
NOT_RESERVED: Final = Reservation("", 0)


class Job:
    """One job in the broker's memory; times are Unix seconds of the MongoDB server's clock.

    What it is does not change once it was accepted; who holds it does, and with that ``attempts``. Nobody
    sets an attribute from outside: the methods say what may happen. ``reservation`` is the one under
    which this broker has it. ``attempts`` is the
    number of deliveries including the one under way, ``isolated`` whether a worker died with it:
    then it is delivered alone. ``backoff`` is None where the queue's own holds. ``remember`` is for how
    long its result stays, ``keep_done`` for how long the whole job, once it is done (0: not at all).
    ``dedupe_until`` is when another job may have its ``dedupe_id`` (0: it has none); ``dedupe`` itself
    is only known where the job was pushed. ``group``: of the jobs of one, one at a time goes out, in the
    order of their ``place``, which is only known there, too. ``tenant``: whose job it is, which is only known
    where it was pushed and in fair queues.
    ``result_wanted``: a client waits for its result at the broker that took the job in; every other broker
    keeps the result for :data:`RESULT_WANTED_FOR`. ``size`` is what it takes in memory and on the wire:
    payload and headers. ``story``: fields of its document that
    tell of its life in other queues, of a job that comes from one.
    ``parent`` waits for it to be done.
    """

    __slots__ = (
        "__dict__",
        "attempts",
        "created_at",
        "eligible_at",
        "headers",
        "id",
        "keep_done",
        "max_attempts",
        "payload",
        "priority",
        "reservation",
        "reservation",
        "seq",
        "size",
        "visibility_timeout",
    )

    # What few jobs have: it is read here as long as a job has none of its own, which takes it no time to make
    # and no memory.
    expires_at: float | None = None
    backoff: Backoff | None = None
    remember: float | None = None
    dedupe: Dedupe | None = None
    dedupe_until: float = 0.0
    group: str | None = None
    tenant: str | None = None
    place: int | None = None
    result_wanted: bool = False
    losses: int = 0
    isolated: bool = False
    story: Mapping[str, Any] | None = None
    parent: Parent | None = None

    def __init__(
        self,
        id: str,  # noqa: A002 - the field's name everywhere
        payload: bytes,
        headers: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        eligible_at: float = 0.0,
        expires_at: float | None = None,
        max_attempts: int = OPTIONS["max_attempts"].default,
        visibility_timeout: float = OPTIONS["visibility_timeout"].default,
        backoff: Backoff | None = None,
        remember: float | None = None,
        dedupe: Dedupe | None = None,
        keep_done: float = OPTIONS["keep_done"].default,
        group: str | None = None,
        tenant: str | None = None,
        size: int | None = None,
    ) -> None:
        self.id = id
        self.payload = payload
        self.headers = headers
        self.priority = priority
        self.eligible_at = eligible_at
        self.max_attempts = max_attempts
        self.visibility_timeout = visibility_timeout
        self.keep_done = keep_done
        self.size = len(payload) if size is None else size
        self.created_at = 0.0
        self.seq = 0
        self.attempts = 0
        self.reservation = NOT_RESERVED
        if expires_at is not None:
            self.expires_at = expires_at
        if backoff is not None:
            self.backoff = backoff
        if remember is not None:
            self.remember = remember
        if dedupe is not None:
            self.dedupe = dedupe
        if group is not None:
            self.group = group
        if tenant is not None:
            self.tenant = tenant

    @property
    def owner(self) -> str:
        """The id under which this broker holds it; empty: it does not."""
        return self.reservation.owner

    @property
    def under(self) -> str:
        """Both in one, as it is told of what was moved under it."""
        return f"{self.owner}/{self.reservation.number}"

    @property
    def turn(self) -> str:
        """Whose turn it waits for in a fair queue: its tenant's, or its group's, or that of all others."""
        return self.tenant or self.group or ""

    def accept(self, seq: int, now: float) -> None:
        """It is taken in, as the ``seq``-th, and due then or later."""
        self.seq = seq
        self.created_at = now
        self.eligible_at = max(now, self.eligible_at)

    def reserve(self, reservation: Reservation) -> None:
        """Reserved here, for its next delivery."""
        self.reservation = reservation
        self.attempts += 1

    def found_reserved(self, reservation: Reservation) -> None:
        """Reserved here, as it has turned out: its delivery was counted then."""
        self.reservation = reservation

    def restore(self, priority: int, seq: int, attempts: int) -> None:
        """So it is stored: where in the order, and delivered how often."""
        self.priority = priority
        self.seq = seq
        self.attempts = attempts

    def restore_rare(
        self, *, losses: int, isolated: bool, result_wanted: bool, dedupe_until: float, parent: Parent | None
    ) -> None:
        """So it is stored: what only few jobs have that were pushed."""
        self.losses = losses
        self.isolated = isolated
        self.result_wanted = result_wanted
        self.dedupe_until = dedupe_until
        self.parent = parent

    def reset(self) -> None:
        """It is no longer in MongoDB, and is pushed again as if it had never been delivered.

        Its parent has counted it as done: nobody waits for it any more.
        """
        self.reservation = NOT_RESERVED
        self.attempts = 0
        self.parent = None
        self.place = FIRST

    def join_group(self, group: str | None) -> None:
        """It goes on as one of this group, of which it was in another queue; None: it had none."""
        self.group = group

    def line_up(self, place: int) -> None:
        """It has this place in the line of its group; one that has one keeps it."""
        if self.place is None:
            self.place = place

    def continue_from(
        self, former: Job, said: Container[str], ttl: float | None, story: Mapping[str, Any]
    ) -> None:
        """It is this one, gone on from another queue: what is not ``said`` anew is as it was there.

        ``said``: options by their names, and ``payload``; ``ttl``, from now on, was its time to live there.
        """
        own = self.size - len(self.payload) if "headers" in said else former.size - len(former.payload)
        if "payload" not in said:
            self.payload = former.payload
        for option in _INHERITED:
            if option not in said:
                setattr(self, option, getattr(former, option))
        if "ttl" not in said and ttl is not None:
            self.expires_at = self.created_at + ttl
        self.remember, self.result_wanted, self.story = former.remember, former.result_wanted, story
        self.parent = former.parent
        self.size = len(self.payload) + own

    def set_parent(self, parent: Parent) -> None:
        """That one waits for it to be done."""
        self.parent = parent

    def inherit_payload(self, payload: bytes) -> None:
        """Its payload is its parent's."""
        self.size += len(payload) - len(self.payload)
        self.payload = payload

    def claim_dedupe_id(self, until: float) -> None:
        """Nobody else may have its ``dedupe_id`` until then."""
        self.dedupe_until = until

    def keep_result(self, seconds: float) -> None:
        """Its result is wanted for so long, at least."""
        self.remember = max(self.remember or 0.0, seconds)

    def want_result(self) -> None:
        """Somebody waits for its result."""
        self.result_wanted = True

    def drop_payload(self) -> None:
        """It lies in MongoDB, should it be needed again, and takes no memory here meanwhile."""
        self.payload = b""

    @property
    def spent(self) -> bool:
        """True if one more failure ends among the dead letters (``max_attempts`` 0: never)."""
        return 0 < self.max_attempts <= self.attempts

    def kept_until(self, now: float) -> float | None:
        """Until when it is kept if it is done ``now``; None: its document is removed.

        It stays for its result (``remember``), whole (``keep_done``), and while its ``dedupe_id`` may be
        taken by nobody else.
        """
        if self.remember is not None or self.keep_done:
            return max(now + (self.remember or 0.0), now + self.keep_done, self.dedupe_until)
        return self.dedupe_until if self.dedupe_until > now else None


#: The names of all that a job has: of what each has for itself, and of what for most stands in the class.
ATTRIBUTES: Final = frozenset({*Job.__slots__, *Job.__annotations__} - {"__dict__"})
