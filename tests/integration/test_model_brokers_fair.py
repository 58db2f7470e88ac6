"""The model of two brokers whose queue is fair, limits its jobs, or its tenants."""

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis.stateful import invariant
from pymongo.database import Database

from integration.model_of_jobs import LifeHand
from integration.model_of_two_brokers import ModelWorker
from integration.model_runs import check
from integration.test_model_brokers import TwoBrokers, two_brokers
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Delivery
from sluicemq_broker.store import LimitStore

#: Explores at random: by default test_model_brokers and the unit models do, for a shorter time.
pytestmark = pytest.mark.full

__all__ = ["two_brokers"]  # a fixture


class TwoFairBrokers(TwoBrokers):
    """What holds besides: whatever a broker has of a job, it has its tenant."""

    limits = MappingProxyType({"fair": True, "weights": MappingProxyType({"a": 2, "g": 3})})

    def job_of(self, order: dict[str, Any]) -> Job:
        job = super().job_of(order)
        if order["priority"]:
            job.tenant = job.id
        return job

    def teardown(self) -> None:
        """Which works until all is done: so nobody is passed over for ever."""
        for broker in self.brokers:
            for reservation in broker.queue.scheduler.reservations.under(broker.owners.current):
                stored = self._stored(reservation.id)
                if stored and stored.get("seq") == reservation.seq and reservation.group is None:
                    self._expect(
                        stored.get("tenant", "") == reservation.turn, f"{reservation.id} has another tenant"
                    )
        super().teardown()


@pytest.fixture
def two_fair_brokers(
    two_brokers: type[TwoBrokers], documents: Database[dict[str, Any]]
) -> Iterator[type[TwoBrokers]]:
    yield TwoFairBrokers
    documents["queue.mail"].drop()  # with its index


def test_in_a_fair_queue_too_no_job_is_lost_or_done_twice(two_fair_brokers: type[TwoBrokers]) -> None:
    check(two_fair_brokers, 3, 25)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_in_a_fair_queue_no_job_is_lost_or_done_twice(two_fair_brokers: type[TwoBrokers], times: int) -> None:
    check(two_fair_brokers, 50 * times, 50)


MAX_RUNNING = 2


class TwoLimitedBrokers(TwoBrokers):
    """What holds besides: of live owners, no more are reserved than have permits, and these are not more."""

    limits = MappingProxyType({"max_running": MAX_RUNNING})

    def delivered(self, worker: ModelWorker, delivery: Delivery) -> LifeHand:
        """At this moment too: others may be in the middle of something."""
        hand = super().delivered(worker, delivery)
        live = self._live_owners()
        at_work = [run.life.job_id for run in self.open if run.open and run.owner in live]
        self._expect(len(at_work) <= MAX_RUNNING, f"{at_work} run at once")
        return hand

    @invariant()
    def nobody_holds_more_than_it_has_permits_for(self) -> None:
        permits, live = LimitStore(self.documents, "mail").holders(), self._live_owners()
        for broker in self.brokers:
            for owner in live.intersection(broker.owners.own_ids()):
                held = broker.queue.scheduler.reservations.under(owner)
                assert len(held) <= permits.get(owner, 0), (owner, held, permits)
        assert sum(count for owner, count in permits.items() if owner in live) <= MAX_RUNNING, permits

    def _work_until_all_is_done(self) -> None:
        """Which it never would be if permits were lost."""
        super()._work_until_all_is_done()
        for broker in self.brokers:
            broker.sweep()
        permits = LimitStore(self.documents, "mail").holders()
        assert permits.keys() <= self._live_owners(), permits


@pytest.fixture
def two_limited_brokers(
    two_brokers: type[TwoBrokers], documents: Database[dict[str, Any]]
) -> Iterator[type[TwoBrokers]]:
    yield TwoLimitedBrokers
    documents["limits"].delete_many({})


def test_no_more_run_than_may_and_no_permit_is_lost(two_limited_brokers: type[TwoBrokers]) -> None:
    check(two_limited_brokers, 3, 25)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_more_run_than_may_and_no_permit_is_lost_for_long(
    two_limited_brokers: type[TwoBrokers], times: int
) -> None:
    check(two_limited_brokers, 50 * times, 50)


TENANT_MAX_RUNNING = 1


class TwoBrokersOfTenants(TwoFairBrokers):
    """What holds besides: of a tenant no more are reserved, whoever owns them; these alone have slots."""

    limits = MappingProxyType({"fair": True, "tenant_max_running": TENANT_MAX_RUNNING})

    @invariant()
    def no_more_are_reserved_than_may_be(self) -> None:
        reserved = list(self.jobs.find({"state": "reserved"}))
        turns = Counter(job.get("tenant", "") for job in reserved)
        assert max(turns.values(), default=0) <= TENANT_MAX_RUNNING, turns
        slots = {job["_id"] for job in self.jobs.find({"slot": {"$exists": True}}, {"_id": 1})}
        assert slots == {document["_id"] for document in reserved}


@pytest.fixture
def two_brokers_of_tenants(
    two_brokers: type[TwoBrokers], documents: Database[dict[str, Any]]
) -> Iterator[type[TwoBrokers]]:
    yield TwoBrokersOfTenants
    documents["queue.mail"].drop()  # with its indexes


def test_no_more_of_a_tenant_run_than_may_and_none_is_stuck(two_brokers_of_tenants: type[TwoBrokers]) -> None:
    check(two_brokers_of_tenants, 3, 25)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_more_of_a_tenant_run_than_may_and_none_is_stuck_for_long(
    two_brokers_of_tenants: type[TwoBrokers], times: int
) -> None:
    check(two_brokers_of_tenants, 50 * times, 50)
