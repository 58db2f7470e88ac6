"""Tests in several processes: each file in one, and a process that ends fails the test it was at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
