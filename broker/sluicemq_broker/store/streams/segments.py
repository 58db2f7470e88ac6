"""Segments, head and tail of a stream, and how the first two are stored.

A segment is one document with the messages of one batch; its ``_id`` is the number of the first::

    {_id: 0, first, removed, made_at, erased?}                   the head
    {_id: 1, count: 3, at, size, total, mark, topics, packed}    messages 1, 2, 3
    {_id: 4, count: 1, at, size, total, mark, topics, packed, ids?, places?}
    {_id: 5, ...

``first``: the oldest message that is kept; ``removed``: no document before it is a segment of this stream.
``at``: server time, not before that of the segment before; ``packed``: the messages as ZMTP frames
(``sluicemq.protocol.packed``), ``size`` bytes; ``total``: bytes of all messages of the stream up to its last;
``topics``: each topic in it once, of long ones the first 255 bytes; ``mark``: which writer stored it; ``ids``
and ``places``: ids that can be found again, and their places in the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bson.int64 import Int64

from sluicemq_broker.store.values import Document, date, seconds

#: The ``_id`` of the head.
HEAD: Final = 0
#: Fields of a segment without its messages.
OUTLINE: Final = dict.fromkeys(("count", "at", "size", "total", "mark", "ids", "places"), 1)


@dataclass(frozen=True, slots=True)
class Segment:
    """The messages ``first`` to ``next - 1``; ``packed`` is empty where only the outline was read."""

    first: int
    count: int
    at: float
    size: int
    total: int
    mark: str
    packed: bytes = b""
    topics: tuple[bytes, ...] = ()
    ids: tuple[str, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def next(self) -> int:
        """The number behind its last message."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Head:
    """The oldest message that is kept, and a number before which no document is a segment."""

    first: int = 1
    removed: int = 1
    erased: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """The place of the next segment, and the time and total of the last one."""

    next: int = 1
    at: float = 0.0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """The segments that one read found, without a hole between them, and the oldest number that is kept.

    The first segment may begin before the wanted message, or behind it: messages between are gone. ``more``:
    there may be others behind them.
    """

    segments: list[Segment]
    first: int
    more: bool = False


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments before the first hole."""
    found: list[Segment] = []
    for each in segments:
        if found and each.first != found[-1].next:
            break
        found.append(each)
    return found


def document_of(segment: Segment) -> Document:
    """Return the document of a segment."""
    stored: Document = {
        "_id": Int64(segment.first),
        "count": segment.count,
        "at": date(segment.at),
        "size": segment.size,
        "total": Int64(segment.total),
        "mark": segment.mark,
        "packed": segment.packed,
        "topics": list(segment.topics),
    }
    if segment.ids:
        stored["ids"] = list(segment.ids)
        stored["places"] = list(segment.places)
    return stored


def segment_of(stored: Document) -> Segment:
    """Read a segment, or its outline, from its document."""
    return Segment(
        int(stored["_id"]),
        int(stored["count"]),
        seconds(stored["at"]),
        int(stored["size"]),
        int(stored["total"]),
        stored["mark"],
        stored.get("packed", b""),
        tuple(stored.get("topics", ())),
        tuple(stored.get("ids", ())),
        tuple(stored.get("places", ())),
    )
