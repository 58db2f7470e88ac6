"""Workers that the device's high-water mark turned away get jobs as soon as it allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from sluicemq import Client, Producer, Worker
from support.broker_process import BrokerProcess
from support.ports import tcp
from support.waiting import wait_until

DEVICE = {"kind": "streamer", "ack": "explicit", "hwm": 2}


@pytest.fixture
def broker(mongo_uri: str, database: str) -> Iterator[BrokerProcess]:
    ends = {"frontend": tcp(), "backend": tcp(), "commit": tcp()}
    config = {"broker": {"poll": 0.5}, "devices": [DEVICE | ends]}
    with BrokerProcess(mongo_uri, database, config=config) as broker:
        yield broker


def test_when_workers_at_the_mark_die_the_one_that_waits_gets_their_jobs(broker: BrokerProcess) -> None:
    # Given a device that allows two unsettled jobs, two workers that have them, and a third
    contexts = [zmq.Context() for _ in range(3)]
    workers = []
    for context in contexts:
        worker = context.socket(zmq.PULL)
        worker.connect(broker.doors["pull"])
        workers.append(worker)
    with Client(endpoint=broker.doors["smq"]) as client, Producer(endpoint=broker.doors["smq"]) as producer:
        wait_until(lambda: client.queues.list()[0].workers == 3, what="three workers")
        for number in range(4):
            producer.push("default", b"%d" % number)
        producer.flush()
        wait_until(lambda: client.queues.list()[0].in_flight == 2, what="two jobs under way")
        wait_until(lambda: sum(bool(worker.poll(0)) for worker in workers) == 2, what="their arrival")
        [idle] = [worker for worker in workers if not worker.poll(0)]
        # When the two die
        for worker in workers:
            if worker is not idle:
                worker.close(0)
        # Then the third gets a job
        assert idle.poll(60_000)
    for context in contexts:
        context.destroy(linger=0)


def test_a_library_worker_s_leaving_leaves_nothing_reserved(broker: BrokerProcess) -> None:
    # Given many jobs and a worker that takes some of them and leaves
    endpoint = broker.doors["smq"]
    with Client(endpoint=endpoint) as client:
        with Producer(endpoint=endpoint) as producer:
            for _ in range(2000):
                producer.push("many", b"x")
        worker = Worker("many", lambda _job: None, prefetch=10, endpoint=endpoint)
        worker.start()
        wait_until(lambda: client.counters().counters.get("committed", 0) > 100, what="some work")
        worker.stop()

        def many() -> dict[str, int]:
            return next(queue for queue in client.queues() if queue["name"] == "many")

        # Then what it has not done is ready for others
        wait_until(lambda: many()["reserved"] == 0, what="nothing reserved")
        ready = many()["ready"]
        wait_until(
            lambda: client.counters().counters["committed"] == 2000 - ready, what="counting the commits"
        )
