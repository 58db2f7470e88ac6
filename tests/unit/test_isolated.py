"""Jobs that may have killed their worker, and deliveries whose time or owner is gone."""

import pytest

from support.jobs import a_job, ids, some_jobs
from unit.dispatch_rig import DispatchRig, isolated


def test_an_isolated_job_goes_to_an_idle_worker_alone_and_nothing_is_put_beside_it(rig: DispatchRig) -> None:
    worker = rig.worker(prefetch=10)
    rig.ready(isolated("bad"), isolated("bad 2"), *some_jobs(5))
    beside = worker.jobs
    rig.commit(worker)
    then = worker.jobs
    rig.commit(worker)
    assert beside == ["bad"]
    assert then == ["bad", "bad 2"]
    assert len(worker.jobs) == 7


def test_other_workers_go_on_while_one_has_an_isolated_job(rig: DispatchRig) -> None:
    workers = [rig.worker(prefetch=5) for _ in range(2)]
    rig.ready(isolated("bad"), *some_jobs(4))
    assert sorted(len(worker.jobs) for worker in workers) == [1, 4]
    assert ["bad"] in [worker.jobs for worker in workers]


def test_when_all_workers_are_busy_one_is_let_run_empty_for_an_isolated_job(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(100))
    one, other = rig.worker(prefetch=4), rig.worker(prefetch=4)
    rig.ready(isolated("bad"))
    while "bad" not in rig.held:
        rig.commit(other, next(iter(other.in_flight)))
    chosen = one if one.alone else other
    while chosen.in_flight and "bad" not in chosen.jobs:
        rig.commit(chosen, next(iter(chosen.in_flight)))
    assert [delivery.job.id for delivery in chosen.in_flight.values()] == ["bad"]
    assert (one.alone, other.alone).count(True) == 1


def test_an_isolated_job_does_not_wait_for_a_worker_that_takes_nothing(rig: DispatchRig) -> None:
    resting = [rig.worker(prefetch=0) for _ in range(8)]
    busy = rig.worker(prefetch=2)
    rig.ready(*some_jobs(200))
    rig.store.ready.append(isolated("bad", priority=9))
    for _ in range(150):
        if "bad" not in busy.jobs:
            rig.commit(busy, next(iter(busy.in_flight)))
    assert [delivery.job.id for delivery in busy.in_flight.values()] == ["bad"]
    assert not any(worker.jobs for worker in resting)


def test_an_overdue_delivery_ends(rig: DispatchRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.ready(a_job("a", visibility_timeout=10.0), a_job("b"))
    worker = rig.worker()
    receipt = worker.deliveries[0].receipt
    early = rig.time_out()
    worker.deliveries[0].overdue_at -= 10.1
    late = rig.time_out()
    assert early == []
    assert ids([delivery.job for delivery in late]) == ["a"]
    assert rig.settle(receipt) is None
    assert worker.jobs == ["a", "b"]


def test_a_delivery_is_given_more_time_by_the_worker_that_has_it_only(rig: DispatchRig) -> None:
    rig.ready(a_job("a"))
    worker, other = rig.worker(), rig.worker()
    [delivery] = worker.deliveries or other.deliveries
    holder, stranger = (worker, other) if worker.jobs else (other, worker)
    delivery.overdue_at = 0.0
    by_stranger = rig.queue.settling.extend(delivery.receipt, stranger, 60.0)
    by_holder = rig.queue.settling.extend(delivery.receipt, holder, 60.0)
    assert (by_stranger, by_holder) == (False, True)
    assert rig.time_out() == []
    rig.commit(holder)
    assert not rig.queue.settling.extend(delivery.receipt, holder, 60.0)


def test_what_was_held_under_a_lost_owner_goes_and_workers_get_others(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(5))
    worker = rig.worker()
    receipt = worker.deliveries[0].receipt
    lost = rig.owners.current
    rig.owners.lose_all()
    rig.queue.drop(lost)
    held = list(rig.scheduler.reservations)
    rig.ready(a_job("next"))
    assert not held
    assert rig.settle(receipt) is None
    assert worker.jobs[1:] == ["next"]


def test_forgetting_a_job_leaves_the_one_that_was_claimed_anew(rig: DispatchRig) -> None:
    rig.ready(a_job("a"))
    rig.worker()
    rig.scheduler.ended([a_job("a")])
    assert ids(list(rig.scheduler.reservations)) == ["a"]
