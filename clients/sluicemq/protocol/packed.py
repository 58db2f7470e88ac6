"""Messages of a stream as they are stored and sent: one after the other, each as ZMTP sends it.

A message is frames; the first is its topic. What a PUB socket sends is stored without a change, and goes to
SUB sockets without a change (ZeroMQ RFC 23)::

    frame:    flags  size: 1 byte, or 8 if LONG  body        flags: MORE 1 (another frame follows), LONG 2
    message:  MORE  3  "eur"     0  4  "1.08"
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from sluicemq.protocol.errors import BadFramesError, BadTopicError
from sluicemq.protocol.readable import brief

#: Messages that are read in one go, at most: about 10 ms.
MOST_MESSAGES: Final = 8192
#: Frames after the first two of each message, in all; a PUB socket's message has 65,536 at most.
MOST_FRAMES: Final = 70_000
#: Bytes of a topic that count where messages are chosen by topic.
LONGEST_TOPIC: Final = 255

_MORE, _LONG = 1, 2
_FRAMING: Final = _MORE | _LONG
_LONG_HEADER = struct.Struct(">BQ")
_SHORT_LAST: Final = [bytes((0, length)) for length in range(256)]
_SHORT_MORE: Final = [bytes((_MORE, length)) for length in range(256)]


def topic_bytes(topic: str) -> bytes:
    """Return a topic as bytes; bytes that are no UTF-8 are escaped in it as Python does in file names."""
    try:
        return str.encode(topic, errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise BadTopicError(f"the topic {brief(topic)} can't be sent: give it as bytes") from error


def pack(topic: bytes, payload: bytes) -> bytes:
    """Return a message of two frames."""
    head = _SHORT_MORE[len(topic)] if len(topic) < 256 else _LONG_HEADER.pack(_MORE | _LONG, len(topic))
    last = _SHORT_LAST[len(payload)] if len(payload) < 256 else _LONG_HEADER.pack(_LONG, len(payload))
    return b"".join((head, topic, last, payload))


def scan(packed: bytes, most: int = MOST_MESSAGES) -> tuple[list[int], list[bytes]]:
    """Return where each message ends, and each one's topic, cut to 255 bytes.

    Raises :class:`~sluicemq.BadFramesError` for bytes that are no whole messages, or more than ``most`` of
    them.
    """
    ends, topics, _frames = survey(packed, most, len(packed))
    return ends, topics


def survey(  # noqa: C901 - a call for each message would cost more than all the rest
    packed: bytes, most: int = MOST_MESSAGES, most_frames: int = MOST_FRAMES
) -> tuple[list[int], list[bytes], int]:
    """Scan, and count the frames behind the first of messages of three or more.

    Raises :class:`~sluicemq.BadFramesError` also for more than ``most_frames`` of these.
    """
    frames = 0
    ends: list[int] = []
    topics: list[bytes] = []
    at, size = 0, len(packed)
    try:
        while at < size:
            flags = packed[at]
            if len(ends) >= most:
                raise BadFramesError(f"these are more than {most} messages: send less at once")
            if flags == _MORE:  # most messages: a short topic and a payload
                start = at + 2
                body = start + packed[at + 1]
                flags = packed[body]
                if flags == 0 or flags == _LONG:  # noqa: PLR1714 - twice as fast
                    at = body + 2 + packed[body + 1] if flags == 0 else _end_of_long(packed, body)
                    topics.append(packed[start:body])
                    ends.append(at)
                    continue
                flags = _MORE
            seen = flags
            if flags & _LONG:
                body = at + 9
                at = body + int.from_bytes(packed[at + 1 : body])
            else:
                body = at + 2
                at = body + packed[at + 1]
            topics.append(packed[body : min(at, body + LONGEST_TOPIC)])
            while flags & _MORE:
                flags = packed[at]
                seen |= flags
                frames += 1
                if frames > most_frames:
                    raise BadFramesError(f"these have more than {most_frames} frames: send less at once")
                at += 9 + int.from_bytes(packed[at + 1 : at + 9]) if flags & _LONG else 2 + packed[at + 1]
            if seen > _FRAMING:
                raise BadFramesError(f"message {len(ends)} of these has a frame with flags {seen}")
            ends.append(at)
    except IndexError:
        at = -1
    if at != size:
        raise BadFramesError(f"message {len(ends)} of these is not whole")
    return ends, topics, frames


def _end_of_long(packed: bytes, at: int) -> int:
    return at + 9 + int.from_bytes(packed[at + 1 : at + 9])


def frames(packed: bytes, start: int = 0) -> list[bytes]:
    """Return the frames of the one message that begins at ``start``."""
    found: list[bytes] = []
    flags, at = _MORE, start
    while flags & _MORE:
        flags = packed[at]
        body = at + (9 if flags & _LONG else 2)
        at = body + (int.from_bytes(packed[at + 1 : body]) if flags & _LONG else packed[at + 1])
        found.append(packed[body:at])
    return found


def unpack(packed: bytes) -> list[list[bytes]]:
    """Return the frames of all messages; only for bytes that :func:`scan` has accepted."""
    messages: list[list[bytes]] = []
    message: list[bytes] = []
    at, size = 0, len(packed)
    while at < size:
        flags = packed[at]
        if flags & _LONG:
            body = at + 9
            at = body + int.from_bytes(packed[at + 1 : body])
        else:
            body = at + 2
            at = body + packed[at + 1]
        message.append(packed[body:at])
        if not flags & _MORE:
            messages.append(message)
            message = []
    return messages


def extended(message: bytes, last: bytes) -> bytes:
    """Return one message with one more frame at its end, shorter than 256 bytes."""
    flags, at = message[0], 0
    while flags & _MORE:
        at += 9 + int.from_bytes(message[at + 1 : at + 9]) if flags & _LONG else 2 + message[at + 1]
        flags = message[at]
    return b"".join((message[:at], bytes((flags | _MORE,)), message[at + 1 :], _SHORT_LAST[len(last)], last))


def slices(packed: bytes, ends: Sequence[int]) -> list[bytes]:
    """Return the messages one by one, still packed."""
    start = 0
    found: list[bytes] = []
    for end in ends:
        found.append(packed[start:end])
        start = end
    return found
