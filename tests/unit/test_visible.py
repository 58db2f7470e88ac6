"""What a request needs, and what is left out of its answer."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from msgspec import Struct
from msgspec.structs import replace

from sluicemq.protocol.errors import ForbiddenError, NotFoundError
from sluicemq.protocol.permissions import Action, Permissions
from sluicemq.protocol.rows import IncidentsRow, RecentRow, StatsRow, StreamsRow, from_document
from sluicemq_broker.security import ANYBODY, NOTHING, Caller, Needs, Principal, visible, with_hint


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
