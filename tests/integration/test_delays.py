"""Jobs that are not due yet: a delay, a time, whose clock."""

from __future__ import annotations

from time import monotonic

import pytest

from sluicemq import Producer
from support.own_queue import LONG, SECONDS, SHORT, OwnQueue, passed
from support.waiting import wait_until


def test_a_delayed_job_is_ready_when_its_delay_is_over(jobs: OwnQueue) -> None:
    # beanstalkd, put <delay>: a job put with a delay becomes ready when it is over.
    began = monotonic()
    put = jobs.push(delay=SHORT)
    assert not jobs.ready()
    assert jobs.state(put) == "scheduled"
    assert jobs.take().id == put
    assert passed(began) >= SHORT


def test_a_job_s_own_delay_goes_before_that_of_its_queue(jobs: OwnQueue) -> None:
    # Zaqar, messages, POST: delay: it can't be claimed before; the message's own goes before the queue's.
    jobs.queue = "late"
    assert jobs.state(jobs.push()) == "scheduled"
    own = jobs.push(delay=0)
    assert jobs.take().id == own


def test_a_job_is_not_handed_out_before_the_time_it_names(jobs: OwnQueue) -> None:
    # keuss, queue, push: mature: an element is not extracted before this time: our not_before.
    began = monotonic()
    now = jobs.show(jobs.push(delay=LONG))["created_at"]  # by MongoDB's clock
    matures = jobs.push(not_before=now + SHORT)
    assert not jobs.ready()
    assert jobs.take().id == matures
    assert passed(began) >= SHORT - 0.1


def test_a_job_that_becomes_due_behind_everybody_s_back_is_found(jobs: OwnQueue) -> None:
    # Not so in keuss (signaller): a lost event leaves a consumer asleep until its next poll, 15 s later.
    pushed = jobs.push(delay=LONG)
    with jobs.waiting_worker() as came:
        due = {"$set": {"eligible_at": jobs.now()}}
        jobs.collection.update_one({"_id": pushed}, due)  # behind every broker's back: nobody is told
        wait_until(lambda: came == [pushed])


def test_the_clock_of_a_client_decides_nothing(jobs: OwnQueue) -> None:
    # Not so in keuss (queue, push: delay, mature): the clients' clocks decide when an element is due, and in
    # which order.
    first = jobs.push(b"first")
    with Producer(
        now=lambda: 0, endpoint=jobs.endpoint
    ) as wrong:  # in 1970, so its ids sort before all others
        receipts = [wrong.push(jobs.queue, b"second"), wrong.push(jobs.queue, b"third", delay=LONG)]
    ready, delayed = (receipt.id for receipt in receipts)
    assert ready < first
    assert jobs.ids("ready") == [first, ready]
    shown = jobs.show(delayed)
    assert shown["eligible_at"] - shown["created_at"] == pytest.approx(LONG, abs=SECONDS)
    assert shown["created_at"] == pytest.approx(jobs.now().timestamp(), abs=SECONDS)
