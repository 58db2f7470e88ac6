"""How many jobs are on the way to a PULL worker that says nothing: what arrives within a quarter second."""

from __future__ import annotations

import pytest

from sluicemq_broker.doors.lane_workers import Window


def test_it_begins_with_one_and_grows_twofold_while_jobs_arrive_at_once_to_the_most() -> None:
    window = Window(20)
    sizes = []
    for _ in range(7):
        sizes.append(window.size)
        window.arrived(window.size, 0.0)
    assert sizes == [1, 2, 4, 8, 16, 20, 20]


def test_whatever_the_prefetch_one_pong_commits_no_more_than_a_turn_of_the_hub_has_time_for() -> None:
    window = Window(100_000)
    for _ in range(20):
        window.arrived(window.size, 0.0)
    assert window.size == 1000


@pytest.mark.parametrize(("a_job", "in_transit"), [(1.0, 1), (0.1, 2), (0.01, 25), (0.001, 64)])
def test_a_worker_with_room_for_none_has_some_work_on_the_way(a_job: float, in_transit: int) -> None:
    window = Window(64)
    for _ in range(10):
        window.arrived(window.size, window.size * a_job)
    assert window.size == in_transit


def test_one_that_becomes_slow_has_few_on_the_way_at_once() -> None:
    window = Window(64)
    for _ in range(10):
        window.arrived(window.size, 0.001)
    window.arrived(64, 64.0)
    assert window.size == 1
