"""The model of two brokers, whose queue has ``max_running``: never more run, and no permit is lost.

All that may fail there may fail here too: replies of statements about permits are lost or come late, brokers
are killed between two of them, and the other broker acts in the middle.
"""

from __future__ import annotations

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
from sluicemq_broker.queue import Delivery
from sluicemq_broker.store import LimitStore

#: Explores at random: by default test_model_brokers and the unit models do, for a shorter time.
pytestmark = pytest.mark.full

__all__ = ["two_brokers"]  # a fixture

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
