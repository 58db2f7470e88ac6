"""Jobs whose time to live is over."""

from __future__ import annotations

from launcher import wait_until
from own_queue import SHORT, OwnQueue


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
