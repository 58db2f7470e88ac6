"""Verdicts that can't be written, and listeners that fail on what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from fakes import FakeOwners, FakeStore, FakeWorker, Held, a_context, go_on, no_limits
from jobs import NOW, some_jobs
from sluicemq import wire
from sluicemq.errors import SluiceError, TooLarge, Unavailable, Uncertain
from sluicemq_broker.config import MAX_JOB_BYTES
from sluicemq_broker.job.backoff import Backoff
from sluicemq_broker.job.job import ASKED, Job
from sluicemq_broker.queue.dispatch import Dispatch
from sluicemq_broker.queue.memory import Memory
from sluicemq_broker.queue.retry import Retry
from sluicemq_broker.queue.settling import _DEFAULT_BACKOFF, DIED, NOT_ARRIVED, TIMED_OUT, Settling
from sluicemq_broker.queue.verdict import Settlement, Verdict
from sluicemq_broker.queue.worker import Delivery, Worker
from sluicemq_broker.runtime.counters import Counters
from sluicemq_broker.store.connection import Unclear
from sluicemq_broker.store.outcomes import Completed, RolledBack
from sluicemq_devices.hub.callbacks import nothing


class SettleStore(FakeStore):
    """Takes every verdict, unless ``fault`` is set."""

    fault: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.rolled_back: list[RolledBack] = []
        self.before_commit: Callable[[], None] = nothing
        self.finished: list[Completed] = []

    def _end(self, job: Job) -> SluiceError | None:
        if self.fault:
            raise self.fault
        return super()._end(job)

    def commit(self, jobs: Sequence[Job]) -> dict[str, SluiceError]:
        self.before_commit()
        return super().commit(jobs)

    def roll_back(self, entries: Sequence[RolledBack], now: float) -> int:
        self.rolled_back += entries
        return super().roll_back(entries, now)

    def complete(self, completed: Sequence[Completed], now: float) -> dict[str, SluiceError]:
        self.finished += completed
        return super().complete(completed, now)


class AnswersThatFail:
    """Askers who fail on every answer; nobody asks here."""

    def __contains__(self, job_id: str) -> bool:
        return False

    def committed(self, job_id: str, result: bytes) -> None:
        raise ValueError(job_id)

    def failed(self, job_id: str, error: SluiceError) -> None:
        raise ValueError(job_id)


class SettlingRig:
    """The verdicts of one queue over a store in memory, and a worker that has ``count`` jobs."""

    def __init__(
        self,
        count: int,
        *,
        pops: bool = False,
        attempts: int = 0,
        backoff: Backoff = _DEFAULT_BACKOFF,
        max_attempts: int = 1,
        memory: Memory | None = None,
        **settings: Any,
    ) -> None:
        self.store = SettleStore()
        self.counters = Counters()
        self.retry = Retry(0.001)
        self.owners = FakeOwners()
        self.memory = memory or Memory()
        context = a_context(self.owners, counters=self.counters, retry=self.retry, memory=self.memory)
        store: Any = self.store
        answers: Any = AnswersThatFail()
        self.dispatch = Dispatch(store, context, self, no_limits(context))
        nowhere: Any = None
        self.settle = Settling("mail", store, context, self.dispatch, answers, nowhere, backoff)
        self.heard: list[dict[int, SluiceError]] = []
        self.store.ready += some_jobs(count, max_attempts=max_attempts, **settings)
        for job in self.store.ready:
            job.attempts = attempts
        self.worker = FakeWorker(count)
        self.worker.pops = pops

    def pop(self, worker: Worker, deliveries: list[Delivery]) -> None:
        self.settle.commits.pop(worker, deliveries)

    def release(self, jobs: list[Job]) -> None:
        self.settle.returns.release(jobs)

    def claimed(self) -> None:
        """Nobody waits for room."""

    def died(self, ids: Iterable[str]) -> None:
        """Nobody asks."""

    def time_is_over(self, ids: Iterable[str]) -> None:
        """Nothing expires."""

    def hire(self) -> None:
        self.dispatch.attach(self.worker)
        self.dispatch.supply.some_ready()
        self.wait()

    def verdict(
        self,
        kind: str,
        told: Callable[[dict[int, SluiceError]], None] | None = None,
        *,
        detail: bytes = b"",
        delay: float | None = None,
    ) -> None:
        receipts = [each.receipt for each in self.worker.deliveries]
        self.settle.settle(
            [Verdict(each, kind, detail, delay) for each in receipts], Settlement(told or self.heard.append)
        )
        self.wait()

    def wait(self) -> None:
        go_on()
        for batcher in self.settle.batchers:
            assert batcher.drain(5.0)
        go_on()


def test_nothing_is_handed_out_while_too_many_verdicts_have_no_answer() -> None:
    # Given a worker whose commits can't be written
    memory = Memory(hwm=2)
    rig = SettlingRig(3, memory=memory)
    rig.hire()
    assert rig.dispatch.granting
    rig.store.before_commit = held = Held()
    # When
    receipts = [each.receipt for each in rig.worker.deliveries]
    rig.settle.settle([Verdict(each, wire.COMMIT) for each in receipts], Settlement(rig.heard.append))
    full = rig.dispatch.granting
    held.set()
    rig.wait()
    # Then
    assert (full, rig.dispatch.granting) == (False, True)
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
    # Given
    memory = Memory()
    rig = SettlingRig(3, memory=memory)
    rig.hire()
    rig.store.before_commit = held = Held()
    # When
    receipts = [each.receipt for each in rig.worker.deliveries]
    rig.settle.settle([Verdict(each, kind, b"why") for each in receipts], Settlement(rig.heard.append))
    count = memory.verdicts.mark.count
    held.set()
    rig.wait()
    # Then
    assert (count, memory.verdicts.mark.count, memory.verdicts.mark.bytes) == (3, 0, 0)


def test_jobs_of_workers_that_have_gone_count_until_they_are_given_back() -> None:
    memory = Memory()
    rig = SettlingRig(3, memory=memory)
    rig.hire()
    rig.settle.worker_gone(rig.worker)
    count = memory.verdicts.mark.count
    rig.wait()
    assert (count, memory.verdicts.mark.count, memory.verdicts.mark.bytes) == (3, 0, 0)


def test_a_queue_whose_verdicts_are_not_written_leaves_room_for_those_of_others() -> None:
    # Given one that has far more than its share
    memory = Memory(hwm=10)
    sick, well = SettlingRig(50, memory=memory), SettlingRig(3, memory=memory)
    sick.hire()
    sick.store.before_commit = held = Held()
    receipts = [each.receipt for each in sick.worker.deliveries]
    sick.settle.settle([Verdict(each, wire.COMMIT) for each in receipts], Settlement(sick.heard.append))
    # When
    well.hire()
    well.verdict(wire.COMMIT)
    # Then
    assert (sick.dispatch.granting, well.dispatch.granting) == (False, True)
    assert len(well.worker.jobs) == 3
    held.set()
    sick.wait()
    assert sick.dispatch.granting
    assert memory.verdicts.mark.count == 0


def test_large_results_that_are_not_written_yet_leave_no_memory_for_large_messages() -> None:
    memory = Memory(hwm_bytes=1000)
    rig = SettlingRig(1, memory=memory)
    rig.hire()
    rig.store.before_commit = held = Held()
    [delivery] = rig.worker.deliveries
    rig.settle.settle([Verdict(delivery.receipt, wire.COMMIT, bytes(1000))], Settlement())
    assert memory.takes_no_more
    held.set()
    rig.wait()
    assert not memory.takes_no_more


@pytest.mark.parametrize("kept", [True, False])
def test_a_commit_without_an_answer_was_ours_if_nobody_else_can_have_had_the_job(
    monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    # Given
    rig = SettlingRig(1)
    rig.hire()
    cut: list[Exception] = [Unclear("cut")]

    def removed_and_not_answered(jobs: Sequence[Job]) -> dict[str, SluiceError]:
        if cut:
            raise cut.pop()
        return {each.id: Uncertain("gone") for each in jobs}

    monkeypatch.setattr(rig.store, "commit", removed_and_not_answered)
    monkeypatch.setattr(rig.owners, "keeps", lambda _owner: kept)
    # When
    rig.verdict(wire.COMMIT)
    # Then
    assert [{at: type(why) for at, why in each.items()} for each in rig.heard] == [
        {} if kept else {0: Uncertain}
    ]


def test_a_new_job_does_not_overtake_those_that_a_worker_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a release that has no answer yet
    rig = SettlingRig(1)
    rig.hire()
    monkeypatch.setattr(rig.store, "release", Held())
    [delivery] = rig.worker.deliveries
    rig.settle.settle([Verdict(delivery.receipt, wire.RELEASE)], Settlement())
    # When
    arrival = rig.dispatch.supply.expect(some_jobs(1), NOW)
    # Then
    assert arrival.jobs == []


@pytest.mark.parametrize("fault", [Unavailable("away"), ValueError("a mistake")])
@pytest.mark.parametrize("kind", [wire.COMMIT, wire.ROLLBACK, wire.RELEASE])
def test_jobs_whose_verdict_can_not_be_written_are_forgotten_so_that_the_audit_finds_them(
    kind: str, fault: Exception
) -> None:
    # Given
    rig = SettlingRig(3)
    rig.hire()
    assert len(rig.dispatch.held) == 3
    # When
    rig.retry.give_up()
    rig.store.fault = fault
    rig.verdict(kind)
    # Then
    assert not rig.dispatch.held
    assert len(rig.store.reserved) == 3
    refused = {} if kind == wire.RELEASE else dict.fromkeys(range(3), Unavailable)
    assert [{at: type(why) for at, why in each.items()} for each in rig.heard] == [refused]


def test_jobs_that_can_not_be_removed_before_they_are_sent_are_forgotten_and_the_worker_is_free_again() -> (
    None
):
    rig = SettlingRig(3, pops=True)
    rig.retry.give_up()
    rig.store.fault = Unavailable("away")
    rig.hire()
    assert not rig.dispatch.held
    assert rig.worker.messages[-1] == []
    assert rig.worker.jobs == []


@pytest.mark.parametrize("kind", [wire.COMMIT, wire.REJECT])
def test_a_listener_that_fails_is_told_once_and_the_others_hear_what_is_true(kind: str) -> None:
    # Given
    rig = SettlingRig(2)
    rig.hire()
    times: list[int] = []

    def fails(problems: dict[int, SluiceError]) -> None:
        times.append(len(problems))
        raise ValueError("a mistake")

    # When
    rig.verdict(kind, fails)
    # Then
    assert times == [0]
    assert rig.store.reserved == {}
    assert not rig.dispatch.held
    assert rig.counters.values["committed" if kind == wire.COMMIT else "dead"] == 2


# ---------------------------------------------------------------------- back-off

LINEAR = Backoff("linear", base=10, jitter=0)


def failed(rig: SettlingRig) -> list[tuple[str, float | None, bool]]:
    return [(each.reason, each.due and each.due - NOW, each.dead) for each in rig.store.rolled_back]


@pytest.mark.parametrize(
    ("attempts", "delay", "wait"),
    [(1, None, 10), (2, None, 20), (5, None, 50), (1, 0, None), (5, 0.0, None), (1, 7.5, 7.5), (5, 7.5, 7.5)],
)
def test_a_rollback_waits_by_its_attempts_unless_a_delay_is_given(
    attempts: int, delay: float | None, wait: float | None
) -> None:
    rig = SettlingRig(1, max_attempts=0, attempts=attempts - 1, backoff=LINEAR)
    rig.hire()
    rig.verdict(wire.ROLLBACK, delay=delay)
    assert failed(rig) == [("rollback", wait, False)]


def test_a_jobs_own_backoff_wins_over_its_queues() -> None:
    rig = SettlingRig(1, max_attempts=0, backoff=LINEAR)
    rig.store.ready[0].backoff = Backoff("fixed", base=3, jitter=0)
    rig.hire()
    rig.verdict(wire.ROLLBACK)
    assert failed(rig) == [("rollback", 3, False)]


@pytest.mark.parametrize(("attempts", "wait"), [(1, None), (2, 20), (3, 30)])
def test_a_job_that_was_not_answered_in_time_comes_again_at_once_and_then_with_backoff(
    attempts: int, wait: float | None
) -> None:
    rig = SettlingRig(1, max_attempts=0, attempts=attempts - 1, visibility_timeout=0, backoff=LINEAR)
    rig.hire()
    rig.settle.time_out()
    rig.wait()
    assert failed(rig) == [(TIMED_OUT, wait, False)]


@pytest.mark.parametrize(
    ("attempts", "suspect", "wait"), [(1, False, None), (3, False, None), (2, True, 20), (4, True, 40)]
)
def test_a_job_whose_worker_died_comes_again_at_once_and_if_another_dies_with_backoff(
    attempts: int, *, suspect: bool, wait: float | None
) -> None:
    rig = SettlingRig(1, max_attempts=0, attempts=attempts - 1, backoff=LINEAR)
    rig.store.ready[0].suspect = suspect
    rig.hire()
    rig.settle.worker_gone(rig.worker)
    rig.wait()
    assert failed(rig) == [(DIED, wait, False)]
    assert rig.store.rolled_back[0].suspect


@pytest.mark.parametrize(("suspect", "wait", "dead"), [(False, None, False), (True, 10, True)])
def test_a_job_on_its_way_when_its_connection_ended_is_charged_with_it_the_second_time(
    wait: float | None, *, suspect: bool, dead: bool
) -> None:
    rig = SettlingRig(1, max_attempts=1, backoff=LINEAR)
    rig.store.ready[0].suspect = suspect
    rig.worker.commits_on_arrival = True
    rig.hire()
    rig.settle.worker_gone(rig.worker)
    rig.wait()
    assert failed(rig) == [(NOT_ARRIVED, wait, dead)]
    [entry] = rig.store.rolled_back
    assert (entry.suspect, entry.counted) == (True, suspect)


def test_a_job_on_its_way_for_its_visibility_timeout_is_released() -> None:
    rig = SettlingRig(2, max_attempts=1, visibility_timeout=0)
    rig.worker.commits_on_arrival = True
    rig.hire()
    rig.settle.time_out()
    rig.wait()
    assert failed(rig) == []
    assert rig.counters.values["released"] == 2


def test_a_job_that_dies_is_not_due_again() -> None:
    rig = SettlingRig(1, backoff=LINEAR)
    rig.hire()
    rig.verdict(wire.ROLLBACK, delay=5)
    assert failed(rig) == [("rollback", None, True)]


def test_a_job_that_waits_for_its_backoff_is_claimed_when_that_is_over_and_not_looked_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given
    rig = SettlingRig(1, max_attempts=0, backoff=LINEAR)
    rig.hire()
    claims, times = len(rig.store.claims), list[float]()
    monkeypatch.setattr(rig.dispatch.supply, "due_later", times.extend)
    # When
    rig.verdict(wire.ROLLBACK)
    # Then
    assert len(rig.store.claims) == claims
    assert times == [NOW + 10]


# -------------------------------------------------------------------- kept jobs


@pytest.mark.parametrize("settings", [{"remember": 60.0}, {"keep_done": 60.0}])
def test_a_kept_job_is_finished_with_the_worker_that_did_it_and_when_it_got_it(
    settings: dict[str, Any],
) -> None:
    # Given
    rig = SettlingRig(1, **settings)
    rig.hire()
    # When
    rig.verdict(wire.COMMIT)
    # Then
    [one] = rig.store.finished
    assert (one.job.id, one.worker, one.result) == (rig.worker.jobs[0], "worker", b"")
    assert NOW - 1 < one.started_at <= NOW


def test_a_job_that_somebody_waits_for_at_another_broker_is_kept_for_a_while() -> None:
    rig = SettlingRig(1)
    rig.store.ready[0].asked = True
    rig.hire()
    rig.verdict(wire.COMMIT)
    [one] = rig.store.finished
    assert one.job.remember == ASKED


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, None),
        ({"remember": 9.0}, MAX_JOB_BYTES),
        ({"keep_done": 9.0, "size": 1000}, MAX_JOB_BYTES - 1000),
    ],
)
def test_a_result_may_be_as_long_as_can_be_kept(settings: dict[str, Any], most: int | None) -> None:
    for over in (0, 1):
        rig = SettlingRig(1, **settings)
        rig.hire()
        rig.verdict(wire.COMMIT, detail=bytes((most or MAX_JOB_BYTES) + over))
        refused = most is not None and over
        assert len(rig.store.rolled_back) == refused
        assert [type(each) for each in rig.heard[0].values()] == ([TooLarge] if refused else [])
