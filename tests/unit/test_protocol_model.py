"""The protocol between brokers and MongoDB in every order of events: docs/verification.md."""

import pytest

from protocol_model.explore import Found, explore
from protocol_model.world import Bounds, Rules
from support.long_forms import long

#: Pushes of x and of y, unclear outcomes, crashes, brokers without heartbeats, jobs given back.
ORDINARY = [
    long(Bounds((1, 1), unclear=0, crashes=0, stalls=0, returns=0)),
    Bounds((1, 0), unclear=1, crashes=0, stalls=0, returns=1),
    Bounds((1, 0), unclear=0, crashes=1, stalls=0, returns=1),
    Bounds((1, 0), unclear=0, crashes=0, stalls=1, returns=0),
    Bounds((2, 0), unclear=0, crashes=0, stalls=0, returns=0),
]
LONG = [
    Bounds((1, 0), unclear=0, crashes=0, stalls=1, returns=1),
    Bounds((1, 1), unclear=0, crashes=1, stalls=0, returns=0),
    Bounds((2, 0), unclear=1, crashes=0, stalls=0, returns=0),
    Bounds((1, 1), unclear=1, crashes=0, stalls=0, returns=0),
    Bounds((1, 1), unclear=0, crashes=0, stalls=1, returns=0),
    Bounds((1, 1), unclear=0, crashes=0, stalls=0, returns=1),
    Bounds((2, 0), unclear=2, crashes=0, stalls=0, returns=0),
    Bounds((2, 0), unclear=1, crashes=1, stalls=0, returns=0),
    Bounds((2, 0), unclear=0, crashes=0, stalls=1, returns=0),
    Bounds((1, 0), unclear=2, crashes=0, stalls=0, returns=1),
    Bounds((1, 0), unclear=1, crashes=1, stalls=0, returns=1),
    Bounds((1, 0), unclear=1, crashes=0, stalls=1, returns=1),
    Bounds((1, 0), unclear=1, crashes=1, stalls=1, returns=0),
]


@pytest.mark.parametrize("bounds", ORDINARY, ids=str)
def test_no_order_of_events_breaks_the_protocol(bounds: Bounds) -> None:
    assert _wrong(explore(Rules(), bounds)) == ""


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bounds", LONG, ids=str)
def test_no_order_of_more_events_breaks_it(bounds: Bounds) -> None:
    assert _wrong(explore(Rules(), bounds)) == ""


@pytest.mark.parametrize(
    ("rules", "bounds", "complaint"),
    [
        # item 13: the commit of a job's first life, repeated, removes its second
        (Rules(hold=False), Bounds((2, 0), 1, 0, 0, 0), "lost"),
        # item 14: an insert that is repeated without a number stores a job that is done
        (Rules(numbered=False), Bounds((1, 0), 1, 0, 0, 0), "stored again"),
        # item 15: what is durable and in no table yet is taken for an orphan
        (Rules(table=False), Bounds((1, 1), 0, 0, 0, 0), "taken"),
        # item 19: a release, repeated, takes the job from the worker that has it by now
        (Rules(hold=False), Bounds((1, 0), 1, 0, 0, 1), "taken"),
        # the first copy of an insert lands after the repetition was told that the id is there
        (Rules(fenced=False), Bounds((2, 0), 1, 0, 0, 0), "stored late"),
        # a claim whose guard does not tell the life that was read from a later one
        (Rules(exact=False), Bounds((2, 0), 0, 0, 0, 0), "taken"),
    ],
    ids=["item 13", "item 14", "item 15", "item 19", "late insert", "claim of a later life"],
)
def test_each_rule_is_needed(rules: Rules, bounds: Bounds, complaint: str) -> None:
    """Without it the model finds what went wrong: it can see such faults."""
    found = explore(rules, bounds, looking_for=complaint)
    assert found.complaint.startswith(complaint), found
    assert len(found.trace) < 15


def _wrong(found: Found) -> str:
    return "\n".join([found.complaint, *found.trace]).strip()
