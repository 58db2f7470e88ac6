"""Counting, and log lines that a flood can't multiply."""

from __future__ import annotations

import json
import logging

import pytest

from sluicemq_broker.command.logs import FIELDS, _Json
from sluicemq_broker.runtime import Count, Counters, QueueCounters
from support.virtual_time import VirtualTime


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


def test_what_is_counted_adds_up() -> None:
    counters = Counters()
    counters.add("pushed", 5)
    counters.add("pushed")
    assert counters.values == {"pushed": 6}


def test_a_notice_is_counted_and_said(caplog: pytest.LogCaptureFixture, time: VirtualTime) -> None:
    counters = Counters(time.now)
    counters.notice("bad_headers", "no priority 'x'")
    assert counters.values == {"bad_headers": 1}
    assert caplog.messages == ["bad_headers: no priority 'x'"]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_flood_of_notices_is_one_line_a_second_that_says_how_many_went_unsaid(
    caplog: pytest.LogCaptureFixture, time: VirtualTime
) -> None:
    counters = Counters(time.now)
    for _ in range(1000):
        counters.notice("bad_headers", "first")
    time.value += 1.0
    counters.notice("bad_headers", "second")
    time.value += 1.0
    counters.notice("bad_headers", "third")
    assert caplog.messages == [
        "bad_headers: first",
        "bad_headers: second (and 999 more like it)",
        "bad_headers: third",
    ]
    assert counters.values["bad_headers"] == 1002


def test_one_flood_silences_no_other_notice(caplog: pytest.LogCaptureFixture, time: VirtualTime) -> None:
    counters = Counters(time.now)
    counters.notice("bad_headers", "a")
    counters.notice("too_large", "b")
    assert caplog.messages == ["bad_headers: a", "too_large: b"]


def test_what_a_queue_counts_is_counted_for_the_broker_too(caplog: pytest.LogCaptureFixture) -> None:
    broker = Counters()
    mail, other = QueueCounters(broker), QueueCounters(broker)
    mail.add("pushed", 5)
    other.add("pushed", 2)
    mail.notice("dead", "job a")
    assert (mail.values, broker.values) == ({"pushed": 5, "dead": 1}, {"pushed": 7, "dead": 1})
    assert caplog.text.count("job a") == 1


def test_the_rates_of_a_queue_are_those_of_the_last_minute() -> None:
    # Given 10 jobs a second for two minutes, then none
    counters = QueueCounters(Counters(), 1000.0)
    assert counters.rates(1000.0) == {"pushed": 0.0, "delivered": 0.0, "committed": 0.0}
    for second in range(1001, 1121):
        counters.add("pushed", 10)
        counters.tick(float(second))
    assert counters.rates(1120.0)["pushed"] == 10.0
    for second in range(1121, 1151):
        counters.tick(float(second))
    assert counters.rates(1150.0)["pushed"] == pytest.approx(5.0, abs=0.5)
    for second in range(1151, 1201):
        counters.tick(float(second))
    assert counters.rates(1200.0)["pushed"] == 0.0


def test_a_burst_right_after_the_start_is_no_endless_rate() -> None:
    counters = QueueCounters(Counters(), 1000.0)
    counters.add("committed", 50)
    assert counters.rates(1000.001)["committed"] == 50.0


def test_a_line_about_a_queue_names_queue_and_job_as_json(caplog: pytest.LogCaptureFixture) -> None:
    queue = QueueCounters(Counters(), queue="mail")
    about = {"job": "j1", "worker": "mailer web-1:7", "attempt": 5, "reason": "no such address"}
    queue.notice(Count.DEAD, "job j1 is dead", about=about)
    (record,) = caplog.records
    line = json.loads(_Json().format(record))
    assert {name: line[name] for name in FIELDS} == {"queue": "mail", **about}
