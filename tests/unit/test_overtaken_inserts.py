"""Jobs go out in the order in which they were accepted, also when a later insert is through first."""

from __future__ import annotations

from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.dispatch import Dispatch
from support.fakes import FakeOutlet, FakeStore, FakeWorker, a_context, go_on, no_limits
from support.jobs import NOW, a_job


def numbered(job_id: str, seq: int) -> Job:
    job = a_job(job_id)
    job.seq = seq
    return job


def test_a_claim_passes_over_jobs_whose_insert_overtook_an_earlier_one() -> None:
    # Given two pushes under way while nobody works, of which the second is through first
    store = FakeStore()
    context = a_context()
    dispatch = Dispatch(store, context, FakeOutlet(), no_limits(context))  # type: ignore[arg-type]
    first, second = numbered("first", int(NOW * 1e6) + 1), numbered("second", int(NOW * 1e6) + 2)
    earlier = dispatch.supply.expect([first], NOW)
    later = dispatch.supply.expect([second], NOW)
    store.ready.append(second)
    dispatch.supply.arrived(later, [])
    # When a worker comes
    worker = FakeWorker(2, "worker")
    dispatch.attach(worker)
    go_on()
    # Then it gets nothing until the first is there, and then both in order
    assert worker.jobs == []
    store.ready.append(first)
    dispatch.supply.arrived(earlier, [])
    dispatch.supply.some_ready(0)
    go_on()
    assert worker.jobs == ["first", "second"]
