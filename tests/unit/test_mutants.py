"""The planted faults fit their places, and the tests that must see them are there."""

import ast
import re
import tomllib
from typing import Any

import pytest

from mutants.planting import ROOT, DoesNotFit, file_of, planted

FAULTS: list[dict[str, Any]] = tomllib.loads((ROOT / "tools/mutants/faults.toml").read_text())["fault"]


def test_each_fault_changes_one_place_and_names_tests_that_exist() -> None:
    for fault in FAULTS:
        sound = (ROOT / file_of(fault["at"])).read_text()
        assert planted(sound, fault["at"], fault["change"]) != ast.unparse(ast.parse(sound)), fault["name"]
        for test in (*fault["tests"], *fault.get("model", ())):
            path, *names = test.partition("[")[0].split("::")  # a name may stand in a class
            text = (ROOT / path).read_text() if names else ""
            assert all(re.search(rf"^ *(def|class) {name}\b", text, re.MULTILINE) for name in names), test


def test_no_two_faults_have_one_name() -> None:
    names = [fault["name"] for fault in FAULTS]
    assert len(names) == len(set(names))


def test_the_model_of_two_brokers_must_see_eighteen_kinds() -> None:
    kinds = [fault["kind"] for fault in FAULTS if "kind" in fault]
    assert len(kinds) == len(set(kinds)) == 18


SOURCE = """
LIMITS = {"a": 1, "b": 2}

class Door:
    def admit(self, caller, wait=1):
        if self.closed or caller.gone:
            return {"who": caller.name, "door": self.name}
        self.count(caller)
        return self.make(caller, wait=wait, first=self.number < 5)
"""


@pytest.mark.parametrize(
    ("place", "change", "text"),
    [
        ("sluicemq.x:LIMITS", "lose key b", "LIMITS = {'a': 1}"),
        ("sluicemq.x:Door.admit", "lose key who", "{'door': self.name}"),
        ("sluicemq.x:Door.admit", "lose argument wait", "self.make(caller, first="),
        ("sluicemq.x:Door.admit", "lose operand gone", "if self.closed:"),
        ("sluicemq.x:Door.admit", "leave out count", "        pass\n"),
        ("sluicemq.x:Door.admit", "suppose closed is True", "if True:"),
        ("sluicemq.x:Door.admit", "flip number", "self.number >= 5"),
        ("sluicemq.x:Door.admit", "return None", "def admit(self, caller, wait=1):\n        return None"),
        ("sluicemq.x:Door.admit", "first becomes False", "first=False"),
        ("sluicemq.x:Door.admit", "self.number < 5 becomes 7", "first=7"),
    ],
)
def test_a_change_fits_one_node(place: str, change: str, text: str) -> None:
    assert text in planted(SOURCE, place, change)


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("sluicemq.x:Door.refuse", "return None"),
        ("sluicemq.x:Door.admit", "lose key nothing"),
        ("sluicemq.x:Door.admit", "lose all"),
        ("sluicemq.x:Door", "self.name becomes 1 near nowhere"),
    ],
)
def test_a_change_that_fits_nothing_is_refused(place: str, change: str) -> None:
    with pytest.raises(DoesNotFit):
        planted(SOURCE, place, change)
