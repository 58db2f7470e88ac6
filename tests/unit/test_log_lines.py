"""Lines of the log: whatever a stranger sends, each is one line of bounded length."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from sluicemq_broker.command.logs import _Json, _Text
from sluicemq_devices.hub import LONGEST_TRACEBACK, OneLine

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
