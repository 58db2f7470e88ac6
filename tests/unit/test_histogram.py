"""Durations counted within bounds."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from sluicemq_broker.runtime import BOUNDS, Count, Counters, Histogram, QueueCounters, Timing, percentile


def test_a_duration_is_counted_within_the_first_bound_that_it_does_not_pass() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 1e6):
        histogram.observe(seconds)
    within = {bound: count for bound, count in zip((*BOUNDS, "more"), histogram.counts, strict=True) if count}
    assert within == {0.0005: 1, 0.001: 1, 0.0025: 1, "more": 1}
    assert histogram.sum == pytest.approx(1e6 + 0.0021)


@pytest.mark.parametrize("spread", [0.0, 1e-4, 10.0, 1e6])
def test_a_batch_counts_as_its_durations_one_by_one_do(spread: float) -> None:
    random, batch, one_by_one = Random(7), Histogram(), Histogram()
    for start in (0.0, 0.0005, 3.0, 100_000.0):
        durations = [start + spread * random.random() for _ in range(50)]
        batch.observe_all(durations)
        for duration in durations:
            one_by_one.observe(duration)
    assert batch.counts == one_by_one.counts
    assert batch.sum == pytest.approx(one_by_one.sum)


def test_bounds_rise() -> None:
    assert all(low < high for low, high in pairwise(BOUNDS))


def test_what_a_queue_takes_is_counted_and_summed_for_it() -> None:
    broker = Counters()
    mail, thumbs = (QueueCounters(broker, queue=name) for name in ("mail", "thumbs"))
    mail.took(Timing.TIME_IN_QUEUE, [0.5, 1.5])
    thumbs.took(Timing.TIME_AT_WORKER, [0.25])
    thumbs.took(Timing.PUSH_CONFIRMATION, [0.25])
    assert (mail.values[Count.WAITED], thumbs.values[Count.WORKED]) == (2000, 250)
    assert sum(broker.timings_of("mail")[Timing.TIME_IN_QUEUE].counts) == 2
    assert broker.timings_of("thumbs")[Timing.TIME_AT_WORKER].sum == 0.25


def test_what_is_negative_for_a_clock_that_was_set_counts_as_nothing() -> None:
    counters = QueueCounters(Counters())
    counters.took(Timing.TIME_IN_QUEUE, [-5.0, 1.0])
    assert counters.values[Count.WAITED] == 1000


def test_nothing_is_counted_of_an_empty_batch() -> None:
    counters = Counters()
    counters.took(Timing.TIME_IN_QUEUE, [])
    assert sum(counters.timings_of("mail")[Timing.TIME_IN_QUEUE].counts) == 0


def test_a_percentile_lies_within_the_bound_of_its_duration() -> None:
    histogram = Histogram()
    histogram.observe(0.004, 90)
    histogram.observe(0.4, 9)
    histogram.observe(1e6)
    found = [percentile(histogram.counts, share) for share in (0.5, 0.95, 0.999)]
    assert found == [pytest.approx(0.0039, abs=0.0003), pytest.approx(0.389, abs=0.01), BOUNDS[-1]]
    assert percentile(Histogram().counts, 0.5) is None
