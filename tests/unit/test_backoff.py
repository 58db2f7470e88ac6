"""How long a job that failed waits: the growth of each kind, its cap, its spread."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.config import QueueSettings
from sluicemq_broker.job import BOUNDS, KINDS, Backoff

EVENLY = Random(4).random

backoffs = st.builds(
    Backoff, kind=st.sampled_from(KINDS), **{name: st.floats(*bounds) for name, bounds in BOUNDS.items()}
)
attempts = st.integers(1, 1_000_000)


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (Backoff(jitter=0), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]),
        (Backoff("exponential", base=2, factor=3, cap=50, jitter=0), [2, 6, 18, 50]),
        (Backoff("linear", base=2, cap=7, jitter=0), [2, 4, 6, 7]),
        (Backoff("fixed", base=5, jitter=0), [5, 5, 5]),
        (Backoff("fixed", base=5, cap=3, jitter=0), [3, 3]),
        (Backoff("none"), [0, 0, 0]),
        (Backoff(base=0), [0] * 2000),
    ],
)
def test_each_kind_grows_as_it_is_drawn(backoff: Backoff, waits: list[float]) -> None:
    assert [backoff.wait(attempt) for attempt in range(1, len(waits) + 1)] == waits


@given(backoffs, attempts, st.floats(0, 1))
def test_no_wait_is_negative_endless_or_beyond_its_cap(backoff: Backoff, attempt: int, chance: float) -> None:
    wait = backoff.wait(attempt, lambda: chance)
    assert math.isfinite(wait)
    assert 0 <= wait <= backoff.cap * (1 + backoff.jitter)


@given(backoffs, attempts)
def test_a_later_failure_never_waits_less(backoff: Backoff, attempt: int) -> None:
    even = backoff._replace(jitter=0.0)
    assert even.wait(attempt + 1) >= even.wait(attempt)


@given(backoffs, attempts)
def test_chance_moves_a_wait_by_its_share_and_no_further(backoff: Backoff, attempt: int) -> None:
    even = backoff._replace(jitter=0.0).wait(attempt)
    assert backoff.wait(attempt, lambda: 0.5) == even
    assert backoff.wait(attempt, lambda: 0.0) == pytest.approx(even * (1 - backoff.jitter))
    assert backoff.wait(attempt, lambda: 1.0) == pytest.approx(even * (1 + backoff.jitter))


def test_by_default_a_job_is_tried_again_for_an_hour_at_least() -> None:
    settings = QueueSettings()
    waits = [settings.retries.wait(number, lambda: 0.0) for number in range(1, settings.max_attempts)]
    assert 3600 <= sum(waits) <= 2 * 3600


def test_jobs_that_failed_together_come_again_at_different_times() -> None:
    waits = [Backoff().wait(1, EVENLY) for _ in range(100)]
    assert len(set(waits)) == 100
    assert min(waits) < 0.92
    assert max(waits) > 1.08
