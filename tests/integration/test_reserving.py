"""Jobs handed out by reserve and pop: how many, in which order, with what; and their commit."""

from __future__ import annotations

import threading
from time import monotonic

import pytest

from sluicemq import NotFoundError
from support.own_queue import LONG, SECONDS, OwnQueue, passed
from support.waiting import wait_until


def test_a_reserve_waits_for_a_job_and_others_do_not_see_what_is_reserved(jobs: OwnQueue) -> None:
    # beanstalkd, reserve: it waits until a job becomes available; others don't see a reserved job.
    came: list[str] = []
    waiting = threading.Thread(target=lambda: came.append(jobs.take().id))
    waiting.start()
    wait_until(lambda: any(row.name == jobs.queue and row.workers for row in jobs.client.queues.list()))
    put = jobs.push()
    waiting.join(SECONDS)
    assert came == [put]
    assert jobs.state(put) == "reserved"
    assert not jobs.ready()


def test_the_payload_is_the_bytes_that_were_pushed(jobs: OwnQueue) -> None:
    # beanstalkd, reserve: the body is a verbatim copy of the bytes that were put.
    body = bytes(range(256)) + b"\r\n"
    jobs.push(body)
    assert jobs.take().payload == body


def test_a_reserve_without_a_wait_answers_at_once_and_a_wait_is_limited(jobs: OwnQueue) -> None:
    # beanstalkd, reserve-with-timeout: 0 answers at once; a positive one limits the wait.
    assert len(jobs.reserve(1, wait=0)) == 0
    began = monotonic()
    assert len(jobs.reserve(1, wait=0.3)) == 0
    assert passed(began) >= 0.3


def test_a_committed_job_is_gone(jobs: OwnQueue) -> None:
    # beanstalkd, delete: a reserved job is removed entirely: our commit.
    put = jobs.push()
    jobs.take().commit()
    with pytest.raises(NotFoundError):
        jobs.show(put)


def test_a_claim_takes_the_oldest_up_to_its_limit_and_passes_over_what_is_reserved(jobs: OwnQueue) -> None:
    # Zaqar, claims, POST: it claims up to limit messages from oldest to newest and skips claimed ones.
    posted = [jobs.push() for _ in range(5)]
    assert [job.id for job in jobs.reserve(2)] == posted[:2]
    jobs.await_ready(*posted[2:])
    assert [job.id for job in jobs.reserve(10, wait=0)] == posted[2:]
    assert len(jobs.reserve(10, wait=0)) == 0


def test_what_is_left_of_a_claim_that_is_released_is_ready_at_once(jobs: OwnQueue) -> None:
    # Zaqar, claims, DELETE: the remaining, undeleted messages are available to others at once.
    posted = [jobs.push() for _ in range(3)]
    released = jobs.reserve(3)
    released.jobs[0].commit()
    released.release()
    jobs.await_ready(*posted[1:])


def test_so_many_jobs_as_are_popped_are_gone(jobs: OwnQueue) -> None:
    # Zaqar, messages, DELETE ?pop: so many messages are returned and deleted at once: our pop.
    posted = [jobs.push() for _ in range(3)]
    assert [job.id for job in jobs.client.jobs.pop(jobs.queue, 2)] == posted[:2]
    jobs.await_ready(posted[2])
    assert [jobs.state(each) for each in posted] == ["gone", "gone", "ready"]


def test_headers_travel_beside_the_payload(jobs: OwnQueue) -> None:
    # keuss, queue, push: hdrs: scalars that travel beside the payload: our headers.
    given = {"kind": "cat", "size": 3, "tame": True}
    jobs.push(headers=given)
    assert jobs.take().headers == given


def test_a_popped_job_is_gone_and_a_pop_waits_no_longer_than_it_is_told(jobs: OwnQueue) -> None:
    # keuss, queue, pop: the element is obtained and gone; timeout: how long it waits for one.
    began = monotonic()
    assert jobs.client.jobs.pop(jobs.queue, wait=0.3) == []
    assert passed(began) >= 0.3
    pushed = jobs.push()
    assert [job.id for job in jobs.client.jobs.pop(jobs.queue)] == [pushed]
    assert jobs.state(pushed) == "gone"


def test_a_commit_erases_the_job(jobs: OwnQueue) -> None:
    # keuss, queue, ok: it erases the element from the queue: our commit.
    pushed = jobs.push()
    jobs.take().commit()
    assert jobs.state(pushed) == "gone"


def test_a_committed_job_that_is_to_be_kept_is_done_and_stays(jobs: OwnQueue) -> None:
    # keuss, concepts, ps-mongo: an extracted element is only marked, and removed after a ttl: our keep_done.
    pushed = jobs.push(b"kept", keep_done=LONG)
    jobs.take().commit(b"result")
    kept = jobs.show(pushed)
    assert (kept["state"], kept["payload"], kept["result"]) == ("done", b"kept", b"result")
    assert kept["remove_at"] - kept["ended_at"] == pytest.approx(LONG, abs=SECONDS)
