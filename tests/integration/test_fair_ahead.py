"""What a fair queue's claims read ahead: seldom read, and nobody's place is lost by it."""

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandListener, CommandStartedEvent

from integration.test_fair_claims import FAIR, claimed, push, turns
from sluicemq_broker.store import FairOrder, QueueStore, RolledBack, collection
from sluicemq_broker.store.jobs.fair_order import FairPage
from sluicemq_broker.store.jobs.read_ahead import AHEAD, FEW_JOBS
from support.between import after, before
from support.jobs import NOW, a_job, ids

TENANTS = ("acme", "bolt", "cube", "dial")


class Reads(CommandListener):
    """How often the jobs of several tenants are read one tenant after the other, and who has any."""

    def __init__(self) -> None:
        self.count = self.looks = 0

    def started(self, event: CommandStartedEvent) -> None:
        pipeline = event.command.get("pipeline", ())
        self.count += any("$unionWith" in stage for stage in pipeline)
        self.looks += any("$group" in stage for stage in pipeline)

    def succeeded(self, event: object) -> None:
        """Not of interest."""

    def failed(self, event: object) -> None:
        """Not of interest."""


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest.fixture
def fair(mongo_uri: str, documents: Database[dict[str, Any]], reads: Reads) -> Iterator[QueueStore]:
    with MongoClient[dict[str, Any]](mongo_uri, event_listeners=[reads]) as client:
        mail = QueueStore(client[documents.name], collection("mail"), FAIR)
        mail.prepare()
        yield mail


def order_of(store: QueueStore) -> FairOrder:
    order = store.claims.order
    assert isinstance(order, FairOrder)
    return order


def arrive(store: QueueStore, tenant: str, jobs: int, **fields: Any) -> list[str]:
    """Jobs of this tenant, as a broker pushes them: it tells of them when they are stored."""
    pushed = push(store, tenant, jobs, **fields)
    store.on_ready(anywhere=False)
    return pushed


def read_ahead(store: QueueStore, jobs: int = 20) -> dict[str, list[str]]:
    """So many jobs of each, of which the first four are claimed and others are known; the ids of all."""
    pushed = {tenant: push(store, tenant, jobs) for tenant in TENANTS}
    for _ in range(2):
        assert turns(claimed(store, 8)) == dict.fromkeys(TENANTS, 2)
    return pushed


def test_of_those_of_whom_claims_want_few_jobs_many_are_read_at_once(fair: QueueStore, reads: Reads) -> None:
    pushed = read_ahead(fair)
    before = reads.count
    jobs = [job for _ in range(8) for job in claimed(fair, 8)]
    assert reads.count == before
    for tenant in TENANTS:
        assert [job.id for job in jobs if job.turn == tenant] == pushed[tenant][4:]


def test_what_was_read_ahead_is_used_by_claims_of_any_size_in_turn(fair: QueueStore, reads: Reads) -> None:
    pushed = read_ahead(fair, 2 * AHEAD)
    before = reads.count
    jobs = [job for limit in (4, 12, 4, 20, 8) for job in claimed(fair, limit)]
    assert reads.count == before
    for tenant in TENANTS:
        assert [job.id for job in jobs if job.turn == tenant] == pushed[tenant][4:16]


def test_of_whom_claims_want_many_nothing_is_read_ahead(fair: QueueStore, reads: Reads) -> None:
    for tenant in TENANTS:
        push(fair, tenant, 3 * AHEAD)
    claims = 3
    for _ in range(claims):
        claimed(fair, len(TENANTS) * (FEW_JOBS + 1))
    assert reads.count == claims


def test_whose_jobs_come_next_is_looked_up_as_some_become_ready(fair: QueueStore, reads: Reads) -> None:
    pushed = read_ahead(fair, 40)
    before = reads.looks
    jobs = [job for _ in range(4) for job in claimed(fair, 8)]
    assert reads.looks == before
    for tenant in TENANTS:
        assert [job.id for job in jobs if job.turn == tenant] == pushed[tenant][4:12]
    arrive(fair, "acme", 1)
    claimed(fair, 8)
    assert reads.looks == before + 1
    assert turns(claimed(fair, 8, now=NOW + 1.0)) == dict.fromkeys(TENANTS, 2)
    assert reads.looks == before + 2


def test_a_job_that_becomes_ready_while_it_is_looked_whose_are_there_is_in_the_next_claim(
    fair: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_ahead(fair)
    after(monkeypatch, FairOrder, "_scan", lambda: arrive(fair, "zed", 1))
    fair.on_ready(anywhere=False)
    assert "zed" not in turns(claimed(fair, 8))
    monkeypatch.undo()
    jobs = claimed(fair, 10)
    assert turns(jobs)["zed"] == 1


def test_a_new_tenant_is_in_the_next_claim(fair: QueueStore) -> None:
    read_ahead(fair)
    arrive(fair, "zed", 1)
    assert turns(claimed(fair, 10))["zed"] == 1


def test_a_job_of_a_higher_priority_is_its_tenants_next(fair: QueueStore) -> None:
    read_ahead(fair)
    (urgent,) = arrive(fair, "bolt", 1, priority=9)
    assert next(job.id for job in claimed(fair, 8) if job.turn == "bolt") == urgent


def test_a_job_of_a_priority_between_others_is_not_passed_over(fair: QueueStore) -> None:
    # Given: of the jobs that are read together some have a higher priority
    for tenant in TENANTS:
        push(fair, tenant, 12)
        push(fair, tenant, 7, priority=9)
    for _ in range(2):
        claimed(fair, 8)
    (between,) = arrive(fair, "bolt", 1, priority=5)
    of_bolt = [job for _ in range(4) for job in claimed(fair, 8) if job.turn == "bolt"]
    assert [job.priority for job in of_bolt] == [9, 9, 9, 5, 0, 0, 0, 0]
    assert of_bolt[3].id == between


def test_what_comes_back_is_its_tenants_next(fair: QueueStore) -> None:
    read_ahead(fair)
    jobs = claimed(fair, 8)
    back = [job for job in jobs if job.turn == "acme"]
    fair.roll_back([RolledBack(job, "failed", "w", due=NOW) for job in back], NOW)
    fair.on_ready(anywhere=False)
    assert [job.id for job in claimed(fair, 8) if job.turn == "acme"] == ids(back)


def test_the_next_of_a_group_comes_before_what_was_accepted_after_it(fair: QueueStore) -> None:
    # Given a group whose second job was accepted between others, and whose first one has its turn
    grouped = [a_job(f"g{place}", group="g", tenant="acme") for place in (1, 2)]
    for place, job in enumerate(grouped, 1):
        job.line_up(place)
    fair.push(grouped[:1], NOW)
    fair.groups.promote(["g"], NOW)
    before = push(fair, "acme", 6)
    grouped[1].seq = a_job().seq
    fair.push(grouped[1:], NOW)
    read_ahead(fair)
    fair.commit([claimed for claimed in fair.claimed("me", 0) if claimed.id == "g1"])
    fair.groups.promote(["g"], NOW)
    fair.on_ready(anywhere=True)
    of_acme = [job.id for _ in range(2) for job in claimed(fair, 8) if job.turn == "acme"]
    assert of_acme == [*before[3:], "g2"]


def test_what_has_gone_meanwhile_keeps_nobody_waiting(fair: QueueStore) -> None:
    pushed = read_ahead(fair)
    fair.jobs.delete_many({"_id": {"$in": [job_id for tenant in TENANTS for job_id in pushed[tenant][5:12]]}})
    claim = fair.reserve(8, NOW, "me")
    assert claim.more
    left = [*claim.jobs, *(job for _ in range(5) for job in claimed(fair, 8))]
    for tenant in TENANTS:
        assert [job.id for job in left if job.turn == tenant] == [pushed[tenant][4], *pushed[tenant][12:]]


def test_what_nobody_claims_is_not_kept(fair: QueueStore) -> None:
    read_ahead(fair)
    ahead = order_of(fair).ahead
    assert ahead.lines
    fair.tick(NOW + 60)
    assert not ahead.lines


def test_beside_other_brokers_nothing_is_read_ahead(fair: QueueStore) -> None:
    for tenant in TENANTS:
        push(fair, tenant, 50)
    for _ in range(3):
        claimed(fair, 8, brokers=2)
    assert not order_of(fair).ahead.next(dict.fromkeys(TENANTS, 2), {}, NOW)[0]


def test_a_job_that_comes_back_between_two_reads_of_a_claim_brings_no_other_twice(
    fair: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given one tenant's first job is reserved, and another one has less than its share
    push(fair, "acme", 5)
    first = claimed(fair, 1)
    push(fair, "bolt", 1)
    before(monkeypatch, FairPage, "_rest", lambda: fair.release(first))
    jobs = ids(claimed(fair, 4))
    assert len(jobs) == len({*jobs})
