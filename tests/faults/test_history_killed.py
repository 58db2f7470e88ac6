"""The history of brokers of which one is killed: nothing is missing but what it counted last."""

from __future__ import annotations

import pytest

from sluicemq import Client, Producer, Worker
from support.broker_process import BrokerProcess
from support.waiting import wait_until

BATCH = 200


@pytest.mark.full
def test_the_sums_are_what_was_pushed_and_done_but_for_the_last_flush_of_the_one_that_was_killed(
    mongo_uri: str, database: str
) -> None:
    config = {"broker": {"history": True, "lease": 3.0, "poll": 0.5}}
    with (
        BrokerProcess(mongo_uri, database, config=config) as killed,
        BrokerProcess(mongo_uri, database, config=config) as other,
        Client(endpoint=other.doors["smq"]) as client,
    ):

        def sums() -> dict[str, int]:
            return dict(client.history("mail")["total"])

        # Given: each has counted what was pushed to it, and written it
        for broker in (killed, other):
            _push(broker, BATCH)
        wait_until(lambda: sums().get("pushed") == 2 * BATCH, what="two flushes")
        # When one counts more, and is killed before it has written that
        _push(killed, BATCH)
        killed.kill()
        done: list[str] = []
        with Worker("mail", lambda job: done.append(job.id), prefetch=50, endpoint=other.doors["smq"]):
            wait_until(lambda: len(set(done)) == 3 * BATCH, what="all jobs at the other")
        wait_until(lambda: sums().get("committed") == 3 * BATCH, what="its flush")
        assert 2 * BATCH <= sums()["pushed"] <= 3 * BATCH
        # And a clean stop writes what there is
        before = sums()["pushed"]
        _push(other, BATCH)
        other.terminate()
        other.restart()
        with Client(endpoint=other.doors["smq"]) as again:
            assert again.history("mail")["total"]["pushed"] == before + BATCH


def _push(broker: BrokerProcess, count: int) -> None:
    with Producer(endpoint=broker.doors["smq"]) as producer:
        for _ in range(count):
            producer.push("mail", b"job")
