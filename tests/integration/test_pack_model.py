"""A pack in every order of events, by the store's own verbs: docs/verification.md."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from pymongo import DeleteOne

from protocol_model.pack_verbs import PackVerbs
from protocol_model.packs import Bounds, explore
from sluicemq_broker.store import QueueStore
from sluicemq_broker.store.jobs import lifts, pack_marks

COMMITS_AND_A_LIFT = (("commit", 0b001), ("commit", 0b010), ("reject", 0b100))

ORDINARY = [
    Bounds(COMMITS_AND_A_LIFT, unclear=1),
    Bounds(COMMITS_AND_A_LIFT, crashes=1, brokers=2),
    Bounds((("progress", 0b001), ("commit", 0b011))),
    Bounds((("reject", 0b001), ("progress", 0b010))),
    Bounds((("cancel", 0b001), ("cancel", 0b010))),
    Bounds((("commit", 0b001), ("release", 0b110))),
    Bounds((("commit", 0b011), ("roll back", 0b100))),
    Bounds((), unclear=1, ready=True),
    Bounds((), brokers=2, ready=True),
]
LONG = [
    Bounds(COMMITS_AND_A_LIFT, unclear=2),
    Bounds((("commit", 0b011), ("roll back", 0b100)), crashes=1, brokers=2),
    Bounds((("commit", 0b001), ("release", 0b110)), crashes=1, brokers=2),
    Bounds((("commit", 0b001), ("release", 0b110)), unclear=1),
    Bounds((("commit", 0b001), ("release", 0b111)), unclear=1),
    Bounds((("commit", 0b001),), stalls=1, brokers=2),
    Bounds((("commit", 0b001),), unclear=1, crashes=1, brokers=2),
    Bounds((("cancel", 0b010),), unclear=1),
    Bounds((("progress", 0b001), ("cancel", 0b010))),
    Bounds((("progress", 0b001), ("progress", 0b010), ("commit", 0b111))),
    Bounds((), unclear=1, brokers=2, ready=True),
]


@pytest.fixture
def verbs(store: QueueStore) -> PackVerbs:
    return PackVerbs(store.jobs)


@pytest.mark.parametrize("bounds", ORDINARY, ids=str)
def test_no_order_of_events_breaks_a_pack(verbs: PackVerbs, bounds: Bounds) -> None:
    found = explore(verbs, bounds)
    assert "\n".join([found.complaint, *found.trace]).strip() == ""
    assert verbs.statements > 10


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bounds", LONG, ids=str)
def test_no_order_of_more_events_breaks_it(verbs: PackVerbs, bounds: Bounds) -> None:
    found = explore(verbs, bounds)
    assert "\n".join([found.complaint, *found.trace]).strip() == ""


def _removal(which: dict[str, Any]) -> DeleteOne:
    return DeleteOne({key: value for key, value in which.items() if key != "left"})


@pytest.mark.parametrize(
    ("module", "name", "without", "bounds", "complaint"),
    [
        (pack_marks, "clear", lambda _bits: {}, Bounds(COMMITS_AND_A_LIFT, unclear=1), "left"),
        (pack_marks, "DeleteOne", _removal, Bounds((("cancel", 0b001),)), "run again"),
        (
            lifts,
            "left_in",
            lambda stored: (1 << stored["count"]) - 1,
            Bounds(COMMITS_AND_A_LIFT, unclear=1),
            "left",
        ),
        (pack_marks, "_end_lifted", lambda *_: set(), Bounds((("cancel", 0b001),), unclear=1), "run again"),
        (pack_marks, "_each", lambda *_: {}, Bounds((("cancel", 0b001),)), "ended twice"),
        (
            pack_marks,
            "held_under",
            lambda pack, reservation: {"_id": pack.id, "owner": reservation.owner},
            Bounds((("release", 0b111),), unclear=1),
            "taken",
        ),
    ],
)
def test_each_guard_is_needed(
    verbs: PackVerbs,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    without: Callable[..., Any],
    bounds: Bounds,
    complaint: str,
) -> None:
    """Without it the model finds what goes wrong."""
    monkeypatch.setattr(module, name, without)
    found = explore(verbs, bounds, looking_for=complaint)
    assert found.complaint.startswith(complaint), found
