"""A job that a user makes to test a handler."""

from __future__ import annotations

from datetime import timedelta

from sluicemq import Job


def test_a_payload_is_enough() -> None:
    job = Job(payload=b"cat.jpg")
    assert (job.payload, job.headers, job.attempt, job.priority, job.max_attempts) == (
        b"cat.jpg",
        {},
        1,
        0,
        13,
    )
    assert isinstance(job.id, str)
    assert isinstance(job.queue, str)
    assert 0 <= job.age < 3600
    job.extend(60)
    assert repr(job) == "<Job id of queue, attempt 1, 7 bytes>"


def test_all_else_may_be_as_the_test_needs_it() -> None:
    job = Job(b"x", id="mine", queue="mail", headers={"a": 1}, attempt=3, priority=9, max_attempts=3,
              age=timedelta(days=2))  # fmt: skip
    assert (job.id, job.queue, job.headers, job.attempt, job.priority) == ("mine", "mail", {"a": 1}, 3, 9)
    assert (job.max_attempts, job.age >= 2 * 86400) == (3, True)
