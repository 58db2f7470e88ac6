"""Statements that write have failpoints, as the sources have them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from sluicemq_broker.store import arm_failpoints, failpoints
from sluicemq_broker.store.failpoints import statements


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


def test_no_pipeline_writes_for_none_has_a_failpoint() -> None:
    folder = Path(failpoints.__file__).parent
    sources = [each for each in folder.rglob("*.py") if each.name != "failpoints.py"]
    assert len(sources) > 50
    assert not [each.name for each in sources if re.search(r"\$(merge|out)\b", each.read_text())]


@pytest.mark.parametrize("text", ["", "x", "queue_store.QueueStore.commit:delete_many=die", "a:b.before=die"])
def test_what_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"failpoint|no statement"):
        arm_failpoints(text)
