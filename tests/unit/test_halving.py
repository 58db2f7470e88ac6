"""Statements for many items are cut by bytes, and halved where MongoDB refuses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.store import Refused, by_bytes, in_halves


def refusing(bad: set[int]) -> tuple[list[Sequence[int]], Callable[[Sequence[int]], int]]:
    """A statement that refuses these items; and the parts that it was called with."""
    tried: list[Sequence[int]] = []

    def statement(part: Sequence[int]) -> int:
        tried.append(part)
        if bad.intersection(part):
            raise Refused("no")
        return len(part)

    return tried, statement


@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.integers(1, 50))
def test_each_item_is_in_one_part_in_order_and_only_what_is_at_fault_is_refused(
    count: int, bad: set[int], most: int
) -> None:
    tried, statement = refusing(bad)
    answers = list(in_halves(range(count), statement, most=lambda: most))
    assert [item for part, _ in answers for item in part] == list(range(count))
    assert {part[0] for part, answer in answers if isinstance(answer, Refused)} == bad & set(range(count))
    assert all(len(part) == 1 for part, answer in answers if isinstance(answer, Refused))
    assert all(len(part) <= most for part in tried)


def test_an_error_of_another_kind_is_raised_and_nothing_is_tried_after_it() -> None:
    tried: list[Sequence[str]] = []

    def statement(part: Sequence[str]) -> None:
        tried.append(part)
        raise KeyError

    with pytest.raises(KeyError):
        list(in_halves(["a", "b"], statement))
    assert tried == [["a", "b"]]


@given(st.lists(st.integers(0, 12)), st.integers(1, 20), st.integers(1, 5))
def test_parts_keep_the_order_and_hold_no_more_bytes_or_items_than_allowed_unless_one_item_alone_does(
    sizes: list[int], most_bytes: int, most: int
) -> None:
    parts = list(by_bytes(sizes, lambda size: size, most_bytes, lambda: most))
    assert [size for part in parts for size in part] == sizes
    for part in parts:
        assert len(part) <= most
        assert sum(part) <= most_bytes or len(part) == 1


def test_without_items_there_is_one_empty_part() -> None:
    assert list(by_bytes([], len, 10)) == [[]]
