"""The verbs of a queue's store, as tests use them."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from sluicemq_broker.job import Job
from sluicemq_broker.store import Claim, QueueStore, RolledBack, date
from sluicemq_broker.store.jobs.claims import Claims
from support.between import before
from support.jobs import NOW, a_job

ME, OTHER = "me", "other"


def claim(store: QueueStore, limit: int = 100, now: float = NOW, owner: str = ME, **options: Any) -> Claim:
    return store.reserve(limit, now, owner, **options)


def pushed(store: QueueStore, *jobs: Job) -> list[Job]:
    store.push(jobs, NOW)
    return list(jobs)


def at(seconds: float) -> datetime:
    """A date as MongoDB gives it back."""
    return date(seconds).replace(tzinfo=None)


def rolled_back(job: Job, reason: str = "why", **options: Any) -> RolledBack:
    return RolledBack(job, reason, "worker", **options)


def between_read_and_update(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]
) -> None:
    """Let something happen, once, between the two statements of the next claim."""
    before(monkeypatch, Claims, "_reserve_found", happens)


def release(store: QueueStore, job_ids: list[str]) -> int:
    return store.release([a_job(job_id, owner=ME) for job_id in job_ids])
