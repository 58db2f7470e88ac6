"""Nobody takes jobs: they lie in MongoDB, and the broker does not grow."""

from __future__ import annotations

import psutil
import pytest
from pymongo import MongoClient

from faults.fleet import Fleet
from support.broker_process import BrokerProcess
from support.long_forms import long
from support.waiting import TIMEOUT, wait_until

#: Takes many connections and seconds each: by default test_bounds and the unit tests of rates see the rule.
pytestmark = pytest.mark.full

MIB = 2**20


@pytest.mark.parametrize("count", [80_000, long(200_000)])
def test_jobs_without_a_worker_cost_the_broker_no_memory(mongo_uri: str, database: str, count: int) -> None:
    with (
        BrokerProcess(mongo_uri, database) as broker,
        Fleet() as fleet,
        MongoClient[dict[str, object]](mongo_uri) as client,
    ):
        process = psutil.Process(broker.pid)
        before = process.memory_info().rss
        fleet.start("flood.py", broker.doors["push"], 200, count)
        jobs = client[database]["queue.default"]

        wait_until(lambda: jobs.estimated_document_count() == count, 4 * TIMEOUT, "storing all jobs")

        assert process.memory_info().rss - before < 50 * MIB
        assert jobs.count_documents({"state": "ready"}) == count
