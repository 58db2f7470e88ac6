"""The list of tests that may be tried once more names tests that exist, each with a reason and a date."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from support.quarantine import entries, faults

HERE = "tests/unit/test_quarantine.py"
GOOD: dict[str, Any] = {
    "name": f"{HERE}::test_an_entry_that_is_wrong_is_named[no date]",
    "reason": "an example",
    "since": date(2026, 11, 25),
}


def test_every_entry_of_the_list_is_right() -> None:
    assert list(faults(entries())) == []


def test_an_entry_names_a_test_with_a_reason_and_a_date() -> None:
    assert list(faults([GOOD])) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": f"{HERE}::test_that_is_gone"}, "there is no such test"),
        ({"name": "tests/unit/test_gone.py::test_one"}, "there is no such test"),
        ({"reason": ""}, "reason is missing"),
        ({"since": "last week"}, "since is no date"),
    ],
    ids=["no test", "no file", "no reason", "no date"],
)
def test_an_entry_that_is_wrong_is_named(change: dict[str, Any], complaint: str) -> None:
    (fault,) = faults([GOOD | change])
    assert fault.endswith(complaint)
