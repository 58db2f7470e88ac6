"""Which slots of a tenant are given out: never more jobs than may run, whoever gives out some meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.store.jobs.tenant_limits import free_slots


def free(taken: set[int], most: int, start: int = 0) -> list[int]:
    numbers, room = free_slots(taken, most, start)
    found = list(numbers)
    assert len(found) == room
    return found


def test_all_that_nobody_has_are_free() -> None:
    assert free(set(), 3) == [0, 1, 2]
    assert free({1}, 3) == [0, 2]
    assert free({0, 1, 2}, 3) == []


def test_several_brokers_begin_at_different_ones() -> None:
    assert free({1}, 4, start=2) == [2, 3, 0]
    assert free({1}, 4, start=5) == [2, 3, 0]


def test_jobs_from_under_a_higher_limit_count() -> None:
    assert free({7}, 3) == [0, 1]
    assert free({1, 7}, 3) == [0]
    assert free({1, 2}, 2) == []
    assert free({6, 7, 8}, 2) == []


def test_a_limit_of_a_million_costs_no_list() -> None:
    numbers, room = free_slots({0}, 1_000_000, start=999_999)
    assert (room, next(numbers), next(numbers)) == (999_999, 999_999, 1)


@dataclass
class Tenant:
    """Its running jobs by their slots; the slots that brokers have chosen and are about to write."""

    most: int
    running: dict[int, int] = field(default_factory=dict)  # the limit under which each began
    on_their_way: list[int] = field(default_factory=list)

    def land(self, at: int) -> None:
        if self.on_their_way:
            slot = self.on_their_way.pop(at % len(self.on_their_way))
            self.running.setdefault(slot, self.most)

    def end(self, at: int) -> None:
        if self.running:
            del self.running[sorted(self.running)[at % len(self.running)]]


steps = st.lists(
    st.tuples(st.sampled_from(["read", "land", "land", "land", "end"]), st.integers(0, 9), st.integers(1, 4)),
    max_size=60,
)


@given(st.sets(st.integers(0, 12), max_size=9), st.integers(1, 6), steps)
def test_never_more_run_than_may_in_whatever_order_brokers_write(
    former: set[int], most: int, done: list[tuple[str, int, int]]
) -> None:
    """Brokers read, and write one job after the other, later; ``former`` ones began under another limit."""
    tenant = Tenant(most, dict.fromkeys(former, 0))
    for what, at, count in done:
        if what == "read":
            tenant.on_their_way += free(set(tenant.running), most, start=at)[:count]
        elif what == "land":
            tenant.land(at)
        else:
            tenant.end(at)
        if any(tenant.running.values()):  # one that began under this limit
            assert len(tenant.running) <= most
