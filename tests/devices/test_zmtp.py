"""Messages that never end are refused while they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from plain_sockets import ANY_PORT, GREETING, Notices, dial, ended, eventually, shake_hands

from devices.doors import SharedDoor
from devices.port import Message
from devices.switchboard import Switchboard
from devices.zmtp import MOST_FRAMES, MessageMeter

MOST_BYTES = 1000

Started = Callable[[Any], Any]


def framed(message: list[int]) -> bytes:
    """A message of frames of these sizes, as ZMTP 3 writes it."""
    stream = b""
    for at, size in enumerate(message):
        more = at < len(message) - 1
        long = size > 255
        header = bytes([more | long << 1]) + (size.to_bytes(8) if long else bytes([size]))
        stream += header + bytes(size)
    return stream


def in_chunks(stream: bytes, sizes: list[int]) -> list[bytes]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(stream[at : at + size])
        at += size
    return [chunk for chunk in [*chunks, stream[at:]] if chunk]


@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=6), max_size=6),
    st.lists(st.integers(1, 200), max_size=30),
)
def test_a_message_is_refused_just_when_it_is_too_large_however_the_bytes_come(
    messages: list[list[int]], cuts: list[int]
) -> None:
    # Given a command, as a heartbeat is, before the messages
    meter = MessageMeter(MOST_BYTES)
    stream = GREETING + b"\x04\x06\x04PING?" + b"".join(map(framed, messages))
    # When the stream comes in pieces
    over = any(meter.over(chunk) for chunk in in_chunks(stream, cuts))
    # Then
    assert over == any(sum(message) > MOST_BYTES for message in messages)


def test_the_number_of_frames_is_bounded_too() -> None:
    meter = MessageMeter(MOST_BYTES)
    assert not meter.over(GREETING + b"\x01\x00" * MOST_FRAMES)
    assert meter.over(b"\x01\x00")


def test_encrypted_streams_are_not_followed() -> None:
    meter = MessageMeter(MOST_BYTES)
    assert not meter.over(GREETING.replace(b"NULL\0", b"CURVE") + b"\x03" + b"\xff" * 5000)


def test_a_message_that_never_ends_cuts_its_connection_and_nobody_elses(
    board: Switchboard, started: Started, notices: Notices
) -> None:
    # Given an honest producer beside one that sends frame after frame of one message
    inbox: list[Message] = []
    door = started(SharedDoor(board, ANY_PORT, "PULL", inbox.extend, max_frame=MOST_BYTES))
    honest, endless = shake_hands(door.address, b"PUSH"), shake_hands(door.address, b"PUSH")
    # When
    endless.sendall((b"\x01\x64" + bytes(100)) * 11)
    # Then it is cut, and says why
    ended(endless)
    assert "too many frames or bytes" in eventually(lambda: notices.of("connections_cut"))[0]
    honest.sendall(b"\x00\x02hi")
    eventually(lambda: inbox == [[b"hi"]])
    dial(door.address).close()
