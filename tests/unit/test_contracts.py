"""The contracts of imports refuse what goes up, what looks behind a room's door, and libraries elsewhere."""

from __future__ import annotations

from contracts import Stair, across, behind_the_door, upwards, without_step

STAIR = Stair.read("house: attic, bath | kitchen, cellar")


def test_a_room_imports_from_those_below_it_only() -> None:
    down = [
        ("house.attic.roof", "house.cellar"),
        ("house.kitchen", "house.cellar"),
        ("house.main", "house.attic"),
    ]
    up = [("house.cellar.wine", "house.kitchen"), ("house.bath", "house.kitchen")]
    assert [*upwards(STAIR, [*down, ("house.attic", "house.attic.roof")])] == []
    assert len([*upwards(STAIR, up)]) == len(up)


def test_others_see_of_a_room_what_it_exports() -> None:
    hidden = [("house.attic", "house.cellar.wine"), ("garden", "house.cellar.wine")]
    shown = [
        ("house.attic", "house.cellar"),
        ("house.cellar.beer", "house.cellar.wine"),
        ("house", "garden.bed"),
    ]
    assert [*behind_the_door(STAIR, shown, ())] == []
    assert len([*behind_the_door(STAIR, hidden, ())]) == len(hidden)
    assert [*behind_the_door(STAIR, hidden, ["house.c*"])] == []


def test_a_folder_needs_a_step() -> None:
    assert [*without_step(STAIR, ["house.attic"])] == []
    assert [*without_step(STAIR, ["house.garage"])] == ["house.garage has no step in the stair of house"]


def test_a_library_stays_in_the_modules_that_are_named() -> None:
    assert [
        *across(["bson"], ["house.cellar"], [("house.cellar.wine", "bson"), ("house.attic", "json")])
    ] == []
    assert len([*across(["bson"], ["house.cellar"], [("house.attic", "bson.son")])]) == 1
