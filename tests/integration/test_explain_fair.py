"""Plans of statements of fair queues, their tenants, and groups."""

from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from integration.explained_plans import Explainer, Plan
from sluicemq_broker.job import Reservation
from sluicemq_broker.store import (
    COUNTED_EXACTLY,
    DeadLetters,
    FairOrder,
    Inspector,
    QueueDefaults,
    QueueStore,
    collection,
    date,
)
from sluicemq_broker.store.jobs.claim_order import ClaimRequest
from sluicemq_broker.store.jobs.documents import HANDED_OUT_FAIRLY, document
from sluicemq_broker.store.jobs.fair_order import FEW
from support.jobs import NOW, ChangesAtOnce, a_job

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


def test_of_many_tenants_a_page_reads_what_it_shows(flooded: QueueStore, explainer: Explainer) -> None:
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


MOST = 8
LIMITED = QueueDefaults(fair=True, tenant_max_running=MOST, tenant_rate=1000.0)
READY, RUNNING = 10_000, 4_000
FEW_OF_TENANTS = 20  # tenants that have jobs ready
ELSEWHERE = RUNNING // MOST  # tenants that have jobs running, and none ready


@pytest.fixture(scope="module")
def busy(mongo_uri: str, explainer: Explainer) -> Iterator[QueueStore]:
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        store = QueueStore(client[name], collection("mail"), LIMITED)
        fast = store.jobs.with_options(write_concern=WriteConcern(1))
        fast.insert_many(
            [_stored_of_tenants(f"j{at}", f"few-{at % FEW_OF_TENANTS}") for at in range(READY)], ordered=False
        )
        running = [_stored_of_tenants(f"r{at}", f"elsewhere-{at % ELSEWHERE}") for at in range(RUNNING)]
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


def _stored_of_tenants(job_id: str, tenant: str) -> dict[str, Any]:
    return document(a_job(job_id, tenant=tenant, eligible_at=NOW - 1), date(NOW), LIMITED)


def test_a_claim_reads_a_key_for_each_job_that_runs(busy: QueueStore, explainer: Explainer) -> None:
    running = busy.reserve(5 * FEW_OF_TENANTS, NOW, "me", 1).jobs
    with explainer.plans() as plans:
        more = busy.reserve(5 * FEW_OF_TENANTS, NOW + 1, "me", 2).jobs
    assert (len(running), len(more)) == (5 * FEW_OF_TENANTS, (MOST - 5) * FEW_OF_TENANTS)
    slots = next(plan for plan in plans[1:] if plan.documents == 0)
    assert slots.keys <= (5 + 2) * FEW_OF_TENANTS
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)
    assert all(plan.documents <= 2 * len(more) for plan in plans)
    assert busy.release(running) + busy.release(more) == MOST * FEW_OF_TENANTS


#: Jobs of one group, the first of which is its head; every fiftieth group has none.
EACH, HEADLESS = 10, 50
AT_ONCE = 256


@pytest.fixture(scope="module", params=[4_000, pytest.param(100_000, marks=pytest.mark.full)])
def groups(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture(scope="module")
def lined_up(mongo_uri: str, explainer: Explainer, groups: int) -> Iterator[QueueStore]:
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        store = QueueStore(client[name], collection("mail"))
        fast = store.jobs.with_options(write_concern=WriteConcern(1))
        for place in range(EACH):
            for start in range(0, groups, 2_000):
                fast.insert_many(
                    [_job_of_group(at, place) for at in range(start, min(groups, start + 2_000))],
                    ordered=False,
                )
        store.prepare()
        store.groups.prepare()
        store.claims.reply_sizes.measured(200)  # else its first claim would
        yield store
        client.drop_database(name)


def _job_of_group(group: int, place: int) -> dict[str, Any]:
    expires_at = NOW + 60 if (group, place) == (1, 1) else None
    job = a_job(f"{group}-{place}", group=f"group-{group}", expires_at=expires_at)
    job.line_up(1 + place)
    found = document(job, date(NOW), QueueDefaults())
    if place == 0 and group % HEADLESS:
        del found["wait"]
        found |= {"state": "ready", "head": job.group}
    return found


def test_a_promotion_takes_two_keys_a_group(lined_up: QueueStore, explainer: Explainer, groups: int) -> None:
    ended = lined_up.reserve(AT_ONCE, NOW, "me").jobs
    names = [job.group or "" for job in ended]
    with explainer.plans() as plans:
        lined_up.commit(ended)
        promoted = lined_up.groups.promote(names, NOW)
        claimed = lined_up.reserve(AT_ONCE, NOW, "me")
    removed, heads, first, made, found, _ = plans
    assert (len(promoted.ready), len(claimed.jobs)) == (AT_ONCE, AT_ONCE)
    assert (removed.documents, heads.documents, heads.returned) == (AT_ONCE, 0, 0)
    assert heads.keys <= AT_ONCE + 1
    assert first.stages >= {"DISTINCT_SCAN"}
    assert (first.documents, first.keys <= 2 * AT_ONCE) == (AT_ONCE, True)
    assert (made.documents, made.keys <= 2 * AT_ONCE) == (AT_ONCE, True)
    assert found.keys <= AT_ONCE * 1.05 + 1
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)


def test_groups_that_have_heads_cost_a_key_each(lined_up: QueueStore, explainer: Explainer) -> None:
    names = [f"group-{at}" for at in range(AT_ONCE * 3, AT_ONCE * 4) if at % HEADLESS]
    with explainer.plans() as plans:
        lined_up.groups.promote(names, NOW)
    (heads,) = plans
    assert heads.documents == 0
    assert heads.keys <= 2 * len(names)


def test_headless_groups_cost_a_key_each(lined_up: QueueStore, explainer: Explainer, groups: int) -> None:
    with explainer.plans() as plans:
        found = [group for page in lined_up.groups.headless() for group in page]
    assert len(found) == groups // HEADLESS
    walk, *heads = plans
    assert (walk.documents, walk.keys <= groups + 1, walk.stages >= {"DISTINCT_SCAN"}) == (0, True, True)
    assert sum(head.keys for head in heads) <= 2 * groups
    assert sum(head.documents for head in heads) == 0


def test_who_expires_in_a_line_is_found_by_key(lined_up: QueueStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        assert lined_up.will_expire()
        assert lined_up.expire(NOW).ids == []
        assert lined_up.expire(NOW + 60).ids == ["1-1"]
    assert all(plan.keys <= 1 and "COLLSCAN" not in plan.stages for plan in plans)


def test_what_waits_is_counted_and_shown_by_its_keys(lined_up: QueueStore, explainer: Explainer) -> None:
    inspector = Inspector(lined_up.jobs.database)
    with explainer.plans() as plans:
        counts = inspector.counts("mail", NOW)
        shown = inspector.peek("mail", "waiting", 10, 10**6, NOW)
    assert counts["waiting"] > COUNTED_EXACTLY
    assert (len(shown), plans[-1].keys) == (10, 10)
    assert all(plan.keys <= COUNTED_EXACTLY + 2 for plan in plans)
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans[:-1])


def test_a_redrive_lines_its_page_up_by_ids(lined_up: QueueStore, explainer: Explainer) -> None:
    ids = [f"{at}-0" for at in range(2001, 2040)]
    dead = {"$set": {"state": "dead", "ended_at": date(NOW)}, "$unset": {"head": ""}}
    lined_up.jobs.update_many({"_id": {"$in": ids}}, dead)
    with explainer.plans() as plans:
        redriven = ChangesAtOnce(lined_up.jobs.database).redrive("mail", DeadLetters(), NOW)
    assert (redriven.moved, len(redriven.groups)) == (39, 39)
    assert all(plan.documents <= 40 and plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)
