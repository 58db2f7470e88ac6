"""From push to stored job: batches, numbers, times, and the way straight to workers."""

from types import SimpleNamespace

import pytest

from sluicemq.protocol.errors import DuplicateError, TooLargeError
from sluicemq_broker.queue import Push
from sluicemq_broker.queue.intake import INSERT, INSERTS_AT_ONCE
from sluicemq_broker.store import Pushed, Unclear
from support.fakes import Held, go_on
from support.jobs import NOW, a_job, ids, some_jobs
from unit.intake_rig import IntakeRig, Told


@pytest.fixture
def rig() -> IntakeRig:
    return IntakeRig()


def test_a_push_is_confirmed_only_when_its_jobs_are_durable(rig: IntakeRig) -> None:
    held = Held()
    rig.store.before_insert = held
    told = rig.push(a_job("a"), a_job("b"))
    go_on()
    early = told.times
    held.set()
    rig.drain()
    assert early == 0
    assert (told.times, told.refused, told.existing) == (1, {}, {})
    assert ids(rig.store.ready) == ["a", "b"]
    assert rig.counters.values["pushed"] == 2


def test_of_pushes_with_groups_one_is_under_way(rig: IntakeRig) -> None:
    """The next one's places are behind what is stored; else it might be, and go, first."""
    held = Held()
    rig.store.before_insert = held
    for number in range(3):
        rig.push(a_job(f"g{number}", group="g"))
        go_on()
    under_way = [ids(jobs) for jobs in rig.store.inserts]
    held.set()
    rig.drain()
    assert under_way == [["g0"]]
    assert [ids(jobs) for jobs in rig.store.inserts] == [["g0"], ["g1", "g2"]]
    assert [job.place for job in rig.store.waiting] == [1, 2, 3]
    assert set().union(*rig.store.groups.freed) == {"g"}


def test_no_job_of_a_group_is_inserted_reserved(rig: IntakeRig) -> None:
    worker = rig.worker(prefetch=10)
    rig.push(a_job("g", group="g"), a_job("plain"))
    rig.drain()
    assert worker.jobs == ["plain"]
    assert ids(rig.store.waiting) == ["g"]


def test_pushes_that_come_together_are_one_insert_and_each_hears_of_its_own(rig: IntakeRig) -> None:
    rig.store.ready.append(a_job("known"))
    pushes = [(a_job("a"),), (a_job("b"), a_job("known")), (a_job("known"), a_job("c"))]
    told = [rig.push(*jobs) for jobs in pushes]
    rig.drain()
    assert [ids(jobs) for jobs in rig.store.inserts] == [["a", "b", "known", "known", "c"]]
    assert [list(event.existing) for event in told] == [[], [1], [0]]
    assert rig.counters.values["pushed"] == 3


def test_an_insert_holds_so_many_jobs_and_so_many_are_under_way_at_once(rig: IntakeRig) -> None:
    held = Held()
    rig.store.before_insert = held
    for _ in range(5):
        rig.push(*some_jobs(INSERT // 2))
        go_on()
    under_way = len(rig.store.inserts)
    held.set()
    rig.drain()
    assert under_way == INSERTS_AT_ONCE
    assert max(map(len, rig.store.inserts)) <= INSERT
    assert len(rig.store.ready) == 5 * (INSERT // 2)


def test_a_refused_job_is_told_to_its_own_push(rig: IntakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.store, "push", lambda _jobs, _now, _at: Pushed([], {2: TooLargeError("16 MiB")}))
    first, second = rig.push(a_job()), rig.push(a_job(), a_job("large"))
    rig.drain()
    assert first.refused == {}
    assert second.refused is not None
    assert [(at, type(error)) for at, error in second.refused.items()] == [(1, TooLargeError)]
    assert (rig.counters.values["pushed"], rig.counters.values["refused"]) == (2, 1)


def test_a_duplicate_is_told_and_counted_by_name(rig: IntakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = rig.worker(prefetch=3)
    told = Pushed([], {1: DuplicateError("not stored", "first")})
    monkeypatch.setattr(rig.store, "push", lambda _jobs, _now, _at: told)
    push = rig.push(a_job("a"), a_job("b"), a_job("c"))
    rig.drain()
    assert push.refused == told.refused
    assert worker.jobs == ["a", "c"]
    assert sorted(ids(list(rig.scheduler.reservations))) == ["a", "c"]
    counted = rig.counters.values
    assert (counted["pushed"], counted["duplicates"], counted["refused"]) == (2, 1, 0)


def test_a_repeated_insert_says_when_it_was_sent(rig: IntakeRig) -> None:
    """Or a dedupe window could be over before anybody hears that its job is stored."""

    def lose_the_first_reply() -> None:
        if rig.clock.time == NOW:
            rig.clock.time += 100
            raise Unclear

    rig.store.after_insert = lose_the_first_reply
    rig.push(a_job())
    rig.drain()
    assert rig.store.sent == [NOW, NOW + 100]


def test_jobs_are_numbered_in_the_order_of_acceptance_also_when_the_clock_steps_back(rig: IntakeRig) -> None:
    first, second = some_jobs(3), some_jobs(3)
    rig.push(*first)
    rig.drain()
    rig.clock.time = NOW - 100
    rig.push(*second)
    rig.drain()
    numbers = [job.seq for job in first + second]
    assert numbers == sorted(set(numbers))
    assert {job.created_at for job in first + second} == {NOW}


def test_numbers_go_on_rising_after_a_restart() -> None:
    before, after = IntakeRig(), IntakeRig()
    old, new = some_jobs(1000), a_job()
    before.push(*old)
    before.drain()
    after.clock.time = NOW + 0.001
    after.push(new)
    after.drain()
    assert new.seq >= old[-1].seq


def test_a_job_is_due_at_once_or_when_it_says_and_never_in_the_past(rig: IntakeRig) -> None:
    past, future = a_job(eligible_at=NOW - 50), a_job(eligible_at=NOW + 50)
    rig.push(past, future)
    rig.drain()
    assert (past.eligible_at, future.eligible_at) == (NOW, NOW + 50)


def test_a_job_goes_straight_to_a_free_worker_once_it_is_durable(rig: IntakeRig) -> None:
    worker = rig.worker()
    claims = len(rig.store.claims)
    held = Held()
    rig.store.before_insert = held
    rig.push(a_job("a"))
    go_on()
    early = list(worker.jobs)
    held.set()
    rig.drain()
    assert early == []
    assert worker.jobs == ["a"]
    assert rig.store.reserved == {"a": "owner-1"}
    assert len(rig.store.claims) == claims


def test_what_there_is_no_room_for_is_claimed_when_workers_want_it_in_order(rig: IntakeRig) -> None:
    worker = rig.worker()
    jobs = some_jobs(200)
    rig.push(*jobs)
    rig.drain()
    while worker.in_flight:
        [receipt] = worker.in_flight
        delivery = rig.settle(receipt)
        assert delivery
        rig.scheduler.ended([delivery.job])
        rig.queue.offer(worker)
        go_on()
    assert worker.jobs == ids(jobs)


def test_a_job_that_was_known_before_is_not_handed_out_by_its_second_push(rig: IntakeRig) -> None:
    worker = rig.worker(prefetch=5)
    rig.push(a_job("a"))
    rig.push(a_job("b"), a_job("a"), a_job("a"))
    rig.drain()
    rig.push(a_job("b"))
    rig.drain()
    assert sorted(worker.jobs) == ["a", "b"]
    assert rig.scheduler.ledger.expected == 0


def test_jobs_that_are_repeated_elsewhere_are_refused_and_not_stored(rig: IntakeRig) -> None:
    left, stays = SimpleNamespace(superseded=True), SimpleNamespace(superseded=False, repeats=True)
    told = [Told(), Told(), Told()]
    for push in (
        Push([a_job("a")], told[0], left),
        Push([a_job("b")], told[1], stays),
        Push([a_job("c", group="g")], told[2], left),
    ):
        rig.queue.intake.push(push)
    rig.drain()
    assert [event.times for event in told] == [1, 1, 1]
    assert [bool(event.refused) for event in told] == [True, False, True]
    assert rig.intake.waiting == rig.intake.waiting_bytes == 0
    assert rig.counters.values["refused"] == 2
    assert rig.counters.values["pushed"] == 1
