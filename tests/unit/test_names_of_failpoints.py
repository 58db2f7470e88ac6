"""Statements that write have failpoints, as the sources have them."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from sluicemq_broker.store import arm_failpoints, failpoints
from sluicemq_broker.store.failpoints import statements

LIST = Path(__file__).parents[1] / "faults" / "failpoints.toml"


def test_each_statement_has_a_name_of_its_own() -> None:
    names = Counter(each.name for each in statements())
    assert max(names.values()) == 1
    assert "queue_store.QueueStore.commit:delete_many" in names
    assert "queue_store.QueueStore.reclaim:update_many#2" in names
    assert "transactions._carried_out:with_transaction" in names


def test_what_only_reads_is_no_statement_that_writes() -> None:
    names = " ".join(each.name for each in statements())
    assert "clock" not in names
    assert "connection" not in names
    assert "find_one:" not in names


def test_each_statement_is_met_by_a_script_that_is_killed_there_or_says_why_not() -> None:
    listed = tomllib.loads(LIST.read_text())
    met = {point.partition("<")[0] for points in listed["met"].values() for point in points}
    reasons: dict[str, str] = listed["not_met"]
    names = {each.name for each in statements()}
    without = {name for name in names if any(fnmatchcase(name, each) for each in reasons)}
    assert all(reasons.values())
    assert met - names == set(), "no statement has this name any more"
    assert [each for each in reasons if not any(fnmatchcase(name, each) for name in names)] == []
    assert names - met - without == set(), f"add a script to {LIST.name}, or a reason"
    assert met & without == set()


def test_no_pipeline_writes_for_none_has_a_failpoint() -> None:
    folder = Path(failpoints.__file__).parent
    sources = [each for each in folder.rglob("*.py") if each.name != "failpoints.py"]
    assert len(sources) > 50
    assert not [each.name for each in sources if re.search(r"\$(merge|out)\b", each.read_text())]


@pytest.mark.parametrize("text", ["", "x", "queue_store.QueueStore.commit:delete_many=die", "a:b.before=die"])
def test_what_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"failpoint|no statement"):
        arm_failpoints(text)
