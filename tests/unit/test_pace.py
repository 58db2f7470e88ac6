"""The pace of workers: what it is while it is not known, fast, slow, and idle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluicemq_broker.queue import pace as pace_module
from sluicemq_broker.queue.pace import LARGEST, Pace

Pass = Callable[[float], None]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Time that passes only when told to."""
    now = 100.0

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now

    def on(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(pace_module, "time", Time)
    return on


def test_a_quarter_of_a_second_of_work_is_held_within_bounds(wait: Pass) -> None:
    pace = Pace()
    pace.begin()
    wait(0.05)
    pace.ended(500)
    assert pace.rate == pytest.approx(10_000)
    assert pace.appetite == 2_500
    wait(0.05)
    pace.ended(50_000)
    assert pace.appetite == LARGEST


def test_workers_that_have_jobs_and_end_none_are_slow_and_idle_ones_unknown(wait: Pass) -> None:
    pace = Pace()
    pace.begin()
    wait(1.0)
    pace.tick(working=True)
    assert (pace.rate, pace.appetite) == (0.0, 0)
    wait(1.0)
    pace.tick(working=False)
    assert pace.rate is None


def test_time_in_which_workers_had_no_jobs_is_not_counted(wait: Pass) -> None:
    # Given: fast workers that were kept waiting
    pace = Pace()
    pace.begin()
    wait(0.05)
    pace.ended(500)
    pace.rest()
    wait(10.0)
    # When
    pace.begin()
    wait(0.05)
    pace.ended(500)
    # Then
    assert pace.rate == pytest.approx(10_000)


def test_what_idle_workers_have_done_before_counts_by_the_time_it_took(wait: Pass) -> None:
    pace = Pace()
    pace.begin()
    wait(0.01)
    pace.ended(100)
    pace.rest()
    wait(0.9)
    pace.tick(working=False)
    assert pace.rate == pytest.approx(5_000)


def test_the_pace_of_workers_that_run_empty_again_and_again_is_known_after_a_moment_of_work(
    wait: Pass,
) -> None:
    pace = Pace()
    for _ in range(10):
        pace.begin()
        wait(0.005)
        pace.rest()
        pace.ended(50)
        wait(0.1)
    assert pace.rate == pytest.approx(10_000)
