"""Pushes on their way into the store: merged, numbered, written, and only then confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fakes import Clock, FakeOutlet, FakeOwners, FakeStore, FakeWorker, Held, a_context, go_on
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


class House:
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
        self.dispatch = Dispatch(store, context, FakeOutlet())
        self.intake = Intake(store, context, self.dispatch.supply)

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
def house() -> House:
    return House()


# ------------------------------------------------------------------------- writing


def test_a_push_is_confirmed_only_when_its_jobs_are_durable(house: House) -> None:
    # Given
    held = Held()
    house.store.before_insert = held
    told = house.push(a_job("a"), a_job("b"))
    go_on()
    early = told.times
    # When
    held.set()
    house.drain()
    # Then
    assert early == 0
    assert (told.times, told.refused, told.existing) == (1, {}, ())
    assert ids(house.store.ready) == ["a", "b"]
    assert house.counters.values["pushed"] == 2


def test_pushes_that_come_together_are_one_insert_and_each_hears_of_its_own(house: House) -> None:
    # Given
    house.store.ready.append(a_job("known"))
    pushes = [(a_job("a"),), (a_job("b"), a_job("known")), (a_job("known"), a_job("c"))]
    # When
    told = [house.push(*jobs) for jobs in pushes]
    house.drain()
    # Then
    assert [ids(jobs) for jobs in house.store.inserts] == [["a", "b", "known", "known", "c"]]
    assert [list(each.existing) for each in told] == [[], [1], [0]]
    assert house.counters.values["pushed"] == 3


def test_an_insert_holds_so_many_jobs_and_so_many_are_under_way_at_once(house: House) -> None:
    # Given
    held = Held()
    house.store.before_insert = held
    # When
    for _ in range(5):
        house.push(*some_jobs(INSERT // 2))
        go_on()
    under_way = len(house.store.inserts)
    held.set()
    house.drain()
    # Then
    assert under_way == INSERTS_AT_ONCE
    assert max(map(len, house.store.inserts)) <= INSERT
    assert len(house.store.ready) == 5 * (INSERT // 2)


def test_a_refused_job_is_told_to_its_own_push_at_its_own_place(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    monkeypatch.setattr(house.store, "push", lambda _jobs, _now, _at: Pushed([], {2: TooLarge("16 MiB")}))
    # When
    first, second = house.push(a_job()), house.push(a_job(), a_job("large"))
    house.drain()
    # Then
    assert first.refused == {}
    assert second.refused is not None
    assert [(at, type(error)) for at, error in second.refused.items()] == [(1, TooLarge)]
    assert (house.counters.values["pushed"], house.counters.values["refused"]) == (2, 1)


def test_a_duplicate_is_told_counted_by_its_own_name_and_handed_to_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    worker = house.worker(prefetch=3)
    told = Pushed([], {1: Duplicate("not stored", "first")})
    monkeypatch.setattr(house.store, "push", lambda _jobs, _now, _at: told)
    # When
    push = house.push(a_job("a"), a_job("b"), a_job("c"))
    house.drain()
    # Then
    assert push.refused == told.refused
    assert worker.jobs == ["a", "c"]
    assert sorted(ids(list(house.dispatch.held))) == ["a", "c"]
    counted = house.counters.values
    assert (counted["pushed"], counted["duplicates"], counted["refused"]) == (2, 1, 0)


def test_a_repeated_insert_says_when_it_was_sent(house: House) -> None:
    """Or a dedupe window could be over before anybody hears that its job is stored."""

    # Given
    def lose_the_first_reply() -> None:
        if house.clock.time == NOW:
            house.clock.time += 100
            raise Unclear

    house.store.after_insert = lose_the_first_reply
    # When
    house.push(a_job())
    house.drain()
    # Then
    assert house.store.sent == [NOW, NOW + 100]


# ---------------------------------------------------------------- numbers, times


def test_jobs_are_numbered_in_the_order_of_acceptance_also_when_the_clock_steps_back(house: House) -> None:
    # Given
    first, second = some_jobs(3), some_jobs(3)
    house.push(*first)
    house.drain()
    # When
    house.clock.time = NOW - 100
    house.push(*second)
    house.drain()
    # Then
    numbers = [job.seq for job in first + second]
    assert numbers == sorted(set(numbers))
    assert {job.created_at for job in first + second} == {NOW}


def test_numbers_go_on_rising_after_a_restart() -> None:
    before, after = House(), House()
    old, new = some_jobs(1000), a_job()
    before.push(*old)
    before.drain()
    after.clock.time = NOW + 0.001
    after.push(new)
    after.drain()
    assert new.seq >= old[-1].seq


def test_a_job_is_due_at_once_or_when_it_says_and_never_in_the_past(house: House) -> None:
    past, future = a_job(eligible_at=NOW - 50), a_job(eligible_at=NOW + 50)
    house.push(past, future)
    house.drain()
    assert (past.eligible_at, future.eligible_at) == (NOW, NOW + 50)


# --------------------------------------------------------------- straight to workers


def test_a_job_goes_straight_to_a_free_worker_once_it_is_durable(house: House) -> None:
    # Given
    worker = house.worker()
    claims = len(house.store.claims)
    held = Held()
    house.store.before_insert = held
    house.push(a_job("a"))
    go_on()
    early = list(worker.jobs)
    # When
    held.set()
    house.drain()
    # Then
    assert early == []
    assert worker.jobs == ["a"]
    assert house.store.reserved == {"a": "owner-1"}
    assert len(house.store.claims) == claims


def test_what_there_is_no_room_for_is_claimed_when_workers_want_it_in_order(house: House) -> None:
    # Given
    worker = house.worker()
    jobs = some_jobs(200)
    # When
    house.push(*jobs)
    house.drain()
    while worker.in_flight:
        [receipt] = worker.in_flight
        delivery = house.dispatch.settle(receipt)
        assert delivery
        house.dispatch.forget([delivery.job])
        house.dispatch.offer(worker)
        go_on()
    # Then
    assert worker.jobs == ids(jobs)


def test_a_job_that_was_known_before_is_not_handed_out_by_its_second_push(house: House) -> None:
    worker = house.worker(prefetch=5)
    house.push(a_job("a"))
    house.push(a_job("b"), a_job("a"), a_job("a"))
    house.drain()
    house.push(a_job("b"))
    house.drain()
    assert sorted(worker.jobs) == ["a", "b"]
    assert house.dispatch.supply._ledger.expected == 0


# -------------------------------------------------------------------------- faults


def test_an_insert_that_was_not_sent_is_repeated_as_it_was(house: House) -> None:
    # Given
    worker = house.worker()
    faults = [Unavailable("away")] * 3
    house.store.before_insert = lambda _jobs: _raise_next(faults)
    # When
    told = house.push(a_job("a"))
    house.drain()
    # Then
    assert told.refused == {}
    assert worker.jobs == ["a"]
    assert house.owners.current == "owner-1"


@pytest.mark.parametrize("applied", [False, True], ids=["that was not applied", "that was applied"])
def test_an_insert_without_an_answer_is_sent_again_and_its_jobs_go_out_once(
    house: House, *, applied: bool
) -> None:
    # Given
    worker = house.worker(prefetch=5)
    faults = [Unclear("cut")]
    if applied:
        house.store.after_insert = lambda: _raise_next(faults)
    else:
        house.store.before_insert = lambda _jobs: _raise_next(faults)
    # When
    told = house.push(a_job("a"), a_job("b"))
    house.drain()
    # Then
    assert (told.times, told.refused, told.existing) == (1, {}, ())
    assert worker.jobs == ["a", "b"]
    assert house.store.reserved == {"a": "owner-1", "b": "owner-1"}
    assert [(each.job.owner, each.job.attempts) for each in worker.deliveries] == [("owner-1", 1)] * 2


def test_what_is_born_reserved_is_known_from_before_its_insert_is_sent(house: House) -> None:
    # Given
    house.worker(prefetch=5)
    house.store.before_insert = held = Held()
    job = a_job("a")
    # When
    house.push(job)
    go_on()
    # Then
    assert house.store.inserts
    assert job.owner == "owner-1"
    assert house.dispatch.held.knows("a", job.hold)
    held.set()
    house.drain()
    assert house.dispatch.held.knows("a", job.hold)


def test_large_jobs_are_inserted_in_parts_that_one_statement_takes(house: House) -> None:
    # Given
    jobs = [a_job(each, size=INSERT_BYTES // 2) for each in "abcde"]
    # When
    told = house.push(*jobs)
    house.drain()
    # Then
    assert [ids(each) for each in house.store.inserts] == [["a", "b"], ["c", "d"], ["e"]]
    assert (told.times, told.refused) == (1, {})


def test_durable_jobs_that_wait_for_an_insert_before_them_are_known(house: House) -> None:
    # Given an insert without an answer, and a durable one behind it
    house.worker(prefetch=5)
    held = Held()
    house.store.before_insert = lambda jobs: held() if "first" in ids(jobs) else None
    house.push(a_job("first"))
    go_on()
    later = a_job("later")
    told = house.push(later)
    go_on()
    # Then the audit does not take it for an orphan
    assert told.times == 1
    assert "later" not in house.dispatch.held
    assert house.dispatch.held.knows("later", later.hold)
    held.set()
    house.drain()


def test_jobs_with_dear_headers_are_inserted_few_at_a_time(house: House) -> None:
    jobs = [a_job(f"job-{number}", headers={"a": 1}, size=64 * 1024) for number in range(30)]
    for job in jobs:
        house.push(job)
    house.drain()
    assert max(map(len, house.store.inserts)) < 15


def test_large_jobs_on_their_way_leave_no_memory_for_large_messages() -> None:
    # Given
    house = House(hwm_bytes=1000)
    memory = house.memory
    house.store.before_insert = held = Held()
    # When
    house.push(a_job(size=1000))
    # Then
    assert memory.takes_no_more
    held.set()
    house.drain()
    assert not memory.takes_no_more


def test_jobs_do_not_wait_for_long_for_an_insert_before_them_that_has_no_answer() -> None:
    # Given an insert that hangs, and one behind it that is durable
    time = VirtualTime()
    house = House(timer=time)
    worker = house.worker(prefetch=5)
    held = Held()
    house.store.before_insert = lambda jobs: held() if "hangs" in ids(jobs) else None
    house.push(a_job("hangs"))
    go_on()
    told = house.push(a_job("durable"))
    go_on()
    assert told.times == 1
    early = list(worker.jobs)
    # When
    time.passes(IN_ORDER)
    house.dispatch.tick()
    # Then
    assert (early, worker.jobs) == ([], ["durable"])
    held.set()
    house.drain()
    assert worker.jobs == ["durable", "hangs"]


def test_a_lost_reply_to_a_push_of_a_job_that_runs_already_does_not_hand_it_out_again(house: House) -> None:
    # Given
    worker = house.worker(prefetch=5)
    house.push(a_job("a"))
    house.drain()
    faults = [Unclear("cut")]
    house.store.after_insert = lambda: _raise_next(faults)
    # When
    house.push(a_job("a"), a_job("b"))
    house.drain()
    # Then
    assert worker.jobs == ["a", "b"]


def test_two_lost_replies_in_a_row_still_hand_out_each_job_once(house: House) -> None:
    worker = house.worker(prefetch=5)
    faults = [Unclear("cut"), Unclear("cut")]
    house.store.after_insert = lambda: _raise_next(faults)
    told = house.push(a_job("a"), a_job("b"))
    house.drain()
    assert (told.times, told.refused) == (1, {})
    assert worker.jobs == ["a", "b"]


def test_of_a_batch_that_mongodb_refuses_only_the_job_at_fault_is_refused(house: House) -> None:
    # Given
    worker = house.worker(prefetch=9)
    house.store.before_insert = _refuse_large
    # When
    told = [house.push(a_job("a"), a_job("large"), a_job("b")), house.push(a_job("c"))]
    house.drain()
    # Then
    assert [{at: type(why) for at, why in (each.refused or {}).items()} for each in told] == [
        {1: Refused},
        {},
    ]
    assert (house.counters.values["pushed"], house.counters.values["refused"]) == (3, 1)
    assert sorted(worker.jobs) == ["a", "b", "c"]
    assert house.dispatch.supply._ledger.expected == 0


def test_a_pusher_that_fails_on_what_it_is_told_is_told_once_and_the_others_hear_too(house: House) -> None:
    # Given
    heard: list[str] = []

    def fails(refused: dict[int, SluiceError], existing: Sequence[int]) -> None:
        heard.append("once")
        raise ValueError("a mistake")

    # When
    house.intake.push(Push([a_job("a")], fails))
    told = house.push(a_job("b"))
    house.drain()
    # Then
    assert heard == ["once"]
    assert (told.times, told.refused) == (1, {})
    assert (house.counters.values["pushed"], house.counters.values["refused"]) == (2, 0)


def test_when_the_broker_gives_up_what_is_not_stored_is_refused_and_nothing_of_it_goes_out(
    house: House,
) -> None:
    # Given
    worker = house.worker(prefetch=5)
    house.store.before_insert = lambda _jobs: _raise_next([Unavailable("away")])
    told = house.push(a_job("a"))
    go_on()
    # When
    house.retry.give_up()
    house.drain()
    # Then
    assert told.refused is not None
    assert isinstance(told.refused[0], Unavailable)
    assert worker.jobs == []
    assert house.dispatch.supply._ledger.expected == 0
    assert house.counters.values["refused"] == 1


def test_a_mistake_of_ours_refuses_the_push_and_the_next_one_goes_through(house: House) -> None:
    # Given
    worker = house.worker()
    faults: list[Exception] = [ValueError("a mistake")]
    house.store.before_insert = lambda _jobs: _raise_next(faults)
    # When
    bad = house.push(a_job("bad"))
    house.drain()
    good = house.push(a_job("good"))
    house.drain()
    # Then
    assert bad.refused is not None
    assert bad.refused.keys() == {0}
    assert good.refused == {}
    assert worker.jobs == ["good"]


def test_what_is_not_being_written_yet_can_be_refused_when_time_is_up(house: House) -> None:
    # Given
    held = Held()
    house.store.before_insert = held
    under_way = []
    for _ in range(INSERTS_AT_ONCE):
        under_way.append(house.push(*some_jobs(INSERT)))
        go_on()
    waiting = house.push(a_job(), a_job())
    # When
    assert not house.intake.drain(0)
    assert house.intake.busy
    house.intake.refuse_waiting()
    held.set()
    house.drain()
    # Then
    assert waiting.refused is not None
    assert waiting.refused.keys() == {0, 1}
    assert [each.refused for each in under_way] == [{}] * INSERTS_AT_ONCE
    assert not house.intake.busy


def _refuse_large(jobs: list[Job]) -> None:
    if "large" in ids(jobs):
        raise Refused("BSONObj size is invalid")


def _raise_next(faults: list[Exception] | list[Unavailable] | list[Unclear]) -> None:
    if faults:
        raise faults.pop()
