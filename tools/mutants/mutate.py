"""Changes a source file in all the ways that cosmic-ray knows, one by one, and shows what no test sees.

``./deploy/test mutate PATH [TEST …]``: the tests that are asked; without any those of tests/unit that name a
class or function of the file. Exit code 1: something was not seen.
"""

from __future__ import annotations

import argparse
import ast
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("tools", "tests"))

from mutants.planting import ROOT
from mutants.run import copy_tree, packages

_CONFIG: Final = """
[cosmic-ray]
module-path = {path!r}
timeout = {timeout}
excluded-modules = []
test-command = {command!r}
[cosmic-ray.distributor]
name = "local"
"""
#: Takes the changes between two places of a file out of a session of cosmic-ray.
_FORGET: Final = """
DELETE FROM work_items WHERE job_id IN (
    SELECT job_id FROM mutation_specs
    WHERE (start_pos_row, start_pos_col) >= (?, ?) AND (end_pos_row, end_pos_col) <= (?, ?)
)
"""


def main() -> int:
    """Mutate the file, and show what survives."""
    parser = argparse.ArgumentParser(prog="./deploy/test mutate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="a source file, from the root of the tree")
    parser.add_argument("tests", nargs="*", help="files or tests that must see the changes")
    parser.add_argument("--timeout", type=float, default=60.0, help="longest time for one change, in seconds")
    options = parser.parse_args()
    tests = options.tests or tests_that_name(options.path)
    if not tests:
        parser.error(f"no file of tests/unit names anything of {options.path}: name the tests")
    with tempfile.TemporaryDirectory(prefix="sluicemq-mutants-") as folder:
        tree = copy_tree(Path(folder) / "tree")
        command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider {' '.join(tests)}"
        config, session = tree / "mutants.toml", tree / "mutants.sqlite"
        config.write_text(_CONFIG.format(path=str(options.path), timeout=options.timeout, command=command))
        _run(tree, "cosmic-ray", "init", str(config), str(session))
        _leave_out_annotations(session, tree / options.path)
        for step in (["baseline", config], ["exec", config, session]):
            _run(tree, "cosmic-ray", *map(str, step))
        report = _run(tree, "cr-report", "--surviving-only", "--show-diff", str(session))
    print(report)
    return int("surviving mutants: 0 " not in report)


def tests_that_name(path: Path) -> list[str]:
    """Return the files of tests/unit in which a class or function of a source file is named."""
    tree = ast.parse((ROOT / path).read_text())
    names = {part.name for part in tree.body if isinstance(part, ast.ClassDef | ast.FunctionDef)}
    return sorted(
        str(test.relative_to(ROOT))
        for test in (ROOT / "tests/unit").rglob("test_*.py")
        if names & {getattr(node, "name", None) or getattr(node, "id", None) for node in _named(test)}
    )


def _named(test: Path) -> list[ast.AST]:
    return [node for node in ast.walk(ast.parse(test.read_text())) if isinstance(node, ast.alias | ast.Name)]


def _leave_out_annotations(session: Path, path: Path) -> None:
    """Take changes of annotations out of a session: nothing computes them, so no test could see one."""
    nodes = ast.walk(ast.parse(path.read_text()))
    found = (getattr(node, key, None) for node in nodes for key in ("annotation", "returns"))
    with closing(sqlite3.connect(session)) as database, database:
        database.executemany(
            _FORGET,
            (
                (place.lineno, place.col_offset, place.end_lineno, place.end_col_offset)
                for place in found
                if place
            ),
        )
        database.execute("DELETE FROM mutation_specs WHERE job_id NOT IN (SELECT job_id FROM work_items)")


def _run(tree: Path, *command: str) -> str:
    path = os.pathsep.join([*packages(tree), str(tree / "tests"), str(tree / "deploy")])
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    program = str(Path(sys.executable).parent / command[0])
    ran = subprocess.run(
        [program, *command[1:]], check=False, cwd=tree, env=environ, capture_output=True, text=True
    )
    if ran.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
