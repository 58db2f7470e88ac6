"""When a broker looks again for tenants whose jobs may not begin yet."""

from __future__ import annotations

import math

import pytest

from sluicemq_broker.queue.times import HeldBack
from support.jobs import a_job

FOR_A_SLOT = {"acme": math.inf}


class Looks:
    """Notes when it is time to claim again; the test says what a claim finds then. Time begins at 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held = HeldBack()

    def found(self, held: dict[str, float], *, some_began: bool) -> None:
        self.held.found(held, self.now, some_began=some_began)

    def pass_(self, seconds: float) -> list[float]:
        """Ask every millisecond whether it is time."""
        end, looked = self.now + seconds, list[float]()
        while self.now < end:
            self.now = min(end, max(self.now + 0.001, min(self.held.next, end)))
            if self.held.take(self.now):
                looked.append(self.now)
        return looked


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_where_nobody_is_held_back_nobody_looks(looks: Looks) -> None:
    looks.found({}, some_began=False)
    assert not looks.held.freed_by([a_job(tenant="acme")])
    assert looks.pass_(100.0) == []


def test_an_end_of_a_job_of_one_that_is_held_back_is_a_reason_to_look(looks: Looks) -> None:
    looks.found(FOR_A_SLOT, some_began=True)
    assert not looks.held.freed_by([a_job(tenant="bolt")])
    assert looks.held.freed_by([a_job(tenant="bolt"), a_job(tenant="acme")])


def test_an_end_elsewhere_is_one_for_those_who_wait_for_an_end(looks: Looks) -> None:
    assert not looks.held.wait_for_others
    looks.found({"acme": 3.0}, some_began=True)  # for a token
    assert not looks.held.wait_for_others
    looks.found({"acme": 3.0, "bolt": math.inf}, some_began=True)
    assert looks.held.wait_for_others


def test_groups_and_jobs_without_either_are_tenants_too(looks: Looks) -> None:
    looks.found({"g": math.inf}, some_began=True)
    assert looks.held.freed_by([a_job(group="g")])
    looks.found({"": math.inf}, some_began=True)
    assert looks.held.freed_by([a_job()])


def test_it_looks_when_the_first_has_a_token_and_once(looks: Looks) -> None:
    looks.found({"acme": 7.0, "bolt": 3.0}, some_began=False)
    assert looks.pass_(2.9) == []
    assert looks.pass_(100.0) == [pytest.approx(3.0, abs=0.01)]


def test_tokens_that_come_quickly_are_looked_for_together(looks: Looks) -> None:
    looks.found({"acme": 1e-6}, some_began=True)
    assert looks.pass_(0.04) == []
    assert len(looks.pass_(0.02)) == 1


def test_for_jobs_at_other_brokers_it_looks_ever_less_often_until_some_begin(looks: Looks) -> None:
    waited = []
    for _ in range(8):
        looks.found(FOR_A_SLOT, some_began=False)
        began = looks.now
        (at,) = looks.pass_(1.1)
        waited.append(at - began)
    assert waited[0] <= 0.1
    assert 0.7 <= waited[-1] <= 1.01
    looks.found(FOR_A_SLOT, some_began=True)
    assert len(looks.pass_(0.1)) == 1


def test_what_was_found_since_is_what_counts(looks: Looks) -> None:
    looks.found({"acme": 1.0}, some_began=False)
    looks.pass_(0.5)
    looks.found({"acme": 5.0}, some_began=False)
    assert looks.pass_(4.9) == []
    assert len(looks.pass_(1.0)) == 1


def test_where_nobody_asks_nothing_is_held_back(looks: Looks) -> None:
    looks.found(FOR_A_SLOT, some_began=True)
    assert len(looks.held) == 1
    looks.held.clear()
    assert len(looks.held) == 0
    assert looks.pass_(10.0) == []
