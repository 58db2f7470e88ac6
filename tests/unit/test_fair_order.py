"""Fair queues: rounds of tenants, their turns, free slots, and when a broker looks again."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.job import Job, RoundRobin
from sluicemq_broker.queue.times import HeldBack
from sluicemq_broker.store import FairOrder, PriorityOrder, QueueDefaults, StagedByPriority, order_of
from sluicemq_broker.store.jobs.fair_order import StagedFairly
from sluicemq_broker.store.jobs.tenant_limits import free_slots
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


NAMES = ("", "acme", "bolt", "cube", "dune", "echo")
weights_of_turns = st.dictionaries(st.sampled_from(NAMES[1:]), st.integers(1, 5))
counts = st.lists(st.integers(1, 30), min_size=1, max_size=40)
tenants = st.sets(st.sampled_from(NAMES), min_size=1).map(sorted)


def dealt(turns: RoundRobin, names: list[str], counts: list[int]) -> list[str]:
    """The tenants of all places of these claims, where each has jobs for whatever it gets."""
    return [
        name for count in counts for name, share in turns.share(names, count).items() for _ in range(share)
    ]


@given(weights_of_turns, tenants, counts)
def test_every_place_is_given_to_one(weights: dict[str, int], names: list[str], counts: list[int]) -> None:
    turns = RoundRobin(weights)
    for count in counts:
        assert sum(turns.share(names, count).values()) == count


@given(weights_of_turns, tenants, counts)
def test_after_any_number_of_claims_all_have_had_as_many_rounds_but_for_one(
    weights: dict[str, int], names: list[str], counts: list[int]
) -> None:
    turns = RoundRobin(weights)
    got = Counter(dealt(turns, names, counts))
    rounds = [got[name] / turns.weight(name) for name in names]
    assert max(rounds) - min(rounds) <= 1


@given(weights_of_turns, tenants, st.integers(1, 60))
def test_each_tenant_has_its_own_turn(weights: dict[str, int], names: list[str], places: int) -> None:
    # When the claims are of one job each
    turns = RoundRobin(weights)
    order = dealt(turns, names, [1] * places)
    a_round = sum(map(turns.weight, names))
    for name in names:
        at = [place for place, name_there in enumerate(order) if name_there == name]
        others = a_round - turns.weight(name)
        assert all(later - earlier in (1, 1 + others) for earlier, later in pairwise(at))


@given(weights_of_turns, st.lists(tenants, min_size=1, max_size=60))
def test_whoever_comes_and_goes_nobody_who_waits_is_passed_over_for_more_than_a_round(
    weights: dict[str, int], there: list[list[str]]
) -> None:
    # Given: acme has jobs all the time, others now and then
    turns = RoundRobin(weights)
    since: Counter[str] = Counter()  # what others had since acme had any
    for names in there:
        (name,) = turns.share(sorted({*names, "acme"}), 1)
        since = Counter() if name == "acme" else since + Counter([name])
        # Then each other one had one turn at most, or one had what was left of its own and another
        assert all(had < 2 * turns.weight(name) for name, had in since.items())
        assert sum(had > turns.weight(name) for name, had in since.items()) <= 1


def test_what_could_not_be_taken_is_taken_first_the_next_time() -> None:
    turns = RoundRobin()
    assert list(turns.share(["acme", "bolt", "cube"], 2)) == ["acme", "bolt"]
    turns.begin_with("acme")
    assert list(turns.share(["acme", "bolt", "cube"], 2)) == ["acme", "bolt"]


def test_a_turn_goes_on_where_the_last_claim_has_ended() -> None:
    turns = RoundRobin({"acme": 3})
    assert turns.share(["acme", "bolt"], 2) == {"acme": 2}
    assert turns.share(["acme", "bolt"], 2) == {"acme": 1, "bolt": 1}
    assert turns.share(["acme", "bolt"], 8) == {"acme": 6, "bolt": 2}


def test_of_no_tenants_nobody_gets_anything() -> None:
    assert RoundRobin().share([], 5) == {}


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
def test_never_more_run_than_may(former: set[int], most: int, done: list[tuple[str, int, int]]) -> None:
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
