"""Jobs go out in the order in which they were accepted, also when a later insert is through first."""

from __future__ import annotations

from sluicemq_broker.job import Job
from support.fakes import go_on
from support.jobs import NOW, a_job
from unit.dispatch_rig import DispatchRig


def numbered(job_id: str, seq: int) -> Job:
    job = a_job(job_id)
    job.seq = seq
    return job


def test_a_claim_passes_over_jobs_whose_insert_overtook_an_earlier_one() -> None:
    # Given two pushes under way while nobody works, of which the second is through first
    rig = DispatchRig()
    first, second = numbered("first", int(NOW * 1e6) + 1), numbered("second", int(NOW * 1e6) + 2)
    earlier = rig.admit(first)
    later = rig.admit(second)
    rig.store.ready.append(second)
    rig.arrived(later, [])
    # When a worker comes
    worker = rig.worker(2)
    # Then it gets nothing until the first is there, and then both in order
    assert worker.jobs == []
    rig.store.ready.append(first)
    rig.arrived(earlier, [])
    rig.queue.jobs_ready(priority=0)
    go_on()
    assert worker.jobs == ["first", "second"]
