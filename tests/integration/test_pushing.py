"""How jobs come in: made once, each answered, found by whoever waits."""

from __future__ import annotations

import pytest
from pymongo import WriteConcern

from sluicemq import BadHeadersError, DuplicateError
from sluicemq_broker.store.connection import durable
from support.own_queue import LONG, SECONDS, OwnQueue
from support.waiting import wait_until


def test_a_queue_is_made_when_something_is_first_pushed(jobs: OwnQueue) -> None:
    # beanstalkd, tubes: a tube is made on demand when it is first used.
    name = f"{jobs.queue}-first"
    assert all(row.name != name for row in jobs.client.queues.list())
    jobs.producer.push(name, b"x").wait(SECONDS)
    # A count that was under way when it came is corrected in a moment.
    wait_until(
        lambda: [row.ready for row in jobs.client.queues.list() if row.name == name] == [1],
        SECONDS,
        "its job",
    )


def test_each_of_many_jobs_that_are_pushed_at_once_has_an_answer_of_its_own(jobs: OwnQueue) -> None:
    # Zaqar, messages, POST: many in one request: a result for each, in their order.
    good, bad, last = jobs.producer.push_many(
        jobs.queue, [b"1", {"payload": b"2", "priority": 256}, {"payload": b"3", "id": "third"}]
    )
    good.wait(SECONDS)
    last.wait(SECONDS)
    with pytest.raises(BadHeadersError):
        bad.wait(SECONDS)
    assert (bad.position, last.id) == (1, "third")
    assert jobs.in_order(2) == [b"1", b"3"]


def test_a_push_that_is_repeated_is_stored_once(jobs: OwnQueue) -> None:
    # Not so in Zaqar (messages, POST): a post that is tried again is there twice.
    first = jobs.push(b"1", id="mine", dedupe_id="piece of work")
    again = jobs.producer.push(jobs.queue, b"1", id=first, dedupe_id="piece of work")
    again.wait(SECONDS)
    other = jobs.producer.push(jobs.queue, b"1", id="another", dedupe_id="piece of work")
    with pytest.raises(DuplicateError) as refused:
        other.wait(SECONDS)
    assert (again.existed, refused.value.id) == (True, first)
    assert jobs.ids("ready") == [first]


def test_a_push_says_in_which_state_the_job_of_its_id_is(jobs: OwnQueue) -> None:
    jobs.push(b"1", id="dead")
    jobs.take().reject("no use")
    jobs.push(b"1", id="later", delay=LONG)
    jobs.push(b"1", id="ready")
    receipts = jobs.producer.push_many(
        jobs.queue, [{"payload": b"2", "id": name} for name in ("dead", "new", "later", "ready")]
    )
    jobs.producer.flush(SECONDS)
    assert [receipt.existed for receipt in receipts] == [True, False, True, True]
    assert [receipt.state for receipt in receipts] == ["dead", None, "scheduled", "ready"]


def test_every_job_of_a_burst_finds_the_worker_that_waits(jobs: OwnQueue) -> None:
    # Not so in keuss (signaller): of pushes within 50 ms the last ones wake nobody: the window has no event
    # at its end.
    with jobs.waiting_worker() as came:
        pushed = [jobs.producer.push(jobs.queue, b"burst").id for _ in range(200)]
        wait_until(lambda: sorted(came) == sorted(pushed))


def test_what_is_confirmed_was_written_by_a_majority(jobs: OwnQueue) -> None:
    # Not so in keuss (mongo backend): writes go out without a write concern: what was confirmed may be rolled
    # back.
    assert durable(jobs.collection.database).write_concern == WriteConcern("majority")
