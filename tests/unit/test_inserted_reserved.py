"""Jobs that are inserted reserved: when they are, and that they overtake nobody."""

import pytest

from sluicemq_broker.queue.ledger import IN_ORDER, NOTHING
from support.fakes import Held, go_on
from support.jobs import NOW, a_job, ids, some_jobs
from support.virtual_time import VirtualTime
from unit.dispatch_rig import SMALLEST, DispatchRig


def test_a_job_is_inserted_reserved_for_a_waiting_worker_and_then_goes_out(empty: DispatchRig) -> None:
    [worker] = empty.scheduler.deliveries.workers
    job = a_job("a")
    arrival = empty.admit(job)
    before = list(worker.in_flight)
    empty.arrived(arrival, [job])
    assert (job.owner, job.attempts) == ("owner-1", 1)
    assert before == []
    assert [delivery.job for delivery in worker.in_flight.values()] == [job]


def test_as_many_are_inserted_reserved_as_there_is_room_for_and_the_rest_is_ready(empty: DispatchRig) -> None:
    jobs = some_jobs(1000)
    born = empty.admitted(*jobs)
    assert 1 <= len(born) <= 1 + 2 * SMALLEST
    assert born == ids(jobs[: len(born)])


def test_what_is_on_its_way_takes_up_room(empty: DispatchRig) -> None:
    jobs = [a_job(priority=number) for number in range(250)]
    born = [job for job in jobs if empty.admitted(job)]
    assert len(born) <= 1 + 2 * SMALLEST


def test_without_a_worker_nothing_is_inserted_reserved(rig: DispatchRig) -> None:
    rig.only_ready(-1)
    assert rig.admitted(a_job()) == []


def test_a_job_is_not_inserted_reserved_before_older_ones_that_lie_ready(empty: DispatchRig) -> None:
    empty.only_ready(5)
    assert empty.admitted(
        a_job("lower", priority=4), a_job("same", priority=5), a_job("higher", priority=6)
    ) == ["higher"]


def test_a_job_that_is_not_due_is_not_inserted_reserved(empty: DispatchRig) -> None:
    assert empty.admitted(a_job(eligible_at=NOW + 1)) == []


@pytest.mark.parametrize("reason", ["not sure", "stopping", "no owner", "claiming"])
def test_a_job_is_not_inserted_reserved_if_it_could_not_go_in_order(empty: DispatchRig, reason: str) -> None:
    held = Held()
    empty.owners.sure = reason != "not sure"
    if reason == "stopping":
        empty.scheduler.stopping = True
    if reason == "no owner":
        empty.owners.current = ""
    if reason == "claiming":
        empty.store.before_claim = held
        empty.ready(a_job("old"))
        empty.only_ready(-1)
    assert empty.admitted(a_job()) == []
    held.set()
    go_on()


def test_a_job_is_not_inserted_reserved_past_one_being_stored_ready(empty: DispatchRig) -> None:
    # Given: more than there is room for, so that the last ones go to the store as ready jobs
    first = some_jobs(1000)
    empty.admit(*first)
    # When: a claim finds nothing, since they are not written yet
    empty.only_ready(-1)
    assert empty.admitted(a_job()) == []


@pytest.mark.parametrize("durable", [3, 0])
def test_pushes_that_become_durable_out_of_order_go_out_in_the_order_of_acceptance_or_without_the_first(
    rig: DispatchRig, durable: int
) -> None:
    worker = rig.worker(prefetch=10)
    first, second = some_jobs(3), some_jobs(3)
    earlier, later = rig.admit(*first), rig.admit(*second)
    rig.arrived(later, second)
    assert worker.jobs == []
    rig.arrived(earlier, first[:durable])
    assert worker.jobs == ids(first[:durable] + second)
    assert rig.scheduler.ledger.expected == 0


def test_a_new_job_of_higher_priority_goes_out_before_those_that_are_staged(rig: DispatchRig) -> None:
    worker = rig.worker()
    rig.ready(*some_jobs(5))
    urgent = a_job("urgent", priority=9)
    rig.arrived(rig.admit(urgent), [urgent])
    rig.commit(worker)
    assert worker.jobs[1] == "urgent"


def test_jobs_that_arrive_under_an_owner_lost_meanwhile_are_for_others(empty: DispatchRig) -> None:
    [worker] = empty.scheduler.deliveries.workers
    job = a_job()
    arrival = empty.admit(job)
    empty.owners.lose_all()
    empty.arrived(arrival, [job])
    assert not worker.in_flight
    assert not empty.held


def test_jobs_behind_an_earlier_insert_under_a_lost_owner_are_for_others(rig: DispatchRig) -> None:
    # Given two pushes, of which the second is through first
    worker = rig.worker(prefetch=2)
    first, second = [a_job("first")], [a_job("second")]
    arrivals = [rig.admit(*jobs) for jobs in (first, second)]
    rig.arrived(arrivals[1], second)
    lost = rig.owners.current
    rig.owners.lose_all()
    rig.queue.drop(lost)
    rig.arrived(arrivals[0], first)
    assert not worker.jobs
    assert not rig.held


def test_a_new_job_does_not_overtake_those_that_are_on_their_way_back(slow: DispatchRig) -> None:
    # Given jobs that were staged for a worker that has left
    older = slow.ready(*some_jobs(11))
    first = slow.worker()
    slow.settle(first.deliveries[0].receipt)
    slow.scheduler.ended([first.deliveries[0].job])
    staged = list(slow.scheduler.reservations)
    slow.leave(first)
    # When another comes, and a new job with it
    second = slow.worker()
    newer = slow.admitted(a_job("new"))
    claims = len(slow.store.claims)
    slow.tick()
    # Then nothing goes out before they are ready
    assert (newer, len(slow.store.claims) - claims, second.jobs) == ([], 0, [])
    slow.scheduler.ended(staged)
    slow.store.ready[:0] = staged
    slow.scheduler.ledger.returned(len(staged))
    slow.queue.jobs_ready()
    go_on()
    assert second.jobs == [older[1].id]


def test_a_claim_without_an_answer_holds_up_the_others_for_a_moment_only() -> None:
    # Given one whose answer is held
    time, held = VirtualTime(), Held()
    rig = DispatchRig(time)
    rig.store.after_claim = held
    first = rig.ready(*some_jobs(3))
    worker = rig.worker(prefetch=20)
    rig.store.after_claim = lambda: None
    rig.store.ready.append(a_job("ready"))
    rig.tick()
    assert (worker.jobs, rig.admitted(a_job("too early"))) == ([], [])
    # When it is waited for no longer
    time.passes(IN_ORDER)
    rig.tick()
    # Then other jobs go out, and those that it has taken when it is answered
    assert (worker.jobs, rig.admitted(a_job("new"))) == (["ready"], ["new"])
    rig.tick()
    held.set()
    go_on()
    assert worker.jobs == ["ready", *ids(first)]
    assert rig.queue.stop_granting(5.0)


def test_nobody_waits_for_long_for_jobs_whose_way_back_has_no_answer() -> None:
    time = VirtualTime()
    slow = DispatchRig(time, slow=True)
    slow.scheduler.ledger.returning(11, time.now())
    slow.worker()
    early = slow.admitted(a_job("early"))
    time.passes(IN_ORDER)
    slow.scheduler.ledger.returning(1, time.now())  # which is behind them
    slow.only_ready(NOTHING)
    assert (early, slow.admitted(a_job("late"))) == ([], ["late"])
