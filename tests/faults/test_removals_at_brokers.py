"""A queue is removed at one broker while others use it: all hear of it, whatever is killed meanwhile."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from faults.proxied import ProxiedBroker, SharedQueue
from sluicemq import BadQueue, Client, Duplicate, NotFound, Producer
from sluicemq_broker.store.jobs.index_models import DEDUPE_INDEX, READY_INDEX
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full


@pytest.fixture
def queue(shared: SharedQueue) -> SharedQueue:
    """A queue that both brokers know."""
    push(shared, shared.a, b"made")
    for each in (shared.a, shared.b):
        with Client(each.endpoint) as client:
            client.queue(shared.name)
    return shared


def push(queue: SharedQueue, broker: ProxiedBroker, payload: bytes = b"x", **options: Any) -> str:
    with Producer(broker.endpoint) as producer:
        receipt = producer.push(queue.name, payload, **options)
        receipt.wait(TIMEOUT)
    return receipt.id


def names(broker: ProxiedBroker) -> set[str]:
    with Client(broker.endpoint, timeout=TIMEOUT) as client:
        return {row["name"] for row in client.queues()}


def record(queue: SharedQueue) -> dict[str, Any]:
    return queue.database["queues"].find_one({"_id": queue.name}) or {}


def indexes(queue: SharedQueue) -> set[str]:
    return set(queue.jobs.index_information())


def test_a_queue_that_is_removed_at_one_broker_is_gone_at_the_other(queue: SharedQueue) -> None:
    with Client(queue.a.endpoint, timeout=TIMEOUT) as client:
        assert client.delete(queue.name) == 1
    wait_until(lambda: queue.name not in names(queue.a) | names(queue.b), what="the end of the queue")
    assert queue.jobs.name not in queue.database.list_collection_names()
    with Client(queue.b.endpoint, timeout=TIMEOUT) as client, pytest.raises(NotFound):
        client.queue(queue.name)
    # When it is pushed to at the other one it is there anew, with its indexes from the first job on
    push(queue, queue.b, dedupe_id="1")
    with pytest.raises(Duplicate):
        push(queue, queue.b, dedupe_id="1")
    assert {READY_INDEX, DEDUPE_INDEX} <= indexes(queue)


def test_workers_at_another_broker_refuse_a_removal(queue: SharedQueue) -> None:
    with Client(queue.a.endpoint, timeout=TIMEOUT) as client:
        with queue.working(queue.b) as handled:
            wait_until(lambda: handled[b"made"], what="the first job")
            with pytest.raises(BadQueue, match="1 workers at other brokers: stop them first"):
                client.delete(queue.name)
            # Then it goes on
            push(queue, queue.a, b"next")
            wait_until(lambda: handled[b"next"], what="the next job")
        assert "removing" not in record(queue)
        wait_until(lambda: not workers(queue), what="the worker's leaving")
        client.delete(queue.name)


def test_a_client_that_waits_for_a_result_at_the_other_broker_hears_of_the_removal(
    queue: SharedQueue,
) -> None:
    with Producer(queue.b.endpoint) as producer, Client(queue.a.endpoint, timeout=TIMEOUT) as client:
        reply = producer.submit(queue.name, b"question")
        wait_until(lambda: queue.stored() == 2, what="the question")
        client.delete(queue.name)
        with pytest.raises(NotFound):
            reply.result(TIMEOUT)


def test_jobs_that_are_pushed_at_the_other_broker_while_it_is_removed_are_kept_or_go_with_it(
    queue: SharedQueue,
) -> None:
    """Whatever was confirmed after the removal was answered is there; none is there twice."""
    with Client(queue.a.endpoint, timeout=TIMEOUT) as client, Producer(queue.b.endpoint) as producer:
        before = [producer.push(queue.name, b"before") for _ in range(200)]
        ordered = client.delete(queue.name)
        after = [producer.push(queue.name, b"after", dedupe_id=str(each)) for each in range(50)]
        for receipt in (*before, *after):
            receipt.wait(TIMEOUT)
    there = {each["_id"] for each in queue.jobs.find({}, {"_id": 1})}
    assert {receipt.id for receipt in after} <= there
    assert ordered + len(there) >= 1 + 200 + 50
    wait_until(lambda: {READY_INDEX, DEDUPE_INDEX} <= indexes(queue), what="its indexes")


def test_a_frozen_broker_does_not_hold_up_a_removal_and_hears_of_it_later(queue: SharedQueue) -> None:
    with Producer(queue.b.endpoint) as producer, Client(queue.a.endpoint, timeout=TIMEOUT) as client:
        reply = producer.submit(queue.name, b"question")
        wait_until(lambda: queue.stored() == 2, what="the question")
        queue.b.process.send_signal(signal.SIGSTOP)
        try:
            assert client.delete(queue.name) == 2
        finally:
            queue.b.process.send_signal(signal.SIGCONT)
        with pytest.raises(NotFound):
            reply.result(TIMEOUT)


def workers(queue: SharedQueue) -> int:
    with Client(queue.b.endpoint, timeout=TIMEOUT) as client:
        return int(client.queue(queue.name)["workers"])
