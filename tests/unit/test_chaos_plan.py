"""The plan of a chaos run is told by its seed, and keeps its rules."""

import itertools

import pytest

from chaos.fault_kinds import FAULTS
from chaos.plan import Step, plan
from chaos.run import may

MAY = may()
BY_NAME = {fault.name: fault for fault in FAULTS}


def pairs(steps: list[Step]) -> list[tuple[Step, Step]]:
    return [(a, b) for a, b in itertools.combinations(steps, 2) if a.at < b.until and b.at < a.until]


def test_a_seed_tells_the_plan() -> None:
    assert plan(7, 120, FAULTS, MAY) == plan(7, 120, FAULTS, MAY)
    assert plan(7, 120, FAULTS, MAY) != plan(8, 120, FAULTS, MAY)


@pytest.mark.parametrize("seed", range(20))
def test_faults_that_touch_one_place_do_not_overlap(seed: int) -> None:
    steps = plan(seed, 300, FAULTS, MAY)
    overlapping = pairs(steps)
    assert len(overlapping) > len(steps) / 2, "hardly anything happens at one time"
    for a, b in overlapping:
        touched = [BY_NAME[fault.fault].touches(fault.victim) for fault in (a, b)]
        assert not touched[0] & touched[1], f"{a} and {b}"


@pytest.mark.parametrize("seed", range(20))
def test_all_faults_end_with_the_run_and_last_as_long_as_they_say(seed: int) -> None:
    for step in plan(seed, 100, FAULTS, MAY):
        least, most = BY_NAME[step.fault].seconds
        assert step.until <= 100
        assert least - 0.2 <= step.until - step.at <= most + 0.2


def test_a_run_of_ten_minutes_has_every_kind_of_fault() -> None:
    for seed in range(20):
        assert {step.fault for step in plan(seed, 600, FAULTS, MAY)} == BY_NAME.keys(), seed


def test_victims_may_have_what_happens_to_them() -> None:
    some = {"steady": frozenset[str](), "frail": frozenset(["kill"])}
    for seed in range(20):
        for step in plan(seed, 600, FAULTS, some):
            if "client" in step.fault:
                assert (step.fault, step.victim) == ("kill -9 of a client", "frail")
