"""Files of tests are begun in the order of their recorded durations, the longest first."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.durations import TESTS, Recorder, longest_first, read


def items(*files: str) -> list[Any]:
    return [SimpleNamespace(path=TESTS / file) for file in files]


def ran(recorder: Recorder, file: str, *seconds: float) -> None:
    for each in seconds:
        test = f"tests/{file}::test_one"
        recorder.pytest_runtest_logreport(
            pytest.TestReport(test, (file, 1, ""), {}, "passed", None, "call", duration=each)
        )


def test_the_longest_files_are_begun_first_and_the_tests_of_each_stay_together() -> None:
    tests = items("unit/a.py", "faults/b.py", "unit/a.py", "faults/b.py")

    longest_first(tests, {"unit/a.py": 1.0, "faults/b.py": 20.0})

    assert [each.path.name for each in tests] == ["b.py", "b.py", "a.py", "a.py"]


def test_a_file_that_was_not_recorded_is_begun_before_all_others() -> None:
    tests = items("unit/a.py", "unit/new.py")

    longest_first(tests, {"unit/a.py": 1.0, "unit/gone.py": 99.0})

    assert [each.path.name for each in tests] == ["new.py", "a.py"]


def test_the_seconds_of_the_files_that_ran_are_written_and_those_of_others_kept(tmp_path: Path) -> None:
    # Given a record with a file that did not run now, and with one that is gone
    for name in ("ran.py", "kept.py"):
        (tmp_path / name).touch()
    record = tmp_path / "durations.json"
    record.write_text(json.dumps({"ran.py": 9.0, "kept.py": 2.0, "gone.py": 3.0}))
    recorder = Recorder(record, tmp_path)
    # When
    ran(recorder, "ran.py", 1.25, 0.5)
    recorder.pytest_sessionfinish()
    # Then
    assert read(record) == {"ran.py": 1.8, "kept.py": 2.0}


def test_without_a_record_nothing_is_known(tmp_path: Path) -> None:
    assert read(tmp_path / "none.json") == {}


def test_what_is_recorded_here_names_seconds_of_files() -> None:
    recorded = read()
    assert recorded
    assert all(seconds >= 0 and file.endswith(".py") for file, seconds in recorded.items())
