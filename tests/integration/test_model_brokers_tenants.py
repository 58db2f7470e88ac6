"""The model of two brokers, whose fair queue limits its tenants: never more of one run, and none is stuck.

All that may fail there may fail here too. The tenants are those of the groups, some jobs' own, or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis.stateful import invariant
from pymongo.database import Database

from integration.model_runs import check
from integration.test_model_brokers import TwoBrokers, two_brokers
from integration.test_model_brokers_fair import TwoFairBrokers

#: Explores at random: by default test_model_brokers and the unit models do, for a shorter time.
pytestmark = pytest.mark.full

__all__ = ["two_brokers"]  # a fixture

MAX_RUNNING = 1


class TwoBrokersOfTenants(TwoFairBrokers):
    """What holds besides: of a tenant no more are reserved, whoever owns them; these alone have slots."""

    limits = MappingProxyType({"fair": True, "tenant_max_running": MAX_RUNNING})

    @invariant()
    def no_more_are_reserved_than_may_be(self) -> None:
        reserved = list(self.jobs.find({"state": "reserved"}))
        turns = Counter(job.get("tenant", "") for job in reserved)
        assert max(turns.values(), default=0) <= MAX_RUNNING, turns
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
