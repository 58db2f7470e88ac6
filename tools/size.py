"""Counts the code of each room against its budget: ``python tools/size.py``.

Printed for each room (a package, or a folder right below one): lines of code without blanks, comments and
docstrings; constants of modules (names in capitals); modules that one other module imports, and no room
exports: ``--lonely`` names these.
``[tool.size]`` in ``pyproject.toml`` has a budget of lines and constants for each package. It only falls:
more than the budget is an error, and so is a budget that is :data:`SLACK` above what is there.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[1]
#: Each package by the folder that it lies in.
PACKAGES: Final = {
    "sluicemq_broker": ROOT / "broker",
    "sluicemq_devices": ROOT / "devices",
    "sluicemq": ROOT / "clients",
    "sluicemq_bench": ROOT / "bench",
}
#: A budget may be this part above what is there.
SLACK: Final = 0.06
_NO_CODE: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


@dataclass
class Size:
    """What a room, or a package, has; ``lonely``: its modules with one importer."""

    lines: int = 0
    constants: int = 0
    modules: int = 0
    lonely: list[str] = field(default_factory=list)

    def __iadd__(self, other: Size) -> Self:
        self.lines += other.lines
        self.constants += other.constants
        self.modules += other.modules
        self.lonely += other.lonely
        return self


def main() -> int:
    """Print the table; return 1 if a package and its budget do not fit."""
    sizes, importers = measure()
    packages: dict[str, Size] = defaultdict(Size)
    print(f"{'room':44}{'lines':>8}{'constants':>11}{'modules':>9}{'one importer':>14}")
    for room, size in sorted(sizes.items()):
        packages[room.split(".")[0]] += size
        print(_row(room, size))
    for name, size in packages.items():
        print(_row(name + ", all", size))
    if "--lonely" in sys.argv:
        for size in packages.values():
            for module in size.lonely:
                print(f"{module}  <-  {next(iter(importers[module]))}")
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["size"]
    problems = [problem for name, size in packages.items() for problem in compare(name, size, budgets[name])]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def measure() -> tuple[dict[str, Size], dict[str, set[str]]]:
    """Return the size of each room, and which modules import each module."""
    modules = dict(_modules())
    importers: dict[str, set[str]] = defaultdict(set)
    trees = {name: ast.parse(path.read_text()) for name, path in modules.items()}
    for name, tree in trees.items():
        for imported in _imports(tree, modules):
            if imported != name:
                importers[imported].add(name)
    sizes: dict[str, Size] = defaultdict(Size)
    for name, path in modules.items():
        is_room = path.name == "__init__.py"
        others = [importer for importer in importers[name] if modules[importer].name != "__init__.py"]
        exported = len(others) < len(importers[name])
        lonely = [name] if len(others) == 1 and not (is_room or exported) else []
        sizes[_room(name, path)] += Size(code_lines(path.read_text()), constants(trees[name]), 1, lonely)
    return dict(sizes), importers


def compare(name: str, size: Size, budget: dict[str, int]) -> Iterator[str]:
    """Yield what does not fit: more than the budget, or a budget that could be lower."""
    for what, most in budget.items():
        found = getattr(size, what)
        if found > most:
            yield f"{name} has {found} {what}, its budget in pyproject.toml is {most}: take something out"
        elif found < most * (1 - SLACK):
            yield f"{name} has {found} {what}: lower its budget of {most} in pyproject.toml to that"


def code_lines(source: str) -> int:
    """Return how many lines have code: no blanks, comments or docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                docstrings.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def constants(tree: ast.Module) -> int:
    """Return how many names in capitals a module sets."""
    targets = [
        target
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return sum(isinstance(target, ast.Name) and target.id.isupper() for target in targets)


def _modules() -> Iterator[tuple[str, Path]]:
    for package, folder in PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _room(module: str, path: Path) -> str:
    parts = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    return ".".join(parts[:2])


def _imports(tree: ast.Module, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of ours that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def _row(name: str, size: Size) -> str:
    return f"{name:44}{size.lines:8}{size.constants:11}{size.modules:9}{len(size.lonely):14}"


if __name__ == "__main__":
    sys.exit(main())
