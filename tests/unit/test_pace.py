"""The pace of workers: what it is while it is not known, fast, slow, and idle."""

import pytest

from sluicemq_broker.queue.pace import FEW, LARGEST, UNKNOWN, Pace
from support.virtual_time import VirtualTime


@pytest.fixture
def timer() -> VirtualTime:
    return VirtualTime()


def work(pace: Pace, timer: VirtualTime, count: int = 500) -> None:
    """Workers end so many jobs within a twentieth of a second."""
    pace.begin(timer.now())
    timer.passes(0.05)
    pace.ended(count, timer.now())


def test_a_quarter_of_a_second_of_work_is_held_within_bounds(timer: VirtualTime) -> None:
    pace = Pace()
    work(pace, timer)
    assert pace.rate == pytest.approx(10_000)
    assert pace.appetite == 2_500
    work(pace, timer, 50_000)
    assert pace.appetite == LARGEST


def test_workers_that_have_jobs_and_end_none_are_slow_and_idle_ones_unknown(timer: VirtualTime) -> None:
    pace = Pace()
    for _ in range(2):
        pace.tick(timer.now(), working=True)
        assert (pace.rate, pace.appetite) == (0.0, 0)
        timer.passes(1.0)
    pace.ended(500, timer.now())
    assert pace.rate == pytest.approx(500)
    pace.tick(timer.now(), working=False)
    assert pace.rate is None


def test_time_in_which_workers_had_no_jobs_is_not_counted(timer: VirtualTime) -> None:
    # Given: fast workers that were kept waiting
    pace = Pace()
    work(pace, timer)
    pace.rest(timer.now())
    timer.passes(10.0)
    work(pace, timer)
    assert pace.rate == pytest.approx(10_000)


def test_what_idle_workers_have_done_before_counts_by_the_time_it_took(timer: VirtualTime) -> None:
    pace = Pace()
    pace.begin(timer.now())
    timer.passes(0.01)
    pace.ended(100, timer.now())
    pace.rest(timer.now())
    timer.passes(0.9)
    pace.tick(timer.now(), working=False)
    assert pace.rate == pytest.approx(5_000)


def test_the_pace_of_workers_that_run_empty_is_known_after_some_work(timer: VirtualTime) -> None:
    pace = Pace()
    for _ in range(10):
        pace.begin(timer.now())
        timer.passes(0.005)
        pace.rest(timer.now())
        pace.ended(50, timer.now())
        timer.passes(0.1)
    assert pace.rate == pytest.approx(10_000)


def test_beside_other_brokers_no_more_is_held_than_lasts_until_the_next_claim(timer: VirtualTime) -> None:
    pace = Pace()
    assert pace.appetite == UNKNOWN
    pace.share(shared=True)
    assert pace.appetite == FEW
    work(pace, timer)
    assert pace.appetite == 500
    # When claims take long
    for took, held in ((0.06, 1_200), (1.0, 2_500)):
        pace.claim_took(took)
        work(pace, timer)
        assert pace.appetite == held
    # When the others have gone
    pace.share(shared=False)
    pace.claim_took(0.0)
    assert pace.appetite == 2_500
