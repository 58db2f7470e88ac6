"""A small segment as an event carries it: whoever hears of it need not ask MongoDB for it.

``COUNT AT TOTAL MARK PACKED``: its time in milliseconds, its messages in base64. It is told when it is
durable, so nobody is given what an election takes back; one that is not told, or not read, is found in
MongoDB.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Final

from sluicemq.protocol.errors import BadFrames
from sluicemq.protocol.packed import scan
from sluicemq_broker.store import Segment

#: Bytes of messages that an event carries, at most: a ring of a MiB then holds those of some seconds.
MOST: Final = 1024


def carried(segment: Segment) -> str:
    """The segment as an event carries it; empty: it is too large."""
    if len(segment.packed) > MOST:
        return ""
    packed = b64encode(segment.packed).decode()
    return f"{segment.count} {round(segment.at * 1000)} {segment.total} {segment.mark} {packed}"


def read_carried(first: int, text: str) -> Segment | None:
    """What such a text says of the segment that begins with this number; None: it is none."""
    try:
        count, at, total, mark, encoded = text.split(" ")
        packed = b64decode(encoded, validate=True)
        ends, topics = scan(packed)
        if len(ends) != int(count) or not ends:
            return None
        its_topics = tuple(sorted(set(topics)))
        return Segment(first, len(ends), int(at) / 1000, len(packed), int(total), mark, packed, its_topics)
    except (ValueError, binascii.Error, BadFrames):
        return None
