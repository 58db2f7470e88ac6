"""Begin the files of tests that take longest first, by how long each took when that was last recorded.

With several processes a long file that is begun last is left to one of them while the others have nothing to
do. ``pytest --record-durations`` writes :data:`RECORD`: the seconds of each file that ran. Files that it does
not name come first, and names of files that are gone change nothing.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
RECORD = TESTS / "durations.json"


def read(record: Path = RECORD) -> dict[str, float]:
    """Return the seconds of each file, by its path below ``tests``; nothing if none were recorded."""
    return json.loads(record.read_text()) if record.exists() else {}


def longest_first(items: list[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Sort tests by how long their file takes; those of one file stay together, in their order."""
    items.sort(key=lambda item: (-seconds.get(_name(item.path), math.inf), item.path))


class Recorder:
    """A plugin that adds up what the tests of each file take, and writes it when the session ends.

    It belongs into the process that hears of all tests: with ``-n`` the one that does not run them.
    """

    def __init__(self, record: Path = RECORD, tests: Path = TESTS) -> None:
        self._record = record
        self._tests = tests
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, _ = report.nodeid.partition("::")
        self._seconds[file.removeprefix("tests/")] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the files that ran, and keep what was recorded of the others that are still there."""
        seconds = {**read(self._record), **self._seconds}
        there = {file: round(took, 1) for file, took in seconds.items() if (self._tests / file).exists()}
        self._record.write_text(json.dumps(there, indent=0, sort_keys=True) + "\n")


def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()
