"""The plans of the hot statements over 20,000 jobs, as MongoDB explains what the store really sends.

In `full` over 1,000,000 too.
"""

from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from integration.explained_plans import Explainer
from sluicemq_broker.job import Dedupe, State
from sluicemq_broker.store import (
    COUNTED_EXACTLY,
    SHOWN_STATES,
    DeadLetters,
    Inspector,
    Listing,
    QueueDefaults,
    QueueStore,
    Search,
    Wanted,
    collection,
    date,
    with_id,
)
from sluicemq_broker.store.admin.counting import _counting, _over
from sluicemq_broker.store.admin.job_view import selects
from sluicemq_broker.store.jobs import many_queues
from sluicemq_broker.store.jobs.documents import document
from sluicemq_broker.store.jobs.index_models import INDEXES, REMOVAL_INDEX
from support.jobs import NOW, ChangesAtOnce, a_job, finished
from support.long_forms import long

PRIORITIES, RESERVED, ENDED = 10, 1_500, 2_000
OWNERS = ("one", "two", "three")


@pytest.fixture(scope="module", params=[20_000, long(1_000_000)])
def crowded(mongo_uri: str, explainer: Explainer, request: pytest.FixtureRequest) -> Iterator[QueueStore]:
    """So many jobs, half of them delayed, of ten priorities; 1,500 reserved and 2,000 ended beside them."""
    name = f"test_{token_hex(6)}"
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[explainer]) as client:
        store = QueueStore(client[name], collection("mail"))
        fast = store.jobs.with_options(write_concern=WriteConcern(1))
        for start in range(0, request.param, 10_000):
            fast.insert_many([_waiting(at) for at in range(start, start + 10_000)], ordered=False)
        fast.insert_many([_reserved(at) for at in range(RESERVED)], ordered=False)
        fast.insert_many([_ended(at) for at in range(ENDED)], ordered=False)
        store.prepare()
        store.claims.reply_sizes.measured(200)  # else its first claim would
        yield store
        client.drop_database(name)


_USUAL = QueueDefaults()


def _waiting(at: int) -> dict[str, Any]:
    # Four after the other are due: brokers share them by the remainders of their numbers.
    due = NOW + 3600 + at / 1000 if at % 8 > 3 else NOW - 3600 + at / 1000
    expires = NOW + 9 if at % 4 == 0 else None
    job = a_job(f"waiting-{at}", priority=at // 8 % PRIORITIES, eligible_at=due, expires_at=expires)
    return document(job, date(NOW), _USUAL)


def _reserved(at: int) -> dict[str, Any]:
    return document(a_job(f"reserved-{at}", owner=OWNERS[at % len(OWNERS)]), date(NOW), _USUAL)


def _ended(at: int) -> dict[str, Any]:
    state = {"state": "dead"} if at % 2 else {"state": "done", "remove_at": date(NOW + at)}
    return {**document(a_job(f"ended-{at}"), date(NOW), _USUAL), **state, "ended_at": date(NOW + at)}


# ------------------------------------------------------------------------- claim


@pytest.mark.parametrize("limit", [1, 256, 1000])
def test_a_claim_reads_the_keys_of_its_jobs(crowded: QueueStore, explainer: Explainer, limit: int) -> None:
    with explainer.plans() as plans:
        claim = crowded.reserve(limit, NOW, "claimer")
    find, update = plans
    assert len(claim.jobs) == limit
    assert find.returned == limit
    assert find.keys <= limit * 1.05 + PRIORITIES
    assert "IXSCAN" in find.stages
    assert "SORT" not in find.stages
    assert (update.command, update.stages & {"COLLSCAN", "SORT"}) == ("update", set())
    assert update.keys <= limit * 2 + PRIORITIES
    assert update.documents <= limit
    assert crowded.release(claim.jobs) == limit


@pytest.mark.parametrize("brokers", [2, 4])
def test_a_claim_of_a_part_passes_over_the_keys_of_the_others_and_reads_none_of_their_jobs(
    crowded: QueueStore, explainer: Explainer, brokers: int
) -> None:
    # Given: a broker that was too late
    crowded.claims.order.on_lost(NOW)
    with explainer.plans() as plans:
        claim = crowded.reserve(256, NOW, "claimer", brokers=brokers, place=1)
    find, _ = plans
    assert len({job.seq % brokers for job in claim.jobs}) == 1
    assert find.returned == find.documents == len(claim.jobs) == 256
    assert find.keys <= 256 * brokers * 3  # the priorities of these jobs go by their numbers, too
    assert "SORT" not in find.stages
    assert crowded.release(claim.jobs) == 256


def test_a_claim_steps_over_the_delayed_jobs(crowded: QueueStore, explainer: Explainer) -> None:
    early = NOW - 3600 + 2.0  # 1,001 jobs are due by then, of all priorities
    with explainer.plans() as plans:
        claim = crowded.reserve(2000, early, "early")
    returned = len(claim.jobs)
    assert len({job.priority for job in claim.jobs}) == PRIORITIES
    assert not claim.more
    assert plans[0].keys <= returned * 1.05 + 2 * PRIORITIES + 1
    assert crowded.release(claim.jobs) == returned


# ----------------------------------------------------------- settle, sweep, audit


def test_commits_and_returns_touch_only_their_own_jobs(crowded: QueueStore, explainer: Explainer) -> None:
    jobs = crowded.reserve(300, NOW, "settler").jobs
    with explainer.plans() as plans:
        crowded.release(jobs[:100])
        crowded.commit(jobs[100:])
    assert [plan.command for plan in plans] == ["update", "delete"]
    assert [plan.documents for plan in plans] == [100, 200]
    assert all(plan.keys <= 2 * plan.documents for plan in plans)


def test_the_owners_of_all_reserved_jobs_cost_a_step_each(crowded: QueueStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        owners = crowded.owners()
    assert owners >= set(OWNERS)
    assert plans[0].stages & {"DISTINCT_SCAN"}
    assert plans[0].keys <= len(owners) + 2


def test_a_survey_reads_a_key_for_each_owner(crowded: QueueStore, explainer: Explainer) -> None:
    for branch, steps in ((many_queues.OWNERS, len(OWNERS) + 2), (many_queues.FIRST_EXPIRY, 2)):
        with explainer.plans() as plans:
            list(crowded.jobs.aggregate(branch))
        assert plans[0].keys <= steps
        assert plans[0].documents <= 1


@pytest.mark.parametrize(
    "read", [QueueStore.reservations, lambda store, owner: store.reclaim(owner, 20, NOW)]
)
def test_the_audit_and_a_reclaim_read_the_jobs_of_one_owner(
    crowded: QueueStore, explainer: Explainer, read: Callable[[QueueStore, str], object]
) -> None:
    with explainer.plans() as plans:
        read(crowded, OWNERS[0])
    held = RESERVED // len(OWNERS)
    assert plans
    assert all("IXSCAN" in plan.stages for plan in plans)
    assert all(plan.keys <= held + 2 for plan in plans)


def test_expired_jobs_are_found_by_their_keys(crowded: QueueStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        none = crowded.expire(NOW).ids
        some = crowded.expire(NOW + 9, 100).ids
    assert (len(none), len(some)) == (0, 100)
    empty, found, removed = plans  # none waits in any line, so none is looked for there
    assert empty.keys <= 1
    assert found.keys <= 101
    assert removed.documents <= 100


def test_burying_expired_jobs_reads_those_alone(crowded: QueueStore, explainer: Explainer) -> None:
    store = QueueStore(crowded.jobs.database, crowded.name, QueueDefaults(on_expiry="dead"))
    with explainer.plans() as plans:
        some = store.expire(NOW + 9, 100).ids
    found, ended = plans
    assert (len(some), found.keys) == (100, 100)
    assert ended.documents <= 100
    assert "COLLSCAN" not in ended.stages
    store.jobs.delete_many({"_id": {"$in": some}})


def test_jobs_are_finished_and_taken_back_by_their_ids(crowded: QueueStore, explainer: Explainer) -> None:
    [job] = crowded.reserve(1, NOW, "popper").jobs
    job.keep_done = 60.0
    with explainer.plans() as plans:
        crowded.complete([finished(job)], NOW)
        crowded.undo_pop([job])
    assert [plan.command for plan in plans] == ["update", "update"]
    assert [(plan.keys, plan.documents) for plan in plans] == [(1, 1), (1, 1)]


def test_the_removal_of_done_jobs_reads_those_that_go(crowded: QueueStore, explainer: Explainer) -> None:
    removal = next(index.document for index in INDEXES if index.document["name"] == REMOVAL_INDEX)
    with explainer.plans() as plans:
        over = list(crowded.jobs.find({"remove_at": {"$lte": date(NOW + 99)}}, {"_id": 1}))
    assert removal["expireAfterSeconds"] == 0
    assert len(over) == 50
    assert plans[0].keys <= 51


# ---------------------------------------------------------------------- dedupe


def test_dedupe_ids_are_read_by_key(crowded: QueueStore, explainer: Explainer) -> None:
    held, over = 100, 50
    windows = [Dedupe(f"d{at}", 10.0 if at < over else 99.0) for at in range(held)]
    crowded.push([a_job(f"first-{window.id}", dedupe=window) for window in windows], NOW)
    second = [a_job(f"second-{window.id}", dedupe=window) for window in windows]
    with explainer.plans() as plans:
        answer = crowded.push(second, NOW + 10)
    assert sorted(answer.refused) == list(range(over, held))
    stored, holders, freed = plans
    assert [plan.command for plan in plans] == ["find", "find", "update"]
    assert all("IXSCAN" in plan.stages and "COLLSCAN" not in plan.stages for plan in plans)
    assert (stored.documents, holders.documents, freed.documents) == (0, held, over)
    assert all(plan.keys <= 2 * held for plan in plans)
    crowded.jobs.delete_many({"dedupe_id": {"$exists": True}})
    crowded.jobs.delete_many({"_id": {"$regex": "^first-"}})


# --------------------------------------------------------------- what people ask


def test_counting_is_bounded_however_many_jobs_there_are(crowded: QueueStore, explainer: Explainer) -> None:
    inspector = Inspector(crowded.jobs.database)
    with explainer.plans() as plans:
        counts = inspector.counts("mail", NOW)
    assert counts["done"] == counts["dead"] == ENDED // 2
    half = crowded.jobs.estimated_document_count() / 2
    assert not counts["exact"]
    assert 0.8 * half < counts["ready"] < 1.2 * half
    assert 0.8 * half < counts["scheduled"] < 1.2 * half
    assert plans
    assert all("COLLSCAN" not in plan.stages for plan in plans)
    assert all(plan.keys <= COUNTED_EXACTLY + 2 * PRIORITIES for plan in plans)


@pytest.mark.parametrize("state", [*(shown for shown in SHOWN_STATES if shown != State.WAITING), "expired"])
def test_each_branch_of_a_count_has_an_index(crowded: QueueStore, explainer: Explainer, state: str) -> None:
    """Only the first of them can be told which."""
    these = _over(NOW) if state == "expired" else selects(state, NOW)
    with explainer.plans() as plans:
        list(crowded.jobs.aggregate(_counting(state, these, COUNTED_EXACTLY)))
    [plan] = plans
    assert ("IXSCAN" in plan.stages, "COLLSCAN" in plan.stages) == (True, False)
    assert plan.keys <= COUNTED_EXACTLY + PRIORITIES


def test_the_oldest_ready_job_costs_a_step_a_priority(crowded: QueueStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        oldest = Inspector(crowded.jobs.database).oldest_ready("mail", NOW)
    assert oldest is not None
    assert NOW - 3600 <= oldest < NOW - 3590
    assert len(plans) == PRIORITIES + 1
    assert all(plan.keys <= 2 for plan in plans)
    assert all("SORT" not in plan.stages for plan in plans)


def test_a_redrive_reads_the_letters_it_takes(crowded: QueueStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        redriven = ChangesAtOnce(crowded.jobs.database).redrive("mail", DeadLetters(limit=100), NOW + ENDED)
    assert (redriven.moved, redriven.left) == (100, ENDED // 2 - 100)
    find, groups, update, count = plans
    assert find.command == "aggregate"
    assert (groups.keys, groups.documents) == (200, 100)
    assert update.documents == 100
    assert count.keys <= ENDED // 2 + 1
    assert all(plan.stages & {"COLLSCAN", "SORT"} == set() for plan in plans)
    back = crowded.jobs.update_many(
        {"errors.reason": "redriven"}, {"$set": {"state": "dead", "ended_at": date(NOW)}}
    )
    assert back.modified_count == 100


@pytest.mark.parametrize("state", ["ready", "scheduled", "reserved", "done", "dead"])
def test_a_peek_reads_no_more_than_it_shows(crowded: QueueStore, explainer: Explainer, state: str) -> None:
    inspector = Inspector(crowded.jobs.database)
    with explainer.plans() as plans:
        shown = inspector.peek("mail", state, 10, 1_000_000, NOW)
    most = RESERVED + 1 if state == "reserved" else 10 + 2 * PRIORITIES
    assert len(shown) == 10
    assert "COLLSCAN" not in plans[0].stages
    assert plans[0].keys <= most


# ------------------------------------------------------------- pages of the dashboard


@pytest.mark.parametrize("state", ["ready", "scheduled"])
def test_a_page_of_jobs_that_wait_reads_its_own_keys_however_far_behind_it_is(
    crowded: QueueStore, explainer: Explainer, state: str
) -> None:
    listing, after = Listing(crowded.jobs.database), None
    # When: across all priorities, a thousand at a time, and a small page far behind
    with explainer.plans() as plans:
        for limit in (25, 1000, 25):
            page = listing.page("mail", state, limit, after, NOW)
            after = page.next
            assert len(page.jobs) == limit
    assert sum(plan.returned for plan in plans) <= 1050 + 3
    assert all("SORT" not in plan.stages and "COLLSCAN" not in plan.stages for plan in plans)
    assert sum(plan.keys for plan in plans) <= 1.1 * 1050 + 4 * PRIORITIES


def test_a_page_goes_on_with_the_next_priority(crowded: QueueStore, explainer: Explainer) -> None:
    listing = Listing(crowded.jobs.database)
    last = [5, round((NOW - 1) * 1000), 2**62]
    with explainer.plans() as plans:
        page = listing.page("mail", "ready", 25, last, NOW)
    assert {job["priority"] for job in page.jobs} == {4}
    assert sum(plan.keys for plan in plans) <= 25 * 1.1 + 3 * PRIORITIES


@pytest.mark.parametrize("state", ["dead", "done"])
def test_a_page_of_jobs_that_have_ended_reads_itself_and_what_ended_with_its_last_one(
    crowded: QueueStore, explainer: Explainer, state: str
) -> None:
    listing, after = Listing(crowded.jobs.database), None
    with explainer.plans() as plans:
        for _ in range(4):
            page = listing.ended("mail", state, DeadLetters(), 25, after, NOW + ENDED)
            after = page.next
            assert len(page.jobs) == 25
    assert all("COLLSCAN" not in plan.stages for plan in plans)
    assert [plan.documents for plan in plans[::2]] == [0] * 4  # where a page ends stands in the index alone
    assert all(plan.documents <= 27 for plan in plans)
    assert all(plan.keys <= 30 for plan in plans)


def test_a_page_by_reason_looks_at_a_bound_and_says_where(crowded: QueueStore, explainer: Explainer) -> None:
    listing = Listing(crowded.jobs.database)
    with explainer.plans() as plans:
        page = listing.ended("mail", "dead", DeadLetters(reason="no such"), 25, None, NOW + ENDED)
        jobs = listing.with_ids("mail", "ended-10", 25, NOW)
    assert page == ([], None)
    assert jobs.jobs[0]["id"] == "ended-10"
    assert all("COLLSCAN" not in plan.stages for plan in plans)
    assert all(plan.documents <= ENDED // 2 for plan in plans)
    assert plans[-1].documents <= 25


@pytest.mark.parametrize("states", [(), ("ready",), ("scheduled",), ("ready", "dead")])
def test_a_slice_of_a_search_reads_no_more_than_it_looks_at_wherever_it_begins(
    crowded: QueueStore, explainer: Explainer, states: tuple[str, ...]
) -> None:
    search = Search(crowded.jobs.database, "mail", Wanted(states=states, error="no such"), NOW)
    after: list[Any] | None = None
    # When: four slices, one behind the other
    with explainer.plans() as plans:
        for _ in range(4):
            part = search.slice(after, 500)
            after = part.end
            assert part.looked == 500
    assert all(not {"SORT", "COLLSCAN"} & plan.stages for plan in plans)
    assert sum(plan.documents for plan in plans) <= 2000 + 2
    assert sum(plan.keys for plan in plans) <= 1.1 * 2000 + 4 * PRIORITIES


def test_a_search_by_id_reads_the_jobs_that_it_finds(crowded: QueueStore, explainer: Explainer) -> None:
    with explainer.plans() as plans:
        found = with_id(crowded.jobs.database, ["mail", "other"], "ended-10", NOW)
    assert [job["id"] for _, job in found][:2] == ["ended-10", "ended-100"]
    assert all("COLLSCAN" not in plan.stages for plan in plans)
    assert all(plan.documents <= 20 for plan in plans)


def test_more_dead_letters_than_are_counted_are_told_by_a_sample(crowded: QueueStore) -> None:
    rare = crowded.jobs.estimated_document_count() > 100 * ENDED  # so that a sample may have none
    for samples in ((900,), ()):  # the second time random ones have taken too long
        listing = Listing(crowded.jobs.database, exactly=10, random=samples)
        count, exact = listing.count("mail", DeadLetters(), NOW + ENDED)
        assert not exact
        # One of the sample stands for 60, and they lie near each other.
        assert count > ENDED // 40 or (rare and samples)


def test_where_samples_take_too_long_the_latest_are_read(crowded: QueueStore, explainer: Explainer) -> None:
    listing = Listing(crowded.jobs.database, exactly=10, random=(), latest=50)
    with explainer.plans() as plans:
        assert not listing.count("mail", DeadLetters(reason=""), NOW + ENDED).exact
    assert max(plan.documents for plan in plans) == 50


def test_dead_letters_are_counted_by_their_own_keys(crowded: QueueStore, explainer: Explainer) -> None:
    listing = Listing(crowded.jobs.database)
    with explainer.plans() as plans:
        counted = listing.count("mail", DeadLetters(since=NOW + 1000), NOW + ENDED)
        reasons = listing.reasons("mail", DeadLetters(), NOW + ENDED)
    assert counted == (ENDED // 4, True)
    assert reasons == [{"reason": "", "count": 900}]
    assert [plan.keys <= ENDED // 2 + 1 for plan in plans] == [True, True]
    assert all("COLLSCAN" not in plan.stages for plan in plans)
