"""Differences between brokers: which settings of queues their files say differently, and who says what."""

from __future__ import annotations

from typing import Any

from sluicemq_broker.queues import Difference, differences

ALIKE: dict[str, Any] = {"*": {"max_attempts": 7}, "mail": {"max_attempts": 7, "ttl": 60.0}}


def found(**files: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [(difference.queue, difference.key, dict(difference.values)) for difference in differences(files)]


def test_files_that_say_one_thing_do_not_differ() -> None:
    assert found(a=ALIKE, b=dict(ALIKE), c={"mail": ALIKE["mail"], "*": ALIKE["*"]}) == []
    assert found(a=ALIKE) == []


def test_a_value_that_one_file_has_and_another_has_not_is_the_default_there() -> None:
    other = {**ALIKE, "mail": {"max_attempts": 7}}
    assert found(a=ALIKE, b=other) == [("mail", "ttl", {"a": 60.0, "b": None})]


def test_a_queue_without_a_table_has_what_holds_for_all() -> None:
    assert found(a=ALIKE, b={"*": {"max_attempts": 7}}) == [("mail", "ttl", {"a": 60.0, "b": None})]


def test_what_differs_for_all_queues_is_said_once() -> None:
    other = {"*": {}, "mail": {"ttl": 60.0}}
    assert found(a=ALIKE, b=other) == [("*", "max_attempts", {"a": 7, "b": 13})]


def test_a_key_of_another_version_differs_too() -> None:
    assert found(a={"*": {"new": 1}}, b={"*": {}}) == [("*", "new", {"a": 1, "b": None})]


def test_ten_thousand_queues_of_which_one_differs() -> None:
    many = {"*": {}, **{f"q{number}": {"ttl": float(number + 1)} for number in range(10_000)}}
    assert found(a=many, b={**many, "q5": {"ttl": 1.0}}) == [("q5", "ttl", {"a": 6.0, "b": 1.0})]


def test_a_difference_is_shown_with_the_brokers_of_each_value() -> None:
    values = {"a:1": 5, "b:2": None, "c:3": 5}
    assert str(Difference("mail", "max_running", values)) == "max_running: 5 at a:1 and c:3, none at b:2"
