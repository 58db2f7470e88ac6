"""Inserts that fail, are refused, are in doubt or have no answer."""

from collections.abc import Mapping

import pytest

from sluicemq.protocol.errors import SluiceError, UnavailableError
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Push
from sluicemq_broker.queue.intake import INSERT, INSERT_BYTES, INSERTS_AT_ONCE
from sluicemq_broker.queue.ledger import IN_ORDER
from sluicemq_broker.store import Refused, Unclear
from support.fakes import Held, go_on
from support.jobs import a_job, ids, some_jobs
from support.virtual_time import VirtualTime
from unit.intake_rig import IntakeRig


@pytest.fixture
def rig() -> IntakeRig:
    return IntakeRig()


def test_an_insert_that_was_not_sent_is_repeated_as_it_was(rig: IntakeRig) -> None:
    worker = rig.worker()
    faults = [UnavailableError("away")] * 3
    rig.store.before_insert = lambda _jobs: _raise_next(faults)
    told = rig.push(a_job("a"))
    rig.drain()
    assert told.refused == {}
    assert worker.jobs == ["a"]
    assert rig.owners.current == "owner-1"


@pytest.mark.parametrize("applied", [False, True], ids=["that was not applied", "that was applied"])
def test_an_unanswered_insert_is_sent_again_and_goes_out_once(rig: IntakeRig, *, applied: bool) -> None:
    worker = rig.worker(prefetch=5)
    faults = [Unclear("cut")]
    if applied:
        rig.store.after_insert = lambda: _raise_next(faults)
    else:
        rig.store.before_insert = lambda _jobs: _raise_next(faults)
    told = rig.push(a_job("a"), a_job("b"))
    rig.drain()
    assert (told.times, told.refused, told.existing) == (1, {}, {})
    assert worker.jobs == ["a", "b"]
    assert rig.store.reserved == {"a": "owner-1", "b": "owner-1"}
    assert [(delivery.job.owner, delivery.job.attempts) for delivery in worker.deliveries] == [
        ("owner-1", 1)
    ] * 2


def test_what_is_inserted_reserved_is_known_from_before_its_insert_is_sent(rig: IntakeRig) -> None:
    rig.worker(prefetch=5)
    rig.store.before_insert = held = Held()
    job = a_job("a")
    rig.push(job)
    go_on()
    assert rig.store.inserts
    assert job.owner == "owner-1"
    assert not rig.scheduler.reservations.unknown([("a", job.reservation.number)])
    held.set()
    rig.drain()
    assert not rig.scheduler.reservations.unknown([("a", job.reservation.number)])


def test_large_jobs_are_inserted_in_parts_that_one_statement_takes(rig: IntakeRig) -> None:
    jobs = [a_job(name, size=INSERT_BYTES // 2) for name in "abcde"]
    told = rig.push(*jobs)
    rig.drain()
    assert [ids(insert) for insert in rig.store.inserts] == [["a", "b"], ["c", "d"], ["e"]]
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
    assert "later" not in rig.held
    assert not rig.scheduler.reservations.unknown([("later", later.reservation.number)])
    held.set()
    rig.drain()


def test_jobs_with_dear_headers_are_inserted_few_at_a_time(rig: IntakeRig) -> None:
    jobs = [a_job(f"job-{number}", headers={"a": 1}, size=64 * 1024) for number in range(30)]
    for job in jobs:
        rig.push(job)
    rig.drain()
    assert max(map(len, rig.store.inserts)) < 15


def test_large_jobs_on_their_way_leave_no_memory_for_large_messages() -> None:
    rig = IntakeRig(hwm_bytes=1000)
    memory = rig.memory
    rig.store.before_insert = held = Held()
    rig.push(a_job(size=1000))
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
    time.passes(IN_ORDER)
    rig.tick()
    assert (early, worker.jobs) == ([], ["durable"])
    held.set()
    rig.drain()
    assert worker.jobs == ["durable", "hangs"]


def test_a_lost_reply_to_a_push_of_a_job_that_runs_already_does_not_hand_it_out_again(rig: IntakeRig) -> None:
    worker = rig.worker(prefetch=5)
    rig.push(a_job("a"))
    rig.drain()
    faults = [Unclear("cut")]
    rig.store.after_insert = lambda: _raise_next(faults)
    rig.push(a_job("a"), a_job("b"))
    rig.drain()
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
    worker = rig.worker(prefetch=9)
    rig.store.before_insert = _refuse_large
    told = [rig.push(a_job("a"), a_job("large"), a_job("b")), rig.push(a_job("c"))]
    rig.drain()
    assert [{at: type(why) for at, why in (event.refused or {}).items()} for event in told] == [
        {1: Refused},
        {},
    ]
    assert (rig.counters.values["pushed"], rig.counters.values["refused"]) == (3, 1)
    assert sorted(worker.jobs) == ["a", "b", "c"]
    assert rig.scheduler.ledger.expected == 0


def test_a_pusher_that_fails_on_what_it_is_told_is_told_once_and_the_others_hear_too(rig: IntakeRig) -> None:
    heard: list[str] = []

    def fails(refused: dict[int, SluiceError], existing: Mapping[int, str]) -> None:
        heard.append("once")
        raise ValueError("a mistake")

    rig.intake.push(Push([a_job("a")], fails))
    told = rig.push(a_job("b"))
    rig.drain()
    assert heard == ["once"]
    assert (told.times, told.refused) == (1, {})
    assert (rig.counters.values["pushed"], rig.counters.values["refused"]) == (2, 0)


def test_when_the_broker_gives_up_what_is_not_stored_is_refused_and_stays(rig: IntakeRig) -> None:
    worker = rig.worker(prefetch=5)
    rig.store.before_insert = lambda _jobs: _raise_next([UnavailableError("away")])
    told = rig.push(a_job("a"))
    go_on()
    rig.retry.give_up()
    rig.drain()
    assert told.refused is not None
    assert isinstance(told.refused[0], UnavailableError)
    assert worker.jobs == []
    assert rig.scheduler.ledger.expected == 0
    assert rig.counters.values["unclear"] == 1


def test_a_mistake_of_ours_refuses_the_push_and_the_next_one_goes_through(rig: IntakeRig) -> None:
    worker = rig.worker()
    faults: list[Exception] = [ValueError("a mistake")]
    rig.store.before_insert = lambda _jobs: _raise_next(faults)
    bad = rig.push(a_job("bad"))
    rig.drain()
    good = rig.push(a_job("good"))
    rig.drain()
    assert bad.refused is not None
    assert bad.refused.keys() == {0}
    assert good.refused == {}
    assert worker.jobs == ["good"]


def test_what_is_not_being_written_yet_can_be_refused_when_time_is_up(rig: IntakeRig) -> None:
    held = Held()
    rig.store.before_insert = held
    under_way = []
    for _ in range(INSERTS_AT_ONCE):
        under_way.append(rig.push(*some_jobs(INSERT)))
        go_on()
    waiting = rig.push(a_job(), a_job())
    assert not rig.intake.drain(0)
    assert rig.intake.busy
    rig.intake.refuse_waiting()
    held.set()
    rig.drain()
    assert waiting.refused is not None
    assert waiting.refused.keys() == {0, 1}
    assert [insert.refused for insert in under_way] == [{}] * INSERTS_AT_ONCE
    assert not rig.intake.busy


def _refuse_large(jobs: list[Job]) -> None:
    if "large" in ids(jobs):
        raise Refused("BSONObj size is invalid")


def _raise_next(faults: list[Exception] | list[UnavailableError] | list[Unclear]) -> None:
    if faults:
        raise faults.pop()
