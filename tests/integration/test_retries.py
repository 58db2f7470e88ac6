"""What becomes of a job that is not done: it comes again, it counts its attempts, it is dead at last."""

from __future__ import annotations

from time import monotonic

import pytest

from support.own_queue import LONG, SHORT, OwnQueue, passed, written
from support.waiting import wait_until


def test_a_job_that_is_rolled_back_comes_again_after_the_delay_that_was_asked_for(jobs: OwnQueue) -> None:
    # beanstalkd, release: it puts a reserved job back, to be run by any client; with a delay, when that is
    # over.
    put = jobs.push()
    jobs.take().rollback(delay=0)
    second = jobs.take()
    assert second.id == put
    began = monotonic()
    second.rollback("busy", delay=SHORT)
    assert jobs.state(put) == "scheduled"
    assert jobs.take().id == put
    assert passed(began) >= SHORT


def test_a_rejected_job_is_dead_with_its_reason_and_is_not_handed_out(jobs: OwnQueue) -> None:
    # beanstalkd, bury: a buried job is not touched again until it is kicked: our reject.
    put = jobs.push()
    jobs.take().reject("no such cat")
    assert jobs.state(put) == "dead"
    assert not jobs.ready()
    assert jobs.show(put)["errors"][-1]["reason"] == "no such cat"


def test_a_job_whose_time_ran_out_too_often_is_dead_with_its_history(jobs: OwnQueue) -> None:
    # Zaqar, queues: _max_claim_count: a message claimed so often in vain goes to the dead letter queue.
    posted = jobs.push(max_attempts=2, visibility_timeout=0.2)
    jobs.take()
    jobs.take()
    wait_until(lambda: jobs.state(posted) == "dead")
    assert [error["attempt"] for error in jobs.show(posted)["errors"]] == [1, 2]


def test_a_job_that_was_rolled_back_too_often_is_dead(jobs: OwnQueue) -> None:
    # keuss, factory, deadletter: a rollback more than max_ko moves the element away: max_attempts is one
    # more.
    max_ko = 2
    pushed = jobs.push(max_attempts=max_ko + 1)
    for _ in range(max_ko):
        jobs.take().rollback("ko", delay=0)
        assert jobs.state(pushed) == "ready"
    jobs.take().rollback("ko", delay=0)
    assert jobs.state(pushed) == "dead"


def test_an_extension_forgets_no_attempt(jobs: OwnQueue) -> None:
    # Not so in Zaqar (claims, PATCH): renewing a claim forgets how often the message was delivered.
    posted = jobs.push(max_attempts=2)
    for attempt in (1, 2):
        job = jobs.take()
        job.extend(LONG)
        assert (job.attempt, jobs.show(posted)["attempts"]) == (attempt, attempt)
        job.rollback("poison", delay=0)
    assert jobs.state(posted) == "dead"


def test_a_release_forgets_no_attempt_before_it(jobs: OwnQueue) -> None:
    # Not so in Zaqar (claims, DELETE): releasing a claim forgets how often the message was delivered before.
    posted = jobs.push(max_attempts=2)
    jobs.take().rollback("poison", delay=0)
    jobs.reserve().release()  # never started: this delivery does not count, the one before does
    wait_until(lambda: jobs.state(posted) == "ready")
    assert jobs.show(posted)["attempts"] == 1
    last = jobs.take()
    assert last.attempt == 2
    last.rollback("poison", delay=0)
    assert jobs.state(posted) == "dead"


def test_an_exception_that_leaves_a_claim_counts_as_an_attempt(jobs: OwnQueue) -> None:
    # Not so in Zaqar (claims, DELETE): a worker that fails and leaves its claim makes its poison immortal.
    posted = jobs.push(max_attempts=2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), jobs.reserve() as claim:
            print(1 / len(claim.unsettled[1:]))
        wait_until(lambda: jobs.state(posted) in ("ready", "dead"))
    assert jobs.state(posted) == "dead"
    assert "ZeroDivisionError" in jobs.show(posted)["errors"][-1]["reason"]


def test_a_job_that_kills_its_workers_is_dead_at_last(jobs: OwnQueue) -> None:
    # Not so in keuss (factory, deadletter): an element that kills its consumer is never dead: only a ko
    # counts.
    pushed = jobs.push(max_attempts=2)
    for attempt in (1, 2):
        victim, job = jobs.stranger()
        assert job[4] == attempt
        victim.plain.close()  # without a word
    wait_until(lambda: jobs.state(pushed) == "dead")
    assert jobs.show(pushed)["errors"][-1]["reason"] == "the worker died"


def test_a_rejected_job_is_never_removed_on_its_way_to_the_dead_letters(jobs: OwnQueue) -> None:
    # Not so in keuss (factory, deadletter): committed here, then pushed there: a crash between the two loses
    # it.
    with jobs.collection.watch() as changes:
        jobs.push()
        jobs.take().reject()
        seen = written(changes)
        # It is never removed, and never put anew
        assert [next(seen)["operationType"] for _ in range(3)] == ["insert", "update", "update"]
