"""Begin the files of tests that take longest first, by how long each took in the runs before.

With several processes a long file that is begun last is left to one of them while the others have nothing to
do. Each run adds what its files took to the cache of pytest, which is not part of the source. A file that no
run here has recorded, as in a fresh checkout, comes first: in the order of :data:`DEAREST_FIRST`, large files
before small ones.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import pytest

TESTS: Final = Path(__file__).parents[1]
#: Folders whose tests start many processes before those whose tests start few; ``unit`` starts none.
DEAREST_FIRST: Final = ("faults", "devices", "clients", "integration", "interop", "deploy", "unit")
#: Where the cache keeps the seconds of each file.
KEY: Final = "sluicemq/durations"


class Cache(Protocol):
    """What is used of ``pytest.Cache``."""

    def get(self, key: str, default: dict[str, float], /) -> dict[str, float]: ...

    def set(self, key: str, value: object, /) -> None: ...


def longest_first(items: list[pytest.Item], seconds: Mapping[str, float]) -> None:
    """Sort tests by how long their file takes; those of one file stay together, in their order."""
    items.sort(key=lambda item: (-seconds.get(_name(item.path), math.inf), *_first_guess(item.path)))


class Recorder:
    """A plugin that adds up what the tests of each file take, and keeps it when the session ends.

    It belongs into the process that hears of all tests: with ``-n`` the one that does not run them.
    """

    def __init__(self, cache: Cache, tests: Path = TESTS) -> None:
        self._cache = cache
        self._tests = tests
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, _ = report.nodeid.partition("::")
        self._seconds[file.removeprefix("tests/")] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep the files that ran, and what was recorded of the others that still exist."""
        seconds = {**self._cache.get(KEY, {}), **self._seconds}
        self._cache.set(
            KEY, {file: round(took, 1) for file, took in seconds.items() if (self._tests / file).exists()}
        )


def _first_guess(path: Path) -> tuple[int, int, Path]:
    folder = path.relative_to(TESTS).parts[0]
    rank = DEAREST_FIRST.index(folder) if folder in DEAREST_FIRST else 0
    return rank, -path.stat().st_size if path.exists() else 0, path


def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()
