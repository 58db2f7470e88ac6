"""Which queue may have been meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq_broker.queues.names import nearest


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maill", "mail"),
        ("Mail", "mail"),
        ("mial", "mail"),
        ("resise", "resize"),
        ("nope", None),
        ("x", None),
    ],
)
def test_a_typing_error_is_understood_and_another_word_is_not(name: str, meant: str | None) -> None:
    assert nearest(name, ["mail", "resize", "mail-archive-of-last-year"]) == meant


def test_of_many_alike_the_nearest_is_meant() -> None:
    assert nearest("shard-0999x", (f"shard-{number:04}" for number in range(2000))) == "shard-0999"


@given(st.text("ab-", min_size=1, max_size=64), st.lists(st.text("abAB-", min_size=1, max_size=64)))
def test_what_is_named_is_known(name: str, known: list[str]) -> None:
    assert nearest(name, known) in {None, *known}
