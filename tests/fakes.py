"""Stand-ins for MongoDB and workers, only where a test must inject a fault or hold something up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gevent
from gevent.event import Event

from jobs import NOW
from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.store.connection import ServerClock
from sluicemq_broker.store.inserts import Pushed
from sluicemq_broker.store.queue_store import Claim


class Clock(ServerClock):
    """The server's clock, at :data:`NOW` until told otherwise."""

    time = NOW

    def now(self) -> float:
        return self.time


class FakeOwners:
    """The owner id ``owner-1``, as ``Owners`` gives one, without a lease."""

    def __init__(self) -> None:
        self.current = ""
        self.sure = True
        self.others = 0
        self._holds = itertools.count(1)
        self.use()

    def new_hold(self) -> int:
        return next(self._holds)

    def use(self) -> str:
        self.current = self.current or "owner-1"
        return self.current

    def mine(self) -> list[str]:
        return [self.current] if self.current else []

    def lose_all(self) -> None:
        """Another broker has declared us dead."""
        self.current = "after"


class FakeStore:
    """One queue in memory. ``claims``, ``inserts`` and ``sent`` note what was asked; faults come from tests.

    ``before_claim`` and ``before_insert`` are called first and may wait or raise; ``after_insert``
    and ``after_claim`` are called when it was applied, so that raising there is a lost reply.
    """

    def __init__(self) -> None:
        self.ready: list[Job] = []
        self.reserved: dict[str, str] = {}
        self.claims: list[tuple[int, str]] = []
        self.inserts: list[list[Job]] = []
        self.sent: list[float | None] = []
        self._claimed: dict[tuple[str, int], list[Job]] = {}
        self.before_claim: Callable[[], None] = _nothing
        self.after_claim: Callable[[], None] = _nothing
        self.before_insert: Callable[[list[Job]], None] = _nothing
        self.after_insert: Callable[[], None] = _nothing

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def mend(self) -> None:
        """There is nothing to mend."""

    def mend_ownerless(self, now: float) -> None:
        """There is nothing to mend."""

    def reserve(
        self,
        limit: int,
        now: float,
        owner: str,
        hold: int = 0,
        *,
        before: int | None = None,
        brokers: int = 1,
        most_bytes: int = 0,
    ) -> Claim:
        self.claims.append((limit, owner))
        self.before_claim()
        first = [job for job in self.ready if before is None or job.seq < before]
        due = sorted(
            (job for job in first if job.eligible_at <= now), key=lambda job: (-job.priority, job.seq)
        )
        taken = due[:limit]
        for job in taken:
            self.ready.remove(job)
            self.reserved[job.id] = owner
            job.owner, job.hold = owner, hold
            job.attempts += 1
        self._claimed[(owner, hold)] = taken
        self.after_claim()
        return Claim(taken, owner, more=len(taken) == limit)

    def claimed(self, owner: str, hold: int) -> list[Job]:
        return self._claimed.get((owner, hold), [])

    def insertion(self, jobs: Sequence[Job], now: float) -> _Insertion:
        return _Insertion(self, jobs, now)

    def push(self, jobs: Sequence[Job], now: float, sent: float | None = None) -> Pushed:
        self.sent.append(sent)
        self.inserts.append(list(jobs))
        self.before_insert(list(jobs))
        known = self.reserved.keys() | {job.id for job in self.ready}
        existing = []
        for at, job in enumerate(jobs):
            if job.id in known:
                existing.append(at)
            elif job.owner:
                self.reserved[job.id] = job.owner
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


class FakeWorker(Worker):
    """Notes what it gets: ``messages`` lists of deliveries, ``jobs`` their ids."""

    def __init__(self, prefetch: int = 1, name: str = "worker") -> None:
        super().__init__(name, prefetch)
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


def _nothing(*_arguments: Any) -> None:
    """No fault."""
