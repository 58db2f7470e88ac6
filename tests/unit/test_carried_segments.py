"""Segments as events carry them: what is read is what was told, and of anything else nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.packed import pack
from sluicemq_broker.store import Segment
from sluicemq_broker.streams.carried import MOST, carried, read_carried

MESSAGE = pack(b"topic", b"payload")
SEGMENT = Segment(7, 2, 1700000000.123, 2 * len(MESSAGE), 99, "a1:3", 2 * MESSAGE, (b"topic",))


def test_a_small_segment_is_read_as_it_was_told() -> None:
    assert read_carried(7, carried(SEGMENT)) == SEGMENT


def test_a_large_one_is_not_carried() -> None:
    packed = pack(b"topic", bytes(MOST))
    assert carried(Segment(7, 1, 1.0, len(packed), 99, "a:3", packed, (b"topic",))) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "words",
        carried(SEGMENT)[:-4],
        carried(SEGMENT).replace("2 ", "3 ", 1),
        "0 1 1 a:1 ",
        "1 1 1 a:1 ////",
        "1 1 1 a:1 ä",
    ],
)
def test_what_is_none_is_passed_over(text: str) -> None:
    assert read_carried(7, text) is None


@given(st.text())
def test_nothing_that_somebody_tells_does_any_harm(text: str) -> None:
    assert read_carried(7, text) is None
