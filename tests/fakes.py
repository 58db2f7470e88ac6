"""Stand-ins for MongoDB and workers, only where a test must inject a fault or hold something up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gevent
from gevent.event import Event

from broker.job import Job
from broker.mongo import ServerClock
from broker.store import Claim
from broker.store_push import Pushed
from broker.worker import Delivery, Worker
from jobs import NOW


class Clock(ServerClock):
    """The server's clock, at :data:`NOW` until told otherwise."""

    time = NOW

    def now(self) -> float:
        return self.time


class FakeOwners:
    """Owner ids ``owner-1``, ``owner-2``, ... as ``Owners`` gives them, without leases."""

    def __init__(self) -> None:
        self.current = ""
        self.retired: list[str] = []
        self.sure = True
        self.others = 0
        self.use()

    def use(self) -> str:
        self.current = self.current or f"owner-{len(self.retired) + 1}"
        return self.current

    def mine(self) -> list[str]:
        return [owner for owner in (self.current, *self.retired) if owner]

    def retire(self, owner: str) -> None:
        if owner and owner == self.current:
            self.current = ""
            self.retired.append(owner)

    def lose_all(self) -> None:
        """Another broker has declared us dead."""
        self.retired.clear()
        self.current = "after"


class FakeStore:
    """One queue in memory. ``claims``, ``inserts`` and ``sent`` note what was asked; faults come from tests.

    ``before_claim`` and ``before_insert`` are called first and may wait or raise; ``after_insert``
    is called when the insert was applied, so that raising there is a lost reply.
    """

    def __init__(self) -> None:
        self.ready: list[Job] = []
        self.reserved: dict[str, str] = {}
        self.claims: list[tuple[int, str]] = []
        self.inserts: list[list[Job]] = []
        self.sent: list[float | None] = []
        self.before_claim: Callable[[], None] = _nothing
        self.before_insert: Callable[[list[Job]], None] = _nothing
        self.after_insert: Callable[[], None] = _nothing

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def mend(self) -> None:
        """There is nothing to mend."""

    def reserve(
        self, limit: int, now: float, owner: str, *, before: int | None = None, brokers: int = 1
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
            job.owner = owner
            job.attempts += 1
        return Claim(taken, owner, more=len(taken) == limit)

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
        self.after_insert()
        return Pushed(existing)

    def held(self, ids: Sequence[str], owner: str) -> set[str]:
        return {each for each in ids if self.reserved.get(each) == owner}


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


class Held(Event):
    """Something held up until :meth:`set`; called as a hook, it waits (5 s at most)."""

    def __call__(self, *_arguments: Any) -> None:
        assert self.wait(5.0), "nobody let it go"


def go_on() -> None:
    """Let every greenlet that can run do so."""
    for _ in range(3):
        gevent.idle()


def _nothing(*_arguments: Any) -> None:
    """No fault."""
