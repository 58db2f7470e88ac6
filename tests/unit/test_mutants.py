"""The planted faults still have their places, and the tests that must see them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/mutants/faults.toml").read_text())["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=[each["name"] for each in FAULTS])
def test_a_planted_fault_stands_for_one_place_and_for_tests_that_exist(fault: dict[str, Any]) -> None:
    assert (ROOT / fault["file"]).read_text().count(fault["old"]) == 1
    for each in (*fault["tests"], *fault.get("model", ())):
        path, _, name = each.partition("::")
        assert not name or re.search(rf"^def {name.split('[')[0]}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_no_two_faults_have_one_name() -> None:
    names = [each["name"] for each in FAULTS]
    assert len(names) == len(set(names))


def test_the_model_of_two_brokers_must_see_eighteen_kinds() -> None:
    kinds = [each["kind"] for each in FAULTS if "kind" in each]
    assert len(kinds) == len(set(kinds)) == 18
