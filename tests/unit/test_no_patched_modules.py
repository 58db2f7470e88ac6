"""No test replaces what a module has: what a part needs comes as an argument."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

#: In OpenTelemetry's own words a provider is set once in a process, and then for all tests that come after.
#: Packs are forced for a whole run, by its environment. libzmq ends a process that has no file left.
ALLOWED = {
    "support/traces.py: trace._TRACER_PROVIDER",
    "support/forced_packs.py: packs.LEAST",
    "clients/test_life_cycle.py: sluicemq.subscription.Connection",
}
#: A file without any of this need not be parsed.
SETS = re.compile(r"setattr|^\s*(?!self\.)\w+(\.\w+)+ \S{0,3}=", re.MULTILINE)


def patches(source: str) -> Iterator[str]:
    """Attributes of modules that are set here: by ``setattr`` of whatever it is, or by an assignment."""
    if not SETS.search(source):
        return
    nodes = list(ast.walk(ast.parse(source)))
    imported = dict(imported_names(nodes))
    for node in nodes:
        if isinstance(node, ast.Call) and called(node) == "setattr":
            target, *name = node.args
            if isinstance(target, ast.Constant):
                yield str(target.value)
            elif is_module(imported.get(ast.unparse(target), "")):
                yield f"{ast.unparse(target)}.{getattr(name[0], 'value', '?')}"
        elif isinstance(node, ast.Assign | ast.AugAssign):
            for place in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(place, ast.Attribute) and is_module(imported.get(ast.unparse(place.value), "")):
                    yield ast.unparse(place)


def called(node: ast.Call) -> str:
    """Return the last word of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def imported_names(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """The names under which a file has what it imports, with whole names."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            yield from ((name.asname or name.name, above + name.name) for name in node.names)


@cache
def is_module(name: str) -> bool:
    try:
        return bool(name) and find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False
    except ValueError:  # it is loaded, and has no spec: it is a part of an extension
        return True


def test_no_test_replaces_what_a_module_has() -> None:
    found = {
        f"{path.relative_to(TESTS)}: {patch}"
        for path in sorted(TESTS.rglob("*.py"))
        for patch in patches(path.read_text())
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
