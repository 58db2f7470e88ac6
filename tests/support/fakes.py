"""Stand-ins for MongoDB and workers, only where a test must inject a fault or hold something up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, cast

import gevent
from gevent.event import Event

from sluicemq.protocol.errors import LeaseLostError, SluiceError, UncertainError
from sluicemq_broker.context import Context, Memory, NotifyBrokers, Retry, no_other_broker
from sluicemq_broker.job import Job, Reservation, State
from sluicemq_broker.job.job import NOT_RESERVED
from sluicemq_broker.queue import Delivery, JobMaker, MakeJob, Worker
from sluicemq_broker.runtime import Counters, Timer
from sluicemq_broker.security import ANYBODY
from sluicemq_broker.store import (
    Claim,
    Completed,
    Found,
    Promoted,
    Pushed,
    QueueDefaults,
    RolledBack,
    ServerClock,
)
from support.jobs import NOW, ids


class Clock(ServerClock):
    """The server's clock, at :data:`NOW` until a test sets it."""

    time = NOW

    def now(self) -> float:
        return self.time


class FakeOwners:
    """The owner id ``owner-1``, as ``Owners`` gives one, without a lease."""

    def __init__(self) -> None:
        self.current = ""
        self.sure = True
        self.others = self.place = 0
        self.others_at_work = False
        self._holds = itertools.count(1)
        self.use()

    def new_reservation(self) -> int:
        return next(self._holds)

    def use(self) -> str:
        self.current = self.current or "owner-1"
        return self.current

    def keeps(self, owner: str) -> bool:
        return owner in self.own_ids()

    def own_ids(self) -> list[str]:
        return [self.current] if self.current else []

    def live(self, _database: str | None = None) -> set[str]:
        """There is no other broker."""
        return set(self.own_ids())

    def lose_all(self) -> None:
        """Another broker has declared us dead."""
        self.current = "after"


def a_context(
    owners: Any = None,
    *,
    clock: ServerClock | None = None,
    counters: Counters | None = None,
    retry: Retry | None = None,
    memory: Memory | None = None,
    timer: Timer | None = None,
    notify_brokers: NotifyBrokers = no_other_broker,
) -> Context:
    """Make the context of every part; what is not given is a fake, or real where it needs no MongoDB."""
    return Context(
        cast("Any", owners or FakeOwners()),
        clock or Clock(),
        counters or Counters(),
        retry or Retry(),
        memory or Memory(),
        timer or Timer(),
        notify_brokers=notify_brokers,
    )


def a_maker(clock: ServerClock | None = None) -> MakeJob:
    """Makes jobs of what is said of them, as the doors do."""
    return JobMaker(clock or Clock(), 1 << 20).make


class FakeGroups:
    """The lines of one queue: places that are given, and groups that may go on; nobody is promoted."""

    def __init__(self) -> None:
        self.last = 0
        self.freed: list[set[str]] = []

    def places(self, count: int) -> int:
        self.last += count
        return self.last - count + 1

    def promote(self, groups: Collection[str], now: float) -> Promoted:
        self.freed.append(set(groups))
        return Promoted([], [])


class _Ended(NamedTuple):
    """A job that is done or dead, when, and under which owner and hold; dead ones under none."""

    found: Found
    at: float
    under: tuple[str, int] = ("", 0)

    @classmethod
    def dead(cls, reason: str, at: float) -> _Ended:
        return cls(Found(State.DEAD, "", b"", reason), at)


class FakeStore:
    """One queue in memory. ``claims``, ``inserts`` and ``sent`` note what was asked; faults come from tests.

    It keeps what ``test_store_contract.py`` says of a store. The jobs that it hands out are those that were
    pushed, not copies.

    ``before_claim`` and ``before_insert`` are called first and may wait or raise; ``after_insert``
    and ``after_claim`` are called when it was applied, so that raising there is a lost reply.
    """

    def __init__(self) -> None:
        self.ready: list[Job] = []
        self.waiting: list[Job] = []
        """In the lines of their groups."""
        self.reserved: dict[str, str] = {}
        """The owner of each reserved job, by id."""
        self.claims: list[tuple[int, str]] = []
        self.inserts: list[list[Job]] = []
        self.sent: list[float | None] = []
        self._held: dict[str, tuple[Job, str, int]] = {}  # and its owner and hold
        self._ended: dict[str, _Ended] = {}
        self.before_claim: Callable[[], None] = _nothing
        self.after_claim: Callable[[], None] = _nothing
        self.before_insert: Callable[[list[Job]], None] = _nothing
        self.after_insert: Callable[[], None] = _nothing
        self.before_commit: Callable[[], None] = _nothing
        self.before_release: Callable[[], None] = _nothing
        self.released: list[Job] = []
        self.groups = FakeGroups()
        self.defaults = QueueDefaults()
        self.removed = self.removal_comes = False

    def expect_removal(self, *, coming: bool) -> None:
        self.removed = self.removal_comes = coming

    def prepare(self, *, again: bool = False) -> None:
        """There is nothing to prepare."""

    def mend(self) -> None:
        """There is nothing to mend."""

    def mend_ownerless(self, now: float) -> None:
        """There is nothing to mend."""

    def on_ready(self, *, anywhere: bool) -> None:
        """Nothing is read ahead."""

    def tick(self, now: float) -> None:
        """Nothing is kept for claims."""

    def reserve(
        self,
        limit: int,
        now: float,
        owner: str,
        number: int = 0,
        *,
        before: int | None = None,
        brokers: int = 1,
        place: int = 0,
        most_bytes: int = 0,
        one_first: bool = False,
    ) -> Claim:
        limit = 1 if one_first and any(not job.spent for job in self.ready) else limit
        self.claims.append((limit, owner))
        self.before_claim()
        page, full = self._first(limit, now, before, most_bytes)
        for job in page:
            self.ready.remove(job)
        spent, taken = [job for job in page if job.spent], [job for job in page if not job.spent]
        self._ended |= {job.id: _Ended.dead("no attempts left", now) for job in spent}
        for job in taken:
            job.reserve(Reservation(owner, number))
            self._reserve(job)
        self.after_claim()
        return Claim(taken, owner, more=full or len(page) == limit, died=tuple(ids(spent)))

    def _first(self, limit: int, now: float, before: int | None, room: int) -> tuple[list[Job], bool]:
        """The due jobs that a claim takes; and whether it had no room for more (0 bytes: any)."""
        due = [
            job
            for job in self.ready
            if job.eligible_at <= now
            and (job.expires_at is None or job.expires_at > now)
            and (before is None or job.seq < before)
        ]
        page: list[Job] = []
        for job in sorted(due, key=_order)[:limit]:
            page.append(job)
            if room and sum(len(waiting.payload) for waiting in page) >= room:
                return page, True
        return page, False

    def claimed(self, owner: str, number: int) -> list[Job]:
        held = [job for job, *under in self._held.values() if under == [owner, number]]
        return sorted((job for job in held if job.id in self.reserved), key=_order)

    def commit(self, jobs: Sequence[Job]) -> dict[str, SluiceError]:
        self.before_commit()
        return {job.id: error for job in jobs if (error := self._end(job))}

    def complete(self, completed: Sequence[Completed], now: float) -> dict[str, SluiceError]:
        problems = {}
        for job, result in ((future.job, future.result) for future in completed):
            under = (job.owner, job.reservation.number)
            if job.id in self._ended and self._ended[job.id].under == under:
                continue  # it is repeated
            if error := self._end(job):
                problems[job.id] = error
            else:
                self._ended[job.id] = _Ended(Found(State.DONE, "", result, ""), now, under)
        return problems

    def roll_back(self, entries: Sequence[RolledBack], now: float) -> int:
        ours = [(self._held[commit.job.id][0], commit) for commit in entries if self._holds(commit.job)]
        for job, entry in ours:
            self._end(job)
            if entry.dead:
                self._ended[job.id] = _Ended.dead(entry.reason, now)
            else:
                job.eligible_at = job.eligible_at if entry.due is None else entry.due
                job.attempts -= not entry.counted
                self._make_ready(job)
        return len(ours)

    def release(self, jobs: Sequence[Job]) -> int:
        self.released += jobs
        self.before_release()
        ours = [self._held[job.id][0] for job in jobs if self._holds(job)]
        for job in ours:
            self._end(job)
            job.attempts -= 1
            self._make_ready(job)
        return len(ours)

    def free(self, job_id: str, owner: str, number: int) -> int:
        job, *under = self._held.get(job_id, (None, "", 0))
        return self.release([job]) if job and under == [owner, number] else 0

    def owners(self) -> set[str]:
        return set(self.reserved.values())

    def reservations(self, owner: str) -> set[tuple[str, int]]:
        return {(job_id, hold) for job_id, (_, by, hold) in self._held.items() if by == owner}

    def reclaim(self, owner: str, max_losses: int, now: float) -> tuple[int, int]:
        lost = [job for job, by, _ in self._held.values() if by == owner]
        dead = [job for job in lost if job.losses + 1 >= max_losses]
        for job in lost:
            job.losses += 1
            self._end(job)
            if job in dead:
                self._ended[job.id] = _Ended.dead("lost with its broker too often", now)
            else:
                job.attempts -= 1
                self._make_ready(job)
        return len(lost) - len(dead), len(dead)

    def will_expire(self) -> bool:
        return any(job.expires_at is not None for job in self.ready + self.waiting)

    def ended(self, since: float, limit: int) -> list[str]:
        return [job_id for job_id, end in self._ended.items() if end.at >= since][:limit]

    def find(self, ids: Sequence[str]) -> dict[str, Found]:
        known = {job.id: _waits(State.READY, job) for job in self.ready}
        known |= {job.id: _waits(State.WAITING, job) for job in self.waiting}
        known |= {job_id: Found(State.RESERVED, owner, b"", "") for job_id, owner in self.reserved.items()}
        known |= {job_id: end.found for job_id, end in self._ended.items()}
        return {job_id: known[job_id] for job_id in ids if job_id in known}

    def result(self, job_id: str) -> bytes | None:
        return self._ended[job_id].found.result if job_id in self._ended else None

    def _reserve(self, job: Job) -> None:
        self.reserved[job.id] = job.owner
        self._held[job.id] = (job, job.owner, job.reservation.number)

    def _make_ready(self, job: Job) -> None:
        job.reservation = NOT_RESERVED
        self.ready.append(job)

    def _end(self, job: Job) -> SluiceError | None:
        """End this reservation of a job; or why that can't be."""
        if self._holds(job):
            del self.reserved[job.id], self._held[job.id]
            return None
        if self._is_there(job.id):
            return LeaseLostError(f"job {job.id} is no longer held under this receipt")
        return UncertainError(f"job {job.id} is gone, whether by this verdict is not known")

    def _holds(self, job: Job) -> bool:
        _, *under = self._held.get(job.id, (job, "", 0))
        return job.id in self.reserved and under == [job.owner, job.reservation.number]

    def _is_there(self, job_id: str) -> bool:
        return job_id in self.reserved or job_id in self._ended or job_id in ids(self.ready + self.waiting)

    def states(self, ids: Sequence[str], now: float) -> dict[str, str]:
        known = self.reserved.keys() | self._ended.keys() | {job.id for job in self.ready + self.waiting}
        return dict.fromkeys(known & set(ids), "ready")

    def form_packs(self, jobs: Sequence[Job]) -> None:
        """Do nothing: this store has none."""

    def insertion(self, jobs: Sequence[Job], now: float, *, repeated: bool = False) -> _Insertion:
        return _Insertion(self, jobs, now)

    def push(self, jobs: Sequence[Job], now: float, sent: float | None = None) -> Pushed:
        self.sent.append(sent)
        self.inserts.append(list(jobs))
        self.before_insert(list(jobs))
        known = self.reserved.keys() | self._ended.keys() | {job.id for job in self.ready + self.waiting}
        existing = []
        for at, job in enumerate(jobs):
            if job.id in known:
                existing.append(at)
            elif job.group is not None:
                self.waiting.append(job)
            elif job.owner:
                self._reserve(job)
            else:
                self.ready.append(job)
            known.add(job.id)
        return Pushed(existing)


class _Insertion:
    """One statement: sent again, it is answered as it was the first time that it was applied."""

    def __init__(self, store: FakeStore, jobs: Sequence[Job], now: float) -> None:
        self.store = store
        self.jobs = jobs
        self.now = now
        self.outcome: Pushed | None = None

    def send(self, at: float) -> Pushed:
        if self.outcome is None:
            self.outcome = self.store.push(self.jobs, self.now, at)
        else:
            self.store.sent.append(at)
            self.store.inserts.append(list(self.jobs))
        self.store.after_insert()
        return self.outcome


def _waits(state: State, job: Job) -> Found:
    return Found(state, "", b"", "", expires_at=job.expires_at)


class FakeWorker(Worker):
    """Notes what it gets: ``messages`` lists of deliveries, ``jobs`` their ids."""

    def __init__(self, prefetch: int = 1, name: str = "worker") -> None:
        super().__init__(name, prefetch, ANYBODY)
        self.messages: list[list[Delivery]] = []
        self.hung_up = False

    def hang_up(self) -> None:
        self.hung_up = True

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.messages.append(list(deliveries))

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for message in self.messages for delivery in message]

    @property
    def jobs(self) -> list[str]:
        return [delivery.job.id for delivery in self.deliveries]


class Held(Event):  # type: ignore[misc] # gevent tells no types
    """Something held up until :meth:`set`; called as a hook, it waits (a minute at most)."""

    def __call__(self, *_arguments: Any) -> None:
        assert self.wait(60.0), "nobody let it go"


def go_on() -> None:
    """Let every greenlet that can run do so."""
    for _ in range(3):
        gevent.idle()


def _order(job: Job) -> tuple[int, float, int]:
    return -job.priority, job.eligible_at, job.seq


def _nothing(*_arguments: Any) -> None:
    """No fault."""
