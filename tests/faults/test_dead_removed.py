"""Very many dead letters go beside the jobs: in turns of the hub, and on after a kill -9."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from faults.turns import LONGEST, slowness
from sluicemq import Client, Producer
from sluicemq_broker.store.jobs.index_models import INDEXES
from support.broker_process import BrokerProcess
from support.waiting import wait_until

OLD, YOUNG = 50_000, 1_000
AT_ONCE = 10_000


@pytest.mark.full
def test_very_many_old_dead_letters_go_in_turns_and_on_after_a_kill(mongo_uri: str, database: str) -> None:
    documents = MongoClient[dict[str, Any]](mongo_uri)[database]
    queue, now = documents["queue.mail"], datetime.now(UTC)
    queue.create_indexes(INDEXES)
    deaths = [(OLD, now - timedelta(days=100)), (YOUNG, now)]
    for count, died in deaths:
        letter = {
            "state": "dead",
            "priority": 0,
            "seq": 1,
            "created_at": died,
            "ended_at": died,
            "payload": b"x",
        }
        for first in range(0, count, AT_ONCE):
            ids = range(first, min(count, first + AT_ONCE))
            queue.insert_many([{"_id": f"{count}-{job_id}", **letter} for job_id in ids], ordered=False)

    def left() -> int:
        return queue.estimated_document_count()

    with BrokerProcess(mongo_uri, database, config={"devices": [], "broker": {"lease": 1.0}}) as broker:
        # When it is killed in the middle
        wait_until(lambda: left() < OLD * 0.9, what="the first pages")
        broker.kill()
        assert left() > OLD * 0.1
        broker.restart()
        with (
            Client(endpoint=broker.doors["smq"]) as client,
            Producer(endpoint=broker.doors["smq"]) as producer,
        ):
            # Then jobs go on beside it
            client.counters()  # the start itself does not count
            while left() > YOUNG + 10:
                producer.push("other", b"x").wait(10)
            # And no turn was long
            told = client.counters()
            wait_until(lambda: queue.count_documents({}) == YOUNG, what="the last page")
            assert client.counters().counters["dead_removed"] > OLD * 0.1
    assert told["broker"]["longest_turn_cpu"] < LONGEST * slowness()
    assert queue.count_documents({"state": "dead"}) == YOUNG
