"""One alarm for many times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.runtime import Alarm
from support.virtual_time import VirtualTime

BEGIN = 1000.0


class Rings:
    """An alarm, and when it has rung, in seconds from the beginning."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.at: list[float] = []
        self.alarm = Alarm(self.time, lambda: self.at.append(self.time.now() - BEGIN))

    def set(self, seconds: float) -> None:
        self.alarm.set(BEGIN + seconds)


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20))
def test_it_rings_once_at_the_earliest_of_its_times(seconds: list[float]) -> None:
    rings = Rings()
    for second in seconds:
        rings.set(second)
    rings.time.passes(200.0)
    assert rings.at == [pytest.approx(min(seconds), abs=0.002)]


def test_it_can_be_set_again_when_it_has_rung() -> None:
    rings = Rings()
    rings.set(5.0)
    rings.time.passes(10.0)
    rings.set(20.0)
    rings.time.passes(20.0)
    assert rings.at == [5.0, 20.0]


def test_a_time_that_has_passed_is_the_next_turn() -> None:
    rings = Rings()
    rings.set(-5.0)
    rings.time.passes(0.001)
    assert len(rings.at) == 1


def test_many_later_times_cost_one_timer() -> None:
    rings = Rings()
    for number in range(1000):
        rings.set(1.0 + number / 1000)
    assert rings.time.pending == 1


def test_a_time_far_ahead_costs_one_timer_however_often_it_rings_before() -> None:
    rings = Rings()
    for number in range(100):
        rings.set(number + 0.5)
        rings.time.passes(1.0)
        rings.set(3600.0)
    assert len(rings.at) == 100
    assert rings.time.pending == 1


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=20))
def test_it_rings_on_time_after_earlier_times_for_which_it_was_set(seconds: list[float]) -> None:
    rings = Rings()
    for second in seconds:
        rings.set(second)
    rings.time.passes(5.0)
    rung = len(rings.at)
    rings.set(12.0)
    rings.time.passes(30.0)
    assert rung == (min(seconds) <= 5.0)
    expected = 12.0 if rung else min(12.0, *seconds)
    assert rings.at[rung:] == [pytest.approx(expected, abs=0.002)]
