"""``kill -9`` of a broker with what ``max_running`` allows: that is others' then, and never too many run."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient

from faults.fleet import Fleet
from sluicemq import Producer
from support.broker_process import BrokerProcess
from support.waiting import wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full

MOST, JOBS = 3, 12
CONFIG = {
    "broker": {"lease": 2.0, "poll": 0.2, "silence": 60},
    "queues": {"default": {"max_running": MOST, "backoff": "none"}},
}


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_permits_of_a_broker_that_is_no_more_are_used_by_another(
    mongo_uri: str, database: str, how: str
) -> None:
    with (
        BrokerProcess(mongo_uri, database, config=CONFIG) as first,
        BrokerProcess(mongo_uri, database, config=CONFIG) as second,
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        Fleet() as fleet,
    ):
        jobs, limits = mongo[database]["queue.default"], mongo[database]["limits"]
        # Given: all permits are with the first broker
        one = fleet.worker("library", first.doors["smq"], "default", 10, 10)
        with Producer(first.doors["smq"]) as producer:
            for number in range(JOBS):
                producer.push("default", b"hold %d" % number)
        one.wait_said("got", MOST)
        other = fleet.worker("library", second.doors["smq"], "default", 10, 10)
        # When
        if how == "killed":
            first.kill()
        else:
            first.terminate()
        # Then
        for done in range(0, JOBS, MOST):
            other.wait_said("got", done + MOST)
            assert jobs.count_documents({"state": "reserved"}) == MOST
            other.go(MOST)
        wait_until(lambda: not jobs.count_documents({}), what="all jobs done")
        assert len(other.said("got")) == JOBS
        wait_until(lambda: len((limits.find_one() or {})["running"]) <= 1, what="no permits of the dead")


TENANTS = {
    "broker": CONFIG["broker"],
    "queues": {"default": {"fair": True, "tenant_max_running": MOST, "backoff": "none"}},
}


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_a_tenant_had_at_a_broker_that_is_no_more_runs_at_another(
    mongo_uri: str, database: str, how: str
) -> None:
    with (
        BrokerProcess(mongo_uri, database, config=TENANTS) as first,
        BrokerProcess(mongo_uri, database, config=TENANTS) as second,
        MongoClient[dict[str, Any]](mongo_uri) as mongo,
        Fleet() as fleet,
    ):
        jobs = mongo[database]["queue.default"]
        # Given: all that a tenant may have runs at the first broker; another one is not concerned
        one = fleet.worker("library", first.doors["smq"], "default", 10, 10)
        with Producer(first.doors["smq"]) as producer:
            for number in range(JOBS):
                producer.push("default", b"hold %d" % number, tenant="flood")
        one.wait_said("got", MOST)
        other = fleet.worker("library", second.doors["smq"], "default", 10, 10)
        with Producer(second.doors["smq"]) as producer:
            producer.push("default", b"single", tenant="single")
        wait_until(lambda: not jobs.count_documents({"tenant": "single"}), what="the single one done")
        assert jobs.count_documents({"state": "reserved"}) == MOST
        before = len(other.said("got"))
        # When
        if how == "killed":
            first.kill()
        else:
            first.terminate()
        # Then
        for done in range(0, JOBS, MOST):
            other.wait_said("got", before + done + MOST)
            assert jobs.count_documents({"state": "reserved"}) == MOST
            other.go(MOST)
        wait_until(lambda: not jobs.count_documents({}), what="all jobs done")
