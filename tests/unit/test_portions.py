"""Transactions of many items have fewer where MongoDB aborts them, and more again later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sluicemq_broker.store import Aborted, Portions, Refused

ITEMS = range(100)


class Told:
    """What was noticed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, kind: str, text: str) -> None:
        assert kind == "transactions_aborted"
        self.texts.append(text)


def takes(most: int, tried: list[int], *, usual: bool = False) -> Callable[[Sequence[int]], list[int]]:
    """A statement that takes so many items, and aborts with more."""

    def statement(part: Sequence[int]) -> list[int]:
        tried.append(len(part))
        if len(part) > most:
            raise Aborted(f"{len(part)} are too many", usual=usual)
        return list(part)

    return statement


def test_a_portion_that_is_aborted_is_halved_until_it_is_carried_out_and_that_is_said() -> None:
    told, tried = Told(), list[int]()
    done = [answer for _, answer in Portions(64, told).carry_out(ITEMS, takes(10, tried))]
    assert sum([part for part in done if isinstance(part, list)], list[int]()) == list(ITEMS)
    assert tried[:4] == [64, 32, 16, 8]
    assert told.texts[0] == "64 are too many; the next one has 32 at most"


def test_the_next_items_begin_with_the_size_that_was_taken_and_it_grows_back() -> None:
    portions, tried = Portions(64, Told()), list[int]()
    list(portions.carry_out(ITEMS, takes(10, tried)))
    tried.clear()
    list(portions.carry_out(ITEMS, takes(1000, tried)))
    assert 4 <= tried[0] <= 11
    for _ in range(20):
        list(portions.carry_out(ITEMS, takes(1000, tried)))
    assert portions.size == 64


def test_conflicts_shrink_a_portion_and_nobody_has_to_hear_of_it() -> None:
    told, tried = Told(), list[int]()
    portions = Portions(64, told)
    list(portions.carry_out(ITEMS, takes(20, tried, usual=True)))
    assert (told.texts, portions.size <= 20) == ([], True)


def test_one_item_that_is_refused_is_found_among_the_others_and_their_number_stays() -> None:
    portions = Portions(64, Told())

    def refuses_42(part: Sequence[int]) -> list[int]:
        if 42 in part:
            raise Refused("no")
        return list(part)

    answers = list(portions.carry_out(ITEMS, refuses_42))
    assert [list(part) for part, answer in answers if isinstance(answer, Refused)] == [[42]]
    assert sorted(item for part, _ in answers for item in part) == list(ITEMS)
    assert portions.size == 64


def test_what_fails_otherwise_is_raised_and_what_was_not_yielded_is_not_carried_out() -> None:
    def fails(part: Sequence[int]) -> list[int]:
        if 70 in part:
            raise KeyError
        return list(part)

    done: list[int] = []
    parts = Portions(50).carry_out(ITEMS, fails)
    done += next(parts)[0]
    with pytest.raises(KeyError):
        next(parts)
    assert done == list(range(50))


def test_nothing_is_carried_out_for_no_items() -> None:
    assert list(Portions(50).carry_out([], takes(1, []))) == []
