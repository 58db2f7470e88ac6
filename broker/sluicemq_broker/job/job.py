"""A job, and the one page on which its life is drawn."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sluicemq.protocol.errors import BadHeadersError
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
         │ │                                     │                    └─ or, if it is to be joined, ▶ ready
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
    and a redrive into another queue, is one transaction. A worker may send the statement of its commit
    within a transaction of its own: the job is ``done`` with that, and is then removed if nobody keeps it.
    A paused queue is a guard: without delivery nobody walks ``reserve``, without intake nobody ``push``;
    both are kept in the collection ``queues``.
    """

    READY = "ready"
    WAITING = "waiting"
    RESERVED = "reserved"
    DONE = "done"
    DEAD = "dead"


#: What a ``ready`` job whose ``eligible_at`` lies ahead is shown as; no job is stored so.
SCHEDULED: Final = "scheduled"


class OnExpiry(StrEnum):
    """End of a job whose time to live has run out: it is removed, or becomes a dead letter."""

    DROP = "drop"
    DEAD = "dead"


#: Options that a job keeps when it moves on to another queue, by the names of its attributes.
_INHERITED: Final = (
    *("headers", "priority", "max_attempts"),
    *("visibility_timeout", "soft_time_limit", "hard_time_limit", "backoff", "keep_done", "tenant", "kind"),
)

#: Failures that a job remembers: time, attempt, reason and worker of each.
ERRORS_KEPT: Final = 10


#: Seconds for which a result is kept for a client at another broker, which looks every second.
RESULT_WANTED_FOR: Final = 60.0


class Dedupe(NamedTuple):
    """The ``dedupe_id`` of a job, and the seconds within which another with that id is a duplicate."""

    id: str
    window: float


class Reservation(NamedTuple):
    """A reservation: the owner id of a broker, and a number that is unique under it.

    Together they name one reservation of a job, so that a late statement can't hit another one.
    """

    owner: str
    number: int


class Pack:
    """A document in which many jobs lie together; their numbers follow each other from ``seq`` on.

    ``done``: bits of those that are no longer in it, as far as this broker knows: ended, or stored alone.
    """

    __slots__ = ("count", "done", "id", "seq")

    def __init__(self, id: str, seq: int, count: int, done: int = 0) -> None:  # noqa: A002 - its field's name
        self.id = id
        self.seq = seq
        self.count = count
        self.done = done

    @property
    def left(self) -> int:
        """Bits of the jobs that are in it."""
        return (1 << self.count) - 1 & ~self.done


class Parent(NamedTuple):
    """The job that waits for a child to be done: its queue, id and ``seq``; a new push has another ``seq``.

    ``by``: the reservation under which it began to wait; it may wait again later, for other children.
    ``may_fail``: it goes on if the child fails.
    """

    queue: str
    id: str
    seq: int
    by: str = ""
    may_fail: bool = False


class ChildEnd(NamedTuple):
    """The end of a child: its result, or the error by which it has none."""

    id: str
    result: bytes = b""
    error: str = ""

    @property
    def number(self) -> int:
        """Number among the children of its parent."""
        return int(self.id.rpartition(".")[2])

    def within(self, room: int) -> tuple[ChildEnd, int]:
        """Return what its parent notes, which has ``room`` bytes left, and how many of these it takes."""
        size = len(self.error.encode() or self.result)
        if size <= room:
            return self, size
        text = f"TOO_LARGE: it has {size} bytes, {room} are left for what all children return"
        return ChildEnd(self.id, error=text), 0


#: Place of a job that returns to the front of its group: all others are higher.
FIRST: Final = 0

#: The reservation of a job that this broker does not hold.
NOT_RESERVED: Final = Reservation("", 0)


class Job:
    """One job in the broker's memory; times are Unix seconds of the MongoDB server's clock.

    An accepted job does not change, except for its reservation and ``attempts``. Attributes are set by its
    methods only, which say what may happen to it.

    ``attempts``: deliveries, including the one under way; ``unanswered``: those that ended without an answer,
    as the worker died, or was too slow. ``isolated``: a worker died with the job, so it is
    delivered alone. ``backoff``: None where the queue's own holds. ``remember``: seconds for which its result
    is kept; ``keep_done``: seconds for which the whole job is kept when it is done (0: not at all).
    ``dedupe_until``: when another job may have its ``dedupe_id`` (0: it has none). ``group``: jobs of a group
    are delivered one at a time, in the order of their ``place``. ``kind``: under it the job is counted.
    ``result_wanted``: a client waits for the result at the broker that took the job in; other brokers keep
    it for :data:`RESULT_WANTED_FOR`. ``size``: bytes of payload and headers. ``story``: fields of its
    document about where it comes from: whose it is, and its life in other queues. ``parent``: the job that
    waits for it. ``joined``: the ends of its children, on its second delivery.

    ``pack``: the document in which it lies with others, until it is stored alone (None: it is).

    ``dedupe`` and ``place`` are known only where the job was pushed, ``tenant`` there and in fair queues; of
    its ``story`` others know only whose it is.
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
        "pack",
        "payload",
        "priority",
        "reservation",
        "seq",
        "size",
        "visibility_timeout",
    )

    # Defaults of what few jobs have: they are read here, so that an ordinary job spends no time and memory on
    # them.
    expires_at: float | None = None
    backoff: Backoff | None = None
    remember: float | None = None
    dedupe: Dedupe | None = None
    dedupe_until: float = 0.0
    group: str | None = None
    tenant: str | None = None
    kind: str | None = None
    soft_time_limit: float | None = None
    hard_time_limit: float | None = None
    place: int | None = None
    result_wanted: bool = False
    losses: int = 0
    unanswered: int = 0
    isolated: bool = False
    story: Mapping[str, Any] | None = None
    parent: Parent | None = None
    joined: tuple[ChildEnd, ...] | None = None

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
        kind: str | None = None,
        soft_time_limit: float | None = None,
        hard_time_limit: float | None = None,
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
        self.pack: Pack | None = None
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
        if kind is not None:
            self.kind = kind
        if soft_time_limit is not None:
            self.soft_time_limit = soft_time_limit
        if hard_time_limit is not None:
            self.hard_time_limit = hard_time_limit

    @property
    def owner(self) -> str:
        """Owner id under which this broker holds the job; empty if it does not."""
        return self.reservation.owner

    @property
    def under(self) -> str:
        """Owner and number as one text, as documents name a reservation."""
        return f"{self.owner}/{self.reservation.number}"

    @property
    def turn(self) -> str:
        """Name under which it takes turns in a fair queue: its tenant, else its group, else the empty one."""
        return self.tenant or self.group or ""

    @property
    def begins_pack(self) -> int:
        """How many jobs a statement takes with it: those of its pack, if it is the first of one."""
        return self.pack.count if self.pack is not None and self.pack.seq == self.seq else 1

    def pack_into(self, pack: Pack | None) -> None:
        """Note the pack in which it lies; None: it is stored alone."""
        self.pack = pack

    def leave_pack(self) -> None:
        """Note that it is stored alone from now on."""
        if self.pack is not None:
            self.pack.done |= 1 << self.seq - self.pack.seq
            self.pack = None

    def belong_to(self, principal: str, tenant: str | None) -> None:
        """Set the principal whose job it is, and its tenant, which wins over that of its options."""
        if principal:
            self.story = {"pushed_by": principal}
        if tenant is not None:
            self.tenant = tenant

    def accept(self, seq: int, now: float) -> None:
        """Accept the job: give it its number, and its times from ``now`` on."""
        self.seq = seq
        self.created_at = now
        self.eligible_at = max(now, self.eligible_at)

    def reserve(self, reservation: Reservation) -> None:
        """Reserve the job for its next delivery, which counts as an attempt."""
        self.reservation = reservation
        self.attempts += 1

    def found_reserved(self, reservation: Reservation) -> None:
        """Note a reservation that MongoDB has already: its attempt was counted then."""
        self.reservation = reservation

    def restore(self, priority: int, seq: int, attempts: int) -> None:
        """Set what its document says: its place in the order, and its attempts."""
        self.priority = priority
        self.seq = seq
        self.attempts = attempts

    def restore_rare(
        self,
        *,
        losses: int,
        unanswered: int,
        isolated: bool,
        result_wanted: bool,
        dedupe_until: float,
        parent: Parent | None,
    ) -> None:
        """Set what the documents of few jobs have."""
        self.losses = losses
        self.unanswered = unanswered
        self.isolated = isolated
        self.result_wanted = result_wanted
        self.dedupe_until = dedupe_until
        self.parent = parent

    def join(self, ends: Iterable[ChildEnd]) -> None:
        """Set how its children have ended, in their order."""
        self.joined = tuple(sorted(ends, key=lambda end: end.number))
        self.size += sum(len(end.result) + len(end.error) for end in self.joined)

    def reset(self) -> None:
        """Make a job that is no longer in MongoDB as new, to be pushed again.

        Its parent has counted it as done, so it has none any more.
        """
        self.reservation = NOT_RESERVED
        self.attempts = 0
        self.parent = None
        self.place = FIRST

    def join_group(self, group: str | None) -> None:
        """Set the group that it had in another queue; None: none."""
        self.group = group

    def line_up(self, place: int) -> None:
        """Set its place in the line of its group, unless it has one."""
        if self.place is None:
            self.place = place

    def continue_from(
        self, former: Job, said: Container[str], ttl: float | None, story: Mapping[str, Any]
    ) -> None:
        """Copy from the forwarded job what is not given for this one.

        ``said``: names of the options that are given, or ``payload``. ``ttl``: its time to live in the former
        queue, which begins again. ``story``: fields about its life there; whose it is is known of this one.
        """
        own = self.size - len(self.payload) if "headers" in said else former.size - len(former.payload)
        if "payload" not in said:
            self.payload = former.payload
        for option in _INHERITED:
            if option not in said:
                setattr(self, option, getattr(former, option))
        if "ttl" not in said and ttl is not None:
            self.expires_at = self.created_at + ttl
        self.remember, self.result_wanted = former.remember, former.result_wanted
        self.story = {**story, **(self.story or {})}
        self.parent = former.parent
        self.size = len(self.payload) + own

    def set_parent(self, parent: Parent | None) -> None:
        """Set the job that waits for this one; None: none does any more."""
        self.parent = parent

    def inherit_payload(self, payload: bytes) -> None:
        """Take over the payload of its parent."""
        self.size += len(payload) - len(self.payload)
        self.payload = payload

    def claim_dedupe_id(self, until: float) -> None:
        """Keep its ``dedupe_id`` from other jobs until then."""
        self.dedupe_until = until

    def keep_result(self, seconds: float) -> None:
        """Keep its result for ``seconds`` at least."""
        self.remember = max(self.remember or 0.0, seconds)

    def want_result(self) -> None:
        """Note that a client waits for its result."""
        self.result_wanted = True

    def drop_payload(self) -> None:
        """Free the payload, and the results of its children, which MongoDB has if they are needed again."""
        self.payload = b""
        if self.joined:
            self.joined = ()

    def check_due(self, due: float | None = None) -> None:
        """Raise BadHeaders if it expires before it is due (None: the first time), so that nobody gets it."""
        due = self.eligible_at if due is None else due
        if self.expires_at is not None and due >= int(self.expires_at * 1000) / 1000:
            raise BadHeadersError(
                f"job {self.id!r} would expire {due - self.expires_at:.3f} s before it is due: "
                "a delay, or not_before, must end before its ttl"
            )

    @property
    def spent(self) -> bool:
        """True if one more failure makes it a dead letter (``max_attempts`` 0: never)."""
        return 0 < self.max_attempts <= self.attempts

    def unheard_of(self, max_unanswered: int) -> bool:
        """True if one more delivery without an answer makes it a dead letter."""
        return self.spent or (self.max_attempts > 0 and self.unanswered + 1 >= max_unanswered)

    def kept_until(self, now: float) -> float | None:
        """Return until when its document is kept if it is done ``now``; None: it is removed.

        It is kept for its result (``remember``), as a whole (``keep_done``), and while its ``dedupe_id`` must
        not be used by another job.
        """
        if self.remember is not None or self.keep_done:
            return max(now + (self.remember or 0.0), now + self.keep_done, self.dedupe_until)
        return self.dedupe_until if self.dedupe_until > now else None


#: Names of all attributes of a job: those that each has, and those whose defaults stand in the class.
ATTRIBUTES: Final = frozenset({*Job.__slots__, *Job.__annotations__} - {"__dict__"})
