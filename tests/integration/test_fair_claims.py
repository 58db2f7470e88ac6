"""The claims of a fair queue go round its tenants, whatever made their jobs ready."""

from collections import Counter
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq import BadFramesError, UnavailableError
from sluicemq_broker.job import Job
from sluicemq_broker.store import (
    Claim,
    DeadLetters,
    FairOrder,
    Inspector,
    Listing,
    QueueDefaults,
    QueueStore,
    RolledBack,
    collection,
)
from sluicemq_broker.store.jobs.fair_order import FEW
from support.jobs import NOW, ChangesAtOnce, a_job, ids, some_jobs, stored

FAIR = QueueDefaults(fair=True)
INDEX = FairOrder.index.document["name"]


@pytest.fixture
def fair(documents: Database[dict[str, Any]], noticed: list[tuple[str, str]]) -> QueueStore:
    return a_fair(documents, noticed)


def a_fair(
    documents: Database[dict[str, Any]], noticed: list[tuple[str, str]], **settings: Any
) -> QueueStore:
    mail = QueueStore(
        documents, collection("mail"), FAIR._replace(**settings), lambda *notice: noticed.append(notice)
    )
    mail.prepare()
    return mail


def push(store: QueueStore, tenant: str, count: int, **settings: Any) -> list[str]:
    jobs = some_jobs(count, tenant=tenant or None, **settings)
    store.push(jobs, NOW)
    return ids(jobs)


def claimed(store: QueueStore, limit: int, now: float = NOW, **how: Any) -> list[Job]:
    return store.reserve(limit, now, "me", **how).jobs


def turns(jobs: list[Job]) -> dict[str, int]:
    return dict(Counter(job.turn for job in jobs))


def test_a_single_job_is_in_the_next_claim_however_many_another_tenant_has(fair: QueueStore) -> None:
    push(fair, "flood", 500)
    (single,) = push(fair, "zed", 1)
    jobs = claimed(fair, 2)
    assert turns(jobs) == {"flood": 1, "zed": 1}
    assert single in ids(jobs)


def test_places_are_shared_and_each_tenants_jobs_come_in_their_order(fair: QueueStore) -> None:
    pushed = {name: push(fair, name, 30) for name in ("acme", "bolt", "")}
    jobs = claimed(fair, 15)
    assert turns(jobs) == {"": 5, "acme": 5, "bolt": 5}
    for tenant, all_ids in pushed.items():
        assert [job.id for job in jobs if job.turn == tenant] == all_ids[:5]


def test_claims_of_one_job_each_go_round(fair: QueueStore) -> None:
    for tenant in ("acme", "bolt", "cube"):
        push(fair, tenant, 3)
    order = [job.turn for _ in range(9) for job in claimed(fair, 1)]
    assert order == ["acme", "bolt", "cube"] * 3
    assert claimed(fair, 1) == []


def test_weights_are_jobs_in_each_round(
    documents: Database[dict[str, Any]], noticed: list[tuple[str, str]]
) -> None:
    fair = a_fair(documents, noticed, weights={"acme": 3})
    for tenant in ("acme", "bolt"):
        push(fair, tenant, 30)
    assert turns(claimed(fair, 8)) == {"acme": 6, "bolt": 2}
    assert [job.turn for _ in range(4) for job in claimed(fair, 1)] == ["acme", "acme", "acme", "bolt"]


def test_priorities_order_the_jobs_of_one_tenant_and_push_nobody_aside(fair: QueueStore) -> None:
    push(fair, "acme", 5, priority=0)
    (urgent,) = push(fair, "acme", 1, priority=9)
    push(fair, "bolt", 5, priority=200)
    jobs = claimed(fair, 4)
    assert turns(jobs) == {"acme": 2, "bolt": 2}
    assert next(job.id for job in jobs if job.turn == "acme") == urgent


def test_a_claim_says_whether_there_is_more(fair: QueueStore) -> None:
    push(fair, "acme", 3)
    push(fair, "bolt", 1)
    first = fair.reserve(2, NOW, "me")
    second = fair.reserve(10, NOW, "me")
    assert (len(first.jobs), first.more) == (2, True)
    assert (len(second.jobs), second.more) == (2, False)
    assert fair.reserve(10, NOW, "me") == Claim([], "me", more=False)


@pytest.mark.parametrize("brokers", [1, 2, 3])
def test_more_tenants_than_places_in_a_claim_take_turns_and_all_come(fair: QueueStore, brokers: int) -> None:
    count = FEW * 2 + 7
    fair.push([a_job(f"{at}-{n}", tenant=f"t{at:03}") for at in range(count) for n in range(2)], NOW)
    got = Counter({f"t{at:03}": 0 for at in range(count)})
    while claim := claimed(fair, 50, brokers=brokers):
        got.update(turns(claim))
        assert max(got.values()) - min(got.values()) <= 1
    assert set(got.values()) == {2}
    assert fair.reserve(50, NOW, "me").more is False


def test_jobs_without_a_tenant_have_their_turn_among_very_many_with_one(fair: QueueStore) -> None:
    push(fair, "", 2)
    fair.push([a_job(tenant=f"t{at:03}") for at in range(FEW * 2)], NOW)
    # When there is room for one
    assert turns(claimed(fair, 50, most_bytes=1)) == {"": 1}
    assert claimed(fair, 50)[0].turn == ""


@pytest.mark.parametrize("places", [FEW // 2, FEW * 3])
def test_a_heavy_tenant_has_its_weight_also_among_many(
    documents: Database[dict[str, Any]], noticed: list[tuple[str, str]], places: int
) -> None:
    fair = a_fair(documents, noticed, weights={"t000": 5})
    tenants = FEW * 2
    fair.push([a_job(tenant=f"t{at:03}") for at in range(tenants) for _ in range(20)], NOW)
    got: Counter[str] = Counter()
    while sum(got.values()) < 2 * (tenants + 4):
        got.update(turns(claimed(fair, min(places, 2 * (tenants + 4) - sum(got.values())))))
    assert got.pop("t000") == 10
    assert set(got.values()) == {2}


@pytest.mark.parametrize("many", [0, FEW + 20])
def test_several_brokers_leave_each_other_some_and_none_twice(fair: QueueStore, many: int) -> None:
    push(fair, "flood", 200)
    push(fair, "one", 1)
    fair.push([a_job(tenant=f"t{at:03}") for at in range(many)], NOW)
    first = [job.turn for _ in range(4) for job in claimed(fair, 10 + many, brokers=2)]
    assert first.count("one") == 1
    assert len({*first}) == many + 2


def test_delayed_jobs_of_a_tenant_stand_before_no_others_and_come_when_due(fair: QueueStore) -> None:
    push(fair, "later", 50, eligible_at=NOW + 10)
    push(fair, "acme", 2)
    assert turns(claimed(fair, 10)) == {"acme": 2}
    push(fair, "acme", 50)
    assert turns(claimed(fair, 10, NOW + 11)) == {"acme": 5, "later": 5}


def test_what_comes_back_takes_part_in_the_next_round_and_no_more(fair: QueueStore) -> None:
    # Given: a hundred jobs of one tenant have failed, and are due again
    push(fair, "flood", 100)
    failed = claimed(fair, 100)
    fair.roll_back([RolledBack(job, "failed", "w", due=NOW + 1) for job in failed], NOW)
    push(fair, "acme", 3)
    jobs = claimed(fair, 6, NOW + 2)
    assert turns(jobs) == {"acme": 3, "flood": 3}
    assert [job.attempts for job in jobs if job.turn == "flood"] == [2, 2, 2]


def test_released_reclaimed_and_redriven_jobs_keep_tenants(fair: QueueStore, changes: ChangesAtOnce) -> None:
    push(fair, "acme", 3)
    push(fair, "bolt", 3)
    first = claimed(fair, 2)
    fair.release(first)
    claimed(fair, 2)
    fair.reclaim("me", 20, NOW)
    dead = fair.reserve(2, NOW, "other").jobs
    fair.roll_back([RolledBack(job, "rejected", "w", dead=True) for job in dead], NOW)
    changes.redrive("mail", DeadLetters(), NOW + 1)
    # When and then
    assert turns(claimed(fair, 4, NOW + 2)) == {"acme": 2, "bolt": 2}
    assert turns(claimed(fair, 4, NOW + 2)) == {"acme": 1, "bolt": 1}


def test_a_group_without_a_tenant_is_one(fair: QueueStore) -> None:
    grouped = [a_job(group=f"g{at}") for at in range(3)]
    for place, job in enumerate(grouped):
        job.line_up(1 + place)
    fair.push(grouped, NOW)
    fair.groups.promote([f"g{at}" for at in range(3)], NOW)
    push(fair, "acme", 50)
    jobs = claimed(fair, 8)
    assert turns(jobs) == {"acme": 5, "g0": 1, "g1": 1, "g2": 1}
    assert stored(fair, grouped[0].id)["tenant"] == "g0"
    assert jobs[-1].tenant in (None, "acme")


def test_an_expired_job_does_not_hide_the_others_of_its_tenant(fair: QueueStore) -> None:
    push(fair, "acme", 3, expires_at=NOW + 1)
    push(fair, "acme", 2)
    push(fair, "bolt", 1)
    assert turns(claimed(fair, 2, NOW + 2)) == {"acme": 1, "bolt": 1}
    assert turns(claimed(fair, 9, NOW + 2)) == {"acme": 1}


def test_jobs_that_fill_the_memory_leave_the_next_claim_to_the_next_tenants(fair: QueueStore) -> None:
    large = b"x" * 1000
    for tenant in ("acme", "bolt", "cube"):
        fair.push(some_jobs(5, tenant=tenant, payload=large), NOW)
    # When there is room for two of them
    claims = [fair.reserve(100, NOW, "me", most_bytes=1500) for _ in range(6)]
    assert all(claim.more for claim in claims)
    got = Counter(job.turn for claim in claims for job in claim.jobs)
    assert max(got.values()) - min(got.values()) <= 1
    assert set(got) == {"acme", "bolt", "cube"}


def test_whoever_a_page_had_no_room_for_is_the_first_of_the_next(
    fair: QueueStore, documents: Database[dict[str, Any]], noticed: list[tuple[str, str]]
) -> None:
    # Given a broker that has seen small jobs only, and another one that pushes large ones
    other = a_fair(documents, noticed)
    push(fair, "acme", 1, payload=b"x" * 50)
    assert turns(claimed(fair, 1)) == {"acme": 1}
    for tenant, count in (("acme", 4), ("bolt", 2), ("cube", 2)):
        push(other, tenant, count, payload=b"x" * 600)
    # When it has planned two of each, and there is room for three
    assert turns(claimed(fair, 6, most_bytes=1500)) == {"acme": 2, "bolt": 1}
    assert turns(claimed(fair, 6, most_bytes=1500)) == {"bolt": 1, "cube": 1}


def test_documents_that_are_no_jobs_are_set_aside(fair: QueueStore, noticed: list[tuple[str, str]]) -> None:
    push(fair, "acme", 2)
    fair.jobs.update_one({}, {"$set": {"tenant": 7}})
    odd = {"state": "ready", "priority": 0, "eligible_at": "never", "seq": 1, "attempts": 0, "payload": b""}
    fair.jobs.insert_many(
        [{"_id": "array", **odd, "tenant": ["a", "b"]}, {"_id": "map", **odd, "tenant": {"a": 1}}]
    )
    jobs = [job for _ in range(3) for job in claimed(fair, 10)]
    assert turns(jobs) == {"acme": 1}
    assert fair.jobs.count_documents({"state": "dead"}) == 3
    assert len(noticed) == 3
    push(fair, "bolt", 3)
    assert turns(claimed(fair, 10)) == {"bolt": 3}


# --------------------------------------------------------- fair from some time on


@pytest.fixture
def plain(store: QueueStore) -> QueueStore:
    store.mend()
    return store


def test_a_backlog_from_before_is_handed_out_fairly_at_once(plain: QueueStore) -> None:
    push(plain, "flood", 50)
    push(plain, "acme", 2)
    grouped = a_job(group="g")
    grouped.line_up(1)
    plain.push([grouped], NOW)
    plain.groups.promote(["g"], NOW)
    assert INDEX not in plain.jobs.index_information()
    plain.reconfigure(FAIR)
    # Then the head of a group from before is nobody's
    assert turns(claimed(plain, 9)) == {"flood": 6, "acme": 2, "g": 1}
    assert INDEX in plain.jobs.index_information()


def test_a_queue_that_is_fair_no_more_has_its_old_order_and_loses_the_index(fair: QueueStore) -> None:
    first = push(fair, "flood", 5)
    push(fair, "acme", 1)
    claimed(fair, 0 + 1)
    fair.reconfigure(QueueDefaults())
    fair.mend()
    assert INDEX not in fair.jobs.index_information()
    assert set(ids(claimed(fair, 3))) <= set(first)


def test_an_index_that_somebody_has_removed_is_made_again(fair: QueueStore) -> None:
    push(fair, "acme", 4)
    claimed(fair, 1)
    fair.jobs.drop_index(INDEX)
    fair.mend()  # which another broker may do, that does not know of it
    with pytest.raises(UnavailableError):  # and so repeated
        claimed(fair, 1)
    assert len(claimed(fair, 1)) == 1
    assert INDEX in fair.jobs.index_information()


def test_plain_queues_have_no_such_index_and_read_no_tenants(plain: QueueStore) -> None:
    push(plain, "acme", 2)
    (job,) = claimed(plain, 1)
    assert (job.tenant, job.turn) == (None, "")
    assert INDEX not in plain.jobs.index_information()


def test_what_a_claim_without_an_answer_has_brought_is_known_by_its_tenant(fair: QueueStore) -> None:
    push(fair, "acme", 2)
    fair.reserve(2, NOW, "me", 7)
    assert turns(fair.claimed("me", 7)) == {"acme": 2}


def test_jobs_of_a_claim_without_an_answer_keep_the_turns_of_their_tenants(fair: QueueStore) -> None:
    # Given a later tenant whose jobs have a higher priority
    push(fair, "acme", 3)
    push(fair, "bolt", 3, priority=9)
    claim = fair.reserve(6, NOW, "me", 7)
    assert [job.turn for job in claim.jobs] == ["acme"] * 3 + ["bolt"] * 3
    assert ids(fair.claimed("me", 7)) == ids(claim.jobs)


def test_ready_jobs_are_listed_by_tenants_each_in_the_order_of_its_claims(fair: QueueStore) -> None:
    jobs = {name: push(fair, name, 3) for name in ("", "acme", "bolt")}
    urgent = push(fair, "bolt", 2, priority=9)
    fair.jobs.insert_one({"_id": "strange", "state": "ready", "tenant": "zed", "priority": 0})
    listing, after, seen = Listing(fair.jobs.database), None, list[str]()
    for _ in range(7):
        page = listing.page("mail", "ready", 2, after, NOW)
        seen += [job["id"] for job in page.jobs]
        if (after := page.next) is None:
            break
    assert seen == [*jobs[""], *jobs["acme"], *urgent, *jobs["bolt"]]
    peeked = Inspector(fair.jobs.database).peek("mail", "ready", 9, 1 << 20, NOW)
    assert [job["id"] for job in peeked] == seen[:9]


@pytest.mark.parametrize("after", [[0, 0, 0], ["acme", "0", 0, 0], ["acme", 0, 0], [[], 0, 0, 0]])
def test_a_place_of_another_order_is_refused(fair: QueueStore, after: list[Any]) -> None:
    with pytest.raises(BadFramesError):
        Listing(fair.jobs.database).page("mail", "ready", 2, after, NOW)
