from __future__ import annotations

import pytest

from sluicemq_devices.hub import Fillers, Shares, Watermark, nothing


@pytest.fixture
def events() -> list[str]:
    return []


def mark(events: list[str], hwm: int, hwm_bytes: int) -> Watermark:
    return Watermark(hwm, hwm_bytes, lambda: events.append("full"), lambda: events.append("drained"))


def test_it_is_full_once_when_the_count_is_reached_and_drained_under_half(events: list[str]) -> None:
    watermark = mark(events, hwm=4, hwm_bytes=1000)
    watermark.take(3, 3)
    assert events == []
    watermark.take(1, 1)
    watermark.take(1, 1)
    assert events == ["full"]
    watermark.give(3, 3)
    assert events == ["full"]
    watermark.give(1, 1)
    assert events == ["full", "drained"]
    assert (watermark.count, watermark.bytes, watermark.is_full) == (1, 1, False)


def test_bytes_fill_it_as_well_as_the_count(events: list[str]) -> None:
    watermark = mark(events, hwm=1000, hwm_bytes=100)
    watermark.take(2, 100)
    assert (watermark.is_full, events) == (True, ["full"])
    watermark.give(1, 50)
    assert events == ["full"]
    watermark.give(1, 50)
    assert events == ["full", "drained"]


def test_a_mark_of_one_drains_when_it_is_empty(events: list[str]) -> None:
    watermark = mark(events, hwm=1, hwm_bytes=1)
    watermark.take(1, 50)
    watermark.give(1, 50)
    assert events == ["full", "drained"]


def shares(events: list[str], hwm: int = 100, part: float = 1.0) -> Shares[str]:
    return Shares(Watermark(hwm, 1_000_000, nothing, nothing), events.append, part)


def test_one_alone_holds_half_of_the_mark_at_most_and_as_much_is_left_for_others(events: list[str]) -> None:
    held = shares(events)
    assert not held.take("sick", 49, 0)
    assert held.take("sick", 1, 0)
    assert held.is_full("sick")
    assert not held.take("well", 10, 0)


@pytest.mark.parametrize("sick", [1, 2, 8, 30])
def test_however_many_are_full_one_more_finds_room(events: list[str], sick: int) -> None:
    held = shares(events, hwm=10_000)
    for name in [f"sick {number}" for number in range(sick)] * 10_000:
        if not held.is_full(name):
            held.take(name, 1, 0)
    assert all(held.is_full(f"sick {number}") for number in range(sick))
    assert not held.take("well", 10_000 // (sick + 1) // 3, 0)


def test_one_that_was_full_drains_at_half_of_what_it_may_hold(events: list[str]) -> None:
    held = shares(events)
    held.take("queue", 50, 0)
    held.give("queue", 16, 0)
    assert (events, held.is_full("queue")) == ([], True)
    held.give("queue", 1, 0)
    assert (events, held.is_full("queue")) == (["queue"], False)


def test_one_that_holds_nothing_is_not_full_even_when_others_leave_nothing(events: list[str]) -> None:
    held = shares(events)
    held.take("large", 1000, 0)
    assert not held.is_full("well")
    assert held.take("well", 1, 0)
    held.give("well", 1, 0)
    assert events == ["well"]
    assert held.mark.count == 1000


def test_bytes_fill_a_share_too(events: list[str]) -> None:
    assert shares(events).take("queue", 1, 500_000)


def test_a_small_part_leaves_the_rest_for_many(events: list[str]) -> None:
    held = shares(events, hwm=1000, part=0.01)
    assert held.take("greedy", 10, 0)
    assert not held.take("modest", 1, 0)


def test_what_is_forgotten_is_given_back_in_silence(events: list[str]) -> None:
    held = shares(events)
    held.take("gone", 60, 600)
    held.forget("gone")
    held.forget("gone")
    assert (held.mark.count, held.mark.bytes, held.is_full("gone"), events) == (0, 0, False, [])


class Connection:
    """Notes when it is not read, and why."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name = name
        self._events = events

    def pause(self, by: object) -> None:
        self._events.append(f"{self._name} waits for {by}")

    def resume(self, by: object) -> None:
        self._events.append(f"{self._name} goes on with {by}")


def fillers() -> Fillers[str]:
    return Fillers(Watermark(100, 1_000_000, nothing, nothing))


def test_those_who_fill_a_share_wait_until_it_has_drained(events: list[str]) -> None:
    held = fillers()
    a, b = Connection("a", events), Connection("b", events)
    held.take("sick", a, 30, 0)
    held.take("sick", b, 30, 0)
    assert events == ["a waits for sick", "b waits for sick"]
    held.give("sick", a, 30, 0)
    held.give("sick", b, 30, 0)
    assert set(events[2:]) == {"a goes on with sick", "b goes on with sick"}
    assert len(held) == 0


def test_who_has_nothing_in_a_share_any_more_waits_for_nobody(events: list[str]) -> None:
    held = fillers()
    before, small, large = (Connection(name, events) for name in ("before", "small", "large"))
    held.take("sick", before, 1, 0)
    held.give("sick", before, 1, 0)
    held.take("sick", small, 1, 0)
    held.take("sick", large, 60, 0)
    assert events == ["small waits for sick", "large waits for sick"]
    held.give("sick", small, 1, 0)
    assert events[2:] == ["small goes on with sick"]
    held.take("well", before, 1, 0)
    assert [event for event in events if "before" in event] == []
