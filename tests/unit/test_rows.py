"""Rows: what comes from older and newer brokers, from damaged documents, and how they go onto the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sluicemq import BadFramesError
from sluicemq.protocol import rows
from sluicemq.protocol.rows import BrokerRow, EventRow, JobRow, RedriveRow, Row, ScheduleRow

BROKER: dict[str, Any] = {
    "name": "host:1", "since": 1, "seen": 2.5, "ended": None, "here": True, "version": "1", "reads": (2, 3),
}  # fmt: skip
ALL = [var for var in vars(rows).values() if isinstance(var, type) and issubclass(var, Row)]


def test_a_newer_broker_may_send_more() -> None:
    row = rows.from_wire(BrokerRow, {**BROKER, "colour": "red"})
    assert row == rows.from_wire(BrokerRow, BROKER)
    assert (row.name, row.reads) == ("host:1", (2, 3))


def test_an_older_broker_may_send_less() -> None:
    schedule = {
        "name": "nightly",
        "queue": "q",
        "next_at": 1.0,
        "last_at": None,
        "pushed": 0,
        "paused": False,
        "misfire": "one",
        "skipped": 0,
        "options": {},
        "from_configuration": False,
    }
    assert rows.from_wire(list[ScheduleRow], [schedule])[0].problem is None


def test_another_answer_is_refused_by_name() -> None:
    with pytest.raises(BadFramesError, match=r"Expected `float .*\$\.seen"):
        rows.from_wire(BrokerRow, {**BROKER, "seen": "long ago"})


def test_a_damaged_document_is_shown_without_what_is_wrong() -> None:
    damaged = {"id": "a", "state": 7, "attempts": "many", "priority": 3, "payload": b"\xff", "errors": "none"}
    row = rows.from_document(JobRow, damaged)
    assert row == JobRow(id="a", state="", priority=3, payload=b"\xff")


def test_the_wire_has_what_it_had_and_no_fields_that_do_not_apply() -> None:
    assert rows.plain(rows.from_wire(BrokerRow, BROKER)) == BROKER  # ended stays, as nil
    assert rows.plain(JobRow(id="a", state="ready", payload=b"\xff")) == {
        "id": "a", "state": "ready", "payload": b"\xff"
    }  # fmt: skip
    assert rows.plain(EventRow(at=1.0, event="redriven", queue="q", source="p"))["from"] == "p"
    redriven = {"moved": 1, "left": 0, "refused": (["a", "TOO_LARGE", "too large"],)}
    assert rows.plain(rows.from_wire(RedriveRow, redriven)) == redriven


@pytest.mark.parametrize("row", ALL, ids=[type_.__name__ for type_ in ALL])
def test_rows_are_frozen_have_words_and_a_schema(row: type[Row]) -> None:
    assert row.__struct_config__.frozen
    assert row.__doc__
    assert msgspec.json.schema(row)


def test_numbers_of_mongodb_are_numbers_on_the_wire() -> None:
    class Int64(int):
        """As bson's: what MongoDB has in 64 bits."""

    assert rows.plain(JobRow(id="a", state="waiting", wait={"seq": Int64(7)}))["wait"] == {"seq": 7}
