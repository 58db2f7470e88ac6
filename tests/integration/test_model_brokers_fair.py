"""The model of two brokers, whose queue is fair: nothing is lost or done twice, and nobody is left out.

All that may fail there may fail here too. The tenants are those of the groups, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
from pymongo.database import Database

from integration.model_runs import check
from integration.test_model_brokers import TwoBrokers, two_brokers
from sluicemq_broker.job import Job

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
