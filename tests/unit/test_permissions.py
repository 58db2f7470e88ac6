"""Permissions: patterns, what a request needs, what is left out, connections that stay open."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from sluicemq.protocol.errors import ForbiddenError, NotFoundError
from sluicemq.protocol.permissions import Action, Permissions, matches
from sluicemq.protocol.rows import IncidentsRow, RecentRow, StatsRow, StreamsRow, from_document
from sluicemq_broker.security import (
    ANYBODY,
    NOTHING,
    Caller,
    Need,
    Needs,
    Principal,
    authorize,
    may_stay,
    may_use,
    visible,
    with_hint,
)


@pytest.mark.parametrize(
    ("pattern", "name", "does"),
    [
        ("mail", "mail", True), ("mail", "mails", False), ("*", "", True), ("*", "mail", True),
        ("mail.*", "mail.", True), ("mail.*", "mail", False), ("*.eu", "mail.eu", True),
        ("a*a", "a", False), ("a*a", "aa", True), ("a*b*c", "a-b-c", True), ("a*b*c", "a-c-b", False),
        ("a*bc*c", "abc", False), ("**", "x", True), ("", "", True),
    ],
)  # fmt: skip
def test_a_star_stands_for_any_characters(pattern: str, name: str, does: bool) -> None:  # noqa: FBT001
    assert matches(pattern, name) is does


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_a_pattern_matches_as_every_way_of_reading_it_says(pattern: str, name: str) -> None:
    def slow(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return any(slow(pattern[1:], name[at:]) for at in range(len(name) + 1))
        return name[:1] == pattern[0] and slow(pattern[1:], name[1:])

    assert matches(pattern, name) == slow(pattern, name)


@pytest.mark.parametrize(
    "written",
    [
        "push=mail.*,sms work=* operate",
        {"push": ["mail.*", "sms"], "work": "*", "operate": True, "read": False},
        {"push": ("mail.*", "sms"), "work": ["*"], "operate": ["*"], "read": []},
    ],
)
def test_permissions_are_read_in_each_form(written: Any) -> None:
    found = Permissions.read(written)
    assert str(found) == "push=mail.*,sms work=* operate"
    assert Permissions.read(found.plain()) == found == Permissions.read(str(found))
    assert found.allow(Action.PUSH, "mail.welcome")
    assert found.allow(Action.OPERATE)
    assert not found.allow(Action.PUSH, "fax")
    assert not found.allow(Action.PUSH)
    assert not found.allow(Action.READ, "sms")


def test_all_and_none_are_words() -> None:
    everything, nothing = Permissions.read("all"), Permissions.read("none")
    assert all(everything.allow(action, "x") and everything.allow(action) for action in Action)
    assert not any(nothing.allow(action, "x") for action in Action)
    assert (str(everything), str(nothing)) == ("all", "none")


@pytest.mark.parametrize(
    "wrong",
    ["fly=*", {"fly": ["*"]}, {"push": 7}, {"push": [""]}, {"push": [7]}, {"push": ["x" * 129]}, 7, ["push"]],
)
def test_what_is_wrong_is_said(wrong: Any) -> None:
    with pytest.raises(ValueError, match="push"):
        Permissions.read(wrong)


def test_a_refusal_names_principal_action_and_queue_and_is_reported() -> None:
    reported: list[tuple[str, str, str, str]] = []
    principal = Principal("mailer", Permissions.read("push=mail"))
    caller = Caller(
        principal,
        "tcp://h:1",
        refused=lambda who, action, name: reported.append((who.name, who.peer, action, name)),
    )
    authorize(caller, Action.PUSH, "mail")
    with pytest.raises(ForbiddenError, match="mailer may not push fax"):
        authorize(caller, Action.PUSH, "fax")
    assert reported == [("mailer", "tcp://h:1", "push", "fax")]


def test_a_change_holds_for_callers_that_are_there_already() -> None:
    principal = Principal("mailer", Permissions.read("push=mail"), keys=frozenset({"k1"}))
    caller = Caller(principal, key="k1")
    authorize(caller, Action.PUSH, "mail")
    principal.change(Permissions.read("work=mail"), keys=frozenset({"k2"}))
    with pytest.raises(ForbiddenError):
        authorize(caller, Action.PUSH, "mail")
    assert not caller.is_known


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
    assert (lane.refused, other.refused) == ([], [(other.who, Action.PUSH, "")])


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


def _caller(permissions: str) -> Caller:
    return Caller(Principal("eve", Permissions.read(permissions)))


SEES_MAIL = _caller("read=mail manage=mail subscribe=mail")


class Named(Struct):
    """A row of any kind, with the names that rows have."""

    queue: str
    name: str = ""
    stream: str = ""


ROWS = [Named(name, name, name) for name in ("mail", "sms")]
T = TypeVar("T", bound=Struct)


def _made(kind: type[T], **fields: Any) -> T:
    """A row with these fields, and zeros."""
    return replace(from_document(kind, {}), **fields)


@pytest.mark.parametrize(
    "shown",
    [
        visible.queues,
        visible.workers,
        visible.operations,
        visible.schedules,
        visible.streams,
        visible.subscriptions,
    ],
)
def test_rows_of_other_names_are_left_out(shown: Any) -> None:
    assert shown(SEES_MAIL, ROWS) == ROWS[:1]
    assert shown(_caller("none"), ROWS) == []
    assert shown(ANYBODY, ROWS) == ROWS


def test_statistics_without_operate_are_those_of_visible_queues() -> None:
    fields = {"broker": {"pid": 1}, "counters": {"pushed": 3}, "forwarders": (ROWS[0],)}
    answer = _made(StatsRow, **fields, queues=tuple(ROWS))
    assert visible.stats(ANYBODY, answer) == answer
    assert visible.stats(SEES_MAIL, answer) == _made(StatsRow, broker={}, counters={}, queues=tuple(ROWS[:1]))


def test_incidents_of_a_broker_need_operate() -> None:
    of_broker = Named("")
    answer = _made(IncidentsRow, incidents=(*ROWS, of_broker))
    assert visible.incidents(SEES_MAIL, answer) == _made(IncidentsRow, incidents=tuple(ROWS[:1]))
    assert visible.incidents(_caller("operate"), answer) == _made(IncidentsRow, incidents=(of_broker,))
    assert visible.incidents(ANYBODY, answer) == answer


def test_a_route_is_shown_to_who_may_see_its_stream_and_its_queue() -> None:
    names = ("mail", "sms")
    routes = tuple(Named(queue, stream=stream) for stream in names for queue in names)
    answer = _made(StreamsRow, streams=tuple(ROWS), subscriptions=tuple(ROWS), routes=routes)
    assert visible.stream_overview(SEES_MAIL, answer) == _made(
        StreamsRow, streams=tuple(ROWS[:1]), subscriptions=tuple(ROWS[:1]), routes=routes[:1]
    )
    assert visible.stream_overview(ANYBODY, answer) == answer


def test_curves_of_other_queues_are_left_out() -> None:
    shown = visible.recent_curves(SEES_MAIL, _made(RecentRow, queues={"mail": {}, "sms": {}}))
    assert shown.queues == {"mail": {}}


@pytest.mark.parametrize("action", Action)
def test_the_queue_that_was_meant_is_told_to_whoever_may_do_anything_there(action: Action) -> None:
    error = NotFoundError("there is no queue 'mial'")
    error.meant = "mail"
    assert str(with_hint(_caller(f"{action}=mail"), error)) == f"{error}; did you mean 'mail'?"
    assert with_hint(_caller(f"{action}=sms,mial"), error) is error


@pytest.mark.parametrize(
    ("subject", "need"),
    [
        ("queue", (Action.READ, "mail")),
        ("stream", (Action.SUBSCRIBE, "mail")),
        ("broker", (Action.OPERATE, "")),
    ],
)
def test_a_history_needs_what_its_subject_needs(subject: str, need: object) -> None:
    assert visible.history(subject, "mail") == need


def test_a_request_is_refused_without_its_action_on_its_name() -> None:
    needs = Needs(Action.READ, 0)
    needs.ask(SEES_MAIL, "mail")
    for wrong in ("sms", "", None, 3):
        with pytest.raises(ForbiddenError):
            needs.ask(SEES_MAIL, wrong)


def test_a_list_is_answered_with_fewer_rows_but_of_one_name_it_is_refused() -> None:
    needs = Needs(Action.READ, 0, shows=visible.workers)
    needs.ask(SEES_MAIL, None)
    assert needs.show(SEES_MAIL, ROWS) == ROWS[:1]
    with pytest.raises(ForbiddenError):
        needs.ask(SEES_MAIL, "sms")


def test_the_content_may_need_more() -> None:
    needs = Needs(Action.MANAGE, 0, more=lambda _admin, to: [(Action.PUSH, to)] if to else ())
    needs.ask_more(SEES_MAIL, object(), None)
    with pytest.raises(ForbiddenError, match="push sms"):
        needs.ask_more(SEES_MAIL, object(), "sms")


def test_nothing_is_needed_of_whoever_got_in() -> None:
    NOTHING.ask(_caller("none"), "mail")
    NOTHING.ask_more(_caller("none"))
    assert NOTHING.show(_caller("none"), ROWS) == ROWS
