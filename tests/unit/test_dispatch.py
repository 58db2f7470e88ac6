"""Who gets which job: supply, demand, order, suspects, owners lost; over a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fakes import Clock, FakeOutlet, FakeOwners, FakeStore, FakeWorker, Held, a_context, go_on, no_limits
from jobs import NOW, a_job, ids, some_jobs
from launcher import wait_until
from sluicemq_broker.job.job import Job
from sluicemq_broker.queue import pace as pace_module
from sluicemq_broker.queue.dispatch import MESSAGE, MESSAGE_BYTES, Dispatch
from sluicemq_broker.queue.ledger import IN_ORDER, NOTHING
from sluicemq_broker.queue.worker import Delivery
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.runtime.timer import Timer
from sluicemq_broker.store.connection import Unclear
from virtual_time import VirtualTime

SMALLEST = pace_module.UNKNOWN


class Rig(FakeOutlet):
    """A dispatcher with the fakes around it; what is released is ready again at once."""

    def __init__(self, timer: Timer | None = None, *, slow: bool = False) -> None:
        """``slow``: what is released stays on its way."""
        super().__init__()
        self.store = FakeStore()
        self.owners = FakeOwners()
        self.clock = Clock()
        self.counters = Counters()
        context = a_context(self.owners, clock=self.clock, counters=self.counters, timer=timer)
        self.dispatch = Dispatch(self.store, context, self, no_limits(context))  # type: ignore[arg-type]
        self._slow = slow

    def release(self, jobs: list[Job]) -> None:
        super().release(jobs)
        if self._slow:
            self.dispatch.supply.going_back(len(jobs))
        else:
            self.dispatch.forget(jobs)
            self.store.ready.extend(jobs)

    def ready(self, *jobs: Job) -> list[Job]:
        """Jobs that lie ready in the store, and the dispatcher has heard of them."""
        self.store.ready.extend(jobs)
        self.dispatch.supply.some_ready(max(job.priority for job in jobs))
        go_on()
        return list(jobs)

    def worker(self, prefetch: int = 1, name: str = "worker") -> FakeWorker:
        worker = FakeWorker(prefetch, name)
        self.dispatch.attach(worker)
        go_on()
        return worker

    def commit(self, worker: FakeWorker, *receipts: bytes) -> None:
        """The worker settles these, or all it has."""
        for receipt in receipts or list(worker.in_flight):
            delivery = self.dispatch.settle(receipt)
            assert delivery
            self.dispatch.forget([delivery.job])
        self.dispatch.offer(worker)
        go_on()

    def born(self, *jobs: Job) -> list[str]:
        """Which of a push's jobs are born reserved."""
        self.dispatch.supply.expect(jobs, NOW)
        return [job.id for job in jobs if job.owner]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def empty(rig: Rig) -> Rig:
    """A dispatcher with one worker that knows that nothing lies ready."""
    rig.worker()
    return rig


# ------------------------------------------------------------------------ claims


def test_without_workers_nothing_is_claimed(rig: Rig) -> None:
    rig.ready(*some_jobs(10))
    rig.dispatch.tick()
    go_on()
    assert rig.store.claims == []


def test_a_worker_gets_the_jobs_that_lie_ready_one_after_another_in_order(rig: Rig) -> None:
    # Given
    rig.ready(a_job("low"), a_job("high", priority=9), a_job("low 2"))
    worker = rig.worker()
    # When
    for _ in range(3):
        rig.commit(worker)
    # Then
    assert worker.jobs == ["high", "low", "low 2"]
    assert not rig.dispatch.held


def test_a_worker_never_has_more_unsettled_jobs_than_its_prefetch(rig: Rig) -> None:
    rig.ready(*some_jobs(20))
    worker = rig.worker(prefetch=3)
    assert len(worker.jobs) == 3
    rig.commit(worker, worker.deliveries[0].receipt)
    assert len(worker.in_flight) == 3
    assert len(worker.jobs) == 4


def test_jobs_are_spread_over_the_workers_that_are_free(rig: Rig) -> None:
    workers = [rig.worker(prefetch=100) for _ in range(4)]
    rig.ready(*some_jobs(40))
    assert sum(len(worker.jobs) for worker in workers) == 40
    assert all(4 <= len(worker.jobs) <= 20 for worker in workers)


def test_one_message_holds_so_many_jobs_at_most(rig: Rig) -> None:
    rig.ready(*some_jobs(MESSAGE * 2))
    worker = rig.worker(prefetch=MESSAGE * 2)
    assert len(worker.jobs) == MESSAGE * 2
    assert max(map(len, worker.messages)) == MESSAGE


def test_few_jobs_are_held_for_a_slow_worker_however_many_lie_ready(rig: Rig) -> None:
    rig.ready(*some_jobs(10_000))
    rig.worker()
    rig.dispatch.tick()
    go_on()
    assert len(rig.dispatch.held) <= 1 + 2 * SMALLEST


def test_what_is_held_grows_with_the_pace_of_the_workers_and_shrinks_with_it(rig: Rig) -> None:
    # Given
    rig.ready(*some_jobs(5_000))
    worker = rig.worker(prefetch=100)
    # When they end 10,000 jobs a second
    rig.dispatch.pace.appetite = 2_500
    rig.commit(worker)
    fast = len(rig.dispatch.held) - len(worker.in_flight)
    # Then a quarter of that is held for them
    assert 1_000 < fast <= 2_500
    # And when they end none any more, and what was held is gone
    rig.dispatch.forget(rig.dispatch.withdraw())
    rig.dispatch.tick()
    rig.dispatch.supply.some_ready()
    go_on()
    assert len(rig.dispatch.held) - len(worker.in_flight) <= 2 * SMALLEST


def test_a_queue_found_empty_is_not_asked_again_until_something_may_be_there(empty: Rig) -> None:
    asked = len(empty.store.claims)
    empty.dispatch.hand_out()
    go_on()
    assert len(empty.store.claims) == asked
    empty.dispatch.supply.some_ready(0)
    go_on()
    assert len(empty.store.claims) == asked + 1


def test_a_tick_finds_what_other_brokers_have_pushed(empty: Rig) -> None:
    empty.store.ready.append(a_job("theirs"))
    empty.dispatch.tick()
    go_on()
    [worker] = empty.dispatch.deliveries.workers
    assert ids([each.job for each in worker.in_flight.values()]) == ["theirs"]


def test_a_delayed_job_is_claimed_when_it_is_due_without_waiting_for_the_tick(empty: Rig) -> None:
    # Given
    job = a_job("a", eligible_at=NOW + 0.05)
    empty.store.ready.append(job)
    # When
    empty.dispatch.supply.due_later([job.eligible_at, job.eligible_at])
    empty.clock.time = NOW + 1
    asked = len(empty.store.claims)
    # Then
    wait_for(lambda: "a" in empty.dispatch.held)
    assert len(empty.store.claims) == asked + 1


def wait_for(condition: Callable[[], bool]) -> None:
    wait_until(lambda: go_on() or condition())


@pytest.mark.parametrize("applied", [False, True], ids=["that was not applied", "that was applied"])
def test_after_a_claim_without_an_answer_what_it_has_reserved_is_handed_out(
    rig: Rig, *, applied: bool
) -> None:
    # Given
    faults = [Unclear("cut")]

    def cut() -> None:
        if faults:
            raise faults.pop()

    if applied:
        rig.store.after_claim = cut
    else:
        rig.store.before_claim = cut
    rig.store.ready.append(a_job("a"))
    # When
    worker = rig.worker()
    wait_for(lambda: bool(worker.jobs))
    # Then
    assert worker.jobs == ["a"]
    assert (worker.deliveries[0].job.owner, worker.deliveries[0].job.attempts) == ("owner-1", 1)


def test_a_claim_without_an_answer_is_known_until_it_is_read_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    known: list[bool] = []
    claimed = rig.store.claimed

    def cut() -> None:
        raise Unclear("cut")

    def read_back(owner: str, hold: int) -> list[Job]:
        known.append(rig.dispatch.held.knows("a", hold))
        return claimed(owner, hold)

    rig.store.after_claim = cut
    monkeypatch.setattr(rig.store, "claimed", read_back)
    rig.store.ready.append(a_job("a"))
    # When
    worker = rig.worker()
    wait_for(lambda: bool(worker.jobs))
    rig.store.after_claim = lambda: None
    # Then the audit does not take it for an orphan meanwhile
    assert known[0]
    assert rig.dispatch.supply.at_rest(5.0)


def test_what_was_claimed_under_an_owner_that_is_dead_by_now_is_left_to_others(rig: Rig) -> None:
    rig.store.before_claim = rig.owners.lose_all
    rig.store.ready.append(a_job("a"))
    worker = rig.worker()
    assert worker.jobs == []
    assert not rig.dispatch.held


def test_nothing_is_claimed_or_handed_out_while_the_lease_is_not_sure(rig: Rig) -> None:
    # Given
    rig.owners.sure = False
    worker = rig.worker()
    rig.ready(a_job("a"))
    unsure = (list(rig.store.claims), list(worker.jobs))
    # When
    rig.owners.sure = True
    rig.dispatch.hand_out()
    go_on()
    # Then
    assert unsure == ([], [])
    assert worker.jobs == ["a"]


# ----------------------------------------------------------------- born reserved


def test_a_job_is_born_reserved_when_a_worker_waits_and_goes_out_when_it_is_durable(
    empty: Rig,
) -> None:
    # Given
    [worker] = empty.dispatch.deliveries.workers
    job = a_job("a")
    # When
    arrival = empty.dispatch.supply.expect([job], NOW)
    before = list(worker.in_flight)
    empty.dispatch.supply.arrived(arrival, [job])
    # Then
    assert (job.owner, job.attempts) == ("owner-1", 1)
    assert before == []
    assert [each.job for each in worker.in_flight.values()] == [job]


def test_as_many_are_born_reserved_as_there_is_room_for_and_the_rest_is_ready(empty: Rig) -> None:
    jobs = some_jobs(1000)
    born = empty.born(*jobs)
    assert 1 <= len(born) <= 1 + 2 * SMALLEST
    assert born == ids(jobs[: len(born)])


def test_what_is_on_its_way_takes_up_room(empty: Rig) -> None:
    # Given
    jobs = [a_job(priority=each) for each in range(250)]
    # When
    born = [job for job in jobs if empty.born(job)]
    # Then
    assert len(born) <= 1 + 2 * SMALLEST


def test_without_a_worker_nothing_is_born_reserved(rig: Rig) -> None:
    rig.dispatch.supply._ledger._ready = -1
    assert rig.born(a_job()) == []


def test_a_job_is_not_born_reserved_before_older_ones_that_lie_ready(empty: Rig) -> None:
    empty.dispatch.supply._ledger._ready = 5
    assert empty.born(a_job("lower", priority=4), a_job("same", priority=5), a_job("higher", priority=6)) == [
        "higher"
    ]


def test_a_job_that_is_not_due_is_not_born_reserved(empty: Rig) -> None:
    assert empty.born(a_job(eligible_at=NOW + 1)) == []


@pytest.mark.parametrize("reason", ["not sure", "stopping", "no owner", "claiming"])
def test_a_job_is_not_born_reserved_when_it_could_not_be_handed_out_in_order(empty: Rig, reason: str) -> None:
    held = Held()
    empty.owners.sure = reason != "not sure"
    empty.dispatch.gate.stopping = reason == "stopping"
    if reason == "no owner":
        empty.owners.current = ""
    if reason == "claiming":
        empty.store.before_claim = held
        empty.ready(a_job("old"))
        empty.dispatch.supply._ledger._ready = -1
    assert empty.born(a_job()) == []
    held.set()
    go_on()


def test_a_job_is_not_born_reserved_past_one_that_is_still_being_written_as_ready(empty: Rig) -> None:
    # Given: more than there is room for, so that the last ones go to the store as ready jobs
    first = some_jobs(1000)
    empty.dispatch.supply.expect(first, NOW)
    # When: a claim finds nothing, since they are not written yet
    empty.dispatch.supply._ledger._ready = -1
    # Then
    assert empty.born(a_job()) == []


def test_pushes_that_become_durable_out_of_order_go_out_in_the_order_of_acceptance(rig: Rig) -> None:
    # Given
    worker = rig.worker(prefetch=10)
    first, second = some_jobs(3), some_jobs(3)
    earlier, later = rig.dispatch.supply.expect(first, NOW), rig.dispatch.supply.expect(second, NOW)
    # When
    rig.dispatch.supply.arrived(later, second)
    early = list(worker.jobs)
    rig.dispatch.supply.arrived(earlier, first)
    # Then
    assert early == []
    assert worker.jobs == ids(first + second)


def test_a_push_that_failed_does_not_hold_up_the_next(rig: Rig) -> None:
    worker = rig.worker(prefetch=10)
    first, second = some_jobs(3), some_jobs(3)
    earlier, later = rig.dispatch.supply.expect(first, NOW), rig.dispatch.supply.expect(second, NOW)
    rig.dispatch.supply.arrived(later, second)
    rig.dispatch.supply.arrived(earlier, [])
    assert worker.jobs == ids(second)
    assert rig.dispatch.supply._ledger.expected == 0


def test_a_new_job_of_higher_priority_goes_out_before_those_that_are_staged(rig: Rig) -> None:
    # Given
    worker = rig.worker()
    rig.ready(*some_jobs(5))
    # When
    urgent = a_job("urgent", priority=9)
    rig.dispatch.supply.arrived(rig.dispatch.supply.expect([urgent], NOW), [urgent])
    rig.commit(worker)
    # Then
    assert worker.jobs[1] == "urgent"


def test_jobs_that_arrive_under_an_owner_that_was_lost_meanwhile_are_left_to_others(
    empty: Rig,
) -> None:
    [worker] = empty.dispatch.deliveries.workers
    job = a_job()
    arrival = empty.dispatch.supply.expect([job], NOW)
    empty.owners.lose_all()
    empty.dispatch.supply.arrived(arrival, [job])
    assert not worker.in_flight
    assert not empty.dispatch.held


def test_jobs_that_wait_for_an_earlier_insert_under_an_owner_that_is_lost_are_left_to_others(
    rig: Rig,
) -> None:
    # Given two pushes, of which the second is through first
    worker = rig.worker(prefetch=2)
    first, second = [a_job("first")], [a_job("second")]
    arrivals = [rig.dispatch.supply.expect(jobs, NOW) for jobs in (first, second)]
    rig.dispatch.supply.arrived(arrivals[1], second)
    # When
    lost = rig.owners.current
    rig.owners.lose_all()
    rig.dispatch.drop(lost)
    rig.dispatch.supply.arrived(arrivals[0], first)
    # Then
    assert not worker.jobs
    assert not rig.dispatch.held


# ---------------------------------------------------------------------- workers


def test_a_worker_that_has_answered_before_comes_first(rig: Rig) -> None:
    # Given
    new, proven = rig.worker(name="new"), rig.worker(name="proven")
    proven.proven = True
    rig.dispatch._takers.remove(proven)
    rig.dispatch.offer(proven)
    # When
    rig.ready(a_job("a"))
    # Then
    assert (new.jobs, proven.jobs) == ([], ["a"])


def test_workers_that_have_all_answered_take_turns(rig: Rig) -> None:
    workers = [rig.worker() for _ in range(3)]
    rig.ready(*some_jobs(9))
    for _ in range(2):
        for worker in workers:
            rig.commit(worker)
    assert [len(worker.jobs) for worker in workers] == [3, 3, 3]


def test_a_worker_that_leaves_returns_what_it_had_and_its_receipts_are_void(rig: Rig) -> None:
    # Given
    jobs = rig.ready(*some_jobs(2))
    worker = rig.worker(prefetch=2)
    receipts = list(worker.in_flight)
    # When
    left = rig.dispatch.detach(worker)
    # Then
    assert ids([delivery.job for delivery in left]) == ids(jobs)
    assert [rig.dispatch.settle(receipt) for receipt in receipts] == [None, None]
    assert rig.dispatch.detach(worker) == []
    rig.ready(a_job("next"))
    assert len(worker.jobs) == 2


def test_a_worker_may_change_how_much_it_takes(rig: Rig) -> None:
    # Given
    rig.ready(*some_jobs(10))
    worker = rig.worker(prefetch=1)
    # When
    rig.dispatch.resize(worker, 4)
    go_on()
    more = len(worker.in_flight)
    rig.dispatch.resize(worker, 0)
    rig.commit(worker)
    # Then
    assert more == 4
    assert len(worker.jobs) == 4


@pytest.mark.parametrize("ends", ["settles", "leaves", "is late"])
def test_what_a_worker_has_that_takes_no_more_leaves_the_room_of_the_others_as_it_is(
    ends: str,
) -> None:
    time = VirtualTime()
    rig = Rig(time)
    # Given a slow worker with three jobs that stops: it takes no more, and is still at work on them
    rig.ready(*some_jobs(3, visibility_timeout=5.0))
    stopping = rig.worker(prefetch=3)
    for credit in (0, 3, 0):  # it changes its mind twice
        rig.dispatch.resize(stopping, credit)
    rig.dispatch.tick()
    assert rig.dispatch.pace.appetite == 0
    # When one that is free comes, then it gets jobs
    other = rig.worker(prefetch=2)
    rig.ready(*some_jobs(9))
    assert (len(other.in_flight), rig.dispatch.staged) == (2, 0)
    # And when the first one is through, in whatever way, nobody has more room than before
    if ends == "settles":
        rig.commit(stopping)
    elif ends == "leaves":
        rig.dispatch.detach(stopping)
    else:
        time.passes(6)
        assert len(rig.dispatch.time_out()) == 3
    go_on()
    assert rig.dispatch.staged + rig.dispatch.room <= rig.dispatch.pace.appetite


def test_receipts_are_never_the_same(rig: Rig) -> None:
    rig.ready(*some_jobs(50))
    worker = rig.worker(prefetch=50)
    assert len({delivery.receipt for delivery in worker.deliveries}) == 50


def test_jobs_of_a_worker_that_does_not_acknowledge_are_handed_to_their_removal(rig: Rig) -> None:
    # Given
    worker = FakeWorker(prefetch=2)
    worker.pops = True
    jobs = rig.ready(*some_jobs(2))
    # When
    rig.dispatch.attach(worker)
    go_on()
    # Then
    assert worker.jobs == []
    assert rig.dispatch.deliveries.in_flight == {}
    assert ids([each.job for _, deliveries in rig.popped for each in deliveries]) == ids(jobs)


# ------------------------------------------------------------------------ suspects


def suspect(job_id: str, **settings: Any) -> Job:
    job = a_job(job_id, **settings)
    job.suspect = True
    return job


def test_a_suspect_goes_to_an_idle_worker_alone_and_nothing_is_put_beside_it(rig: Rig) -> None:
    # Given
    worker = rig.worker(prefetch=10)
    rig.ready(suspect("bad"), suspect("bad 2"), *some_jobs(5))
    # When
    beside = worker.jobs
    rig.commit(worker)
    then = worker.jobs
    rig.commit(worker)
    # Then
    assert beside == ["bad"]
    assert then == ["bad", "bad 2"]
    assert len(worker.jobs) == 7


def test_other_workers_go_on_while_one_has_a_suspect(rig: Rig) -> None:
    workers = [rig.worker(prefetch=5) for _ in range(2)]
    rig.ready(suspect("bad"), *some_jobs(4))
    assert sorted(len(worker.jobs) for worker in workers) == [1, 4]
    assert ["bad"] in [worker.jobs for worker in workers]


def test_when_all_workers_are_busy_one_is_let_run_empty_for_a_suspect(rig: Rig) -> None:
    # Given
    rig.ready(*some_jobs(100))
    one, other = rig.worker(prefetch=4), rig.worker(prefetch=4)
    rig.ready(suspect("bad"))
    while "bad" not in rig.dispatch.held:
        rig.commit(other, next(iter(other.in_flight)))
    chosen = one if one.alone else other
    # When
    while chosen.in_flight and "bad" not in chosen.jobs:
        rig.commit(chosen, next(iter(chosen.in_flight)))
    # Then
    assert [each.job.id for each in chosen.in_flight.values()] == ["bad"]
    assert (one.alone, other.alone).count(True) == 1


def test_a_suspect_does_not_wait_for_a_worker_that_takes_nothing(rig: Rig) -> None:
    # Given
    resting = [rig.worker(prefetch=0) for _ in range(8)]
    busy = rig.worker(prefetch=2)
    rig.ready(*some_jobs(200))
    rig.store.ready.append(suspect("bad", priority=9))
    # When
    for _ in range(150):
        if "bad" not in busy.jobs:
            rig.commit(busy, next(iter(busy.in_flight)))
    # Then
    assert [each.job.id for each in busy.in_flight.values()] == ["bad"]
    assert not any(worker.jobs for worker in resting)


# -------------------------------------------------------- time-outs, lost owners


def test_an_overdue_delivery_is_ended_its_receipt_void_and_its_worker_free(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    rig.ready(a_job("a", visibility_timeout=10.0), a_job("b"))
    worker = rig.worker()
    receipt = worker.deliveries[0].receipt
    early = rig.dispatch.time_out()
    # When
    worker.deliveries[0].overdue_at -= 10.1
    late = rig.dispatch.time_out()
    # Then
    assert early == []
    assert ids([delivery.job for delivery in late]) == ["a"]
    assert rig.dispatch.settle(receipt) is None
    assert worker.jobs == ["a", "b"]


def test_a_delivery_is_given_more_time_by_the_worker_that_has_it_only(rig: Rig) -> None:
    # Given
    rig.ready(a_job("a"))
    worker, other = rig.worker(), rig.worker()
    [delivery] = worker.deliveries or other.deliveries
    holder, stranger = (worker, other) if worker.jobs else (other, worker)
    delivery.overdue_at = 0.0
    # When
    by_stranger = rig.dispatch.extend(delivery.receipt, stranger, 60.0)
    by_holder = rig.dispatch.extend(delivery.receipt, holder, 60.0)
    # Then
    assert (by_stranger, by_holder) == (False, True)
    assert rig.dispatch.time_out() == []
    rig.commit(holder)
    assert not rig.dispatch.extend(delivery.receipt, holder, 60.0)


def test_what_was_held_under_a_lost_owner_is_forgotten_and_its_workers_get_other_jobs(
    rig: Rig,
) -> None:
    # Given
    rig.ready(*some_jobs(5))
    worker = rig.worker()
    receipt = worker.deliveries[0].receipt
    # When
    lost = rig.owners.current
    rig.owners.lose_all()
    rig.dispatch.drop(lost)
    held = list(rig.dispatch.held)
    rig.ready(a_job("next"))
    # Then
    assert not held
    assert rig.dispatch.settle(receipt) is None
    assert worker.jobs[1:] == ["next"]


def test_forgetting_a_job_leaves_the_one_that_was_claimed_anew(rig: Rig) -> None:
    rig.ready(a_job("a"))
    rig.worker()
    rig.dispatch.forget([a_job("a")])
    assert ids(list(rig.dispatch.held)) == ["a"]


# ------------------------------------------------------------------------ stopping


def test_a_stopping_broker_hands_out_and_claims_nothing_and_gives_up_what_is_staged(rig: Rig) -> None:
    # Given
    jobs = rig.ready(*some_jobs(5))
    worker = rig.worker()
    # When
    rig.dispatch.stop_granting(1.0)
    claims = len(rig.store.claims)
    rig.commit(worker)
    rig.dispatch.tick()
    go_on()
    # Then
    assert worker.jobs == [jobs[0].id]
    assert len(rig.store.claims) == claims
    assert ids(rig.dispatch.withdraw()) == ids(jobs[1:])
    assert rig.dispatch.withdraw() == []


def test_a_stop_waits_for_the_claim_that_is_under_way(rig: Rig) -> None:
    # Given
    held = Held()
    rig.store.before_claim = held
    rig.store.ready.extend(some_jobs(3))
    worker = rig.worker()
    # When
    rig.dispatch.stop_granting(0.01)
    in_time = len(rig.dispatch.held)
    held.set()
    rig.dispatch.stop_granting(1.0)
    # Then
    assert in_time == 0
    assert len(rig.dispatch.withdraw()) == 3
    assert worker.jobs == []


# ------------------------------------------------------------- staged for nobody


def test_when_the_last_worker_leaves_what_was_staged_for_it_goes_back(rig: Rig) -> None:
    # Given more jobs than the worker takes
    jobs = rig.ready(*some_jobs(10))
    worker = rig.worker()
    assert len(rig.dispatch.held) > 1
    # When it leaves
    left = rig.dispatch.detach(worker)
    # Then all but the one that it had are ready again, and nothing is held for nobody
    assert len(left) == 1
    assert len(rig.store.ready) == len(jobs) - 1
    assert list(rig.dispatch.held) == [left[0].job]


def test_what_a_slow_worker_won_t_come_to_within_a_second_goes_back(rig: Rig) -> None:
    # Given a worker that is known to be slow, and jobs staged while it was not
    rig.ready(*some_jobs(10))
    worker = rig.worker()
    # When it has ended none by the next tick
    rig.dispatch.tick()
    go_on()
    # Then only the one it has is held
    assert len(rig.dispatch.held) == len(worker.in_flight) == 1


def test_what_was_staged_for_workers_whose_pace_is_not_known_any_more_goes_back(rig: Rig) -> None:
    # Given a worker that pops: its socket took some in no time, looked fast, and takes no more
    worker = FakeWorker(prefetch=10)
    worker.pops = True
    rig.dispatch.attach(worker)
    go_on()
    rig.dispatch.stage(some_jobs(1000))
    assert rig.dispatch.staged == 990
    # When it has ended none for as long as its pace was taken from
    rig.dispatch.tick()
    rig.dispatch.tick()
    # Then others can have the rest
    assert rig.dispatch.staged == SMALLEST


def test_a_worker_whose_time_was_up_gets_nothing_more_until_it_answers(rig: Rig) -> None:
    # Given a job whose visibility timeout passes
    rig.ready(a_job("slow", visibility_timeout=0.0), a_job("next"))
    worker = rig.worker()
    [late] = rig.dispatch.time_out()
    go_on()
    # Then its worker may be at it still, and gets nothing
    assert worker.jobs == ["slow"]
    # When its answer comes after all
    assert rig.dispatch.settle(late.receipt) is None
    go_on()
    # Then it gets the next
    assert worker.jobs == ["slow", "next"]


def test_a_worker_that_never_answers_is_hung_up_on(rig: Rig) -> None:
    rig.ready(a_job("slow", visibility_timeout=0.0))
    worker = rig.worker()
    rig.dispatch.time_out()
    rig.dispatch.time_out()
    assert worker.hung_up
    assert rig.counters.values["workers_hung_up"] == 1


def test_nothing_is_claimed_again_and_again_for_a_slow_worker_that_is_busy(rig: Rig) -> None:
    # Given a slow worker with a job, and others behind it
    rig.ready(*some_jobs(10))
    rig.worker()
    rig.dispatch.tick()
    go_on()
    claims = len(rig.store.claims)
    # When it is told that some lie ready, as after every giving back
    rig.dispatch.supply.some_ready()
    go_on()
    # Then they are left where they are
    assert len(rig.store.claims) == claims


def test_workers_that_ask_for_much_get_more_than_one_job_a_message_however_many_they_are(
    rig: Rig,
) -> None:
    # Given: fewer jobs than workers, all of them free
    workers = [rig.worker(prefetch=64, name=str(number)) for number in range(20)]
    # When
    rig.ready(*some_jobs(16))
    # Then
    assert sorted(len(message) for worker in workers for message in worker.messages) == [8, 8]


def test_workers_that_ask_for_little_share_evenly(rig: Rig) -> None:
    workers = [rig.worker(prefetch=4, name=str(number)) for number in range(8)]
    rig.ready(*some_jobs(16))
    assert {len(worker.jobs) for worker in workers} <= {1, 2, 3}


def test_a_worker_that_has_gone_is_not_kept(rig: Rig) -> None:
    for number in range(100):
        worker = rig.worker(name=str(number))
        rig.dispatch.detach(worker)
    assert len(rig.dispatch._takers) == 0


def test_a_suspect_does_not_wait_for_a_worker_that_only_owes_an_answer(rig: Rig) -> None:
    # Given: one worker is stuck with a job whose time is over, another is always busy
    stuck = rig.worker(prefetch=1, name="stuck")
    rig.ready(a_job("late", visibility_timeout=0.0))
    rig.dispatch.time_out()
    busy = rig.worker(prefetch=5, name="busy")
    rig.ready(*some_jobs(20))
    # When
    suspect = a_job("suspect", priority=9)
    suspect.suspect = True
    rig.ready(suspect)
    # Then it gets the suspect once it has run empty
    for _ in range(10):
        rig.commit(busy)
    assert stuck.overdue
    assert "suspect" in [delivery.job.id for delivery in busy.deliveries]


@pytest.mark.parametrize("how", ["overdue", "lost"])
def test_a_worker_whose_time_with_a_suspect_was_up_gets_others_beside_it(rig: Rig, how: str) -> None:
    # Given
    rig.ready(suspect("bad", visibility_timeout=0.0))
    worker = rig.worker(prefetch=3)
    assert worker.jobs == ["bad"]
    # When
    if how == "overdue":
        rig.dispatch.time_out()
    else:
        lost = rig.owners.current
        rig.owners.lose_all()
        rig.dispatch.drop(lost)
    rig.ready(a_job("next"))
    # Then
    assert worker.jobs == ["bad", "next"]


def test_nothing_is_held_beside_a_suspect_for_the_worker_that_has_it(rig: Rig) -> None:
    rig.ready(suspect("bad", priority=9))
    worker = rig.worker(prefetch=500)
    rig.ready(*some_jobs(500))
    rig.dispatch.tick()
    go_on()
    assert worker.jobs == ["bad"]
    assert len(rig.dispatch.held) <= 1 + SMALLEST


# --------------------------------------------------------------- workers that don't read


class Deaf(FakeWorker):
    """Takes what it is sent, until its connection is full."""

    deaf = False

    @property
    def reads(self) -> bool:
        return not self.deaf

    @property
    def free(self) -> int:
        return super().free if self.reads else 0

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        super().deliver(deliveries)
        self.deaf = True


def test_nothing_is_held_for_a_worker_that_does_not_read(rig: Rig) -> None:
    # Given
    rig.ready(*some_jobs(600))
    deaf = Deaf(prefetch=200)
    # When it takes one message, and no more
    rig.dispatch.attach(deaf)
    go_on()
    rig.dispatch.tick()
    go_on()
    # Then it has that, and others can have the rest
    assert len(deaf.messages) == 1
    assert len(rig.dispatch.held) == len(deaf.jobs) < 600
    assert not rig.dispatch.granting


def test_nothing_is_held_for_a_worker_whose_connection_something_else_has_filled(rig: Rig) -> None:
    # Given
    deaf = Deaf(prefetch=200)
    rig.dispatch.attach(deaf)
    deaf.deaf = True
    # When
    rig.ready(*some_jobs(600))
    rig.dispatch.tick()
    go_on()
    # Then
    assert not deaf.jobs
    assert not rig.dispatch.held


def test_a_worker_that_reads_again_gets_more(rig: Rig) -> None:
    rig.ready(*some_jobs(600))
    deaf = Deaf(prefetch=600)
    rig.dispatch.attach(deaf)
    go_on()
    deaf.deaf = False
    rig.dispatch.offer(deaf)
    go_on()
    assert len(deaf.messages) == 2
    assert len(set(deaf.jobs)) == len(deaf.jobs)


# ------------------------------------------------------------------------ bytes


def test_a_claim_under_way_weighs_what_it_may_bring(rig: Rig) -> None:
    memory, before = rig.dispatch._memory, rig.dispatch.room_bytes
    weights: list[int] = []
    rig.store.before_claim = lambda: weights.append(memory.staged)
    rig.ready(a_job())
    rig.worker()
    assert weights[0] == before
    assert memory.staged == 0


def test_while_all_memory_is_taken_a_queue_holds_one_job_and_no_more(rig: Rig) -> None:
    rig.worker(prefetch=5)
    rig.dispatch._memory.staged = 2**40
    empty = rig.dispatch.room
    rig.owners.sure = False  # so that it stays here
    rig.dispatch.stage([a_job(owner="owner-1")])
    assert empty > 0
    assert rig.dispatch.room == 0


def test_a_worker_gets_large_jobs_few_at_a_time(rig: Rig) -> None:
    rig.ready(*some_jobs(12, size=MESSAGE_BYTES // 2))
    worker = rig.worker(prefetch=12)
    wait_for(lambda: len(worker.jobs) == 12)
    assert {len(each) for each in worker.messages} == {2}


# ---------------------------------------------------------------- on the way back


@pytest.fixture
def slow() -> Rig:
    """What is released stays on its way."""
    return Rig(slow=True)


def test_a_new_job_does_not_overtake_those_that_are_on_their_way_back(slow: Rig) -> None:
    # Given jobs that were staged for a worker that has left
    older = slow.ready(*some_jobs(11))
    first = slow.worker()
    slow.dispatch.settle(first.deliveries[0].receipt)
    slow.dispatch.forget([first.deliveries[0].job])
    staged = list(slow.dispatch.held)
    slow.dispatch.detach(first)
    # When another comes, and a new job with it
    second = slow.worker()
    newer = slow.born(a_job("new"))
    claims = len(slow.store.claims)
    slow.dispatch.tick()
    go_on()
    # Then nothing goes out before they are ready
    assert (newer, len(slow.store.claims) - claims, second.jobs) == ([], 0, [])
    slow.dispatch.forget(staged)
    slow.store.ready[:0] = staged
    slow.dispatch.supply.came_back(len(staged))
    slow.dispatch.supply.some_ready()
    go_on()
    assert second.jobs == [older[1].id]


def test_a_claim_without_an_answer_holds_up_the_others_for_a_moment_only() -> None:
    # Given one whose answer is held
    time, held = VirtualTime(), Held()
    rig = Rig(time)
    rig.store.after_claim = held
    first = rig.ready(*some_jobs(3))
    worker = rig.worker(prefetch=20)
    rig.store.after_claim = lambda: None
    rig.store.ready.append(a_job("ready"))
    rig.dispatch.tick()
    go_on()
    assert (worker.jobs, rig.born(a_job("too early"))) == ([], [])
    # When it is waited for no longer
    time.passes(IN_ORDER)
    rig.dispatch.tick()
    go_on()
    # Then other jobs go out, and those that it has taken when it is answered
    assert (worker.jobs, rig.born(a_job("new"))) == (["ready"], ["new"])
    rig.dispatch.tick()
    go_on()
    held.set()
    go_on()
    assert worker.jobs == ["ready", *ids(first)]
    assert rig.dispatch.supply.at_rest(5.0)


def test_nobody_waits_for_long_for_jobs_whose_way_back_has_no_answer() -> None:
    time = VirtualTime()
    slow = Rig(time, slow=True)
    slow.dispatch.supply.going_back(11)
    slow.worker()
    early = slow.born(a_job("early"))
    time.passes(IN_ORDER)
    slow.dispatch.supply.going_back(1)  # which is behind them
    slow.dispatch.supply._ledger._ready = NOTHING
    assert (early, slow.born(a_job("late"))) == ([], ["late"])
