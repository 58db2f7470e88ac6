"""How long a reservation lasts: its end, its extension, and verdicts that come after it."""

from __future__ import annotations

from time import monotonic

import pytest

from sluicemq import LeaseLostError
from sluicemq.protocol import wire
from support.own_queue import LONG, SHORT, OwnQueue, passed
from support.waiting import wait_until


def test_a_job_that_is_not_settled_in_its_time_comes_again(jobs: OwnQueue) -> None:
    # beanstalkd, put <ttr>: a job that is not settled within its time to run is ready again.
    put = jobs.push(visibility_timeout=SHORT)
    began = monotonic()
    jobs.take()
    again = jobs.take()
    assert (again.id, again.attempt) == (put, 2)
    assert passed(began) >= SHORT


def test_an_extension_postpones_the_end_of_a_reservation(jobs: OwnQueue) -> None:
    # beanstalkd, touch: it postpones the end of a reservation until that many seconds from now.
    jobs.push(b"touched", visibility_timeout=SHORT)
    touched = jobs.take()
    touched.extend(LONG)
    jobs.push(b"forgotten", visibility_timeout=SHORT)
    jobs.take()
    assert jobs.take().payload == b"forgotten"  # the later one's time is over, so the first one's was too
    touched.commit()


def test_a_commit_after_the_visibility_timeout_is_refused(jobs: OwnQueue) -> None:
    # beanstalkd, delete: NOT_FOUND if the job timed out before: our LEASE_LOST.
    put = jobs.push(visibility_timeout=SHORT)
    late = jobs.take()
    wait_until(lambda: jobs.state(put) == "ready")
    with pytest.raises(LeaseLostError):
        late.commit()
    assert jobs.state(put) == "ready"


def test_the_jobs_of_a_claim_whose_time_is_over_go_to_another(jobs: OwnQueue) -> None:
    # Zaqar, claims, POST: ttl: when a claim expires, its messages can be claimed by another worker.
    posted = [jobs.push(visibility_timeout=SHORT) for _ in range(3)]
    jobs.reserve(3)
    assert sorted(job.id for job in jobs.reserve(3)) == sorted(posted)


def test_a_claim_is_renewed_for_all_of_its_jobs(jobs: OwnQueue) -> None:
    # Zaqar, claims, PATCH: a claim is renewed with a new ttl, for all of its messages.
    for _ in range(2):
        jobs.push(b"renewed", visibility_timeout=SHORT)
    renewed = jobs.reserve(2)
    renewed.extend(LONG)
    jobs.push(b"forgotten", visibility_timeout=SHORT)
    jobs.take()
    assert jobs.take().payload == b"forgotten"
    renewed.commit()


def test_a_late_worker_commits_nothing_that_another_holds(jobs: OwnQueue) -> None:
    # Not so in keuss (queue, ok): a late worker commits what another has reserved by now.
    pushed = jobs.push(visibility_timeout=SHORT)
    late, (its_receipt, *_) = jobs.stranger()
    holder, (receipt, again, *_) = jobs.stranger()
    assert again == pushed
    holder.ask(wire.EXTEND, [receipt], LONG)
    # Neither with its own receipt nor with the holder's
    for told in (its_receipt, receipt):
        answer = late.ask(wire.SETTLE, [[told, wire.COMMIT, b"late", None]])
        assert [code for _, code, _ in answer.fields[0]] == ["LEASE_LOST"]
    assert jobs.state(pushed) == "reserved"
    assert not holder.ask(wire.SETTLE, [[receipt, wire.COMMIT, b"", None]]).fields[0]
    assert jobs.state(pushed) == "gone"
