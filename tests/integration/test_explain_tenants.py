"""The plans of what claims read of tenants that are limited, while 4,000 jobs run and 10,000 are ready."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from integration.explained_plans import Explainer
from sluicemq_broker.store import QueueDefaults, QueueStore, collection, date
from sluicemq_broker.store.jobs.documents import document
from support.jobs import NOW, a_job

MOST = 8
LIMITED = QueueDefaults(fair=True, tenant_max_running=MOST, tenant_rate=1000.0)
READY, RUNNING = 10_000, 4_000
FEW = 20  # tenants that have jobs ready
ELSEWHERE = RUNNING // MOST  # tenants that have jobs running, and none ready


@pytest.fixture(scope="module")
def busy(mongo_uri: str, explainer: Explainer) -> Iterator[QueueStore]:
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        store = QueueStore(client[name], collection("mail"), LIMITED)
        fast = store.jobs.with_options(write_concern=WriteConcern(1))
        fast.insert_many([_stored(f"j{at}", f"few-{at % FEW}") for at in range(READY)], ordered=False)
        running = [_stored(f"r{at}", f"elsewhere-{at % ELSEWHERE}") for at in range(RUNNING)]
        for at, row in enumerate(running):
            slot = {"tenant": row["tenant"], "n": at // ELSEWHERE}
            row |= {"state": "reserved", "owner": "other", "hold": at, "slot": slot}
        fast.insert_many(running, ordered=False)
        buckets = [{"_id": f"mail/elsewhere-{at}", "tokens": 1.0, "taken": []} for at in range(ELSEWHERE)]
        client[name]["limits"].insert_many([{**bucket, "refilled_at": date(NOW)} for bucket in buckets])
        store.prepare()
        store.claims.reply_sizes.measured(200)  # else its first claim would
        store.release(store.reserve(1, NOW, "first").jobs)  # makes the indexes
        yield store
        client.drop_database(name)


def _stored(job_id: str, tenant: str) -> dict[str, Any]:
    return document(a_job(job_id, tenant=tenant, eligible_at=NOW - 1), date(NOW), LIMITED)


def test_a_claim_reads_a_key_for_each_job_that_runs_of_its_tenants_and_no_document(
    busy: QueueStore, explainer: Explainer
) -> None:
    running = busy.reserve(5 * FEW, NOW, "me", 1).jobs
    with explainer.plans() as plans:
        more = busy.reserve(5 * FEW, NOW + 1, "me", 2).jobs
    assert (len(running), len(more)) == (5 * FEW, (MOST - 5) * FEW)
    slots = next(plan for plan in plans[1:] if plan.documents == 0)
    assert slots.keys <= (5 + 2) * FEW
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)
    assert all(plan.documents <= 2 * len(more) for plan in plans)
    assert busy.release(running) + busy.release(more) == MOST * FEW
