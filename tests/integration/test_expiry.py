"""Jobs whose time to live is over."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import zmq

from sluicemq import ExpiredError, Worker
from support.broker_under_test import BrokerUnderTest, serving, spare
from support.own_queue import LONG, SECONDS, SHORT, OwnQueue, own_queue
from support.raw_sockets import receive
from support.waiting import wait_until

#: The sweep comes once in a lease: never, as far as these tests go.
NO_SWEEP = 10_000.0


@pytest.fixture(scope="module")
def unswept_broker(mongo_uri: str) -> Iterator[BrokerUnderTest]:
    """A broker whose sweep comes too late for everything, so what expires does so by its own time."""
    with serving(mongo_uri, spare(ask=2), lease=NO_SWEEP) as broker:
        yield broker


@pytest.fixture
def unswept(unswept_broker: BrokerUnderTest) -> Iterator[OwnQueue]:
    """A queue of the test's own there."""
    with own_queue(unswept_broker) as jobs:
        yield jobs


def test_a_job_that_is_held_does_not_expire(jobs: OwnQueue) -> None:
    # Zaqar, claims, POST: grace: a claimed message lives at least as long as its claim, whatever its ttl.
    held = jobs.push(b"held", ttl=SHORT)
    job = jobs.take()
    left = jobs.push(b"left", ttl=SHORT)
    wait_until(lambda: jobs.state(left) == "gone")  # the younger one has expired
    assert jobs.state(held) == "reserved"
    job.commit()


def test_an_expired_job_is_not_handed_out_and_is_removed(jobs: OwnQueue) -> None:
    # Zaqar, messages, POST: ttl: a message that is older than its ttl is not handed out, and is removed.
    posted = jobs.push(ttl=0.3)
    wait_until(lambda: not jobs.ready())
    wait_until(lambda: jobs.state(posted) == "gone")


def test_an_asker_hears_that_its_job_has_expired_without_a_sweep(unswept_broker: BrokerUnderTest) -> None:
    # Given two questions at a queue without workers, of which the first lives longer
    doors = unswept_broker.take("ask")
    asker = unswept_broker.socket(zmq.DEALER, doors.front)
    for name, ttl in ((b"later", 1.0), (b"sooner", 0.5)):
        asker.send_multipart([name, b"", b"", json.dumps({"ttl": ttl}).encode(), b"x"])
    # When, then
    for name in (b"sooner", b"later"):
        number, _, error, why = receive(asker)
        assert (number, error, json.loads(why)["code"]) == (name, b"ERROR", "EXPIRED")
    wait_until(lambda: not unswept_broker.counts(doors.queue))


def test_who_asks_by_the_id_of_a_stored_job_hears_that_it_has_expired(unswept: OwnQueue) -> None:
    with pytest.raises(ExpiredError):
        unswept.producer.call(unswept.queue, b"x", ttl=0.5, timeout=SECONDS)


def test_thousands_of_a_moment_expire_without_a_sweep_and_each_is_counted(unswept: OwnQueue) -> None:
    expired = unswept.broker.counter("expired")
    for receipt in unswept.producer.push_many(unswept.queue, [b"x"] * 3000, ttl=1.0):
        receipt.wait(SECONDS)
    wait_until(lambda: not unswept.collection.count_documents({}))
    wait_until(lambda: unswept.broker.counter("expired") - expired == 3000)


def test_a_job_that_expires_while_it_waits_for_a_busy_worker_is_not_delivered(unswept: OwnQueue) -> None:
    # Given a worker with one job, so that the others are staged behind it
    came: list[bytes] = []
    go_on = False

    def handler(job: object) -> None:
        came.append(job.payload)  # type: ignore[attr-defined]
        wait_until(lambda: go_on)

    unswept.push(b"first")
    with Worker(unswept.queue, handler, endpoint=unswept.endpoint):
        wait_until(lambda: came)
        over = unswept.push(b"over", ttl=0.5)
        unswept.push(b"last")
        wait_until(lambda: not unswept.collection.find_one({"_id": over}))
        go_on = True
        wait_until(lambda: len(came) > 1)
    assert came == [b"first", b"last"]


def test_a_job_that_is_given_back_after_its_time_expires_at_once(unswept: OwnQueue) -> None:
    kept = unswept.push(ttl=0.5)
    job = unswept.take()
    wait_until(lambda: unswept.now().timestamp() > unswept.show(kept)["expires_at"])
    job.rollback("too late")
    wait_until(lambda: not unswept.collection.find_one({"_id": kept}))


def test_an_expired_job_counts_as_nothing_and_is_not_shown_as_ready(unswept: OwnQueue) -> None:
    # Given jobs as another broker would leave them: nobody here waits for their time
    unswept.push(b"stays")
    unswept.push(b"later", delay=LONG)
    old, delayed = unswept.push(ttl=LONG), unswept.push(ttl=3 * LONG, delay=2 * LONG)
    unswept.collection.update_many({"_id": {"$in": [old, delayed]}}, {"$set": {"expires_at": unswept.now()}})
    counts = unswept.counts()
    assert (counts["ready"], counts["scheduled"]) == (1, 1)
    assert {unswept.state(old), unswept.state(delayed)} == {"gone"}
    assert unswept.show(old)["state"] == "expired"


@pytest.mark.full
def test_after_a_restart_the_sweep_ends_what_has_expired(mongo_uri: str) -> None:
    with serving(mongo_uri, [], lease=NO_SWEEP) as broker, own_queue(broker) as jobs:
        posted = jobs.push(ttl=LONG)
        broker.process.kill()
        jobs.collection.update_one({"_id": posted}, {"$set": {"expires_at": jobs.now()}})
        broker.process.restart()
        wait_until(lambda: not jobs.collection.find_one({"_id": posted}))
