"""What claims of a fair queue take of each tenant: slots in the jobs' documents, tokens of its rate."""

import math
from collections import Counter
from typing import Any

import pytest
from pymongo.database import Database

from sluicemq import UnavailableError
from sluicemq_broker.job import Job, Parent
from sluicemq_broker.store import (
    Child,
    Claim,
    FairOrder,
    FanOutEntry,
    ForwardEntry,
    QueueDefaults,
    QueueStore,
    RolledBack,
    collection,
    date,
    fan_out,
    forward,
)
from sluicemq_broker.store.jobs.fair_order import FEW
from sluicemq_broker.store.jobs.index_models import SLOT_INDEX
from sluicemq_broker.store.jobs.tenant_limits import TenantLimits
from support.jobs import NOW, a_job, finished, some_jobs, stored

MOST = QueueDefaults(fair=True, tenant_max_running=3)
RATE = QueueDefaults(fair=True, tenant_rate=2.0, tenant_burst=3)


@pytest.fixture
def mail(documents: Database[dict[str, Any]], noticed: list[tuple[str, str]]) -> QueueStore:
    """The empty queue ``mail``, of each of whose tenants three jobs may run."""
    return a_queue(documents, MOST, noticed)


def a_queue(
    documents: Database[dict[str, Any]], defaults: QueueDefaults, noticed: list[tuple[str, str]] | None = None
) -> QueueStore:
    told = [] if noticed is None else noticed
    queue = QueueStore(documents, collection("mail"), defaults, lambda *notice: told.append(notice))
    queue.prepare()
    return queue


def push(store: QueueStore, **counts: int) -> None:
    for tenant, count in counts.items():
        store.push(some_jobs(count, tenant=tenant), NOW)


def claim(store: QueueStore, limit: int = 100, now: float = NOW, owner: str = "me", **how: Any) -> Claim:
    claim.hold += 1  # type: ignore[attr-defined]
    return store.reserve(limit, now, owner, claim.hold, **how)  # type: ignore[attr-defined]


claim.hold = 0  # type: ignore[attr-defined]


def turns(claimed: Claim) -> dict[str, int]:
    return dict(Counter(job.turn for job in claimed.jobs))


def taken(store: QueueStore, tenant: str) -> list[int]:
    return sorted(job["slot"]["n"] for job in store.jobs.find({"slot.tenant": tenant}))


# -------------------------------------------------------------------- who runs


def limits_of(store: QueueStore) -> TenantLimits:
    order = store.claims.order
    assert isinstance(order, FairOrder)
    assert order.limits is not None
    return order.limits


def test_a_tenant_at_its_limit_is_passed_over_and_others_go_on(mail: QueueStore) -> None:
    push(mail, flood=50, acme=2)
    first = claim(mail)
    push(mail, bolt=1)
    second = claim(mail)
    assert turns(first) == {"flood": 3, "acme": 2}
    assert turns(second) == {"bolt": 1}
    assert (first.more, second.more) == (False, False)
    assert dict(first.held) == dict(second.held) == {"flood": math.inf}


def test_places_that_a_limited_tenant_leaves_go_to_those_that_have_more(mail: QueueStore) -> None:
    mail.reconfigure(MOST._replace(tenant_max_running=8))
    push(mail, few=1, some=6, many=50)
    assert turns(claim(mail, 14)) == {"few": 1, "some": 6, "many": 7}
    assert turns(claim(mail, 14)) == {"many": 1}


def test_each_job_that_runs_has_a_slot_of_its_own(mail: QueueStore) -> None:
    push(mail, flood=5, acme=1)
    claim(mail)
    assert taken(mail, "flood") == [0, 1, 2]
    assert taken(mail, "acme") == [0]


def test_jobs_without_a_tenant_and_those_of_groups_are_limited_too(mail: QueueStore) -> None:
    mail.push(some_jobs(5), NOW)
    grouped = some_jobs(2, group="g")
    for place, job in enumerate(grouped):
        job.line_up(1 + place)
    mail.push(grouped, NOW)
    mail.groups.promote(["g"], NOW)
    assert turns(claim(mail)) == {"": 3, "g": 1}


def test_the_first_of_a_group_from_before_fairness_is_nobodys_and_goes_out(store: QueueStore) -> None:
    job = a_job(group="g")
    job.line_up(1)
    store.push([job], NOW)
    store.groups.promote(["g"], NOW)
    store.reconfigure(MOST)
    assert turns(claim(store)) == {"g": 1}
    assert taken(store, "") == [0]


def _commit(store: QueueStore, job: Job) -> None:
    assert store.commit([job]) == {}


def _complete(store: QueueStore, job: Job) -> None:
    job.keep_done = 10.0**6
    assert store.complete([finished(job)], NOW) == {}


def _roll_back(store: QueueStore, job: Job) -> None:
    store.roll_back([RolledBack(job, "failed", "w", due=NOW + 100)], NOW)


def _reject(store: QueueStore, job: Job) -> None:
    store.roll_back([RolledBack(job, "rejected", "w", dead=True)], NOW)


def _release(store: QueueStore, job: Job) -> None:
    store.release([job])


def _reclaim(store: QueueStore, _job: Job) -> None:
    store.reclaim("other", 20, NOW)


def _reclaim_dead(store: QueueStore, _job: Job) -> None:
    store.reclaim("other", 1, NOW)


def _lose_its_owner(store: QueueStore, job: Job) -> None:
    store.jobs.update_one({"_id": job.id}, {"$set": {"owner": 7}})
    store.mend_ownerless(NOW)


def _fan_out(store: QueueStore, job: Job) -> None:
    child = a_job(f"{job.id}.1")
    child.set_parent(Parent("mail", job.id, job.seq, job.under))
    pages = QueueStore(store.jobs.database, collection("pages"))
    assert fan_out(store, [FanOutEntry(job, (Child(pages, child, inherits=False),), b"")], NOW) == {}


def _forward(store: QueueStore, job: Job) -> None:
    """Its trace stays, for whoever waits."""
    gone_on = a_job(job.id, keep_done=10.0**6)
    pages = QueueStore(store.jobs.database, collection("pages"))
    assert forward(store, [ForwardEntry(job, pages, gone_on, frozenset(), "w", NOW, NOW + 100)], NOW) == {}


@pytest.mark.parametrize(
    "end",
    [
        _fan_out, _forward, _commit, _complete, _roll_back, _reject, _release, _reclaim, _reclaim_dead,
        _lose_its_owner,
    ],
)  # fmt: skip
def test_whatever_ends_a_reservation_frees_its_slot(mail: QueueStore, end: Any) -> None:
    mail.reconfigure(MOST._replace(tenant_max_running=1))
    push(mail, acme=1)
    (job,) = claim(mail, owner="other").jobs
    push(mail, acme=1)
    assert claim(mail).jobs == []
    end(mail, job)
    assert taken(mail, "acme") == []
    assert len(claim(mail).jobs) == 1


def test_a_slot_that_another_broker_was_faster_with_keeps_nobody_else_from_running(
    documents: Database[dict[str, Any]], mail: QueueStore
) -> None:
    """The other one claims between the look for free slots and the update."""
    other = a_queue(documents, MOST)
    push(mail, acme=4, bolt=2)
    tenants = limits_of(mail)
    look = tenants.taken

    def overtaken(names: Any) -> Any:
        found = look(names)
        if not stolen:
            stolen.append(claim(other, 1, owner="other"))
        return found

    stolen: list[Claim] = []
    tenants.taken = overtaken  # type: ignore[assignment, method-assign]
    claimed = claim(mail)
    # Then one job of that tenant is left, and looked for once more
    assert turns(stolen[0]) == {"acme": 1}
    assert turns(claimed) == {"acme": 2, "bolt": 2}
    assert claimed.more
    again = claim(mail)
    assert (again.jobs, again.more) == ([], False)
    assert taken(mail, "acme") == [0, 1, 2]


def test_a_claim_that_lands_late_exceeds_nothing(mail: QueueStore) -> None:
    """An update of a broker that is gone, whose slots others have by now: the index refuses it."""
    push(mail, acme=6)
    claim(mail)
    (late,) = mail.jobs.find({"state": "ready"}).limit(1)
    with pytest.raises(Exception, match="E11000"):
        mail.jobs.update_one(
            {"_id": late["_id"]}, {"$set": {"state": "reserved", "slot": {"tenant": "acme", "n": 1}}}
        )


def test_of_many_tenants_at_their_limits_none_hides_those_behind(mail: QueueStore) -> None:
    # Given more than are looked at together, all of whose jobs run
    mail.reconfigure(MOST._replace(tenant_max_running=1))
    many = {f"t{at:04}": 2 for at in range(5 * FEW)}
    push(mail, **many)
    begun = 0
    while claimed := claim(mail, 200).jobs:
        begun += len(claimed)
    assert begun == 5 * FEW
    push(mail, zed=1)
    assert turns(claim(mail, 1)) == {"zed": 1}
    held = claim(mail, 1)
    assert (len(held.held), held.more) == (5 * FEW, False)


def test_a_lower_limit_holds_for_what_comes_and_a_higher_one_at_once(mail: QueueStore) -> None:
    push(mail, acme=9)
    running = claim(mail).jobs
    # When it is lower
    mail.reconfigure(MOST._replace(tenant_max_running=1))
    for job in running[:2]:
        mail.commit([job])
        assert claim(mail).jobs == []
    mail.commit(running[2:])
    assert len(claim(mail).jobs) == 1
    # When it is higher
    mail.reconfigure(MOST._replace(tenant_max_running=4))
    assert len(claim(mail).jobs) == 3


def test_what_runs_when_the_limit_is_set_has_no_slot(store: QueueStore) -> None:
    push(store, acme=5)
    claim(store, 2)
    store.reconfigure(MOST)
    assert len(claim(store).jobs) == 3


def test_the_index_is_made_with_the_first_claim_and_goes_when_nobody_has_a_slot(store: QueueStore) -> None:
    push(store, acme=2)
    store.mend()
    assert SLOT_INDEX not in store.jobs.index_information()
    # When and then
    store.reconfigure(MOST)
    running = claim(store).jobs
    store.mend()
    assert SLOT_INDEX in store.jobs.index_information()
    store.reconfigure(QueueDefaults(fair=True))
    store.mend()
    assert SLOT_INDEX in store.jobs.index_information()
    store.commit(running)
    store.mend()
    assert SLOT_INDEX not in store.jobs.index_information()


def test_an_index_of_slots_that_somebody_has_removed_is_made_again(mail: QueueStore) -> None:
    # Given: without it, two jobs came to have one slot
    push(mail, acme=9)
    claim(mail)
    mail.jobs.drop_index(SLOT_INDEX)
    mail.jobs.update_many({"slot.n": 2}, {"$set": {"slot.n": 1}})
    with pytest.raises(UnavailableError):
        claim(mail)
    # Then who ran by then has no slot any more
    assert len(claim(mail).jobs) == 3
    assert SLOT_INDEX in mail.jobs.index_information()


# --------------------------------------------------------------------- tokens


def test_a_burst_of_each_tenant_begins_at_once_then_some(documents: Database[dict[str, Any]]) -> None:
    mail = a_queue(documents, RATE)
    push(mail, flood=20, acme=2)
    first = claim(mail)
    assert turns(first) == {"acme": 2, "flood": 3}
    assert dict(first.held) == {"flood": 0.5}
    assert claim(mail, now=NOW + 0.25).held == {"flood": 0.25}
    assert turns(claim(mail, now=NOW + 1.0)) == {"flood": 2}
    assert turns(claim(mail, now=NOW + 60.0)) == {"flood": 3}


def test_a_token_of_a_job_another_broker_was_faster_with_stays(documents: Database[dict[str, Any]]) -> None:
    mail = a_queue(documents, RATE)
    push(mail, acme=1)
    tenants = limits_of(mail)
    take = tenants.take

    def overtaken(*about: Any) -> Any:
        mail.jobs.delete_many({})
        return take(*about)

    tenants.take = overtaken  # type: ignore[assignment, method-assign]
    assert claim(mail).jobs == []
    tenants.take = take  # type: ignore[method-assign]
    push(mail, acme=1)
    assert turns(claim(mail)) == {"acme": 1}
    assert documents["limits"].find_one({"_id": "mail/acme"})["tokens"] == 2.0  # type: ignore[index]


def test_jobs_that_are_not_there_take_no_tokens(documents: Database[dict[str, Any]]) -> None:
    """A claim that has places for many, of a tenant that pushes now and then."""
    mail = a_queue(documents, RATE)
    for _ in range(3):
        push(mail, acme=1)
        assert turns(claim(mail)) == {"acme": 1}
    push(mail, acme=1)
    assert claim(mail).held == {"acme": 0.5}


def test_what_others_took_of_a_rate_is_found_when_it_matters(documents: Database[dict[str, Any]]) -> None:
    mail, other = a_queue(documents, RATE), a_queue(documents, RATE)
    push(mail, acme=4, bolt=1)
    assert turns(claim(other, 5, owner="other", before=None)) == {"acme": 3, "bolt": 1}
    claimed = claim(mail)
    assert (claimed.jobs, claimed.held) == ([], {"acme": 0.5})


def test_a_bucket_that_is_full_again_is_removed_some_time_after(documents: Database[dict[str, Any]]) -> None:
    mail = a_queue(documents, RATE)
    push(mail, acme=2)
    claim(mail)
    bucket = documents["limits"].find_one({"_id": "mail/acme"}) or {}
    assert bucket["remove_at"] == date(NOW + 61.0)
    (removal,) = [
        document
        for document in documents["limits"].index_information().values()
        if document["key"] == [("remove_at", 1)]
    ]
    assert removal["expireAfterSeconds"] == 0


def test_tenants_without_tokens_are_passed_over(documents: Database[dict[str, Any]]) -> None:
    mail = a_queue(documents, RATE._replace(tenant_burst=1))
    other = a_queue(documents, RATE._replace(tenant_burst=1))
    push(mail, **{f"t{at:02}": 2 for at in range(20)})
    assert len(claim(other, owner="other").jobs) == 20
    push(mail, zed=1)
    claimed = claim(mail, 1)
    assert turns(claimed) == {"zed": 1}
    assert not claimed.more


def test_a_plain_fair_queue_has_no_slots_no_tokens_and_no_index(documents: Database[dict[str, Any]]) -> None:
    mail = a_queue(documents, QueueDefaults(fair=True))
    mail.mend()  # the collection is that of other tests
    push(mail, acme=2)
    claimed = claim(mail)
    assert len(claimed.jobs) == 2
    assert "slot" not in stored(mail, claimed.jobs[0].id)
    assert SLOT_INDEX not in mail.jobs.index_information()
    assert documents["limits"].count_documents({}) == 0
