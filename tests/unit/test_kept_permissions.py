"""Connections that need a permission for as long as they are open."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import gevent

from sluicemq.protocol.permissions import Action, Permissions
from sluicemq_broker.security import Caller, Need, Principal, may_stay, may_use


class Lane:
    """A connection of a principal; ``why``: it was cut for this."""

    def __init__(self, principal: Principal) -> None:
        self.refused: list[object] = []
        self.who: Caller | None = Caller(principal, refused=lambda *refusal: self.refused.append(refusal))
        self.why = ""

    def cut(self, why: str) -> None:
        self.why = why


def eve(permissions: str) -> Principal:
    return Principal("eve", Permissions.read(permissions))


def test_who_may_not_do_it_is_cut_and_the_refusal_is_reported() -> None:
    lane = Lane(eve("work=mail"))
    assert not may_stay(lane, Action.WORK, "sms")
    assert lane.why == "eve may not work sms: its permissions don't allow that"
    assert lane.refused == [(lane.who, Action.WORK, "sms")]


def test_who_may_do_it_nowhere_is_cut() -> None:
    lane, other = Lane(eve("push=mail")), Lane(eve("work=mail"))
    assert may_use(lane, Action.PUSH)
    assert not may_use(other, Action.PUSH)
    assert (lane.why, other.why) == ("", "eve may not push: its permissions don't allow that")


def test_a_change_cuts_those_who_need_what_was_taken_away_in_turns_of_the_hub() -> None:
    principal = eve("work=mail,sms")
    lanes = [Lane(principal) for _ in range(200)]
    stays = Lane(principal)
    assert all(may_stay(lane, Action.WORK, "mail") for lane in lanes)
    assert may_stay(stays, Action.WORK, "sms")
    principal.change(Permissions.read("work=sms"))
    assert sum(bool(lane.why) for lane in lanes) < len(lanes)  # some in this turn, the others later
    with gevent.Timeout(60):
        while not all(lane.why for lane in lanes):
            gevent.sleep(1e-9)
    assert not stays.why


def test_connections_that_need_very_much_are_looked_at_in_more_turns() -> None:
    # Given some that wait for thousands of queues each
    principal, looks = eve("work=*"), []
    lanes = [Lane(principal) for _ in range(20)]

    def needs() -> Iterator[Need]:
        looks.append(1)
        return ((Action.WORK, f"queue-{number}") for number in range(5000))

    for lane in lanes:
        principal.keep(lane, needs)
    principal.change(Permissions.read("work=queue-*"))
    assert len(looks) < len(lanes)
    with gevent.Timeout(60):
        while len(looks) < len(lanes):
            gevent.sleep(1e-9)
    assert not any(lane.why for lane in lanes)


def test_what_is_needed_later_counts_and_what_is_given_back_meanwhile_stays() -> None:
    principal, needed = eve("work=* read=*"), [(Action.WORK, "mail")]
    lane = Lane(principal)
    principal.keep(lane, lambda: needed)
    needed[:] = [(Action.READ, "mail")]
    principal.change(Permissions.read("read=*"))
    assert not lane.why
    principal.change(Permissions.read("work=*"))
    assert lane.why.startswith("eve may not read mail")


def test_a_connection_that_has_ended_is_not_kept() -> None:
    principal = eve("work=*")
    lane = Lane(principal)
    may_stay(lane, Action.WORK, "mail")
    kept = weakref.ref(lane)
    lane.who = None
    del lane
    gc.collect()
    assert kept() is None
