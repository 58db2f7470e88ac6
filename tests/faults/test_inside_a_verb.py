"""A second broker acts between two statements of one verb: neither loses a job, nor runs one twice."""

from __future__ import annotations

import pytest

from faults.proxied import Delivered, RawClient, SharedQueue
from sluicemq.protocol import wire


def test_a_claim_does_not_take_a_later_job_of_an_id_that_it_has_read(shared: SharedQueue) -> None:
    """Between its read and its update the job is done at the other broker, and its id is pushed anew."""
    here, there = shared.client(shared.a), shared.client(shared.b)
    there.push(b"first", "fixed")

    def done_and_pushed_anew() -> None:
        there.ready(1)
        there.commit(there.take()[0])
        there.ready(0)
        there.push(b"second", "fixed")

    inside = shared.a.proxy.before(shared.on("update", "reserved"), done_and_pushed_anew)
    here.ready(1)
    inside.wait()
    [job] = here.take()
    assert job.payload == b"second"
    here.commit(job)
    shared.wait_empty()
    assert [handed.payload for handed in (*there.taken, *here.taken)] == [b"first", b"second"]


def test_a_claim_whose_jobs_another_broker_takes_first_delivers_none_of_them(shared: SharedQueue) -> None:
    here, there = shared.client(shared.a), shared.client(shared.b)
    for number in range(10):
        there.push(b"%d" % number)

    def taken() -> None:
        there.ready(5)
        there.take(5)

    inside = shared.a.proxy.before(shared.on("update", "reserved"), taken)
    here.ready(10)
    inside.wait()
    here.take(5)
    for job in there.taken:
        there.commit(job)
    there.ready(0)
    for job in here.taken:
        here.commit(job)
    shared.wait_empty()
    assert sorted(job.payload for job in (*there.taken, *here.taken)) == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("verdict", [wire.COMMIT, wire.ROLLBACK, wire.REJECT])
def test_a_verdict_on_a_removed_job_spares_one_pushed_anew(shared: SharedQueue, verdict: str) -> None:
    """The job is removed by hand, and its id pushed at the other broker, before the verdict is sent on."""
    here, there = shared.client(shared.a), shared.client(shared.b)
    here.ready(1)
    here.push(b"first", "fixed")
    [first] = here.take()

    def removed_and_pushed_anew() -> None:
        shared.jobs.delete_one({"_id": "fixed"})
        there.push(b"second", "fixed")

    name = "delete" if verdict == wire.COMMIT else "update"
    inside = shared.a.proxy.before(shared.on(name), removed_and_pushed_anew)
    answer = here.settle(first, verdict, delay=None)
    inside.wait()
    here.answer(answer)
    here.ready(0)
    second = taken_by_either(here, there)
    assert second.payload == b"second"
    assert second.attempt == 1
    shared.wait_empty()


def taken_by_either(here: RawClient, there: RawClient) -> Delivered:
    """The next job, committed, at whichever of two workers it comes to."""
    there.ready(1)
    while not (here.offered(0.2) or there.offered(0.2)):
        pass
    worker = here if here.offered(0) else there
    [job] = worker.take()
    worker.commit(job)
    there.ready(0)
    return job


def test_a_reservation_that_is_given_back_while_it_is_read_is_delivered_once(shared: SharedQueue) -> None:
    """A release at the other broker lands between the read and the update of a claim."""
    here, there = shared.client(shared.a), shared.client(shared.b)
    there.ready(1)
    there.push(b"first")
    [held] = there.take()
    there.ready(0)
    there.push(b"second")
    inside = shared.a.proxy.before(
        shared.on("update", "reserved"), lambda: there.answer(there.settle(held, wire.RELEASE))
    )
    here.ready(2)
    inside.wait()
    here.take(2)
    for job in here.taken:
        here.commit(job)
    shared.wait_empty()
    assert sorted(job.payload for job in here.taken) == [b"first", b"second"]
    assert {job.attempt for job in here.taken} == {1}
