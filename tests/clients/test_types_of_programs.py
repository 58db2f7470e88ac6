"""Types of the library, as programs see them: two checkers find a whole program right, and each mistake."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sluicemq

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples/program/program.py"
MISTAKES = Path(__file__).parent / "programs/mistakes.py"
#: Where the library lies; as installed, checkers find it by themselves.
LIBRARY = Path(sluicemq.__file__).parents[1]
INSTALLED = "site-packages" in LIBRARY.parts

Found = dict[int, set[str]]
"""Kinds of mistakes by line."""


def by_mypy(program: Path, folder: Path) -> Found:
    """What mypy finds, without the configuration of this project."""
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary",
         "--follow-imports=silent", "--cache-dir", folder / "cache", program],
        capture_output=True,
        text=True,
        env=os.environ | ({} if INSTALLED else {"MYPYPATH": str(LIBRARY)}),
        check=False,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found: Found = {}
    for line, kind in re.findall(r"^[^:\n]+:(\d+): error: .*\[([a-z-]+)\]$", run.stdout, re.MULTILINE):
        found.setdefault(int(line), set()).add(kind)
    return found


def by_pyright(program: Path, folder: Path) -> Found:
    """What pyright finds, in its strict mode."""
    paths = {} if INSTALLED else {"extraPaths": [str(LIBRARY)]}
    about = {
        "typeCheckingMode": "strict",
        "reportUnusedExpression": False,
        "reportUnknownMemberType": False,
        **paths,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(about))
    shutil.copy(program, folder)
    run = subprocess.run(
        [pyright(), "--outputjson", "--pythonpath", sys.executable, "--project", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    found: Found = {}
    for load in json.loads(run.stdout)["generalDiagnostics"]:
        if load["severity"] == "error":
            found.setdefault(load["range"]["start"]["line"] + 1, set()).add(load.get("rule", load["message"]))
    return found


def pyright() -> str:
    """The program; ./deploy/test installs it beside other packages for Node."""
    folders = [ROOT / ".venv-test/node/node_modules/.bin", Path(os.environ.get("NODE_PATH", "")) / ".bin"]
    found = shutil.which("pyright", path=os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    if found is None and os.environ.get("CI") != "true":
        pytest.skip("pyright is not here: ./deploy/test installs it")
    assert found, "pyright is not installed"
    return found


CHECKERS = {"mypy": by_mypy, "pyright": by_pyright}
each_checker = pytest.mark.parametrize("name", CHECKERS)


def planted(name: str) -> Found:
    """Line and kind of each mistake, as the file says."""
    lines = MISTAKES.read_text().splitlines()
    found = ((at, re.search(rf"# .*\b{name}: ([\w -]+)", line)) for at, line in enumerate(lines, 1))
    return {at: set(match[1].split()) for at, match in found if match}


@each_checker
def test_a_program_that_is_right_is_found_right(name: str, tmp_path: Path) -> None:
    assert CHECKERS[name](PROGRAM, tmp_path) == {}


@each_checker
def test_every_planted_mistake_is_found_and_nothing_else(name: str, tmp_path: Path) -> None:
    expected = planted(name)
    assert len(expected) >= 10
    assert CHECKERS[name](MISTAKES, tmp_path) == expected


def test_the_package_says_that_it_has_types() -> None:
    assert (LIBRARY / "sluicemq/py.typed").exists()
