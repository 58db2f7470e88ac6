from __future__ import annotations

import pytest

from devices.flow import Watermark


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
