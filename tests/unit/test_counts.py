"""Every figure is known by a name that is declared, and what is declared is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest

import sluicemq_broker
import sluicemq_devices
from sluicemq.protocol.errors import SluiceError
from sluicemq_broker.runtime import Count, Counters, Gauge, Timing
from sluicemq_broker.store import SHOWN_STATES
from sluicemq_devices.hub import DeviceCount, Metric, Mishap

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
