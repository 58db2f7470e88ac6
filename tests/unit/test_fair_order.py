"""What is staged of a fair queue goes out round by round; of one tenant, by priority and acceptance."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.job import Job, RoundRobin
from sluicemq_broker.store import FairOrder, PriorityOrder, QueueDefaults, StagedByPriority, order_of
from sluicemq_broker.store.jobs.fair_order import StagedFairly
from support.jobs import a_job, ids

names = st.sampled_from(["", "acme", "bolt", "cube"])
weights = st.dictionaries(st.sampled_from(["acme", "bolt"]), st.integers(1, 4))


def job(tenant: str, priority: int = 0) -> Job:
    return a_job(tenant=tenant or None, priority=priority)


def order(*jobs: Job, weights: dict[str, int] | None = None) -> StagedFairly:
    made = StagedFairly(RoundRobin(weights))
    made.add(jobs)
    return made


@given(st.lists(st.tuples(names, st.integers(0, 2))), weights, st.integers(1, 5))
def test_each_tenants_jobs_go_out_in_the_order_of_a_plain_queue(
    pushed: list[tuple[str, int]], weights: dict[str, int], at_once: int
) -> None:
    jobs = [job(*args) for args in pushed]
    fair = order(*jobs, weights=weights)
    out: list[Job] = []
    while len(fair):
        out += fair.take(at_once, math.inf)
    for tenant in {one.turn for one in jobs}:
        plain = StagedByPriority()
        plain.add([one for one in jobs if one.turn == tenant])
        assert [one for one in out if one.turn == tenant] == plain.take(len(jobs), math.inf)
    assert len(out) == len(jobs)


@given(st.lists(names, min_size=1), weights)
def test_nobody_waits_for_more_than_a_round(pushed: list[str], weights: dict[str, int]) -> None:
    turns = RoundRobin(weights)
    out = [one.turn for one in order(*map(job, pushed), weights=weights).take(len(pushed), math.inf)]
    # Then before the first job of each tenant every other one has had one turn at most
    for tenant in set(pushed):
        before = Counter(out[: out.index(tenant)])
        assert all(had <= turns.weight(tenant) for tenant, had in before.items())


@given(st.lists(names), st.integers(0, 40), weights)
def test_what_goes_back_would_have_gone_last(pushed: list[str], count: int, weights: dict[str, int]) -> None:
    turns, jobs = RoundRobin(weights), [job(args) for args in pushed]
    fair = order(*jobs, weights=weights)
    back = fair.take_last(count)
    assert len(back) == min(count, len(jobs))
    assert len(fair) == len(jobs) - len(back)
    left = fair.take(len(jobs), math.inf)
    assert sorted(ids([*left, *back])) == sorted(ids(jobs))
    rounds = {one: had / turns.weight(one) for one, had in Counter(one.turn for one in left).items()}
    given_back = {one.turn for one in back}
    assert all(rounds.get(tenant, 0) + 1 >= max(rounds.values()) for tenant in given_back if rounds)


def test_one_that_comes_is_the_last_of_the_round() -> None:
    fair = order(*[job("acme") for _ in range(3)])
    fair.add([job("bolt")])
    assert [one.turn for one in fair.take(4, math.inf)] == ["acme", "bolt", "acme", "acme"]


def test_a_turn_that_ends_for_want_of_room_goes_on_the_next_time() -> None:
    fair = order(*[job("acme") for _ in range(4)], job("bolt"), weights={"acme": 3})
    taken = [*fair.take(2, math.inf), *fair.take(9, 1.0), *fair.take(9, math.inf)]
    assert [one.turn for one in taken] == ["acme", "acme", "acme", "bolt", "acme"]


def test_the_turn_is_the_tenants_or_else_the_groups() -> None:
    of_both, of_group, of_none = a_job(tenant="acme", group="g"), a_job(group="g"), a_job()
    assert [one.turn for one in (of_both, of_group, of_none)] == ["acme", "g", ""]


def test_a_queue_is_fair_if_its_settings_say_so() -> None:
    assert order_of(QueueDefaults()) is PriorityOrder
    assert order_of(QueueDefaults(fair=True)) is FairOrder
