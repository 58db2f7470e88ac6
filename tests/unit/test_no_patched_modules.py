"""No test replaces what a module has: what a part needs comes as an argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

#: In OpenTelemetry's own words a provider is set once in a process, and then for all tests that come after.
ALLOWED = {"support/traces.py: trace._TRACER_PROVIDER"}


def patches(source: str) -> Iterator[str]:
    """Attributes of modules that are set here: by ``setattr`` of whatever it is, or by an assignment."""
    nodes = list(ast.walk(ast.parse(source)))
    modules = set(imported_modules(nodes))
    for node in nodes:
        if isinstance(node, ast.Call) and called(node) == "setattr":
            target, *name = node.args
            if isinstance(target, ast.Constant):
                yield str(target.value)
            elif ast.unparse(target) in modules:
                yield f"{ast.unparse(target)}.{getattr(name[0], 'value', '?')}"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            for each in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(each, ast.Attribute) and ast.unparse(each.value) in modules:
                    yield ast.unparse(each)


def called(node: ast.Call) -> str:
    """Return the last word of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def imported_modules(nodes: list[ast.AST]) -> Iterator[str]:
    """The names under which a file has modules."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                if is_module(f"{node.module}.{each.name}"):
                    yield each.asname or each.name


@cache
def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False
    except ValueError:  # it is loaded, and has no spec: it is a part of an extension
        return True


def test_no_test_replaces_what_a_module_has() -> None:
    found = {
        f"{path.relative_to(TESTS)}: {each}"
        for path in sorted(TESTS.rglob("*.py"))
        for each in patches(path.read_text())
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import os\nmonkeypatch.setattr(os, 'x', 1)",
        "import os.path\nmonkeypatch.setattr(os.path, 'x', 1)",
        "from os import path as p\nwith patch.context() as patched:\n    patched.setattr(p, 'x', 1)",
        "monkeypatch.setattr('os.x', 1)",
        "import os\nos.x = 1",
    ],
)
def test_it_would_be_found(source: str) -> None:
    assert len(list(patches(source))) == 1


def test_methods_of_classes_are_let_be() -> None:
    assert list(patches("from os.path import Path\nmonkeypatch.setattr(Path, 'x', 1)\nPath.x = 1")) == []
