"""A broker that has just heard of a job claims it by one statement, where it can simply be handed out."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq_broker.store import Claim, QueueStore, date
from support.jobs import NOW, a_job, ids, some_jobs, stored


def one_first(store: QueueStore) -> Claim:
    return store.reserve(10, NOW, "me", 7, one_first=True)


def test_a_job_that_was_just_heard_of_is_claimed_alone_and_others_come_next(store: QueueStore) -> None:
    jobs = some_jobs(3)
    urgent = a_job(priority=9)
    store.push([*jobs, urgent], NOW)
    claim = one_first(store)
    (job,) = claim.jobs
    assert (job.id, job.attempts, job.owner, job.reservation.number) == (urgent.id, 1, "me", 7)
    assert claim.more
    assert stored(store, job.id)["attempts"] == 1
    assert ids(store.claimed("me", 7)) == [urgent.id]
    assert store.commit([job]) == {}


def test_one_is_claimed_with_what_a_claim_asks_for(store: QueueStore) -> None:
    store.push([a_job(eligible_at=NOW + 5), a_job(expires_at=NOW - 1)], NOW)
    assert one_first(store).jobs == []


def test_where_the_first_has_no_attempt_left_a_claim_as_ever_follows(store: QueueStore) -> None:
    spent, other = a_job(max_attempts=1), a_job()
    store.push([spent, other], NOW)
    store.jobs.update_one({"_id": spent.id}, {"$set": {"attempts": 1}})
    claim = one_first(store)
    assert (ids(claim.jobs), claim.died) == ([other.id], (spent.id,))
    assert stored(store, spent.id)["attempts"] == 1


def test_one_without_an_attempt_left_is_not_handed_out_after_a_lost_one(store: QueueStore) -> None:
    spent = a_job(max_attempts=1)
    store.push([spent], NOW)
    held = {"state": "reserved", "owner": "me", "hold": 7, "reserved_at": date(NOW), "attempts": 2}
    store.jobs.update_one({"_id": spent.id}, {"$set": held})
    brought = store.claimed("me", 7)
    store.free(spent.id, "me", 7)  # as the audit does
    assert brought == []
    assert one_first(store).died == (spent.id,)


@pytest.mark.parametrize("wrong", [{"attempts": "many"}, {"payload": 7}])
def test_where_the_first_is_no_job_a_claim_as_ever_follows(store: QueueStore, wrong: dict[str, Any]) -> None:
    odd, other = a_job(), a_job()
    store.push([odd, other], NOW)
    store.jobs.update_one({"_id": odd.id}, {"$set": wrong})
    assert ids(one_first(store).jobs) == [other.id]
    assert stored(store, odd.id)["state"] == "dead"
