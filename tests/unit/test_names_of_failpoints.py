"""Statements that write have failpoints, as the comments above them say."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from sluicemq_broker import store
from support.failpoints import arm_failpoints, comments

SOURCES: Final = list(Path(store.__file__).parent.rglob("*.py"))
#: Methods of the driver that write, or may; no pipeline of an ``aggregate`` here has a stage that does.
WRITES: Final = re.compile(
    r"(insert|update|delete)_(one|many)|replace_one|bulk_write|find_one_and_\w+|rename|drop|drop_(index|indexes|collection)"
    r"|create_(index|indexes|collection)|command|with_transaction"
)
#: Functions of the store that send what the driver has no method for.
SENDS: Final = {"send_write", "delete_all"}
#: Commands that change nothing.
READS: Final = {
    *("find", "hello", "ping", "getParameter"),
    *("replSetGetConfig", "replSetGetStatus", "collStats", "dbStats", "serverStatus"),
}
MISSING: Final = """has no failpoint. Write one in the line above it, with a name of its own:
    # failpoint jobs.commit
(for a statement that verbs share: tests/support/failpoints.py). Have a script of
tests/faults/scripts.py meet it: pytest --full tests/faults/test_every_failpoint.py -k met_by"""


def test_each_call_that_writes_has_a_failpoint() -> None:
    said, writing = comments(), {place for place, call in calls() if writes(call)}
    assert len(writing) > 100
    for file, line in sorted(writing):
        assert re.search(r"[.*]", said.get((file, line), "")), f"{file}:{line} {MISSING}"
    shared = {place for place, text in said.items() if "*" in text}
    assert shared <= writing, "a name with a star stands above a call that does not write"


def test_each_name_is_given_once() -> None:
    names = Counter(comment for comment in comments().values() if "*" not in comment)
    assert {"jobs.commit", "streams.append", "forwards"} <= names.keys()
    assert [name for name, times in names.items() if times > 1] == []
    assert [name for name in names if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", name)] == []


def test_each_comment_stands_above_a_call() -> None:
    assert len(comments()) == sum(source.read_text().count("# failpoint") for source in SOURCES)
    assert comments().keys() - {place for place, _ in calls()} == set()


def test_no_pipeline_writes_for_none_has_a_failpoint() -> None:
    assert len(SOURCES) > 50
    assert not [source.name for source in SOURCES if re.search(r"\$(merge|out)\b", source.read_text())]


@pytest.mark.parametrize(
    "text", ["", "x", "jobs.commit=die", "a.b.before=die", "*.before=die", "jobs.lose.before=die"]
)
def test_what_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"failpoint|no statement"):
        arm_failpoints(text)


def calls() -> Iterator[tuple[tuple[str, int], ast.Call]]:
    """Yield each call of the store with its file, and the line that a frame is in while it runs."""
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                line = node.func.end_lineno if isinstance(node.func, ast.Attribute) else node.lineno
                yield (str(file), line or 0), node


def writes(call: ast.Call) -> bool:
    first = next(iter(call.args), None)
    command = next(iter(first.keys), None) if isinstance(first, ast.Dict) else first
    if isinstance(command, ast.Constant) and command.value in READS:
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id in SENDS
    return isinstance(call.func, ast.Attribute) and bool(WRITES.fullmatch(call.func.attr))
