"""Whose turn it is in a fair queue: nobody waits for more than a round, and weights are kept."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.job import RoundRobin

NAMES = ("", "acme", "bolt", "cube", "dune", "echo")
weights = st.dictionaries(st.sampled_from(NAMES[1:]), st.integers(1, 5))
counts = st.lists(st.integers(1, 30), min_size=1, max_size=40)
tenants = st.sets(st.sampled_from(NAMES), min_size=1).map(sorted)


def dealt(turns: RoundRobin, names: list[str], counts: list[int]) -> list[str]:
    """The tenants of all places of these claims, where each has jobs for whatever it gets."""
    return [
        name for count in counts for name, share in turns.share(names, count).items() for _ in range(share)
    ]


@given(weights, tenants, counts)
def test_every_place_is_given_to_one(weights: dict[str, int], names: list[str], counts: list[int]) -> None:
    turns = RoundRobin(weights)
    for count in counts:
        assert sum(turns.share(names, count).values()) == count


@given(weights, tenants, counts)
def test_after_any_number_of_claims_all_have_had_as_many_rounds_but_for_one(
    weights: dict[str, int], names: list[str], counts: list[int]
) -> None:
    turns = RoundRobin(weights)
    got = Counter(dealt(turns, names, counts))
    rounds = [got[name] / turns.weight(name) for name in names]
    assert max(rounds) - min(rounds) <= 1


@given(weights, tenants, st.integers(1, 60))
def test_between_two_turns_of_a_tenant_each_other_one_has_its_own(
    weights: dict[str, int], names: list[str], places: int
) -> None:
    # When the claims are of one job each
    turns = RoundRobin(weights)
    order = dealt(turns, names, [1] * places)
    a_round = sum(map(turns.weight, names))
    for name in names:
        at = [place for place, name_there in enumerate(order) if name_there == name]
        others = a_round - turns.weight(name)
        assert all(later - earlier in (1, 1 + others) for earlier, later in pairwise(at))


@given(weights, st.lists(tenants, min_size=1, max_size=60))
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
