"""A worker, as the broker knows it, at any door; and one delivery to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import islice
from secrets import token_hex
from typing import Any, Final, NamedTuple

from sluicemq.protocol.rows import WorkerJobRow, WorkerRow
from sluicemq_broker.job import Job
from sluicemq_broker.queue.time_limits import TimeLimits
from sluicemq_broker.security import Caller
from sluicemq_broker.store import EndedParent


class DeliveryState(Enum):
    """The states of a delivery. Only :class:`~sluicemq_broker.queue.deliveries.Deliveries` changes it.

    ::

        IN_FLIGHT ── verdict ──────────────────────────────────▶ SETTLED
           │ └────── visibility timeout, hard time limit, the broker stops, its job
           │         was cancelled, or is another broker's by now ▶ OVERDUE
           │                                                        │ late verdict, worker gone,
           └──────── its worker has gone ──────────────▶ VOID ◀─────┘ another timeout without any

        REMOVING ─── its job is out of the queue, and sent ────▶ SETTLED
           └──────── its worker has gone ──────────────▶ VOID

    An overdue one takes up its worker's credit still, for the worker may be at work on it. ``REMOVING`` is
    a delivery to a worker that pops: nobody will say a verdict.
    """

    IN_FLIGHT = 1
    OVERDUE = 2
    REMOVING = 3
    SETTLED = 4
    VOID = 5


class Delivery:
    """One job handed to one worker. ``receipt`` names it and nothing else, ever; times are monotonic.

    ``kept``, of one that was popped: its job is still in MongoDB, as done. ``begun``, once it has ended
    without a verdict: False if its worker can't have begun the job. ``transaction``, once its worker has
    asked for the statements that end its job within a transaction: the parents that end with it. ``moved``:
    the job was stored alone for that, so a transaction that had begun before could not end it.
    """

    __slots__ = (
        *("begun", "handed_at", "job", "kept", "moved", "overdue_at", "receipt", "state"),
        *("transaction", "worker"),
    )

    time_limits: TimeLimits | None = None
    limit_at = math.inf

    def __init__(
        self, job: Job, receipt: bytes, worker: Worker, handed_at: float, state: DeliveryState
    ) -> None:
        self.job = job
        self.receipt = receipt
        self.worker = worker
        self.handed_at = handed_at
        self.overdue_at = handed_at + job.visibility_timeout
        self.state = state
        self.kept = False
        self.begun = True
        self.transaction: list[EndedParent] | None = None
        self.moved = False

    @property
    def hard_limit(self) -> float:
        """Return the seconds for which its worker may work on it."""
        limit = self.time_limits.hard if self.time_limits else None
        return math.inf if limit is None else limit


class LimitedDelivery(Delivery):
    """One with time limits; ``limit_at``: when its hard one is over, once its worker has begun it."""

    __slots__ = ("limit_at", "time_limits")

    def __init__(self, *given: Any, limits: TimeLimits) -> None:
        super().__init__(*given)
        self.time_limits = limits
        self.limit_at = math.inf


class Takes(NamedTuple):
    """Numbers of jobs: those that a worker takes when it is idle, and now."""

    at_most: int
    now: int


class Marks:
    """High-water marks of a device: how many jobs, and bytes of jobs, its workers may have unsettled."""

    __slots__ = ("bytes", "jobs", "most_bytes", "most_jobs")

    def __init__(self, most_jobs: int, most_bytes: int) -> None:
        self.most_jobs = most_jobs
        self.most_bytes = most_bytes
        self.jobs = 0
        self.bytes = 0

    @property
    def room(self) -> int:
        """Return how many more jobs the marks allow."""
        return 0 if self.bytes >= self.most_bytes else max(0, self.most_jobs - self.jobs)

    def take(self, jobs: Sequence[Job]) -> None:
        """Count jobs that a worker gets."""
        self.jobs += len(jobs)
        self.bytes += sum([job.size for job in jobs])

    def give(self, job: Job) -> bool:
        """Count a job that has ended; return whether that made room where there was none."""
        was_full = not self.room
        self.jobs -= 1
        self.bytes -= job.size
        return was_full and self.room > 0


_NOTHING: Final = Takes(0, 0)


class Worker:
    """A worker of one queue: its credit, which is all that the scheduler knows of it, and how it gets a job.

    Its door sets ``prefetch``, the most it may have unsettled, and ``reads``, False while its connection
    takes nothing more; then it offers the worker to the queue. It makes :meth:`deliver` and :meth:`hang_up`,
    which the scheduler never calls. ``marks`` are those of its device, if it is at one. ``in_flight`` and
    ``overdue`` are its deliveries by their receipts, ``counted`` what it took when that was counted last: the
    table of deliveries keeps these.

    ``pops``: its jobs are removed before they are sent (at most once); ``commits_on_arrival``: it says
    nothing, and a job is committed when it has it, so what is in flight it has not started;
    ``concurrency``: how many jobs it works on at once, in the order in which it was given them; ``proven``:
    it has answered before, so it is not still busy with a job from a former connection; ``alone``: it has an
    isolated job, or runs empty for one; ``waiting``: it stands in the line of those that can take more.
    """

    pops = False
    commits_on_arrival = False
    concurrency: float = math.inf
    #: Its host and process id, where it has said them.
    process: tuple[str, int] | None = None
    #: How it works: as a worker of the library, or with a REP or a PULL socket.
    door = ""

    def __init__(
        self,
        name: str,
        prefetch: int,
        caller: Caller,
        peer: str = "",
        *,
        marks: Marks | None = None,
        reads: bool = True,
    ) -> None:
        self.name = name
        self.caller = caller
        """Principal for which it works: its verdicts may move jobs into queues that this may push to."""
        self.peer = peer or name
        """The worker's connection."""
        # Eight random bytes: 10**5 tries a second hit one of a million receipts in 5 years
        self.proof = token_hex(8).encode()
        """A part of its receipts that nobody else can guess, for any client with a receipt may settle."""
        self.prefetch = prefetch
        self.reads = reads
        self.marks = marks
        self.in_flight: dict[bytes, Delivery] = {}
        self.overdue: dict[bytes, Delivery] = {}
        self.counted = _NOTHING
        self.proven = False
        self.alone = False
        self.gone = False
        self.quiet = False
        """True once an operator wants it to get no more jobs."""
        self.waiting = False
        self.since = 0.0
        """When it came, in monotonic seconds."""
        self.settled_at = -math.inf
        """When its last verdicts came."""

    @property
    def free(self) -> int:
        """Return how many jobs it can take now.

        None beside an isolated job that it has or awaits, and while jobs are being removed for it.
        """
        if self.gone or self.quiet or not self.reads or ((self.alone or self.pops) and self.in_flight):
            return 0
        free = max(0, self.prefetch - len(self.in_flight) - len(self.overdue))
        return min(free, self.marks.room) if self.marks else free

    @property
    def takes(self) -> Takes:
        """Return how many jobs to hold ready for it."""
        if self.gone or self.quiet or not self.reads:
            return _NOTHING
        if (self.alone and self.in_flight) or (self.marks and not self.marks.room):
            return Takes(self.prefetch, 0)
        return Takes(self.prefetch, max(0, self.prefetch - len(self.in_flight) - len(self.overdue)))

    def under_way(self) -> Iterator[Delivery]:
        """Return the deliveries on which it works at this moment, as far as anybody can know."""
        most = 0 if self.commits_on_arrival else self.concurrency - len(self.overdue)
        return islice(self.in_flight.values(), None if most == math.inf else max(0, int(most)))

    def note_begun(self, now: float = math.inf) -> None:
        """Note whether it has begun each job that it has: some of them end without a verdict.

        Of one that dies at ``now`` in monotonic seconds, soon after a verdict or a delivery, nobody knows:
        verdicts may have died with it. Then it counts as begun, unless this would be the end of the job.
        """
        most = 0 if self.commits_on_arrival else self.concurrency
        for place, delivery in enumerate(self.in_flight.values(), len(self.overdue)):
            # Seconds within which verdicts come, unless their worker dies
            lately = most and now - max(self.settled_at, delivery.handed_at) < 1.0
            delivery.begun = place < most or bool(lately and not delivery.job.spent)

    def listed(self, queue: str, now: float, most_jobs: int) -> WorkerRow:
        """Describe it and its first jobs, with the seconds since it has them; ``now`` is monotonic."""
        return WorkerRow(
            queue=queue,
            name=self.name,
            door=self.door,
            connected=round(now - self.since, 3),
            prefetch=self.prefetch,
            in_flight=len(self.in_flight),
            overdue=len(self.overdue),
            jobs=tuple(
                WorkerJobRow(
                    id=delivery.job.id,
                    attempt=delivery.job.attempts,
                    seconds=round(now - delivery.handed_at, 3),
                    kind=delivery.job.kind,
                    overdue=delivery.state is DeliveryState.OVERDUE,
                )
                for delivery in islice((*self.overdue.values(), *self.in_flight.values()), most_jobs)
            ),
            stuck=self.stuck(),
            quiet=self.quiet,
        )

    def stuck(self) -> tuple[WorkerJobRow, ...]:
        """Return the jobs of former connections that its handlers have not ended, as it has said."""
        return ()

    def stop(self) -> None:
        """Ask it to end, if it can be asked."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send jobs to it; must not block. Of one that pops, they are out of the queue."""
        raise NotImplementedError

    def cancelled(self, deliveries: Sequence[Delivery], why: str) -> None:
        """Notify it that it should end these jobs, if it can be; their verdicts change nothing any more."""

    def hang_up(self) -> None:
        """End its connection: it has not answered for twice the visibility timeout."""
        raise NotImplementedError
