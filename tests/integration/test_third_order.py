"""A claim order is one class, named in ``ORDERS``: the example of docs/architecture.md runs."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import IndexModel
from pymongo.database import Database

from sluicemq_broker.job import Job
from sluicemq_broker.store import (
    ORDERS,
    Listing,
    PriorityOrder,
    QueueDefaults,
    QueueStore,
    StagedByPriority,
    collection,
    order_of,
)
from support.jobs import NOW, a_job, ids

SETTINGS = QueueDefaults(on_expiry="dead")  # stands for a setting of its own


class StagedByDeadline(StagedByPriority):
    """The earliest deadline first."""

    by_priority = False

    @staticmethod
    def rank(job: Job) -> float:
        """Return a higher rank for an earlier deadline."""
        return -(job.expires_at or 0)


class DeadlineOrder(PriorityOrder):
    """The job that expires first; those that never do come before all, as MongoDB sorts a missing field."""

    settings = ("on_expiry",)
    sort = [("expires_at", 1), ("seq", 1)]  # noqa: RUF012 - as in PriorityOrder
    index = IndexModel([("state", 1), *sort], name="deadline", partialFilterExpression={"state": "ready"})
    Staged = StagedByDeadline

    @classmethod
    def serves(cls, defaults: QueueDefaults) -> bool:
        """Serve queues with the setting."""
        return defaults.on_expiry == "dead"


@pytest.fixture
def third_order() -> Iterator[None]:
    ORDERS.insert(0, DeadlineOrder)
    yield
    ORDERS.remove(DeadlineOrder)


@pytest.fixture
def store(documents: Database[dict[str, Any]], third_order: None) -> QueueStore:
    """A queue in the third order, with three jobs: the last one has the nearest deadline."""
    mail = QueueStore(documents, collection("mail"), SETTINGS)
    mail.prepare()
    mail.push([a_job(f"{seconds}", expires_at=NOW + seconds) for seconds in (300, 200, 100)], NOW)
    return mail


def test_its_jobs_are_claimed_found_again_and_listed_by_its_index(store: QueueStore) -> None:
    assert "deadline" in store.jobs.index_information()
    listing = Listing(store.jobs.database)
    first = listing.page("mail", "ready", 2, None, NOW)
    rest = listing.page("mail", "ready", 2, first.next, NOW)
    assert [job["id"] for job in (*first.jobs, *rest.jobs)] == ["100", "200", "300"]
    assert ids(store.reserve(2, NOW, "me", 7).jobs) == ["100", "200"]
    assert ids(store.claimed("me", 7)) == ["100", "200"]
    assert ids(store.reserve(1, NOW, "me", 8, one_first=True).jobs) == ["300"]


def test_in_memory_they_wait_in_this_order(store: QueueStore) -> None:
    staged = order_of(store.defaults).staged(store.defaults)
    staged.add([a_job("late", expires_at=NOW + 9), a_job("never"), a_job("soon", expires_at=NOW + 1)])
    assert ids(staged.take(3, math.inf)) == ["never", "soon", "late"]


def test_a_queue_without_it_loses_its_index_with_the_next_sweep(store: QueueStore) -> None:
    store.reconfigure(QueueDefaults())
    store.mend()
    assert "deadline" not in store.jobs.index_information()
