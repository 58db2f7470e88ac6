"""Jobs for tests: made in one line, numbered as an intake would, looked at as they are stored."""

import itertools
from typing import Any

from sluicemq.protocol.errors import DuplicateError
from sluicemq_broker.job import Job, Reservation
from sluicemq_broker.store import (
    Changes,
    Completed,
    DeadLetters,
    Pushed,
    QueueStore,
    Redriven,
    Redrives,
    Removals,
)

#: The present of the tests, far ahead: MongoDB removes by its own clock what has a ``remove_at`` behind it.
NOW = 4_000_000_000.0

#: Jobs in a page of what is ordered for many.
PAGE = 500

_numbers = itertools.count(1)


def a_job(
    job_id: str | None = None, payload: bytes = b"payload", *, owner: str = "", hold: int = 0, **settings: Any
) -> Job:
    """A job accepted at :data:`NOW`, after those made before; with an owner it is inserted reserved."""
    number = next(_numbers)
    settings.setdefault("eligible_at", NOW)
    job = Job(job_id or f"job-{number}", payload, **settings)
    job.created_at = NOW
    job.seq = number
    if owner:
        job.reserve(Reservation(owner, hold))
    return job


def some_jobs(count: int, **settings: Any) -> list[Job]:
    return [a_job(**settings) for _ in range(count)]


def ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


def stored(store: QueueStore, job_id: str) -> dict[str, Any]:
    """The document of a job; empty if there is none."""
    return store.jobs.find_one({"_id": job_id}) or {}


def everything(store: QueueStore) -> dict[str, dict[str, Any]]:
    """All documents of a queue by id."""
    return {job["_id"]: job for job in store.jobs.find()}


def firsts(answer: Pushed) -> dict[int, str]:
    """The ids of the jobs that the refused ones repeat, by position."""
    return {at: error.id for at, error in answer.refused.items() if isinstance(error, DuplicateError)}


def finished(job: Job, result: bytes = b"result", *, worker: str = "worker") -> Completed:
    """A job that a worker has done, which got it at :data:`NOW`."""
    return Completed(job, result, worker, NOW)


class ChangesAtOnce(Changes, Redrives, Removals):
    """Bulk changes of jobs, all pages one after the other."""

    def purge(self, queue: str, state: str, now: float) -> int:
        return sum(self.purging(queue, state, now, lambda: PAGE))

    def drop(self, queue: str, now: float, *, shared: bool = False) -> int:
        return sum(self.dropping(queue, now, shared=shared))

    def redrive(
        self, queue: str, letters: DeadLetters, now: float, to: QueueStore | None = None, size: int = PAGE
    ) -> Redriven:
        redriven = Redriven()
        moved = sum(self.redriving(queue, letters, now, redriven, lambda: size, to))
        assert moved == redriven.moved
        return redriven
