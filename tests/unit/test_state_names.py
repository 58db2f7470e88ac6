"""States, pauses, verdicts and kinds of devices are called by their names, not by literals."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sluicemq_broker
import sluicemq_devices
from sluicemq.cli import history, queue_table, top
from sluicemq.protocol import wire
from sluicemq_broker.job import SCHEDULED, State
from sluicemq_broker.job.job import ATTRIBUTES
from sluicemq_broker.runtime import Count, Gauge
from sluicemq_broker.store import SHOWN_STATES
from sluicemq_devices.hub import DeviceCount
from sluicemq_devices.relays import Kind

BROKER, DEVICES = (Path(package.__file__ or "").parent for package in (sluicemq_broker, sluicemq_devices))

VERDICTS = {wire.COMMIT, wire.ROLLBACK, wire.REJECT, wire.RELEASE}
PAUSES = {wire.DELIVERY, wire.INTAKE}
#: Parts of a queue that rooms above may use: none that claims, hands out or writes.
PARTS_FOR_DOORS = {
    "capacity", "clock", "deliveries", "intake", "progress", "results", "settings", "settling",
    "store", "unreadable",
}  # fmt: skip
#: A "queue" is also what it is anywhere else.
KINDS = {*Kind} - {Kind.QUEUE}
#: A source without any of this sets no attribute of a job, and need not be parsed.
SETS = re.compile(rf"(?<!\bself)\.({'|'.join(sorted(ATTRIBUTES))})\b[^=\n]*=[^=]")


def literals(package: Path, names: set[str]) -> list[str]:
    """Where a string or bytes is one of these, but for where names are declared."""
    everything: set[str | bytes] = {*names, *(name.encode() for name in names)}
    quoted = re.compile(rf"[\"']({'|'.join(names)})[\"']")  # to parse all sources would take longer
    return [
        f"{path.relative_to(package)}:{node.lineno} {node.value!r}"
        for path in sorted(package.rglob("*.py"))
        if quoted.search(source := path.read_text())
        for node in used(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and node.value in everything
    ]


def used(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not is_declaration(child):
            yield child
            yield from used(child)


def is_declaration(node: ast.AST) -> bool:
    """A class of names, a constant's first value, slots: attributes are no states."""
    if isinstance(node, ast.ClassDef):
        return any(isinstance(base, ast.Name) and base.id in ("StrEnum", "Metric") for base in node.bases)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {ast.unparse(target) for target in targets} <= {"SCHEDULED", "__slots__"}
    return False


def test_a_state_of_a_job_is_never_a_literal() -> None:
    assert literals(BROKER, {*State, SCHEDULED}) == []


def test_a_pause_a_verdict_or_a_kind_of_device_is_never_a_literal() -> None:
    assert literals(BROKER, PAUSES | VERDICTS | KINDS) == []
    assert literals(DEVICES, KINDS) == []


def test_the_states_that_are_shown_are_those_that_are_stored_and_scheduled() -> None:
    assert {*SHOWN_STATES} == {*State, SCHEDULED}


class Row(dict[str, Any]):
    """Has whatever it is asked for, and knows what that was."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return 1

    def get(self, name: str, default: Any = None) -> Any:
        return self if name in NO_COUNTERS else self[name]


#: What else is told of a queue, or of a broker.
NO_COUNTERS = {"name", "rates", "estimates", "paused", "version", "pid", "store"}
COUNTERS = {*Count, *Gauge, *DeviceCount}


def test_what_the_commands_show_of_queues_and_brokers_has_the_names_that_the_broker_counts_by() -> None:
    row = Row()
    queue_table.queue_rows([row])
    for key in queue_table.KEYS.values():
        key(row)
    top.head(row)
    assert {"pushed", "committed", "scheduled", "uptime"} <= row.asked
    assert row.asked - NO_COUNTERS <= COUNTERS


@pytest.mark.parametrize("subject", history.COLUMNS)
def test_what_the_history_shows_has_the_names_that_the_broker_counts_by(subject: str) -> None:
    counted = Row()
    history.line({"counted": counted, "at": 0.0}, "minute", subject)
    assert counted.asked
    assert counted.asked | {name for chart in history.CHARTS[subject] for name in chart} <= COUNTERS


def reached_through(source: Path, what: str) -> list[str]:
    """Where something of a part of a queue is used: ``queue.part.something``."""
    inner = [
        node.value
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
    ]
    return [
        f"{source.name}:{node.lineno} {node.attr}"
        for node in inner
        if getattr(node.value, "id", getattr(node.value, "attr", "")) in (what, f"_{what}")
    ]


def test_doors_know_the_parts_of_a_queue_that_take_jobs_in_and_end_deliveries() -> None:
    sources = [
        file
        for room in ("admin", "doors", "http", "parts", "process")
        for file in (BROKER / room).rglob("*.py")
    ]
    reached = [place for source in sources for place in reached_through(source, "queue")]
    assert {place.split()[-1] for place in reached} == PARTS_FOR_DOORS, reached


def set_from_outside(source: Path) -> list[str]:
    """Where an attribute that jobs have is set on anything but ``self``."""
    text = source.read_text()
    targets = [
        target
        for node in (ast.walk(ast.parse(text)) if SETS.search(text) else ())
        for whole in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        for target in ast.walk(whole or ast.Pass())
        if isinstance(target, ast.Attribute) and target.attr in ATTRIBUTES
        if isinstance(target.ctx, ast.Store)
    ]
    others = [
        target for target in targets if not (isinstance(target.value, ast.Name) and target.value.id == "self")
    ]
    return [f"{source.name}:{other.lineno} {other.attr}" for other in others]


def test_nobody_sets_an_attribute_of_a_job_but_the_job() -> None:
    others = ("job.py", "archive.py")  # the second one writes the sizes of files into a tar
    sources = [file for file in BROKER.rglob("*.py") if file.name not in others]
    assert [place for source in sources for place in set_from_outside(source)] == []
