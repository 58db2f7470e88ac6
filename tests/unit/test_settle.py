"""Verdicts that can't be written, and listeners that fail on what they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.backoff import Backoff
from broker.config import MAX_JOB_BYTES
from broker.counters import Counters
from broker.dispatch import Dispatch
from broker.job import Job
from broker.mongo import Unclear
from broker.patience import Patience
from broker.settle import _USUAL_BACKOFF, DIED, TIMED_OUT, Settle
from broker.store_verdicts import Finished, GivenBack
from broker.verdict import Settlement, Verdict
from fakes import Clock, FakeOwners, FakeStore, FakeWorker, go_on
from jobs import NOW, ids, some_jobs
from sluicemq import wire
from sluicemq.errors import SluiceError, TooLarge, Unavailable


class SettleStore(FakeStore):
    """Takes every verdict, unless ``fault`` is set."""

    fault: Exception | None = None

    def __init__(self) -> None:
        super().__init__()
        self.given_back: list[GivenBack] = []
        self.finished: list[Finished] = []

    def _end(self, job_ids: Sequence[str]) -> None:
        if self.fault:
            raise self.fault
        for each in job_ids:
            del self.reserved[each]

    def commit(self, jobs: Sequence[Job]) -> dict[str, SluiceError]:
        self._end(ids(list(jobs)))
        return {}

    def give_back(self, entries: Sequence[GivenBack], now: float) -> int:
        self._end([each.job.id for each in entries])
        self.given_back += entries
        return len(entries)

    def finish(self, finished: Sequence[Finished], now: float) -> dict[str, SluiceError]:
        self._end([each.job.id for each in finished])
        self.finished += finished
        return {}

    def release(self, job_ids: Sequence[str], owner: str) -> int:
        self._end(job_ids)
        return len(job_ids)


class AnswersThatFail:
    """Askers who fail on every answer."""

    def committed(self, job_id: str, result: bytes) -> None:
        raise ValueError(job_id)

    def failed(self, job_id: str, error: SluiceError) -> None:
        raise ValueError(job_id)


class House:
    """The verdicts of one queue over a store in memory, and a worker that has ``count`` jobs."""

    def __init__(
        self,
        count: int,
        *,
        pops: bool = False,
        attempts: int = 0,
        backoff: Backoff = _USUAL_BACKOFF,
        max_attempts: int = 1,
        **settings: Any,
    ) -> None:
        self.store = SettleStore()
        self.counters = Counters()
        self.patience = Patience()
        shared = (Clock(), self.patience, self.counters)
        self.owners = FakeOwners()
        self.dispatch = Dispatch(self.store, self.owners, *shared)  # type: ignore[arg-type]
        answers: Any = AnswersThatFail()
        self.settle = Settle(self.store, self.dispatch, answers, *shared, backoff)  # type: ignore[arg-type]
        self.heard: list[dict[int, SluiceError]] = []
        self.store.ready += some_jobs(count, max_attempts=max_attempts, **settings)
        for job in self.store.ready:
            job.attempts = attempts
        self.worker = FakeWorker(count)
        self.worker.pops = pops

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
        for batcher in self.settle._all():
            assert batcher.drain(5.0)
        go_on()


@pytest.mark.parametrize("kind", [wire.ROLLBACK, wire.REJECT, wire.RELEASE])
def test_after_an_unclear_give_back_nothing_new_is_claimed_under_its_owner(kind: str) -> None:
    """Else the repetition could give back what the same owner has claimed again in the meantime."""
    # Given: the first statement is applied or not, nobody knows
    house = House(3)
    house.hire()
    faults = [Unclear("no reply")]
    end = house.store._end

    def once(job_ids: Sequence[str]) -> None:
        if faults:
            raise faults.pop()
        end(job_ids)

    house.store._end = once  # type: ignore[method-assign]
    # When
    house.verdict(kind)
    # Then
    assert house.owners.retired == ["owner-1"]
    assert house.dispatch.held == {}


@pytest.mark.parametrize("fault", [Unavailable("away"), ValueError("a mistake")])
@pytest.mark.parametrize("kind", [wire.COMMIT, wire.ROLLBACK, wire.RELEASE])
def test_jobs_whose_verdict_can_not_be_written_are_forgotten_so_that_the_audit_finds_them(
    kind: str, fault: Exception
) -> None:
    # Given
    house = House(3)
    house.hire()
    assert len(house.dispatch.held) == 3
    # When
    house.patience.give_up()
    house.store.fault = fault
    house.verdict(kind)
    # Then
    assert house.dispatch.held == {}
    assert len(house.store.reserved) == 3
    refused = {} if kind == wire.RELEASE else dict.fromkeys(range(3), Unavailable)
    assert [{at: type(why) for at, why in each.items()} for each in house.heard] == [refused]


def test_jobs_that_can_not_be_removed_before_they_are_sent_are_forgotten_and_the_worker_is_free_again() -> (
    None
):
    house = House(3, pops=True)
    house.patience.give_up()
    house.store.fault = Unavailable("away")
    house.hire()
    assert house.dispatch.held == {}
    assert house.worker.messages[-1] == []
    assert house.worker.jobs == []


@pytest.mark.parametrize("kind", [wire.COMMIT, wire.REJECT])
def test_a_listener_that_fails_is_told_once_and_the_others_hear_what_is_true(kind: str) -> None:
    # Given
    house = House(2)
    house.hire()
    times: list[int] = []

    def fails(problems: dict[int, SluiceError]) -> None:
        times.append(len(problems))
        raise ValueError("a mistake")

    # When
    house.verdict(kind, fails)
    # Then
    assert times == [0]
    assert house.store.reserved == {}
    assert house.dispatch.held == {}
    assert house.counters.values["committed" if kind == wire.COMMIT else "dead"] == 2


# ---------------------------------------------------------------------- back-off

LINEAR = Backoff("linear", base=10, jitter=0)


def failed(house: House) -> list[tuple[str, float | None, bool]]:
    return [(each.reason, each.due and each.due - NOW, each.dead) for each in house.store.given_back]


@pytest.mark.parametrize(
    ("attempts", "delay", "wait"),
    [(1, None, 10), (2, None, 20), (5, None, 50), (1, 0, None), (5, 0.0, None), (1, 7.5, 7.5), (5, 7.5, 7.5)],
)
def test_a_rollback_waits_by_its_attempts_unless_a_delay_is_given(
    attempts: int, delay: float | None, wait: float | None
) -> None:
    house = House(1, max_attempts=0, attempts=attempts - 1, backoff=LINEAR)
    house.hire()
    house.verdict(wire.ROLLBACK, delay=delay)
    assert failed(house) == [("rollback", wait, False)]


def test_a_jobs_own_backoff_wins_over_its_queues() -> None:
    house = House(1, max_attempts=0, backoff=LINEAR)
    house.store.ready[0].backoff = Backoff("fixed", base=3, jitter=0)
    house.hire()
    house.verdict(wire.ROLLBACK)
    assert failed(house) == [("rollback", 3, False)]


@pytest.mark.parametrize(("attempts", "wait"), [(1, None), (2, 20), (3, 30)])
def test_a_job_that_was_not_answered_in_time_comes_again_at_once_and_then_with_backoff(
    attempts: int, wait: float | None
) -> None:
    house = House(1, max_attempts=0, attempts=attempts - 1, visibility_timeout=0, backoff=LINEAR)
    house.hire()
    house.settle.time_out()
    house.wait()
    assert failed(house) == [(TIMED_OUT, wait, False)]


@pytest.mark.parametrize(
    ("attempts", "suspect", "wait"), [(1, False, None), (3, False, None), (2, True, 20), (4, True, 40)]
)
def test_a_job_whose_worker_died_comes_again_at_once_and_if_another_dies_with_backoff(
    attempts: int, *, suspect: bool, wait: float | None
) -> None:
    house = House(1, max_attempts=0, attempts=attempts - 1, backoff=LINEAR)
    house.store.ready[0].suspect = suspect
    house.hire()
    house.settle.worker_gone(house.worker)
    house.wait()
    assert failed(house) == [(DIED, wait, False)]
    assert house.store.given_back[0].suspect


def test_a_job_that_dies_is_not_due_again() -> None:
    house = House(1, backoff=LINEAR)
    house.hire()
    house.verdict(wire.ROLLBACK, delay=5)
    assert failed(house) == [("rollback", None, True)]


def test_a_job_that_waits_for_its_backoff_is_claimed_when_that_is_over_and_not_looked_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given
    house = House(1, max_attempts=0, backoff=LINEAR)
    house.hire()
    claims, times = len(house.store.claims), list[float]()
    monkeypatch.setattr(house.dispatch.supply, "due_later", times.extend)
    # When
    house.verdict(wire.ROLLBACK)
    # Then
    assert len(house.store.claims) == claims
    assert times == [NOW + 10]


# -------------------------------------------------------------------- kept jobs


@pytest.mark.parametrize("settings", [{"remember": 60.0}, {"keep_done": 60.0}])
def test_a_kept_job_is_finished_with_the_worker_that_did_it_and_when_it_got_it(
    settings: dict[str, float],
) -> None:
    # Given
    house = House(1, **settings)
    house.hire()
    # When
    house.verdict(wire.COMMIT)
    # Then
    [one] = house.store.finished
    assert (one.job.id, one.worker, one.result) == (house.worker.jobs[0], "worker", b"")
    assert NOW - 1 < one.started_at <= NOW


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
        house = House(1, **settings)
        house.hire()
        house.verdict(wire.COMMIT, detail=bytes((most or MAX_JOB_BYTES) + over))
        refused = most is not None and over
        assert len(house.store.given_back) == refused
        assert [type(each) for each in house.heard[0].values()] == ([TooLarge] if refused else [])
