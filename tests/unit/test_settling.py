"""Verdicts become statements: batches, what fails, what is in doubt."""

from collections.abc import Sequence
from typing import Any

import pytest

from sluicemq.protocol import wire
from sluicemq.protocol.errors import (
    LeaseLostError,
    NotFoundError,
    SluiceError,
    TooLargeError,
    UnavailableError,
    UncertainError,
)
from sluicemq_broker.context import Memory
from sluicemq_broker.job import Job
from sluicemq_broker.queue import Onward
from sluicemq_broker.queue.plans import Conditions
from sluicemq_broker.store import RolledBack, Unclear
from support.fakes import Held
from support.jobs import ids, some_jobs
from unit.settling_rig import SettlingRig


def test_nothing_is_handed_out_while_too_many_verdicts_have_no_answer() -> None:
    # Given a worker whose commits can't be written
    memory = Memory(hwm=2)
    rig = SettlingRig(3, memory=memory)
    rig.hire()
    assert rig.granting
    rig.store.before_commit = held = Held()
    rig.give_verdict(wire.COMMIT)
    full = rig.granting
    held.set()
    rig.wait()
    assert (full, rig.granting) == (False, True)
    assert memory.verdicts.mark.count == 0
    assert rig.heard == [{}]


@pytest.mark.parametrize(
    ("kind", "settings", "pops", "freed"),
    [
        (wire.COMMIT, {}, False, [{"g"}]),
        (wire.COMMIT, {"keep_done": 60.0}, False, [{"g"}]),
        (wire.REJECT, {}, False, [{"g"}]),
        (wire.ROLLBACK, {"max_attempts": 1}, False, [{"g"}]),
        (wire.ROLLBACK, {"max_attempts": 9}, False, []),
        (wire.RELEASE, {}, False, []),
        (None, {}, True, [{"g"}]),
    ],
)
def test_who_ends_lets_its_group_go_on_and_who_comes_again_does_not(
    kind: str | None, settings: dict[str, Any], freed: list[set[str]], *, pops: bool
) -> None:
    rig = SettlingRig(1, group="g", pops=pops, **settings)
    rig.hire()
    if kind:
        rig.verdict(kind)
    assert rig.store.groups.freed == freed


@pytest.mark.parametrize("kind", [wire.COMMIT, wire.ROLLBACK, wire.REJECT, wire.RELEASE])
def test_verdicts_of_every_kind_count_until_they_are_written(kind: str) -> None:
    memory = Memory()
    rig = SettlingRig(3, memory=memory)
    rig.hire()
    rig.store.before_commit = held = Held()
    rig.give_verdict(kind, detail=b"why")
    count = memory.verdicts.mark.count
    held.set()
    rig.wait()
    assert (count, memory.verdicts.mark.count, memory.verdicts.mark.bytes) == (3, 0, 0)


def test_jobs_of_workers_that_have_gone_count_until_they_are_given_back() -> None:
    memory = Memory()
    rig = SettlingRig(3, memory=memory)
    rig.hire()
    rig.queue.settling.worker_gone(rig.hand)
    count = memory.verdicts.mark.count
    rig.wait()
    assert (count, memory.verdicts.mark.count, memory.verdicts.mark.bytes) == (3, 0, 0)


def test_a_queue_whose_verdicts_are_not_written_leaves_room_for_those_of_others() -> None:
    # Given one that has far more than its share
    memory = Memory(hwm=10)
    sick, well = SettlingRig(50, memory=memory), SettlingRig(3, memory=memory)
    sick.hire()
    sick.store.before_commit = held = Held()
    sick.give_verdict(wire.COMMIT)
    well.hire()
    well.verdict(wire.COMMIT)
    assert (sick.granting, well.granting) == (False, True)
    assert len(well.hand.jobs) == 3
    held.set()
    sick.wait()
    assert sick.granting
    assert memory.verdicts.mark.count == 0


def test_large_results_that_are_not_written_yet_leave_no_memory_for_large_messages() -> None:
    memory = Memory(hwm_bytes=1000)
    rig = SettlingRig(1, memory=memory)
    rig.hire()
    rig.store.before_commit = held = Held()
    rig.give_verdict(wire.COMMIT, detail=bytes(1000))
    assert memory.takes_no_more
    held.set()
    rig.wait()
    assert not memory.takes_no_more


@pytest.mark.parametrize("kept", [True, False])
def test_a_commit_without_an_answer_was_ours_if_nobody_else_can_have_had_the_job(
    monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    rig = SettlingRig(1)
    rig.hire()
    cut: list[Exception] = [Unclear("cut")]

    def removed_and_not_answered(jobs: Sequence[Job]) -> dict[str, SluiceError]:
        if cut:
            raise cut.pop()
        return {job.id: UncertainError("gone") for job in jobs}

    monkeypatch.setattr(rig.store, "commit", removed_and_not_answered)
    monkeypatch.setattr(rig.owners, "keeps", lambda _owner: kept)
    rig.verdict(wire.COMMIT)
    assert rig.answers == [{} if kept else {0: UncertainError}]


def test_jobs_another_broker_took_over_are_forgotten_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SettlingRig(200)
    rig.hire()
    assert len(rig.held) == 200
    monkeypatch.setattr(rig.store, "commit", lambda jobs: {job.id: LeaseLostError("gone") for job in jobs})
    decided: list[float] = []
    next_time = rig.scheduler.next_time

    def counted(conditions: Conditions) -> float:
        decided.append(conditions.now)
        return next_time(conditions)

    monkeypatch.setattr(rig.scheduler, "next_time", counted)
    rig.verdict(wire.COMMIT)
    assert not rig.held
    assert [set(map(type, event.values())) for event in rig.heard] == [{LeaseLostError}]
    assert len(decided) < 10


@pytest.mark.parametrize(
    ("kind", "problem", "goes_back"),
    [
        (wire.COMMIT, TooLargeError("the result has no room"), True),
        (wire.COMMIT, NotFoundError("no such parent"), False),
        (wire.FORWARD, NotFoundError("no such queue"), True),
        (wire.FORWARD, LeaseLostError("another has it"), False),
        (wire.FORWARD, UncertainError("gone"), False),
    ],
)
def test_a_job_goes_back_if_it_is_still_ours_and_its_verdict_was_wrong(
    monkeypatch: pytest.MonkeyPatch, kind: str, problem: SluiceError, *, goes_back: bool
) -> None:
    rig = SettlingRig(1)
    rig.hire()
    monkeypatch.setattr(rig.store, "commit", lambda jobs: {job.id: problem for job in jobs})
    rig.other_queues.for_push.side_effect = problem
    roll_back, held = rig.store.roll_back, list[list[str]]()

    def noted(entries: Sequence[RolledBack], now: float) -> int:
        held.append(rig.held)
        return roll_back(entries, now)

    monkeypatch.setattr(rig.store, "roll_back", noted)
    rig.verdict(kind, onward=(Onward("sms", None, {}),))
    assert rig.answers == [{0: type(problem)}]
    assert held == [rig.hand.jobs] * goes_back  # it is ours until it is there
    assert not rig.held


def test_jobs_that_another_broker_has_given_back_before_are_counted() -> None:
    rig = SettlingRig(3, max_attempts=0)
    rig.hire()
    rig.store.reserved.popitem()
    rig.verdict(wire.ROLLBACK)
    assert rig.counters.values["given_back_by_others"] == 1


def test_a_new_job_does_not_overtake_those_that_a_worker_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a release that has no answer yet
    rig = SettlingRig(1)
    rig.hire()
    monkeypatch.setattr(rig.store, "release", Held())
    rig.give_verdict(wire.RELEASE, delay=0.0)
    arrival = rig.admit(*some_jobs(1))
    assert arrival.jobs == []


@pytest.mark.parametrize("fault", [UnavailableError("away"), ValueError("a mistake")])
@pytest.mark.parametrize("kind", [wire.COMMIT, wire.ROLLBACK, wire.RELEASE])
def test_jobs_whose_verdict_can_not_be_written_are_the_audits(kind: str, fault: Exception) -> None:
    rig = SettlingRig(3)
    rig.hire()
    assert len(rig.held) == 3
    rig.retry.give_up()
    rig.store.fault = fault
    rig.verdict(kind)
    assert not rig.held
    assert len(rig.store.reserved) == 3
    assert rig.answers == [dict.fromkeys(range(3), UnavailableError)]
    assert rig.counters.values["uncommitted"] == (3 if kind == wire.COMMIT else 0)


def test_jobs_that_can_not_be_removed_before_they_go_free_the_worker_again() -> None:
    rig = SettlingRig(3, pops=True)
    rig.retry.give_up()
    rig.store.fault = UnavailableError("away")
    rig.hire()
    assert not rig.held
    assert rig.hand.messages[-1] == []
    assert rig.hand.jobs == []


def test_jobs_that_can_not_be_released_hold_up_no_newer_ones() -> None:
    rig = SettlingRig(1)
    rig.hire()
    rig.retry.give_up()
    rig.store.fault = UnavailableError("away")
    rig.verdict(wire.RELEASE, delay=0.0)
    assert not rig.held
    assert not rig.scheduler.ledger.older_returning(rig.now())


def test_popped_jobs_that_another_broker_has_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SettlingRig(3, pops=True)
    lost, *ours = ids(rig.store.ready)
    monkeypatch.setattr(rig.store, "commit", lambda _jobs: {lost: LeaseLostError("gone")})
    rig.hire()
    assert rig.hand.jobs == ours
    assert not rig.held


@pytest.mark.parametrize("kind", [wire.COMMIT, wire.REJECT])
def test_a_listener_that_fails_is_told_once_and_the_others_hear_what_is_true(kind: str) -> None:
    rig = SettlingRig(2)
    rig.hire()
    times: list[int] = []

    def fails(problems: dict[int, SluiceError]) -> None:
        times.append(len(problems))
        raise ValueError("a mistake")

    rig.verdict(kind, fails)
    assert times == [0]
    assert rig.store.reserved == {}
    assert not rig.held
    assert rig.counters.values["committed" if kind == wire.COMMIT else "dead"] == 2
