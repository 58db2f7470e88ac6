"""The plans of the claims of a fair queue, over 10,000 jobs, most of one tenant; in `full` over 1,000,000."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from integration.explained_plans import Explainer, Plan
from sluicemq_broker.job import Reservation
from sluicemq_broker.store import FairOrder, Inspector, QueueDefaults, QueueStore, collection, date
from sluicemq_broker.store.jobs.claim_order import ClaimRequest
from sluicemq_broker.store.jobs.documents import HANDED_OUT_FAIRLY, document
from sluicemq_broker.store.jobs.fair_order import FEW
from support.jobs import NOW, a_job

FAIR = QueueDefaults(fair=True)
FLOOD, LATER, PRIORITIES = 40, 10, 3  # parts of all jobs
SMALL = 20


@pytest.fixture(scope="module", params=[10_000, pytest.param(1_000_000, marks=pytest.mark.full)])
def flooded(mongo_uri: str, explainer: Explainer, request: pytest.FixtureRequest) -> Iterator[QueueStore]:
    """Four fifths are the flood's, one fifth is delayed; twenty have some jobs, of three priorities."""
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        store = QueueStore(client[name], collection("mail"), FAIR)
        fast = store.jobs.with_options(write_concern=WriteConcern(1))
        for start in range(0, request.param, 10_000):
            fast.insert_many([_job(at) for at in range(start, start + 10_000)], ordered=False)
        fast.insert_many([_of_few(at) for at in range(SMALL * PRIORITIES)], ordered=False)
        store.prepare()
        store.claims.reply_sizes.measured(200)  # else its first claim would
        store.release(store.reserve(1, NOW, "first").jobs)  # makes the index
        yield store
        client.drop_database(name)


def _job(at: int) -> dict[str, Any]:
    delayed = at % (FLOOD + LATER) >= FLOOD
    due = NOW + 3600 if delayed else NOW - 3600 + at / 1000
    return _stored(f"j{at}", "later" if delayed else "flood", eligible_at=due)


def _of_few(at: int) -> dict[str, Any]:
    return _stored(f"few-{at}", f"small-{at % SMALL}", priority=at // SMALL, eligible_at=NOW - 1)


def _stored(job_id: str, tenant: str, **settings: Any) -> dict[str, Any]:
    return document(a_job(job_id, tenant=tenant, **settings), date(NOW), FAIR)


def claim(store: QueueStore, explainer: Explainer, limit: int) -> tuple[list[str], list[Plan]]:
    with explainer.plans() as plans:
        jobs = store.reserve(limit, NOW, "claimer").jobs
    turns = [job.turn for job in jobs]
    assert store.release(jobs) == len(jobs)
    return turns, plans


@pytest.mark.parametrize("limit", [1, 256, 1000])
def test_a_claim_reads_a_key_for_each_tenant_and_priority_and_those_of_its_jobs(
    flooded: QueueStore, explainer: Explainer, limit: int
) -> None:
    turns, plans = claim(flooded, explainer, limit)
    tenants, *reads, update = plans
    assert len(turns) == limit
    assert tenants.stages >= {"DISTINCT_SCAN"}
    assert tenants.keys <= 2 * (SMALL + 2) * PRIORITIES
    assert tenants.documents <= SMALL + 2
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)
    assert sum(read.documents for read in reads) <= limit
    assert update.documents <= limit


def test_the_jobs_of_each_tenant_are_read_by_the_index_of_turns_and_no_other_is_tried(
    flooded: QueueStore, explainer: Explainer
) -> None:
    """What a ``$unionWith`` reads no explanation counts: so each of its parts is asked alone."""
    order = flooded.claims.order
    assert isinstance(order, FairOrder)
    due = {"eligible_at": {"$not": {"$gt": date(NOW)}}, "expires_at": {"$not": {"$lte": date(NOW)}}}
    page = order.page(ClaimRequest(due, 400, 400, NOW, Reservation("me", 1), 1, 0))
    for tenant in ("flood", "small-3"):
        command = {
            "aggregate": flooded.name,
            "pipeline": page.branch(tenant, 0, page.shares[tenant], HANDED_OUT_FAIRLY),
            "cursor": {},
        }
        explained = flooded.jobs.database.command("explain", command, verbosity="executionStats")
        found = explained["stages"][0]["$cursor"] if "stages" in explained else explained
        assert found["queryPlanner"]["rejectedPlans"] == []
        assert found["executionStats"]["totalKeysExamined"] <= page.shares[tenant] + PRIORITIES + 1


def test_of_many_tenants_a_page_is_read_a_key_and_a_document_each(
    flooded: QueueStore, explainer: Explainer
) -> None:
    many = 40 * FEW
    flooded.jobs.insert_many([_stored(f"many-{at}", f"many-{at:05}") for at in range(many)])
    turns, plans = claim(flooded, explainer, 500)
    *reads, update = plans
    tenants = [read for read in reads if "DISTINCT_SCAN" in read.stages]
    assert len(set(turns)) == 500
    assert 1 <= len(tenants) <= 3  # of all, from whose turn it is on, and up to there
    for tenant in tenants:
        assert tenant.keys <= many + 2 * (SMALL + 2) * PRIORITIES  # explain goes on behind the 500th
    assert sum(read.documents for read in reads if read not in tenants) == update.documents == 500
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)
    flooded.jobs.delete_many({"_id": {"$regex": "^many-"}})


def test_counting_and_showing_cost_what_they_do_elsewhere(flooded: QueueStore, explainer: Explainer) -> None:
    inspector = Inspector(flooded.jobs.database)
    with explainer.plans() as plans:
        inspector.counts("mail", NOW)
        shown = inspector.peek("mail", "ready", 10, 10**6, NOW)
    assert len(shown) == 10
    assert all(plan.stages & {"COLLSCAN"} == set() for plan in plans)
    assert plans[-1].keys <= 10 + 2 * PRIORITIES
