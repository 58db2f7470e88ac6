"""Messages of a stream as they are stored and sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.packed import LONGEST_TOPIC, extended, frames, pack, scan, slices, unpack
from sluicemq_devices.zmtp import encode

MESSAGES = st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=4), max_size=8)


def test_a_message_is_packed_as_zeromq_sends_it() -> None:
    assert pack(b"eur", b"1.08") == b"\x01\x03eur\x00\x041.08"
    assert pack(b"t" * 300, b"p" * 70_000) == encode([b"t" * 300, b"p" * 70_000])


@given(MESSAGES)
def test_what_is_packed_is_unpacked(messages: list[list[bytes]]) -> None:
    packed_ones = [encode(message) for message in messages]
    packed = b"".join(packed_ones)
    ends, topics = scan(packed)
    assert unpack(packed) == messages
    assert slices(packed, ends) == packed_ones
    assert topics == [message[0][:LONGEST_TOPIC] for message in messages]
    assert [frames(packed, start) for start in [0, *ends][:-1]] == messages


@given(MESSAGES)
def test_a_frame_more_is_the_last(messages: list[list[bytes]]) -> None:
    for message in messages:
        assert extended(encode(message), b"7 1.5") == encode([*message, b"7 1.5"])


@given(st.binary(max_size=40))
def test_what_is_no_whole_messages_is_refused(text: bytes) -> None:
    try:
        ends, _topics = scan(text)
    except BadFramesError:
        return
    assert b"".join(slices(text, ends)) == text
    assert len(unpack(text)) == len(ends)


@pytest.mark.parametrize(
    "text", [b"\x00", b"\x01\x00", b"\x00\x05abc", b"\x02\x00\x00", b"\x04\x01a", b"\x01\x00\x08\x00"]
)
def test_half_a_message_and_a_command_are_refused(text: bytes) -> None:
    with pytest.raises(BadFramesError):
        scan(text)
