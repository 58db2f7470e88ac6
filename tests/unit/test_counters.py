"""Counters and log lines: each figure has a declared name, and no flood multiplies a line."""

import ast
import json
import logging
import sys
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest

import sluicemq_broker
import sluicemq_devices
from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.command.logs import FIELDS, _Json, _Text
from sluicemq_broker.runtime import Count, Counters, Gauge, QueueCounters, Timing
from sluicemq_broker.store import SHOWN_STATES
from sluicemq_devices.hub import LONGEST_TRACEBACK, DeviceCount, Metric, Mishap, OneLine
from support.virtual_time import VirtualTime


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


def test_a_kind_that_comes_late_has_the_rates_of_its_own_time() -> None:
    counters = QueueCounters(Counters(), 1000.0)
    counters.tick(1060.0)
    counters.kinds.add(Count.PUSHED, ["mail"] * 10)
    [(_, kind)] = counters.kinds.items()
    assert kind.rates.of(1062.0)["pushed"] == 5.0


def test_a_line_about_a_queue_names_queue_and_job_as_json(caplog: pytest.LogCaptureFixture) -> None:
    queue = QueueCounters(Counters(), queue="mail")
    about = {"job": "j1", "worker": "mailer web-1:7", "attempt": 5, "reason": "no such address"}
    queue.notice(Count.DEAD, "job j1 is dead", about=about)
    (record,) = caplog.records
    line = json.loads(_Json().format(record))
    assert {name: line[name] for name in FIELDS} == {"queue": "mail", **about}


LONG = "x" * 300_000


def record(text: str, **extra: str) -> logging.LogRecord:
    made = logging.LogRecord("broker", logging.INFO, __file__, 1, "order: %s", (text,), None)
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize("form", [_Text(), _Json(), OneLine("%(message)s")])
@pytest.mark.parametrize("text", [LONG, "\n" * 300_000, "\ud800" * 300_000], ids=["x", "lines", "surrogates"])
def test_a_line_has_a_bound_however_long_what_it_tells(form: logging.Formatter, text: str) -> None:
    line = form.format(record(text, reason=text, job=text))
    assert len(line.encode()) < 50_000
    assert "\n" not in line
    assert "more) ..." in line


def test_a_line_that_is_short_is_whole() -> None:
    assert json.loads(_Json().format(record("all")))["message"] == "order: all"


def test_a_traceback_has_a_bound() -> None:
    try:
        dict[str, int]()[LONG]
    except KeyError:
        made = logging.LogRecord("broker", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    for form in (_Text(), _Json()):
        assert len(form.format(made)) < LONGEST_TRACEBACK + 500


ROOMS = [Path(package.__file__ or "").parent for package in (sluicemq_broker, sluicemq_devices)]
SOURCES = [path for room in ROOMS for path in room.rglob("*.py")]
ENUMS: list[type[Metric]] = [Count, DeviceCount, Gauge, Mishap, Timing]
NAMES = {str(count) for enum in ENUMS for count in enum}


def kinds_of(error: type[SluiceError]) -> Iterator[type[SluiceError]]:
    for kind in error.__subclasses__():
        yield kind
        yield from kinds_of(kind)


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def words(node: ast.AST) -> set[str]:
    return {
        constant.value
        for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }


def counts(function: ast.expr) -> bool:
    """Whether it counts, or says something that is counted: it takes the name of that first."""
    last = getattr(function, "attr", getattr(function, "id", ""))  # to unparse all takes seconds
    return last in ("notice", "add", "count") and ast.unparse(function).endswith(
        ("notice", "counters.add", "board.count")
    )


def place(path: Path, node: ast.AST) -> str:
    return f"{path.parent.name}/{path.name}:{getattr(node, 'lineno', 0)}"


def used(enum: type[StrEnum]) -> set[str]:
    return {
        node.attr
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == enum.__name__
    }


def of_errors() -> set[str]:
    return {error.code for error in kinds_of(SluiceError)}


def test_nothing_is_counted_by_a_literal() -> None:
    found = [
        place(path, node)
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Call) and node.args and counts(node.func) and words(node.args[0])
    ]
    found += [
        place(path, node)
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Subscript) and NAMES & words(node.slice)
        if ast.unparse(node.value).endswith("values")
    ]
    assert found == []


def test_a_name_that_nothing_else_can_be_stands_only_where_it_is_declared() -> None:
    unmistakable = {name for name in NAMES if "_" in name}
    found = [
        place(path, node)
        for path in SOURCES
        if path.name != "counts.py"
        for node in nodes(path)
        if isinstance(node, ast.Constant) and node.value in unmistakable
    ]
    assert found == []


def test_every_name_that_is_declared_is_used() -> None:
    assert {count.name for count in Count} - used(Count) - of_errors() == set()
    assert {timing.name for timing in Timing} - used(Timing) == set()
    assert {mishap.name for mishap in Mishap} - used(Mishap) == set()
    assert {count.name for count in DeviceCount} - used(DeviceCount) == set()
    of_rows = ("permits", "held_back")  # fields of a QueueRow
    assert {gauge.name for gauge in Gauge} - used(Gauge) == {
        name.upper() for name in (*SHOWN_STATES, *of_rows)
    }


def test_no_name_is_declared_twice_among_counters() -> None:
    names = [str(count) for count in (*Count, *Mishap)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("error", sorted({*kinds_of(SluiceError)}, key=str))
def test_a_refusal_is_counted_by_the_code_of_its_error(error: type[SluiceError]) -> None:
    assert Count.of(error("why")) == error.code.lower()


@pytest.mark.parametrize("figure", [count for enum in ENUMS for count in enum], ids=str)
def test_a_figure_has_a_sentence_and_a_unit(figure: Metric) -> None:
    assert figure.text
    assert figure.unit
    assert figure.name == figure.value.upper()
    assert figure.kind == {Gauge: "gauge", Timing: "histogram"}.get(type(figure), "counter")


def test_a_plain_string_counts_as_the_name_does_and_looks_the_same() -> None:
    counters = Counters()
    counters.add(Count.PUSHED)
    counters.add("pushed")
    assert counters.values == {"pushed": 2}
    assert [f"{name}" for name in counters.values] == ["pushed"]
