"""A queue is removed at one broker while others use it: all hear of it, whatever is killed meanwhile."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from faults.proxied import ProxiedBroker, SharedQueue
from sluicemq import BadQueueError, Client, DuplicateError, NotFoundError, Producer
from sluicemq_broker.store.jobs.index_models import DEDUPE_INDEX, READY_INDEX
from support.waiting import TIMEOUT, wait_until

#: By default test_every_failpoint kills brokers at statements, and test_chaos_short everything at once.
pytestmark = pytest.mark.full


@pytest.fixture
def queue(shared: SharedQueue) -> SharedQueue:
    """A queue that both brokers know."""
    push(shared, shared.a, b"made")
    for broker in (shared.a, shared.b):
        with Client(endpoint=broker.endpoint) as client:
            client.queues.get(shared.name)
    return shared


def push(queue: SharedQueue, broker: ProxiedBroker, payload: bytes = b"x", **options: Any) -> str:
    with Producer(endpoint=broker.endpoint) as producer:
        receipt = producer.push(queue.name, payload, **options)
        receipt.wait(TIMEOUT)
    return receipt.id


def names(broker: ProxiedBroker) -> set[str]:
    with Client(timeout=TIMEOUT, endpoint=broker.endpoint) as client:
        return {row.name for row in client.queues.list()}


def record(queue: SharedQueue) -> dict[str, Any]:
    return queue.database["queues"].find_one({"_id": queue.name}) or {}


def indexes(queue: SharedQueue) -> set[str]:
    return set(queue.jobs.index_information())


def test_a_queue_that_is_removed_at_one_broker_is_gone_at_the_other(queue: SharedQueue) -> None:
    with Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client:
        assert client.queues.delete(queue.name).result() == 1
    wait_until(lambda: queue.name not in names(queue.a) | names(queue.b), what="the end of the queue")
    assert queue.jobs.name not in queue.database.list_collection_names()
    with Client(timeout=TIMEOUT, endpoint=queue.b.endpoint) as client, pytest.raises(NotFoundError):
        client.queues.get(queue.name)
    # When it is pushed to at the other one it is there anew, with its indexes from the first job on
    push(queue, queue.b, dedupe_id="1")
    with pytest.raises(DuplicateError):
        push(queue, queue.b, dedupe_id="1")
    assert {READY_INDEX, DEDUPE_INDEX} <= indexes(queue)


def test_workers_at_another_broker_refuse_a_removal(queue: SharedQueue) -> None:
    with Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client:
        with queue.working(queue.b) as handled:
            wait_until(lambda: handled[b"made"], what="the first job")
            with pytest.raises(BadQueueError, match="1 workers at other brokers: stop them first"):
                client.queues.delete(queue.name).result()
            # Then it goes on
            push(queue, queue.a, b"next")
            wait_until(lambda: handled[b"next"], what="the next job")
        assert "removing" not in record(queue)
        wait_until(lambda: not workers(queue), what="the worker's leaving")
        client.queues.delete(queue.name).result()


def test_a_client_that_waits_at_the_other_broker_hears_of_the_removal(queue: SharedQueue) -> None:
    with (
        Producer(endpoint=queue.b.endpoint) as producer,
        Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client,
    ):
        reply = producer.submit(queue.name, b"question")
        wait_until(lambda: queue.stored() == 2, what="the question")
        client.queues.delete(queue.name).result()
        with pytest.raises(NotFoundError):
            reply.result(TIMEOUT)


def test_jobs_pushed_at_the_other_broker_meanwhile_are_kept_or_go_with_it(queue: SharedQueue) -> None:
    """Whatever was confirmed after the removal was answered is there; none is there twice."""
    with (
        Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client,
        Producer(endpoint=queue.b.endpoint) as producer,
    ):
        before = [producer.push(queue.name, b"before") for _ in range(200)]
        ordered = client.queues.delete(queue.name).result()
        after = [producer.push(queue.name, b"after", dedupe_id=str(number)) for number in range(50)]
        for receipt in (*before, *after):
            receipt.wait(TIMEOUT)
    there = {job["_id"] for job in queue.jobs.find({}, {"_id": 1})}
    assert {receipt.id for receipt in after} <= there
    assert ordered + len(there) >= 1 + 200 + 50
    wait_until(lambda: {READY_INDEX, DEDUPE_INDEX} <= indexes(queue), what="its indexes")


def test_a_frozen_broker_does_not_hold_up_a_removal_and_hears_of_it_later(queue: SharedQueue) -> None:
    with (
        Producer(endpoint=queue.b.endpoint) as producer,
        Client(timeout=TIMEOUT, endpoint=queue.a.endpoint) as client,
    ):
        reply = producer.submit(queue.name, b"question")
        wait_until(lambda: queue.stored() == 2, what="the question")
        queue.b.process.send_signal(signal.SIGSTOP)
        try:
            assert client.queues.delete(queue.name).result() == 2
        finally:
            queue.b.process.send_signal(signal.SIGCONT)
        with pytest.raises(NotFoundError):
            reply.result(TIMEOUT)


def workers(queue: SharedQueue) -> int:
    with Client(timeout=TIMEOUT, endpoint=queue.b.endpoint) as client:
        return int(client.queues.get(queue.name).workers)
