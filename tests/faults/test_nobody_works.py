"""Nobody takes jobs: they lie in MongoDB, and the broker does not grow."""

from __future__ import annotations

import psutil
from pymongo import MongoClient

from faults.fleet import Fleet
from launcher import TIMEOUT, BrokerProcess, wait_until

MIB = 2**20
JOBS = 200_000


def test_200_000_jobs_without_a_worker_cost_the_broker_no_memory(mongo_uri: str, database: str) -> None:
    with (
        BrokerProcess(mongo_uri, database) as broker,
        Fleet() as fleet,
        MongoClient[dict[str, object]](mongo_uri) as client,
    ):
        process = psutil.Process(broker.pid)
        before = process.memory_info().rss
        fleet.start("flood.py", broker.doors["push"], 200, JOBS)
        jobs = client[database]["queue.default"]

        wait_until(lambda: jobs.estimated_document_count() == JOBS, 4 * TIMEOUT, "storing all jobs")

        assert process.memory_info().rss - before < 50 * MIB
        assert jobs.count_documents({"state": "ready"}) == JOBS
