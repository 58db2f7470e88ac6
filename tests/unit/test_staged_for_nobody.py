"""What is held for workers that left, are slow or do not read goes back."""

from collections.abc import Sequence

import pytest

from sluicemq_broker.queue import Delivery
from support.fakes import FakeWorker, Held, go_on
from support.jobs import a_job, some_jobs
from unit.dispatch_rig import SMALLEST, DispatchRig, isolated


def test_when_the_last_worker_leaves_what_was_staged_for_it_goes_back(rig: DispatchRig) -> None:
    # Given more jobs than the worker takes
    jobs = rig.ready(*some_jobs(10))
    worker = rig.worker()
    assert len(rig.held) > 1
    # When it leaves
    left = rig.leave(worker)
    # Then all but the one that it had are ready again, and nothing is held for nobody
    assert len(left) == 1
    assert len(rig.store.ready) == len(jobs) - 1
    assert list(rig.scheduler.reservations) == [left[0].job]


def test_what_a_slow_worker_won_t_come_to_within_a_second_goes_back(rig: DispatchRig) -> None:
    # Given a worker that is known to be slow, and jobs staged while it was not
    rig.ready(*some_jobs(10))
    worker = rig.worker()
    # When it has ended none by the next tick
    rig.tick()
    # Then only the one it has is held
    assert len(rig.held) == len(worker.in_flight) == 1


def test_what_was_staged_for_workers_whose_pace_is_not_known_any_more_goes_back(rig: DispatchRig) -> None:
    # Given a worker that pops: its socket took some in no time, looked fast, and takes no more
    worker = FakeWorker(prefetch=10)
    worker.pops = True
    rig.store.before_commit = held = Held()
    rig.attach(worker)
    rig.stage(*some_jobs(1000))
    assert len(rig.scheduler.staging) == 990
    # When it has ended none for as long as its pace was taken from
    rig.tick()
    rig.tick()
    # Then others can have the rest
    assert len(rig.scheduler.staging) == SMALLEST
    held.set()


def test_a_worker_whose_time_was_up_gets_nothing_more_until_it_answers(rig: DispatchRig) -> None:
    # Given a job whose visibility timeout passes
    rig.ready(a_job("slow", visibility_timeout=0.0), a_job("next"))
    worker = rig.worker()
    [late] = rig.time_out()
    go_on()
    # Then its worker may be at it still, and gets nothing
    assert worker.jobs == ["slow"]
    # When its answer comes after all
    assert rig.settle(late.receipt) is None
    go_on()
    # Then it gets the next
    assert worker.jobs == ["slow", "next"]


def test_a_worker_that_never_answers_is_hung_up_on(rig: DispatchRig) -> None:
    rig.ready(a_job("slow", visibility_timeout=0.0, max_attempts=1))
    worker = rig.worker()
    rig.look_twice()
    rig.tick()
    assert worker.hung_up
    assert rig.counters.values["workers_hung_up"] == 1


def test_nothing_is_claimed_again_and_again_for_a_slow_worker_that_is_busy(rig: DispatchRig) -> None:
    # Given a slow worker with a job, and others behind it
    rig.ready(*some_jobs(10))
    rig.worker()
    rig.tick()
    claims = len(rig.store.claims)
    # When it is told that some lie ready, as after every giving back
    rig.queue.jobs_ready()
    go_on()
    # Then they are left where they are
    assert len(rig.store.claims) == claims


def test_workers_that_ask_for_much_get_several_jobs_a_message_each(rig: DispatchRig) -> None:
    # Given: fewer jobs than workers, all of them free
    workers = [rig.worker(prefetch=64, name=str(number)) for number in range(20)]
    rig.ready(*some_jobs(16))
    assert sorted(len(message) for worker in workers for message in worker.messages) == [8, 8]


def test_workers_that_ask_for_little_share_evenly(rig: DispatchRig) -> None:
    workers = [rig.worker(prefetch=4, name=str(number)) for number in range(8)]
    rig.ready(*some_jobs(16))
    assert {len(worker.jobs) for worker in workers} <= {1, 2, 3}


def test_a_worker_that_has_gone_is_not_kept(rig: DispatchRig) -> None:
    for number in range(100):
        worker = rig.worker(name=str(number))
        rig.leave(worker)
    assert len(rig.scheduler.hand_out.takers) == 0


def test_an_isolated_job_does_not_wait_for_a_worker_that_only_owes_an_answer(rig: DispatchRig) -> None:
    # Given: one worker is stuck with a job whose time is over, another is always busy
    stuck = rig.worker(prefetch=1, name="stuck")
    rig.ready(a_job("late", visibility_timeout=0.0))
    rig.time_out()
    busy = rig.worker(prefetch=5, name="busy")
    rig.ready(*some_jobs(20))
    isolated = a_job("suspect", priority=9)
    isolated.isolated = True
    rig.ready(isolated)
    # Then it gets the isolated job once it has run empty
    for _ in range(10):
        rig.commit(busy)
    assert stuck.overdue
    assert "suspect" in [delivery.job.id for delivery in busy.deliveries]


@pytest.mark.parametrize("how", ["overdue", "lost"])
def test_a_worker_past_its_time_with_an_isolated_job_gets_more(rig: DispatchRig, how: str) -> None:
    rig.ready(isolated("bad", visibility_timeout=0.0))
    worker = rig.worker(prefetch=3)
    assert worker.jobs == ["bad"]
    if how == "overdue":
        rig.time_out()
    else:
        lost = rig.owners.current
        rig.owners.lose_all()
        rig.queue.drop(lost)
    rig.ready(a_job("next"))
    assert worker.jobs == ["bad", "next"]


def test_nothing_is_held_beside_an_isolated_job_for_the_worker_that_has_it(rig: DispatchRig) -> None:
    rig.ready(isolated("bad", priority=9))
    worker = rig.worker(prefetch=500)
    rig.ready(*some_jobs(500))
    rig.tick()
    assert worker.jobs == ["bad"]
    assert len(rig.held) <= 1 + SMALLEST


class Deaf(FakeWorker):
    """Takes one message, and then its connection is full."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        super().deliver(deliveries)
        self.reads = False


def test_nothing_is_held_for_a_worker_that_does_not_read(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(600))
    deaf = Deaf(prefetch=200)
    # When it takes one message, and no more
    rig.attach(deaf)
    rig.tick()
    # Then it has that, and others can have the rest
    assert len(deaf.messages) == 1
    assert len(rig.held) == len(deaf.jobs) < 600
    assert not rig.granting


def test_nothing_is_held_for_a_worker_whose_connection_something_else_has_filled(rig: DispatchRig) -> None:
    deaf = Deaf(prefetch=200)
    rig.attach(deaf)
    rig.queue.stalled(deaf)
    rig.ready(*some_jobs(600))
    rig.tick()
    assert not deaf.jobs
    assert not rig.held


def test_a_worker_that_reads_again_gets_more(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(600))
    deaf = Deaf(prefetch=600)
    rig.attach(deaf)
    rig.queue.offer(deaf, reads=True)
    go_on()
    assert len(deaf.messages) == 2
    assert len(set(deaf.jobs)) == len(deaf.jobs)
