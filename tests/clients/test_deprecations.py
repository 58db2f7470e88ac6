"""Old names work, and warn at the line of the program that uses them, with what to write instead."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from sluicemq import _deprecated
from sluicemq._deprecated import OLD_NAMES, Keyword, Moved, module_names, renamed_keywords


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(_deprecated, "OLD_NAMES", OLD_NAMES.copy())


class Kitchen:
    """Has an oven where there was a stove."""

    def __init__(self) -> None:
        self.ovens = ["small"]

    def bake(self, what: str) -> str:
        return f"{what}, baked"

    cook = Moved("bake")
    stoves = Moved("ovens", "Kitchen.ovens, a list", adapt=tuple)


@renamed_keywords("serve", hot=Keyword("degrees", "serve(degrees=60)", lambda hot: 60 if hot else 20))
def serve(dish: str, *, degrees: int = 20) -> str:
    return f"{dish} at {degrees}"


def test_an_old_method_does_what_the_new_one_does() -> None:
    with pytest.warns(DeprecationWarning, match=r"^Kitchen.cook is now Kitchen.bake$") as seen:
        assert Kitchen().cook("bread") == "bread, baked"
    assert seen[0].filename == __file__


def test_an_old_attribute_is_what_it_was() -> None:
    with pytest.warns(DeprecationWarning, match=r"Kitchen.stoves is now Kitchen.ovens, a list"):
        assert Kitchen().stoves == ("small",)


def test_an_old_keyword_is_converted() -> None:
    old: dict[str, Any] = {"hot": True}
    with pytest.warns(DeprecationWarning, match=r"serve\(hot=\) is now serve\(degrees=60\)") as seen:
        assert serve("soup", **old) == "soup at 60"
    assert seen[0].filename == __file__


def test_an_old_keyword_beside_the_new_one_is_an_error() -> None:
    old: dict[str, Any] = {"hot": True}
    with pytest.warns(match="is now"), pytest.raises(TypeError, match="'hot', which is its old name"):
        serve("soup", degrees=3, **old)


def test_an_old_name_of_a_module_is_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kitchen: Any = ModuleType("kitchen")
    kitchen.Oven = Kitchen
    kitchen.__getattr__ = module_names("kitchen", {"Stove": "Oven"})
    monkeypatch.setitem(sys.modules, "kitchen", kitchen)
    with pytest.warns(DeprecationWarning, match=r"^Stove is now Oven$"):
        assert kitchen.Stove is Kitchen
    with pytest.raises(AttributeError, match="module 'kitchen' has no attribute 'Spoon'"):
        _ = kitchen.Spoon
