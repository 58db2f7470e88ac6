"""Small segments as text in an event, so that other brokers need not read them in MongoDB.

``COUNT AT TOTAL MARK PACKED``: the time is in milliseconds, the messages are in base64. A segment is sent
when it is durable, so no reader gets what an election takes back. One that is not received is read in
MongoDB.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Final

from sluicemq.protocol.errors import BadFramesError
from sluicemq.protocol.packed import scan
from sluicemq_broker.store import Segment

#: Bytes of messages that an event carries, at most: a ring of a MiB then holds those of some seconds.
MOST: Final = 1024


def carried(segment: Segment) -> str:
    """Return the segment as text for an event; empty: it is too large."""
    if len(segment.packed) > MOST:
        return ""
    packed = b64encode(segment.packed).decode()
    return f"{segment.count} {round(segment.at * 1000)} {segment.total} {segment.mark} {packed}"


def read_carried(first: int, text: str) -> Segment | None:
    """Return the segment that begins with this number from its text; None: the text is none."""
    try:
        count, at, total, mark, encoded = text.split(" ")
        packed = b64decode(encoded, validate=True)
        ends, topics = scan(packed)
        if len(ends) != int(count) or not ends:
            return None
        its_topics = tuple(sorted(set(topics)))
        return Segment(first, len(ends), int(at) / 1000, len(packed), int(total), mark, packed, its_topics)
    except (ValueError, binascii.Error, BadFramesError):
        return None
