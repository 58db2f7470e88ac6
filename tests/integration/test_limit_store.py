"""What brokers share of a queue's limits, in MongoDB: permits and tokens, repeated, late, and given back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.database import Database

from sluicemq_broker.store import LimitStore
from sluicemq_broker.store.cluster.limits import Tokens
from support.jobs import NOW

MOST = 10


@pytest.fixture
def limits(documents: Database[dict[str, Any]]) -> LimitStore:
    return LimitStore(documents, "mail")


# ----------------------------------------------------------------------- permits


def test_one_gets_what_it_wants_and_the_next_what_is_left(limits: LimitStore) -> None:
    assert limits.permit("a", 7, MOST, number=1) == 7
    assert limits.permit("b", 7, MOST, number=1) == 3
    assert limits.permit("c", 7, MOST, number=1) == 0
    assert limits.holders() == {"a": 7, "b": 3, "c": 0}


def test_what_one_gives_back_another_gets(limits: LimitStore) -> None:
    limits.permit("a", MOST, MOST, number=1)
    assert limits.permit("a", 4, 4, number=2) == 4
    assert limits.permit("b", MOST, MOST, number=1) == 6


def test_a_lower_limit_takes_nothing_from_who_has_permits(limits: LimitStore) -> None:
    limits.permit("a", 8, MOST, number=1)
    assert limits.permit("a", 9, 5, number=2) == 8
    assert limits.permit("b", 1, 5, number=1) == 0


def test_a_repetition_changes_nothing_and_tells_the_same(limits: LimitStore) -> None:
    assert limits.permit("a", 4, MOST, number=5) == 4
    assert limits.permit("a", 9, MOST, number=5) == 4


def test_what_was_said_before_changes_nothing_when_it_lands_late(limits: LimitStore) -> None:
    limits.permit("a", 6, MOST, number=8)
    assert limits.permit("a", 2, MOST, number=7) == 6
    assert limits.holders() == {"a": 6}


def test_who_is_forgotten_leaves_its_permits_to_others(limits: LimitStore) -> None:
    limits.permit("a", MOST, MOST, number=1)
    limits.forget("a")
    limits.forget("a")
    assert limits.permit("b", MOST, MOST, number=1) == MOST


def test_who_leaves_gives_back_its_permits_in_all_queues(
    documents: Database[dict[str, Any]], limits: LimitStore
) -> None:
    other = LimitStore(documents, "other")
    for queue in (limits, other):
        queue.permit("a", 2, MOST, number=1)
        queue.permit("b", 2, MOST, number=1)
    LimitStore.leave(documents, "a")
    assert (limits.holders(), other.holders()) == ({"b": 2}, {"b": 2})


def test_nobody_holds_permits_of_a_queue_that_was_never_limited(limits: LimitStore) -> None:
    assert limits.holders() == {}
    limits.forget("a")


words = st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.integers(1, 12), st.integers(0, 3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(words, max_size=12))
def test_all_permits_together_are_never_more_than_the_highest_limit_was(
    documents: Database[dict[str, Any]], said: list[tuple[str, int, int, int]]
) -> None:
    """Whatever is said, late or again: ``back`` orders ago."""
    documents["limits"].delete_many({})
    limits = LimitStore(documents, "mail")
    model: dict[str, tuple[int, int]] = {}
    for now, (owner, wanted, most, back) in enumerate(said, 10):
        (mine, latest), order = model.get(owner, (0, 0)), now - back
        others = sum(permits for permits, _ in model.values()) - mine
        if order > latest:
            model[owner] = (min(wanted, max(mine, most - others)), order)
        assert limits.permit(owner, wanted, most, order) == model[owner][0]
    assert limits.holders() == {owner: permits for owner, (permits, _) in model.items()}
    assert sum(limits.holders().values()) <= max((most for _, _, most, _ in said), default=0)


# ------------------------------------------------------------------------- tokens


def test_a_burst_begins_at_once_and_then_as_many_as_time_brings(limits: LimitStore) -> None:
    assert limits.take(9, rate=2.0, burst=5, now=NOW) == Tokens(5, 0.5)
    assert limits.take(9, rate=2.0, burst=5, now=NOW + 0.25) == Tokens(0, 0.25)
    assert limits.take(9, rate=2.0, burst=5, now=NOW + 1.0) == Tokens(2, 0.5)
    assert limits.take(9, rate=2.0, burst=5, now=NOW + 60.0) == Tokens(5, 0.5)


def test_tokens_that_are_left_are_the_next_ones(limits: LimitStore) -> None:
    assert limits.take(2, rate=1.0, burst=5, now=NOW) == Tokens(2, 0.0)
    assert limits.take(9, rate=1.0, burst=5, now=NOW) == Tokens(3, 1.0)


def test_a_broker_whose_clock_is_behind_brings_no_tokens_and_takes_none(limits: LimitStore) -> None:
    limits.take(1, rate=1.0, burst=1, now=NOW)
    assert limits.take(1, rate=1.0, burst=1, now=NOW - 30.0) == Tokens(0, 1.0)
    assert limits.take(1, rate=1.0, burst=1, now=NOW + 1.0) == Tokens(1, 1.0)


def test_a_lower_burst_holds_at_once(limits: LimitStore) -> None:
    limits.take(1, rate=1.0, burst=100, now=NOW)
    assert limits.take(50, rate=1.0, burst=3, now=NOW).taken == 3
