"""Files of tests are begun in the order of their recorded durations, the longest first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.durations import TESTS, Recorder, longest_first


def items(*files: str) -> list[Any]:
    return [SimpleNamespace(path=TESTS / file) for file in files]


def ran(recorder: Recorder, file: str, *seconds: float) -> None:
    for second in seconds:
        test = f"tests/{file}::test_one"
        recorder.pytest_runtest_logreport(
            pytest.TestReport(test, (file, 1, ""), {}, "passed", None, "call", duration=second)
        )


def test_the_longest_files_are_begun_first_and_the_tests_of_each_stay_together() -> None:
    tests = items("unit/a.py", "faults/b.py", "unit/a.py", "faults/b.py")
    longest_first(tests, {"unit/a.py": 1.0, "faults/b.py": 20.0})
    assert [test.path.name for test in tests] == ["b.py", "b.py", "a.py", "a.py"]


def test_a_file_that_was_not_recorded_is_begun_before_all_others() -> None:
    tests = items("unit/a.py", "unit/new.py")
    longest_first(tests, {"unit/a.py": 1.0, "unit/gone.py": 99.0})
    assert [test.path.name for test in tests] == ["new.py", "a.py"]


def test_in_a_fresh_checkout_unit_tests_are_begun_last() -> None:
    tests = items("unit/a.py", "faults/a.py", "integration/a.py")
    longest_first(tests, {})
    assert [test.path.parent.name for test in tests] == ["faults", "integration", "unit"]


def test_the_seconds_of_the_files_that_ran_are_kept_and_those_of_others_too(tmp_path: Path) -> None:
    # Given a record with a file that did not run now, and with one that no longer exists
    for name in ("ran.py", "kept.py"):
        (tmp_path / name).touch()
    cache = Kept({"ran.py": 9.0, "kept.py": 2.0, "gone.py": 3.0})
    recorder = Recorder(cache, tmp_path)
    ran(recorder, "ran.py", 1.25, 0.5)
    recorder.pytest_sessionfinish()
    assert cache.seconds == {"ran.py": 1.8, "kept.py": 2.0}


class Kept:
    """A cache of pytest with one value."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def get(self, key: str, default: dict[str, float]) -> dict[str, float]:
        return self.seconds

    def set(self, key: str, value: Any) -> None:
        self.seconds = value
