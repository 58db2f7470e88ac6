"""Counting, and log lines that a flood can't multiply."""

from __future__ import annotations

import logging

import pytest

from broker import counters as counters_module
from broker.counters import Counters


class Time:
    value = 100.0

    @classmethod
    def monotonic(cls) -> float:
        return cls.value


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> type[Time]:
    monkeypatch.setattr(counters_module, "time", Time)
    monkeypatch.setattr(Time, "value", 100.0)
    return Time


def test_what_is_counted_adds_up() -> None:
    counters = Counters()
    counters.add("pushed", 5)
    counters.add("pushed")
    assert counters.values == {"pushed": 6}


def test_a_notice_is_counted_and_said(caplog: pytest.LogCaptureFixture, time: type[Time]) -> None:
    counters = Counters()
    counters.notice("bad_headers", "no priority 'x'")
    assert counters.values == {"bad_headers": 1}
    assert caplog.messages == ["bad_headers: no priority 'x'"]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_flood_of_notices_is_one_line_a_second_that_says_how_many_went_unsaid(
    caplog: pytest.LogCaptureFixture, time: type[Time]
) -> None:
    # Given
    counters = Counters()
    for _ in range(1000):
        counters.notice("bad_headers", "first")
    # When
    time.value += 1.0
    counters.notice("bad_headers", "second")
    time.value += 1.0
    counters.notice("bad_headers", "third")
    # Then
    assert caplog.messages == [
        "bad_headers: first",
        "bad_headers: second (and 999 more like it)",
        "bad_headers: third",
    ]
    assert counters.values["bad_headers"] == 1002


def test_one_flood_does_not_silence_another_notice(
    caplog: pytest.LogCaptureFixture, time: type[Time]
) -> None:
    counters = Counters()
    counters.notice("bad_headers", "a")
    counters.notice("too_large", "b")
    assert caplog.messages == ["bad_headers: a", "too_large: b"]
