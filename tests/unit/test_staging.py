"""The order in which staged jobs go out, also when a later insert is through first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.job import Job
from sluicemq_broker.queue.staging import Staging
from sluicemq_broker.runtime import Budget
from sluicemq_broker.store import StagedByPriority
from support.fakes import go_on
from support.jobs import NOW, a_job, ids
from unit.dispatch_rig import DispatchRig, isolated


@pytest.fixture
def staging() -> Staging:
    return Staging(Budget(1 << 30), StagedByPriority())


def test_higher_priority_goes_first_and_inside_one_who_came_first(staging: Staging) -> None:
    staging.add([a_job("a"), a_job("b", priority=5), a_job("c")])
    staging.add([a_job("d", priority=9), a_job("e", priority=5)])
    assert ids(staging.take(10)) == ["d", "b", "e", "a", "c"]
    assert len(staging) == 0


def test_no_more_are_taken_than_asked_for(staging: Staging) -> None:
    staging.add([a_job("a"), a_job("b", priority=1), a_job("c")])
    assert ids(staging.take(2)) == ["b", "a"]
    assert len(staging) == 1
    assert ids(staging.take(2)) == ["c"]
    assert staging.take(2) == []


def test_no_more_bytes_are_taken_than_asked_for_but_one_job_at_least(staging: Staging) -> None:
    staging.add([a_job(name, size=10) for name in "abcd"])
    assert [ids(staging.take(9, most_bytes)) for most_bytes in (1, 20, 99)] == [["a"], ["b", "c"], ["d"]]


def test_what_is_held_is_measured_with_the_headers(staging: Staging) -> None:
    jobs = [a_job(payload=b"12", size=size) for size in (10, 20, 30)]
    jobs[0].isolated = True
    staging.add(jobs)
    sizes = [staging.bytes]
    staging.take_isolated()
    sizes.append(staging.bytes)
    staging.take(1)
    sizes.append(staging.bytes)
    staging.clear()
    assert [*sizes, staging.bytes] == [60, 50, 30, 0]


def test_a_priority_that_ran_empty_can_come_again(staging: Staging) -> None:
    staging.add([a_job("a", priority=1)])
    staging.take(1)
    staging.add([a_job("b", priority=0), a_job("c", priority=1)])
    assert ids(staging.take(2)) == ["c", "b"]


def test_isolated_jobs_stand_apart(staging: Staging) -> None:
    staging.add([isolated("bad"), a_job("good")])
    assert len(staging) == 1
    assert ids(staging.take(5)) == ["good"]
    assert ids(list(staging.isolated)) == ["bad"]


def test_all_can_be_taken_out_isolated_ones_too(staging: Staging) -> None:
    staging.add([a_job("a"), isolated("bad"), a_job("b", priority=1)])
    assert sorted(ids(staging.clear())) == ["a", "b", "bad"]
    assert (len(staging), len(staging.isolated)) == (0, 0)


def test_what_is_held_under_one_owner_is_dropped_and_the_rest_keeps_its_order(staging: Staging) -> None:
    staging.add(
        [
            a_job("a", owner="old"),
            a_job("b", owner="new"),
            a_job("c", owner="new", priority=1),
            isolated("d", owner="old"),
            isolated("e", owner="new"),
        ]
    )
    dropped = staging.drop("old")
    assert sorted(ids(dropped)) == ["a", "d"]
    assert ids(list(staging.isolated)) == ["e"]
    assert len(staging) == 2
    assert ids(staging.take(9)) == ["c", "b"]


@given(st.lists(st.one_of(st.lists(st.integers(0, 3), max_size=5), st.integers(1, 4))))
def test_jobs_leave_as_a_stable_sort_by_priority_would_have_it(steps: list[list[int] | int]) -> None:
    staging, model = Staging(Budget(1 << 30), StagedByPriority()), list[Job]()
    for step in steps:
        if isinstance(step, list):
            jobs = [a_job(priority=priority) for priority in step]
            staging.add(jobs)
            model = sorted([*model, *jobs], key=lambda job: -job.priority)
        else:
            taken = staging.take(step)
            assert ids(taken) == ids(model[:step])
            model = model[step:]
        assert len(staging) == len(model)


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
