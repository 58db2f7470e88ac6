"""The log of a stream in every order of events: two brokers, lost answers, late writes, removal."""

import pytest

from protocol_model.streams import Bounds, Rules, explore
from support.long_forms import very_long

ORDINARY = [
    Bounds(messages=2, copies=3, repeats=0, removals=0),
    Bounds(messages=1, copies=3, repeats=1, removals=0, crashes=1),
    Bounds(messages=2, copies=3, repeats=0, removals=1),
]
LONG = [
    Bounds(messages=2, copies=4, repeats=0, removals=1),
    Bounds(messages=2, copies=3, repeats=1, removals=0, crashes=1),
    Bounds(messages=3, copies=3, repeats=0, removals=1),
    very_long(Bounds(messages=2, copies=5, repeats=1, removals=1, crashes=1)),
    very_long(Bounds(messages=3, copies=5, repeats=1, removals=1)),
    very_long(Bounds(messages=3, copies=5, repeats=0, removals=2)),
]


@pytest.mark.parametrize("bounds", ORDINARY, ids=str)
def test_no_order_of_events_makes_a_hole_or_loses_what_was_confirmed(bounds: Bounds) -> None:
    """Those of plain PUB sockets have no ids."""
    found = explore(Rules(ids=bounds.repeats > 0), bounds)
    assert (found.complaint, found.trace) == ("", [])
    assert found.moments > 500


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bounds", LONG, ids=str)
def test_no_order_of_more_events_does(bounds: Bounds) -> None:
    found = explore(Rules(), bounds)
    assert (found.complaint, found.trace) == ("", [])


@pytest.mark.parametrize(
    ("rules", "bounds", "complaint"),
    [
        (Rules(mark=False, ids=False), Bounds(messages=1, copies=3, repeats=0, removals=0), "twice"),
        (Rules(stay=False, ids=False), Bounds(messages=2, copies=3, repeats=0, removals=0), "twice"),
        (Rules(guard=False), Bounds(messages=3, copies=4, repeats=0, removals=2), "lost"),
        (Rules(newest=False), Bounds(messages=2, copies=2, repeats=0, removals=1), "lost"),
        (Rules(ids=False), Bounds(messages=1, copies=2, repeats=1, removals=0), "twice"),
    ],
    ids=["whose a taken place is", "the same place again", "guard", "newest kept", "ids of others"],
)
def test_each_rule_is_needed(rules: Rules, bounds: Bounds, complaint: str) -> None:
    """Without it the model finds what goes wrong: it can see such faults."""
    found = explore(rules, bounds)
    assert complaint in found.complaint, found
    assert len(found.trace) < 15
