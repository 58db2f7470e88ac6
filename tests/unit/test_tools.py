"""Tools of this tree: contracts of imports, the size of code, durations and processes of tests."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts import Stair, across, behind_the_door, upwards, without_step
from size import Size, code_lines, compare, constants
from support.durations import TESTS, Recorder, longest_first

STAIR = Stair.read("house: attic, bath | kitchen, cellar")


def test_a_room_imports_from_those_below_it_only() -> None:
    down = [
        ("house.attic.roof", "house.cellar"),
        ("house.kitchen", "house.cellar"),
        ("house.main", "house.attic"),
    ]
    up = [("house.cellar.wine", "house.kitchen"), ("house.bath", "house.kitchen")]
    assert [*upwards(STAIR, [*down, ("house.attic", "house.attic.roof")])] == []
    assert len([*upwards(STAIR, up)]) == len(up)


def test_others_see_of_a_room_what_it_exports() -> None:
    hidden = [("house.attic", "house.cellar.wine"), ("garden", "house.cellar.wine")]
    shown = [
        ("house.attic", "house.cellar"),
        ("house.cellar.beer", "house.cellar.wine"),
        ("house", "garden.bed"),
    ]
    assert [*behind_the_door(STAIR, shown, ())] == []
    assert len([*behind_the_door(STAIR, hidden, ())]) == len(hidden)
    assert [*behind_the_door(STAIR, hidden, ["house.c*"])] == []


def test_a_folder_needs_a_step() -> None:
    assert [*without_step(STAIR, ["house.attic"])] == []
    assert [*without_step(STAIR, ["house.garage"])] == ["house.garage has no step in the stair of house"]


def test_a_library_stays_in_the_modules_that_are_named() -> None:
    assert [
        *across(["bson"], ["house.cellar"], [("house.cellar.wine", "bson"), ("house.attic", "json")])
    ] == []
    assert len([*across(["bson"], ["house.cellar"], [("house.attic", "bson.son")])]) == 1


SOURCE = '''"""A docstring

of three lines."""
import os  # a comment

LIMIT: int = 3
_MOST = 4
lower = (
    5
)


def double(value):
    """A docstring."""
    # a comment
    return """text
    is code"""
'''


def test_blanks_comments_and_docstrings_are_no_code() -> None:
    assert code_lines(SOURCE) == 9
    assert constants(ast.parse(SOURCE)) == 2


@pytest.mark.parametrize(("lines", "says"), [(100, []), (99, []), (101, ["take"]), (90, ["lower"])])
def test_a_budget_holds_and_only_falls(lines: int, says: list[str]) -> None:
    problems = [*compare("a_package", Size(lines=lines), {"lines": 100})]
    assert [word for word in ("take", "lower") for problem in problems if word in problem] == says


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


SUPPORT = Path(__file__).parents[1]
CONFTEST = """
import os, pytest
from support.processes import Processes

def pytest_configure(config):
    config.pluginmanager.register(Processes(2))

@pytest.fixture(scope="session")
def of_the_session():
    yield os.getpid()
    with open("ended", "a") as file:
        file.write("x")
"""
ONE = """
import os

seen = []

def test_a(of_the_session):
    print("what test_a printed")
    seen.append(os.getpid())

def test_b():
    assert seen == [os.getpid()]
    assert False, "what b says"
"""
OTHER = """
import os, pytest

def test_c(of_the_session):
    os._exit(3)

def test_d(of_the_session):
    pass

def test_e():
    pytest.skip("no e")
"""
LAST = """
def test_f(of_the_session):
    pass
"""


def run(folder: Path, *arguments: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in (("one", ONE), ("other", OTHER), ("last", LAST)):
        (folder / name).mkdir()
        (folder / name / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", *arguments, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SUPPORT), *sys.path))}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_each_file_is_run_whole_by_one_process_and_one_that_ends_fails_its_test(tmp_path: Path) -> None:
    told = run(tmp_path)
    assert "1 failed, 3 passed, 1 skipped, 1 error" in told
    assert "what b says" in told
    assert "what test_a printed" in told
    assert re.search(r"ERROR other/test_other.py::test_c.*the process that ran this ended with code 3", told)
    assert (tmp_path / "ended").read_text() == "xx"  # the process that ended so ends nothing


def test_after_as_many_failures_as_are_wanted_no_other_test_begins(tmp_path: Path) -> None:
    told = run(tmp_path, "-x")
    assert "stopping after 1 failures" in told
