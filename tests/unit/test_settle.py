"""Verdicts that can't be written, and listeners that fail on what they are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.counters import Counters
from broker.dispatch import Dispatch
from broker.job import Job
from broker.patience import Patience
from broker.settle import Settle, Settlement, Verdict
from broker.store import GivenBack
from fakes import Clock, FakeOwners, FakeStore, FakeWorker, go_on
from jobs import ids, some_jobs
from sluicemq import wire
from sluicemq.errors import SluiceError, Unavailable


class SettleStore(FakeStore):
    """Takes every verdict, unless ``fault`` is set."""

    fault: Exception | None = None

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
        return len(entries)

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

    def __init__(self, count: int, *, pops: bool = False) -> None:
        self.store = SettleStore()
        self.counters = Counters()
        self.patience = Patience()
        shared = (Clock(), self.patience, self.counters)
        self.dispatch = Dispatch(self.store, FakeOwners(), *shared)  # type: ignore[arg-type]
        answers: Any = AnswersThatFail()
        self.settle = Settle(self.store, self.dispatch, answers, *shared)  # type: ignore[arg-type]
        self.heard: list[dict[int, SluiceError]] = []
        self.store.ready += some_jobs(count, max_attempts=1)
        self.worker = FakeWorker(count)
        self.worker.pops = pops

    def hire(self) -> None:
        self.dispatch.attach(self.worker)
        self.dispatch.supply.some_ready()
        self.wait()

    def verdict(self, kind: str, told: Callable[[dict[int, SluiceError]], None] | None = None) -> None:
        receipts = [each.receipt for each in self.worker.deliveries]
        self.settle.settle([Verdict(each, kind) for each in receipts], Settlement(told or self.heard.append))
        self.wait()

    def wait(self) -> None:
        go_on()
        for batcher in self.settle._all():
            assert batcher.drain(5.0)
        go_on()


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
