"""Who gets which job: claims, workers in turn, stopping; over a store in memory."""

from collections.abc import Callable

import pytest

from sluicemq_broker.job import Job
from sluicemq_broker.queue import Marks
from sluicemq_broker.queue.handout import MESSAGE, MESSAGE_BYTES
from sluicemq_broker.queue.ledger import IN_ORDER
from sluicemq_broker.queue.plans import Conditions
from sluicemq_broker.store import Unclear
from sluicemq_devices.sockets import SMALL
from support.fakes import FakeWorker, Held, go_on
from support.jobs import NOW, a_job, ids, some_jobs
from support.virtual_time import VirtualTime
from support.waiting import wait_until
from unit.dispatch_rig import SMALLEST, DispatchRig

# ----------------------------------------------------------------------- claims


def test_without_workers_nothing_is_claimed(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(10))
    rig.tick()
    assert rig.store.claims == []


def test_a_worker_gets_the_jobs_that_lie_ready_one_after_another_in_order(rig: DispatchRig) -> None:
    rig.ready(a_job("low"), a_job("high", priority=9), a_job("low 2"))
    worker = rig.worker()
    for _ in range(3):
        rig.commit(worker)
    assert worker.jobs == ["high", "low", "low 2"]
    assert not rig.held


def test_a_worker_never_has_more_unsettled_jobs_than_its_prefetch(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(20))
    worker = rig.worker(prefetch=3)
    assert len(worker.jobs) == 3
    rig.commit(worker, worker.deliveries[0].receipt)
    assert len(worker.in_flight) == 3
    assert len(worker.jobs) == 4


def test_jobs_are_spread_over_the_workers_that_are_free(rig: DispatchRig) -> None:
    workers = [rig.worker(prefetch=100) for _ in range(4)]
    rig.ready(*some_jobs(40))
    assert sum(len(worker.jobs) for worker in workers) == 40
    assert all(4 <= len(worker.jobs) <= 20 for worker in workers)


def test_a_large_job_waits_while_others_leave_too_much_unread_and_small_ones_go_out(rig: DispatchRig) -> None:
    # Given connections that have left unread all that may be
    others = rig.outgoing.ration(None)
    others.hold(rig.outgoing.most_bytes)
    worker = rig.worker(prefetch=100)
    rig.ready(*some_jobs(3))
    assert len(worker.jobs) == 3
    # When a large one is next, it and those behind it wait until these have read
    rig.ready(a_job("large", bytes(SMALL + 1)), *some_jobs(3))
    assert len(worker.jobs) == 3
    others.hold(0)
    go_on()
    assert len(worker.jobs) == 7
    assert rig.outgoing.bytes == 0


def test_one_message_holds_so_many_jobs_at_most(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(MESSAGE * 2))
    worker = rig.worker(prefetch=MESSAGE * 2)
    assert len(worker.jobs) == MESSAGE * 2
    assert max(map(len, worker.messages)) == MESSAGE


def test_few_jobs_are_held_for_a_slow_worker_however_many_lie_ready(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(10_000))
    rig.worker()
    rig.tick()
    assert len(rig.held) <= 1 + 2 * SMALLEST


def test_what_is_held_grows_with_the_pace_of_the_workers_and_shrinks_with_it(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(5_000))
    worker = rig.worker(prefetch=100)
    # When they end 10,000 jobs a second
    rig.scheduler.pace.appetite = 2_500
    rig.commit(worker)
    fast = len(rig.held) - len(worker.in_flight)
    # Then a quarter of that is held for them
    assert 1_000 < fast <= 2_500
    # And when they end none any more, and what was held is gone
    rig.scheduler.ended(rig.scheduler.staging.clear())
    rig.tick()
    rig.queue.jobs_ready()
    go_on()
    assert len(rig.held) - len(worker.in_flight) <= 2 * SMALLEST


def test_a_queue_found_empty_is_not_asked_again_until_something_may_be_there(empty: DispatchRig) -> None:
    asked = len(empty.store.claims)
    empty.queue.dispatch()
    go_on()
    assert len(empty.store.claims) == asked
    empty.queue.jobs_ready(priority=0)
    go_on()
    assert len(empty.store.claims) == asked + 1


def test_a_tick_finds_what_other_brokers_have_pushed(empty: DispatchRig) -> None:
    empty.store.ready.append(a_job("theirs"))
    empty.tick()
    [worker] = empty.scheduler.deliveries.workers
    assert ids([delivery.job for delivery in worker.in_flight.values()]) == ["theirs"]


def test_a_queue_at_rest_is_soon_looked_at_no_more(rig: DispatchRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[Conditions] = []
    monkeypatch.setattr(rig.scheduler, "tick", ticks.append)
    for _ in range(9):
        rig.tick()
    assert len(ticks) == 3
    rig.worker()
    rig.tick()
    assert len(ticks) == 4


def test_a_delayed_job_is_claimed_when_it_is_due_without_waiting_for_the_tick(empty: DispatchRig) -> None:
    job = a_job("a", eligible_at=NOW + 0.05)
    empty.store.ready.append(job)
    empty.queue.jobs_due([job.eligible_at, job.eligible_at])
    empty.set_clock(NOW + 1)
    asked = len(empty.store.claims)
    wait_for(lambda: "a" in empty.held)
    assert len(empty.store.claims) == asked + 1


def wait_for(condition: Callable[[], bool]) -> None:
    wait_until(lambda: go_on() or condition())


@pytest.mark.parametrize("applied", [False, True], ids=["that was not applied", "that was applied"])
def test_after_an_unanswered_claim_what_it_reserved_goes_out(rig: DispatchRig, *, applied: bool) -> None:
    faults = [Unclear("cut")]
    setattr(rig.store, "after_claim" if applied else "before_claim", lambda: raise_one_of(faults))
    rig.store.ready.append(a_job("a"))
    worker = rig.worker()
    wait_for(lambda: bool(worker.jobs))
    assert worker.jobs == ["a"]
    assert (worker.deliveries[0].job.owner, worker.deliveries[0].job.attempts) == ("owner-1", 1)


def test_a_claim_that_is_answered_meanwhile_leaves_an_unanswered_one_to_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a claim whose answer was lost, and that stands still before it is tried again
    faults, time, held = [Unclear("cut")], VirtualTime(), Held()
    rig = DispatchRig(time)
    steps: list[Callable[[], None]] = [go_on, held, go_on]

    def prepare() -> None:
        steps.pop(0)()

    monkeypatch.setattr(rig.store, "prepare", prepare)
    rig.store.after_claim = lambda: raise_one_of(faults)
    rig.ready(a_job("a"))
    worker = rig.worker(prefetch=9)
    wait_for(lambda: steps == [go_on])
    # When it has had no answer for long, another one brings more
    time.value += IN_ORDER
    rig.ready(a_job("b"))
    assert worker.jobs == ["b"]
    # Then what the first has reserved goes out, too
    held.set()
    wait_for(lambda: not rig.scheduler.ledger.claimers())
    assert worker.jobs == ["b", "a"]


def raise_one_of(faults: list[Unclear]) -> None:
    if faults:
        raise faults.pop()


def test_an_unanswered_claim_is_known_until_read(rig: DispatchRig, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[bool] = []
    claimed = rig.store.claimed

    def cut() -> None:
        raise Unclear("cut")

    def read_back(owner: str, hold: int) -> list[Job]:
        known.append(not rig.scheduler.reservations.unknown([("a", hold)]))
        return claimed(owner, hold)

    rig.store.after_claim = cut
    monkeypatch.setattr(rig.store, "claimed", read_back)
    rig.store.ready.append(a_job("a"))
    worker = rig.worker()
    wait_for(lambda: bool(worker.jobs))
    rig.store.after_claim = lambda: None
    # Then the audit does not take it for an orphan meanwhile
    assert known[0]
    assert rig.queue.stop_granting(5.0)


def test_what_was_claimed_under_an_owner_that_is_dead_by_now_is_left_to_others(rig: DispatchRig) -> None:
    rig.store.before_claim = rig.owners.lose_all
    rig.store.ready.append(a_job("a"))
    worker = rig.worker()
    assert worker.jobs == []
    assert not rig.held


def test_nothing_is_claimed_or_handed_out_while_the_lease_is_not_sure(rig: DispatchRig) -> None:
    rig.owners.sure = False
    worker = rig.worker()
    rig.ready(a_job("a"))
    unsure = (list(rig.store.claims), list(worker.jobs))
    rig.owners.sure = True
    rig.queue.dispatch()
    go_on()
    assert unsure == ([], [])
    assert worker.jobs == ["a"]


# ---------------------------------------------------------------------- workers


def test_a_worker_that_has_answered_before_comes_first(rig: DispatchRig) -> None:
    new, proven = rig.worker(name="new"), rig.worker(name="proven")
    proven.proven = True
    rig.scheduler.hand_out.takers.remove(proven)
    rig.queue.offer(proven)
    rig.ready(a_job("a"))
    assert (new.jobs, proven.jobs) == ([], ["a"])


def test_workers_that_have_all_answered_take_turns(rig: DispatchRig) -> None:
    workers = [rig.worker() for _ in range(3)]
    rig.ready(*some_jobs(9))
    for _ in range(2):
        for worker in workers:
            rig.commit(worker)
    assert [len(worker.jobs) for worker in workers] == [3, 3, 3]


def test_a_worker_that_leaves_returns_what_it_had_and_its_receipts_are_void(rig: DispatchRig) -> None:
    jobs = rig.ready(*some_jobs(2))
    worker = rig.worker(prefetch=2)
    receipts = list(worker.in_flight)
    left = rig.leave(worker)
    assert ids([delivery.job for delivery in left]) == ids(jobs)
    assert [rig.settle(receipt) for receipt in receipts] == [None, None]
    assert rig.leave(worker) == []
    rig.ready(a_job("next"))
    assert len(worker.jobs) == 2


def test_a_worker_may_change_how_much_it_takes(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(10))
    worker = rig.worker(prefetch=1)
    rig.resize(worker, 4)
    go_on()
    more = len(worker.in_flight)
    rig.resize(worker, 0)
    rig.commit(worker)
    assert more == 4
    assert len(worker.jobs) == 4


@pytest.mark.parametrize("ends", ["settles", "leaves", "is late"])
def test_what_a_worker_has_that_takes_no_more_leaves_the_room_of_the_others_as_it_is(ends: str) -> None:
    time = VirtualTime()
    rig = DispatchRig(time)
    # Given a slow worker with three jobs that stops: it takes no more, and is still at work on them
    rig.ready(*some_jobs(3, visibility_timeout=5.0))
    stopping = rig.worker(prefetch=3)
    for credit in (0, 3, 0):  # it changes its mind twice
        rig.resize(stopping, credit)
    rig.tick()
    assert rig.scheduler.pace.appetite == 0
    # When one that is free comes, then it gets jobs
    other = rig.worker(prefetch=2)
    rig.ready(*some_jobs(9))
    assert (len(other.in_flight), len(rig.scheduler.staging)) == (2, 0)
    # And when the first one is through, in whatever way, nobody has more room than before
    if ends == "settles":
        rig.commit(stopping)
    elif ends == "leaves":
        rig.leave(stopping)
    else:
        time.passes(6)
        assert len(rig.time_out()) == 3
    go_on()
    assert len(rig.scheduler.staging) + rig.room <= rig.scheduler.pace.appetite


def test_a_cancelled_job_is_held_no_more_and_makes_room_at_other_workers_of_its_device(
    rig: DispatchRig,
) -> None:
    workers, marks = [FakeWorker(), FakeWorker()], Marks(1, 2**20)
    for worker in workers:
        worker.marks = marks
        rig.attach(worker)
    first, second = rig.ready(*some_jobs(2))
    for seq in (first.seq + 9, first.seq):  # that of a later job of this id changes nothing
        assert sorted(worker.jobs for worker in workers) == [[], [first.id]]
        rig.queue.settling.cancelled({(first.id, seq)})
        go_on()
    assert rig.held == [second.id]
    assert sorted(worker.jobs for worker in workers) == [[first.id], [second.id]]


def test_jobs_of_a_worker_that_does_not_acknowledge_are_handed_to_their_removal(rig: DispatchRig) -> None:
    worker = FakeWorker(prefetch=2)
    worker.pops = True
    rig.store.before_commit = held = Held()
    jobs = rig.ready(*some_jobs(2))
    rig.attach(worker)
    assert worker.jobs == []
    assert rig.scheduler.deliveries.in_flight == {}
    held.set()
    go_on()
    assert worker.jobs == ids(jobs)


# --------------------------------------------------------------------- stopping


def test_a_stopping_broker_hands_out_and_claims_nothing_and_gives_up_what_is_staged(rig: DispatchRig) -> None:
    jobs = rig.ready(*some_jobs(5))
    worker = rig.worker()
    rig.queue.stop_granting(1.0)
    claims = len(rig.store.claims)
    rig.commit(worker)
    rig.tick()
    assert worker.jobs == [jobs[0].id]
    assert len(rig.store.claims) == claims
    assert ids(rig.scheduler.staging.clear()) == ids(jobs[1:])
    assert rig.scheduler.staging.clear() == []


def test_a_stop_waits_for_the_claim_that_is_under_way(rig: DispatchRig) -> None:
    held = Held()
    rig.store.before_claim = held
    rig.store.ready.extend(some_jobs(3))
    worker = rig.worker()
    rig.queue.stop_granting(0.01)
    in_time = len(rig.held)
    held.set()
    rig.queue.stop_granting(1.0)
    assert in_time == 0
    assert len(rig.scheduler.staging.clear()) == 3
    assert worker.jobs == []


# ------------------------------------------------------------------------ bytes


def test_a_claim_under_way_weighs_what_it_may_bring(rig: DispatchRig) -> None:
    staged, before = rig.memory.staged, rig.scheduler.room_bytes
    weights: list[int] = []
    rig.store.before_claim = lambda: weights.append(staged.used)
    rig.ready(a_job())
    rig.worker()
    assert weights[0] == before
    assert staged.used == 0


def test_while_all_memory_is_taken_a_queue_holds_one_job_and_no_more(rig: DispatchRig) -> None:
    rig.worker(prefetch=5)
    rig.memory.staged.take(2**40)
    empty = rig.room
    rig.owners.sure = False  # so that it stays here
    rig.stage(a_job())
    assert empty > 0
    assert rig.room == 0


def test_a_worker_gets_large_jobs_few_at_a_time(rig: DispatchRig) -> None:
    rig.ready(*some_jobs(12, size=MESSAGE_BYTES // 2))
    worker = rig.worker(prefetch=12)
    wait_for(lambda: len(worker.jobs) == 12)
    assert {len(message) for message in worker.messages} == {2}
