"""Permissions: patterns of names, and the forms in which they are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.errors import ForbiddenError
from sluicemq.protocol.permissions import Action, Permissions, matches
from sluicemq_broker.security import Caller, Principal, authorize


@pytest.mark.parametrize(
    ("pattern", "name", "does"),
    [
        ("mail", "mail", True),
        ("mail", "mails", False),
        ("*", "", True),
        ("*", "mail", True),
        ("mail.*", "mail.", True),
        ("mail.*", "mail", False),
        ("*.eu", "mail.eu", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*bc*c", "abc", False),
        ("**", "x", True),
        ("", "", True),
    ],
)
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
