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

from sluicemq_broker.store.set_aside import COUNT, Unreadable, field
from sluicemq_broker.store.values import Document, date, seconds

#: The ``_id`` of the head.
HEAD: Final = 0
#: Messages of a segment, at most: a writer makes none of more than half as many.
MOST_MESSAGES: Final = 16_384
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
    for segment in segments:
        if found and segment.first != found[-1].next:
            break
        found.append(segment)
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
    packed, topics = stored.get("packed", b""), stored.get("topics", ())
    ids, places = stored.get("ids", ()), stored.get("places", ())
    segment = Segment(
        int(stored["_id"]),
        int(stored["count"]),
        seconds(stored["at"]),
        int(stored["size"]),
        int(stored["total"]),
        stored["mark"],
        packed,
        tuple(topics),
        tuple(ids),
        tuple(places),
    )
    if not (1 <= segment.count <= MOST_MESSAGES and type(packed) is bytes and len(ids) == len(places)):
        raise Unreadable(
            "its count is not 1 to 16,384, its packed no binary data, or its ids and places differ"
        )
    if not (_all_of(bytes, topics) and (not ids or (_all_of(str, ids) and _all_of(int, places)))):
        raise Unreadable("its topics, ids or places are no array of what they should be")
    return segment


def _all_of(kind: type, values: Sequence[object]) -> bool:
    return not isinstance(values, str | bytes) and all(
        issubclass(type_, kind) for type_ in set(map(type, values))
    )


def stand_in(stored: Document, before: Tail) -> Segment:
    """Return a segment without messages for a document that can't be read, behind ``before``.

    No number that its messages may have is given to others: where its count can't be read it is the largest.
    """
    count = stored.get("count")
    if not (isinstance(count, int) and 1 <= count <= MOST_MESSAGES):
        count = MOST_MESSAGES
    return Segment(int(stored["_id"]), count, before.at, 0, before.total, "")


def head_of(stored: Document) -> Head:
    """Read the head of a stream."""
    first, removed = (field(stored, name, COUNT, 1) for name in ("first", "removed"))
    return Head(first, removed, erased="erased" in stored)
