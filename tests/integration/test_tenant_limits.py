"""``tenant_max_running`` and ``tenant_rate`` of two brokers over MongoDB, whose time a test tells."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from pymongo.database import Database

from integration.test_fair_at_brokers import FairRig
from integration.test_limits import LimitsRig, Setting
from sluicemq.protocol import wire
from support.fakes import FakeWorker
from support.faulty_mongo import Fault, Kind
from support.small_broker import BEAT, LEASE, SmallBroker
from support.virtual_time import come_to_rest

MOST = {"fair": True, "tenant_max_running": 2}
RATE = {"fair": True, "tenant_rate": 2.0, "tenant_burst": 3}


class TenantRig(FairRig):
    """Brokers whose queue limits its tenants."""

    def worker(self, broker: SmallBroker, prefetch: int = 100) -> FakeWorker:
        worker = LimitsRig.worker(self, broker, prefetch)
        self.rest()
        return worker

    def rest(self) -> None:
        """Let claims of several replies come to their end, which have a moment of real time between them."""
        for _ in range(50):
            if not any(broker.queue.scheduler.ledger.under_way(self.time.now()) for broker in self.brokers):
                break
            gevent.sleep(1e-9)
            come_to_rest()

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.awake(0.5)
            super().passes(0.5)
            self.rest()

    def awake(self, seconds: float) -> None:
        """Time, in which nobody ticks: who is awake then is so by itself."""
        for _ in range(round(seconds / 0.05)):
            self.time.passes(0.05)
            self.rest()

    def turns(self, *workers: FakeWorker) -> dict[str, int]:
        """How many jobs of each tenant these workers have."""
        return dict(
            Counter(delivery.job.turn for worker in workers for delivery in worker.in_flight.values())
        )

    def running(self) -> dict[str, int]:
        """The same in MongoDB, wherever they are."""
        jobs = self.documents["queue.mail"]
        return dict(Counter(job.get("tenant", "") for job in jobs.find({"state": "reserved"})))


@pytest.fixture
def limits() -> Setting:
    return dict(MOST)


@pytest.fixture
def rig(documents: Database[dict[str, Any]], limits: Setting) -> Iterator[TenantRig]:
    rig = TenantRig(documents, limits)
    yield rig
    for broker in rig.brokers:
        broker.line.dead = True
    rig.time.passes(100.0)


# ------------------------------------------------------------------ max_running


@pytest.mark.parametrize("first", ["worker", "jobs"])
def test_a_tenant_at_its_limit_keeps_nobody_waiting(rig: TenantRig, first: str) -> None:
    """Nothing is inserted reserved, whether anything lies ready or not."""
    broker = rig.broker()
    worker = rig.worker(broker) if first == "worker" else None
    rig.tenant(broker, "flood", 50)
    rig.tenant(broker, "acme")
    worker = worker or rig.worker(broker)
    assert rig.turns(worker) == {"flood": 2, "acme": 1} == rig.running()


@pytest.mark.parametrize("kind", [wire.COMMIT, wire.ROLLBACK, wire.REJECT])
def test_a_job_that_ended_makes_room_for_its_tenants_next_at_once(rig: TenantRig, kind: str) -> None:
    broker = rig.broker()
    worker = rig.worker(broker)
    rig.tenant(broker, "flood", 9)
    broker.queue.scheduler.held_back.next = math.inf  # so that no time tells of it
    rig.finish(worker, broker, 2, kind=kind)
    # Then, without a tick
    assert len(worker.jobs) == 4
    assert rig.turns(worker) == {"flood": 2}


def test_two_brokers_share_what_a_tenant_may_have_and_others_have_theirs(rig: TenantRig) -> None:
    one, other = rig.broker(), rig.broker()
    first, second = rig.worker(one), rig.worker(other)
    rig.passes(2 * BEAT)
    rig.tenant(one, "flood", 30)
    rig.tenant(other, "flood", 30)
    rig.tenant(other, "acme", 1)
    rig.passes(2.0)
    assert rig.turns(first, second) == {"flood": 2, "acme": 1}
    for _ in range(20):
        worker, broker = (first, one) if first.in_flight else (second, other)
        rig.finish(worker, broker)
        rig.passes(1.0)
        assert rig.running()["flood"] == 2
        assert rig.turns(first, second)["flood"] == 2


def test_what_ends_at_one_broker_is_found_at_the_other_that_has_workers(rig: TenantRig) -> None:
    one, other = rig.broker(), rig.broker()
    first = rig.worker(one, prefetch=2)
    rig.tenant(one, "flood", 4)
    second = rig.worker(other)
    rig.passes(2 * BEAT)
    assert (len(first.in_flight), len(second.in_flight)) == (2, 0)
    first.prefetch = 0
    one.queue.offer(first)
    rig.finish(first, one, 2)
    rig.awake(1.0)
    assert rig.turns(second) == {"flood": 2}


def test_what_ends_at_one_broker_is_told_to_the_other(rig: TenantRig) -> None:
    one, other = rig.broker(), rig.broker()
    first = rig.worker(one, prefetch=2)
    rig.tenant(one, "flood", 4)
    second = rig.worker(other)
    rig.passes(2 * BEAT)
    other.queue.scheduler.held_back.next = math.inf  # so that no time tells of it
    rig.deaf = False
    first.prefetch = 0
    one.queue.offer(first)
    rig.finish(first, one, 2)
    rig.rest()
    # Then, without a tick
    assert rig.turns(second) == {"flood": 2}


def test_a_dead_brokers_slots_are_free_when_its_jobs_are_given_back(rig: TenantRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.tenant(one, "flood", 3)
    rig.worker(one)
    rig.passes(2 * BEAT)
    worker = rig.worker(other)
    one.line.dead = True
    rig.passes(2 * LEASE)
    assert worker.jobs == []
    other.sweep()
    come_to_rest()
    # Then, without a tick
    rig.awake(0.1)
    assert rig.turns(worker) == {"flood": 2}


@pytest.mark.parametrize("kind", [Kind.KILLED_BEFORE, Kind.KILLED_AFTER])
@pytest.mark.parametrize("method", ["bulk_write", "aggregate"])
def test_a_broker_that_is_killed_in_a_claim_keeps_nothing(rig: TenantRig, kind: Kind, method: str) -> None:
    one, other = rig.broker(), rig.broker()
    rig.tenant(other, "flood", 5)
    rig.passes(2 * BEAT)
    one.line.fault = Fault(kind, method)
    rig.worker(one)
    assert one.line.dead
    worker = rig.worker(other)
    rig.passes(2 * LEASE)
    other.sweep()
    rig.passes(2.0)
    assert rig.turns(worker) == {"flood": 2} == rig.running()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", [Kind.CUT, Kind.LOST_REPLY, Kind.AWAY, Kind.LATE])
def test_a_claim_without_an_answer_exceeds_nothing_and_loses_nothing(rig: TenantRig, kind: Kind) -> None:
    one, other = rig.broker(), rig.broker()
    rig.tenant(one, "flood", 9)
    one.line.fault = Fault(kind, "bulk_write")
    first = rig.worker(one)
    second = rig.worker(other)
    rig.passes(2 * LEASE)
    one.line.land()
    for _ in range(3):
        rig.passes(LEASE)
        for broker in rig.brokers:
            broker.audit()
            broker.sweep()
    assert rig.running() == {"flood": 2}
    done = 0
    while rig.documents["queue.mail"].count_documents({}) and done < 30:
        for worker, broker in ((first, one), (second, other)):
            rig.finish(worker, broker, len(worker.in_flight))
        rig.passes(1.0)
        done += 1
        assert rig.running().get("flood", 0) <= 2
    assert rig.documents["queue.mail"].count_documents({}) == 0


def test_a_broker_that_stops_leaves_the_slots_to_others_at_once(rig: TenantRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.tenant(one, "flood", 3)
    rig.worker(one)
    worker = rig.worker(other)
    one.release_all()
    one.end()
    rig.passes(2.0)
    assert rig.turns(worker) == {"flood": 2}


def test_a_broker_whose_tenants_are_all_at_their_limits_asks_about_once_a_second(rig: TenantRig) -> None:
    broker = rig.broker()
    for name in ("flood", "acme"):
        rig.tenant(broker, name, 9)
    worker = rig.worker(broker)
    rig.passes(5.0)
    broker.line.fault = fault = Fault(Kind.INSIDE_AFTER, "aggregate", times=1000)
    rig.passes(20.0)
    # Then: two for each look
    assert len(worker.jobs) == 4
    assert 20 <= 1000 - fault.times <= 100


def test_limits_take_effect_when_a_running_broker_hears_of_them(rig: TenantRig) -> None:
    broker = rig.broker()
    rig.tenant(broker, "flood", 40)
    worker = rig.worker(broker)
    # When and then
    rig.reconfigure(broker, tenant_max_running=5)
    rig.awake(0.2)
    assert rig.turns(worker) == {"flood": 5}
    rig.reconfigure(broker, tenant_max_running=1)
    rig.finish(worker, broker, 4)
    assert rig.turns(worker) == {"flood": 1}
    rig.reconfigure(broker, tenant_max_running=None)
    rig.awake(0.2)
    assert rig.turns(worker) == {"flood": 36}


def test_what_is_staged_goes_back_when_tenants_are_limited(rig: TenantRig, limits: Setting) -> None:
    # Given jobs that were claimed ahead of a slow worker
    limits.pop("tenant_max_running")
    broker = rig.broker()
    rig.tenant(broker, "flood", 9)
    worker = rig.worker(broker, prefetch=1)
    assert rig.running() == {"flood": 9}
    rig.reconfigure(broker, tenant_max_running=1)
    rig.passes(1.0)
    assert rig.running() == {"flood": 1} == rig.turns(worker)


def test_it_is_told_how_many_tenants_are_held_back(rig: TenantRig) -> None:
    broker = rig.broker()
    rig.tenant(broker, "flood", 3)
    rig.tenant(broker, "acme", 1)
    worker = rig.worker(broker)
    assert len(broker.queue.scheduler.held_back) == 1
    rig.finish(worker, broker, 3)
    rig.passes(2.0)
    assert len(broker.queue.scheduler.held_back) == 0


def test_where_nobody_asks_for_jobs_nobody_is_held_back(rig: TenantRig) -> None:
    broker = rig.broker()
    rig.tenant(broker, "flood", 5)
    worker = rig.worker(broker)
    assert len(broker.queue.scheduler.held_back) == 1
    broker.queue.settling.worker_gone(worker)
    rig.passes(3.0)
    assert len(broker.queue.scheduler.held_back) == 0


# ------------------------------------------------------------------------- rate


@pytest.fixture
def slowly(limits: Setting) -> None:
    limits.clear()
    limits.update(RATE)


@pytest.mark.usefixtures("slowly")
def test_each_tenant_has_a_burst_and_then_so_many_a_second(rig: TenantRig) -> None:
    broker = rig.broker()
    worker = rig.worker(broker)
    rig.tenant(broker, "flood", 100)
    rig.tenant(broker, "acme", 2)
    assert rig.turns(worker) == {"flood": 3, "acme": 2}
    began = []
    for _ in range(5):
        rig.awake(1.0)  # without a tick: it is awake when there are tokens
        began.append(rig.turns(worker)["flood"])
    assert all(3 + 2 * at - 1 <= count <= 3 + 2 * at for at, count in enumerate(began, 1)), began


@pytest.mark.usefixtures("slowly")
def test_a_tenants_rate_is_that_of_all_brokers_together(rig: TenantRig) -> None:
    one, other = rig.broker(), rig.broker()
    rig.tenant(one, "flood", 100)
    workers = [rig.worker(one), rig.worker(other)]
    rig.passes(10.0)
    assert 3 + 2 * 10 - 2 <= rig.turns(*workers)["flood"] <= 3 + 2 * 10


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("kind", [Kind.KILLED_BEFORE, Kind.KILLED_AFTER])
@pytest.mark.parametrize("method", ["bulk_write", "update_many"])
def test_a_killed_broker_takes_no_more_of_the_rate(rig: TenantRig, kind: Kind, method: str) -> None:
    one, other = rig.broker(), rig.broker()
    rig.tenant(other, "flood", 100)
    one.line.fault = Fault(kind, method)
    rig.worker(one)
    assert one.line.dead
    rig.passes(1.0)
    worker = rig.worker(other)
    rig.passes(10.0)
    assert 2 * 11 - 2 <= rig.turns(worker)["flood"] <= 3 + 2 * 11


@pytest.mark.usefixtures("slowly")
def test_a_rate_of_tenants_that_is_raised_holds_at_once(rig: TenantRig) -> None:
    broker = rig.broker()
    worker = rig.worker(broker)
    rig.tenant(broker, "flood", 100)
    rig.reconfigure(broker, tenant_rate=1000.0, tenant_burst=1000)
    rig.awake(1.0)
    assert len(worker.jobs) == 100


@pytest.mark.usefixtures("slowly")
def test_a_brokers_own_limits_hold_besides(rig: TenantRig, limits: Setting) -> None:
    limits.update(max_running=4)
    broker = rig.broker()
    for name in ("acme", "bolt", "cube"):
        rig.tenant(broker, name, 9)
    worker = rig.worker(broker)
    assert len(worker.in_flight) == 4
    began = 4
    for _ in range(6):
        rig.finish(worker, broker, len(worker.in_flight))
        rig.passes(1.0)
        began += len(worker.in_flight)
        assert len(worker.in_flight) <= 4
    assert began > 20
