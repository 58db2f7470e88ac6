"""The planted faults still have their places, and the tests that must see them."""

from __future__ import annotations

import builtins
import re
import symtable
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/mutants/faults.toml").read_text())["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=[each["name"] for each in FAULTS])
def test_a_planted_fault_stands_for_one_place_and_for_tests_that_exist(fault: dict[str, Any]) -> None:
    assert (ROOT / fault["file"]).read_text().count(fault["old"]) == 1
    for each in (*fault["tests"], *fault.get("model", ())):
        path, *names = each.partition("[")[0].split("::")  # a name may stand in a class
        text = (ROOT / path).read_text() if names else ""
        assert all(re.search(rf"^ *(def|class) {name}\b", text, re.MULTILINE) for name in names)


@pytest.mark.parametrize("fault", FAULTS, ids=[each["name"] for each in FAULTS])
def test_a_planted_fault_uses_names_that_exist(fault: dict[str, Any]) -> None:
    # Else a NameError is what its tests see, whatever they check.
    sound = (ROOT / fault["file"]).read_text()
    planted = sound.replace(fault["old"], fault["new"])
    assert set(_undefined(planted)) == set()
    assert _own_attributes(planted) <= _own_attributes(sound) | set(re.findall(r"def (\w+)", sound))


def _undefined(source: str) -> Iterator[str]:
    """Yield the global names that a module uses and does not define."""
    module = symtable.symtable(source, "planted.py", "exec")
    defined = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
    tables = [module]
    for table in tables:
        tables.extend(table.get_children())
        for each in table.get_symbols():
            if each.is_referenced() and each.is_global() and not hasattr(builtins, each.get_name()):
                yield from {each.get_name()} - defined - {"__file__", "__name__", "__doc__"}


def _own_attributes(source: str) -> set[str]:
    return set(re.findall(r"self\.(\w+)", source))


def test_no_two_faults_have_one_name() -> None:
    names = [each["name"] for each in FAULTS]
    assert len(names) == len(set(names))


def test_the_model_of_two_brokers_must_see_eighteen_kinds() -> None:
    kinds = [each["kind"] for each in FAULTS if "kind" in each]
    assert len(kinds) == len(set(kinds)) == 18
