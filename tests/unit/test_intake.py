"""Pushes on their way into the store: merged, numbered, written, and only then confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fakes import Clock, FakeOutlet, FakeOwners, FakeStore, FakeWorker, Held, a_context, go_on, no_limits
from jobs import NOW, a_job, ids, some_jobs
from sluicemq.errors import Duplicate, SluiceError, TooLarge, Unavailable
from sluicemq_broker.job.job import Job
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.intake import INSERT, INSERT_BYTES, INSERTS_AT_ONCE, Intake, Push
from sluicemq_broker.queue.ledger import IN_ORDER
from sluicemq_broker.queue.memory import Memory
from sluicemq_broker.queue.retry import Retry
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.runtime.timer import Timer
from sluicemq_broker.store.connection import Refused, Unclear
from sluicemq_broker.store.inserts import Pushed
from virtual_time import VirtualTime


class IntakeRig:
    """An intake and its dispatcher over a store in memory."""

    def __init__(self, *, hwm_bytes: int = 1 << 30, timer: Timer | None = None) -> None:
        self.store = FakeStore()
        self.owners = FakeOwners()
        self.clock = Clock()
        self.retry = Retry(0.001)
        self.counters = Counters()
        self.memory = Memory(hwm_bytes=hwm_bytes)
        context = a_context(
            self.owners,
            clock=self.clock,
            counters=self.counters,
            retry=self.retry,
            memory=self.memory,
            timer=timer,
        )
        store: Any = self.store
        self.dispatch = dispatch = Dispatch(store, context, FakeOutlet(), no_limits(context))
        self.intake = Intake(store, context, dispatch.supply, dispatch.expiries, dispatch.groups)

    def worker(self, prefetch: int = 1) -> FakeWorker:
        worker = FakeWorker(prefetch)
        self.dispatch.attach(worker)
        go_on()
        return worker

    def push(self, *jobs: Job) -> Told:
        told = Told()
        self.intake.push(Push(list(jobs), told))
        return told

    def drain(self) -> None:
        assert self.intake.drain(5.0)
        go_on()


class Told:
    """What the pusher has heard; None: nothing yet."""

    refused: dict[int, SluiceError] | None = None
    existing: Sequence[int] = ()
    times = 0

    def __call__(self, refused: dict[int, SluiceError], existing: Sequence[int]) -> None:
        self.refused, self.existing = refused, existing
        self.times += 1


@pytest.fixture
def rig() -> IntakeRig:
    return IntakeRig()


# ------------------------------------------------------------------------- writing


def test_a_push_is_confirmed_only_when_its_jobs_are_durable(rig: IntakeRig) -> None:
    # Given
    held = Held()
    rig.store.before_insert = held
    told = rig.push(a_job("a"), a_job("b"))
    go_on()
    early = told.times
    # When
    held.set()
    rig.drain()
    # Then
    assert early == 0
    assert (told.times, told.refused, told.existing) == (1, {}, ())
    assert ids(rig.store.ready) == ["a", "b"]
    assert rig.counters.values["pushed"] == 2


def test_of_pushes_with_groups_one_is_under_way(rig: IntakeRig) -> None:
    """The next one's places are behind what is stored; else it might be, and go, first."""
    # Given
    held = Held()
    rig.store.before_insert = held
    # When
    for number in range(3):
        rig.push(a_job(f"g{number}", group="g"))
        go_on()
    under_way = [ids(jobs) for jobs in rig.store.inserts]
    held.set()
    rig.drain()
    # Then
    assert under_way == [["g0"]]
    assert [ids(jobs) for jobs in rig.store.inserts] == [["g0"], ["g1", "g2"]]
    assert [job.place for job in rig.store.waiting] == [1, 2, 3]
    assert set().union(*rig.store.groups.freed) == {"g"}


def test_no_job_of_a_group_is_born_reserved(rig: IntakeRig) -> None:
    # Given
    worker = rig.worker(prefetch=10)
    # When
    rig.push(a_job("g", group="g"), a_job("plain"))
    rig.drain()
    # Then
    assert worker.jobs == ["plain"]
    assert ids(rig.store.waiting) == ["g"]


def test_pushes_that_come_together_are_one_insert_and_each_hears_of_its_own(rig: IntakeRig) -> None:
    # Given
    rig.store.ready.append(a_job("known"))
    pushes = [(a_job("a"),), (a_job("b"), a_job("known")), (a_job("known"), a_job("c"))]
    # When
    told = [rig.push(*jobs) for jobs in pushes]
    rig.drain()
    # Then
    assert [ids(jobs) for jobs in rig.store.inserts] == [["a", "b", "known", "known", "c"]]
    assert [list(each.existing) for each in told] == [[], [1], [0]]
    assert rig.counters.values["pushed"] == 3


def test_an_insert_holds_so_many_jobs_and_so_many_are_under_way_at_once(rig: IntakeRig) -> None:
    # Given
    held = Held()
    rig.store.before_insert = held
    # When
    for _ in range(5):
        rig.push(*some_jobs(INSERT // 2))
        go_on()
    under_way = len(rig.store.inserts)
    held.set()
    rig.drain()
    # Then
    assert under_way == INSERTS_AT_ONCE
    assert max(map(len, rig.store.inserts)) <= INSERT
    assert len(rig.store.ready) == 5 * (INSERT // 2)


def test_a_refused_job_is_told_to_its_own_push_at_its_own_place(
    rig: IntakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    monkeypatch.setattr(rig.store, "push", lambda _jobs, _now, _at: Pushed([], {2: TooLarge("16 MiB")}))
    # When
    first, second = rig.push(a_job()), rig.push(a_job(), a_job("large"))
    rig.drain()
    # Then
    assert first.refused == {}
    assert second.refused is not None
    assert [(at, type(error)) for at, error in second.refused.items()] == [(1, TooLarge)]
    assert (rig.counters.values["pushed"], rig.counters.values["refused"]) == (2, 1)


def test_a_duplicate_is_told_counted_by_its_own_name_and_handed_to_nobody(
    rig: IntakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    worker = rig.worker(prefetch=3)
    told = Pushed([], {1: Duplicate("not stored", "first")})
    monkeypatch.setattr(rig.store, "push", lambda _jobs, _now, _at: told)
    # When
    push = rig.push(a_job("a"), a_job("b"), a_job("c"))
    rig.drain()
    # Then
    assert push.refused == told.refused
    assert worker.jobs == ["a", "c"]
    assert sorted(ids(list(rig.dispatch.held))) == ["a", "c"]
    counted = rig.counters.values
    assert (counted["pushed"], counted["duplicates"], counted["refused"]) == (2, 1, 0)


def test_a_repeated_insert_says_when_it_was_sent(rig: IntakeRig) -> None:
    """Or a dedupe window could be over before anybody hears that its job is stored."""

    # Given
    def lose_the_first_reply() -> None:
        if rig.clock.time == NOW:
            rig.clock.time += 100
            raise Unclear

    rig.store.after_insert = lose_the_first_reply
    # When
    rig.push(a_job())
    rig.drain()
    # Then
    assert rig.store.sent == [NOW, NOW + 100]


# ---------------------------------------------------------------- numbers, times


def test_jobs_are_numbered_in_the_order_of_acceptance_also_when_the_clock_steps_back(rig: IntakeRig) -> None:
    # Given
    first, second = some_jobs(3), some_jobs(3)
    rig.push(*first)
    rig.drain()
    # When
    rig.clock.time = NOW - 100
    rig.push(*second)
    rig.drain()
    # Then
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


# --------------------------------------------------------------- straight to workers


def test_a_job_goes_straight_to_a_free_worker_once_it_is_durable(rig: IntakeRig) -> None:
    # Given
    worker = rig.worker()
    claims = len(rig.store.claims)
    held = Held()
    rig.store.before_insert = held
    rig.push(a_job("a"))
    go_on()
    early = list(worker.jobs)
    # When
    held.set()
    rig.drain()
    # Then
    assert early == []
    assert worker.jobs == ["a"]
    assert rig.store.reserved == {"a": "owner-1"}
    assert len(rig.store.claims) == claims


def test_what_there_is_no_room_for_is_claimed_when_workers_want_it_in_order(rig: IntakeRig) -> None:
    # Given
    worker = rig.worker()
    jobs = some_jobs(200)
    # When
    rig.push(*jobs)
    rig.drain()
    while worker.in_flight:
        [receipt] = worker.in_flight
        delivery = rig.dispatch.settle(receipt)
        assert delivery
        rig.dispatch.forget([delivery.job])
        rig.dispatch.offer(worker)
        go_on()
    # Then
    assert worker.jobs == ids(jobs)


def test_a_job_that_was_known_before_is_not_handed_out_by_its_second_push(rig: IntakeRig) -> None:
    worker = rig.worker(prefetch=5)
    rig.push(a_job("a"))
    rig.push(a_job("b"), a_job("a"), a_job("a"))
    rig.drain()
    rig.push(a_job("b"))
    rig.drain()
    assert sorted(worker.jobs) == ["a", "b"]
    assert rig.dispatch.supply._ledger.expected == 0


# -------------------------------------------------------------------------- faults


def test_an_insert_that_was_not_sent_is_repeated_as_it_was(rig: IntakeRig) -> None:
    # Given
    worker = rig.worker()
    faults = [Unavailable("away")] * 3
    rig.store.before_insert = lambda _jobs: _raise_next(faults)
    # When
    told = rig.push(a_job("a"))
    rig.drain()
    # Then
    assert told.refused == {}
    assert worker.jobs == ["a"]
    assert rig.owners.current == "owner-1"


@pytest.mark.parametrize("applied", [False, True], ids=["that was not applied", "that was applied"])
def test_an_insert_without_an_answer_is_sent_again_and_its_jobs_go_out_once(
    rig: IntakeRig, *, applied: bool
) -> None:
    # Given
    worker = rig.worker(prefetch=5)
    faults = [Unclear("cut")]
    if applied:
        rig.store.after_insert = lambda: _raise_next(faults)
    else:
        rig.store.before_insert = lambda _jobs: _raise_next(faults)
    # When
    told = rig.push(a_job("a"), a_job("b"))
    rig.drain()
    # Then
    assert (told.times, told.refused, told.existing) == (1, {}, ())
    assert worker.jobs == ["a", "b"]
    assert rig.store.reserved == {"a": "owner-1", "b": "owner-1"}
    assert [(each.job.owner, each.job.attempts) for each in worker.deliveries] == [("owner-1", 1)] * 2


def test_what_is_born_reserved_is_known_from_before_its_insert_is_sent(rig: IntakeRig) -> None:
    # Given
    rig.worker(prefetch=5)
    rig.store.before_insert = held = Held()
    job = a_job("a")
    # When
    rig.push(job)
    go_on()
    # Then
    assert rig.store.inserts
    assert job.owner == "owner-1"
    assert rig.dispatch.held.knows("a", job.hold)
    held.set()
    rig.drain()
    assert rig.dispatch.held.knows("a", job.hold)


def test_large_jobs_are_inserted_in_parts_that_one_statement_takes(rig: IntakeRig) -> None:
    # Given
    jobs = [a_job(each, size=INSERT_BYTES // 2) for each in "abcde"]
    # When
    told = rig.push(*jobs)
    rig.drain()
    # Then
    assert [ids(each) for each in rig.store.inserts] == [["a", "b"], ["c", "d"], ["e"]]
    assert (told.times, told.refused) == (1, {})


def test_durable_jobs_that_wait_for_an_insert_before_them_are_known(rig: IntakeRig) -> None:
    # Given an insert without an answer, and a durable one behind it
    rig.worker(prefetch=5)
    held = Held()
    rig.store.before_insert = lambda jobs: held() if "first" in ids(jobs) else None
    rig.push(a_job("first"))
    go_on()
    later = a_job("later")
    told = rig.push(later)
    go_on()
    # Then the audit does not take it for an orphan
    assert told.times == 1
    assert "later" not in rig.dispatch.held
    assert rig.dispatch.held.knows("later", later.hold)
    held.set()
    rig.drain()


def test_jobs_with_dear_headers_are_inserted_few_at_a_time(rig: IntakeRig) -> None:
    jobs = [a_job(f"job-{number}", headers={"a": 1}, size=64 * 1024) for number in range(30)]
    for job in jobs:
        rig.push(job)
    rig.drain()
    assert max(map(len, rig.store.inserts)) < 15


def test_large_jobs_on_their_way_leave_no_memory_for_large_messages() -> None:
    # Given
    rig = IntakeRig(hwm_bytes=1000)
    memory = rig.memory
    rig.store.before_insert = held = Held()
    # When
    rig.push(a_job(size=1000))
    # Then
    assert memory.takes_no_more
    held.set()
    rig.drain()
    assert not memory.takes_no_more


def test_jobs_do_not_wait_for_long_for_an_insert_before_them_that_has_no_answer() -> None:
    # Given an insert that hangs, and one behind it that is durable
    time = VirtualTime()
    rig = IntakeRig(timer=time)
    worker = rig.worker(prefetch=5)
    held = Held()
    rig.store.before_insert = lambda jobs: held() if "hangs" in ids(jobs) else None
    rig.push(a_job("hangs"))
    go_on()
    told = rig.push(a_job("durable"))
    go_on()
    assert told.times == 1
    early = list(worker.jobs)
    # When
    time.passes(IN_ORDER)
    rig.dispatch.tick()
    # Then
    assert (early, worker.jobs) == ([], ["durable"])
    held.set()
    rig.drain()
    assert worker.jobs == ["durable", "hangs"]


def test_a_lost_reply_to_a_push_of_a_job_that_runs_already_does_not_hand_it_out_again(rig: IntakeRig) -> None:
    # Given
    worker = rig.worker(prefetch=5)
    rig.push(a_job("a"))
    rig.drain()
    faults = [Unclear("cut")]
    rig.store.after_insert = lambda: _raise_next(faults)
    # When
    rig.push(a_job("a"), a_job("b"))
    rig.drain()
    # Then
    assert worker.jobs == ["a", "b"]


def test_two_lost_replies_in_a_row_still_hand_out_each_job_once(rig: IntakeRig) -> None:
    worker = rig.worker(prefetch=5)
    faults = [Unclear("cut"), Unclear("cut")]
    rig.store.after_insert = lambda: _raise_next(faults)
    told = rig.push(a_job("a"), a_job("b"))
    rig.drain()
    assert (told.times, told.refused) == (1, {})
    assert worker.jobs == ["a", "b"]


def test_of_a_batch_that_mongodb_refuses_only_the_job_at_fault_is_refused(rig: IntakeRig) -> None:
    # Given
    worker = rig.worker(prefetch=9)
    rig.store.before_insert = _refuse_large
    # When
    told = [rig.push(a_job("a"), a_job("large"), a_job("b")), rig.push(a_job("c"))]
    rig.drain()
    # Then
    assert [{at: type(why) for at, why in (each.refused or {}).items()} for each in told] == [
        {1: Refused},
        {},
    ]
    assert (rig.counters.values["pushed"], rig.counters.values["refused"]) == (3, 1)
    assert sorted(worker.jobs) == ["a", "b", "c"]
    assert rig.dispatch.supply._ledger.expected == 0


def test_a_pusher_that_fails_on_what_it_is_told_is_told_once_and_the_others_hear_too(rig: IntakeRig) -> None:
    # Given
    heard: list[str] = []

    def fails(refused: dict[int, SluiceError], existing: Sequence[int]) -> None:
        heard.append("once")
        raise ValueError("a mistake")

    # When
    rig.intake.push(Push([a_job("a")], fails))
    told = rig.push(a_job("b"))
    rig.drain()
    # Then
    assert heard == ["once"]
    assert (told.times, told.refused) == (1, {})
    assert (rig.counters.values["pushed"], rig.counters.values["refused"]) == (2, 0)


def test_when_the_broker_gives_up_what_is_not_stored_is_refused_and_nothing_of_it_goes_out(
    rig: IntakeRig,
) -> None:
    # Given
    worker = rig.worker(prefetch=5)
    rig.store.before_insert = lambda _jobs: _raise_next([Unavailable("away")])
    told = rig.push(a_job("a"))
    go_on()
    # When
    rig.retry.give_up()
    rig.drain()
    # Then
    assert told.refused is not None
    assert isinstance(told.refused[0], Unavailable)
    assert worker.jobs == []
    assert rig.dispatch.supply._ledger.expected == 0
    assert rig.counters.values["unclear"] == 1


def test_a_mistake_of_ours_refuses_the_push_and_the_next_one_goes_through(rig: IntakeRig) -> None:
    # Given
    worker = rig.worker()
    faults: list[Exception] = [ValueError("a mistake")]
    rig.store.before_insert = lambda _jobs: _raise_next(faults)
    # When
    bad = rig.push(a_job("bad"))
    rig.drain()
    good = rig.push(a_job("good"))
    rig.drain()
    # Then
    assert bad.refused is not None
    assert bad.refused.keys() == {0}
    assert good.refused == {}
    assert worker.jobs == ["good"]


def test_what_is_not_being_written_yet_can_be_refused_when_time_is_up(rig: IntakeRig) -> None:
    # Given
    held = Held()
    rig.store.before_insert = held
    under_way = []
    for _ in range(INSERTS_AT_ONCE):
        under_way.append(rig.push(*some_jobs(INSERT)))
        go_on()
    waiting = rig.push(a_job(), a_job())
    # When
    assert not rig.intake.drain(0)
    assert rig.intake.busy
    rig.intake.refuse_waiting()
    held.set()
    rig.drain()
    # Then
    assert waiting.refused is not None
    assert waiting.refused.keys() == {0, 1}
    assert [each.refused for each in under_way] == [{}] * INSERTS_AT_ONCE
    assert not rig.intake.busy


def _refuse_large(jobs: list[Job]) -> None:
    if "large" in ids(jobs):
        raise Refused("BSONObj size is invalid")


def _raise_next(faults: list[Exception] | list[Unavailable] | list[Unclear]) -> None:
    if faults:
        raise faults.pop()
