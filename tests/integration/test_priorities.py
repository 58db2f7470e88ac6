"""Which of the ready jobs comes first."""

from __future__ import annotations

from support.own_queue import OwnQueue


def test_the_highest_priority_comes_first_and_in_a_priority_the_oldest(jobs: OwnQueue) -> None:
    # beanstalkd, put <pri>, reserve: the most urgent is first (0 there, 255 here), in a priority the oldest.
    for payload, priority in ((b"c", 1), (b"a", 255), (b"d", 1), (b"e", 0), (b"b", 255)):
        jobs.push(payload, priority=priority)
    assert jobs.in_order(5) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_job_that_was_rolled_back_may_get_another_priority(jobs: OwnQueue) -> None:
    # beanstalkd, release <pri>: a job that is put back may get a new priority: our rollback, then change.
    put = jobs.push(b"back", priority=9)
    other = jobs.push(b"other", priority=5)
    jobs.take().rollback(delay=0)
    jobs.await_ready(put, other)
    jobs.client.jobs.change(jobs.queue, put, priority=1)
    assert jobs.in_order(2) == [b"other", b"back"]
