"""A segment of a stream, the head and the tail of one, and how the first two lie in MongoDB.

A segment is one document with the messages of one batch; its ``_id`` is the number of the first::

    {_id: 0, first, removed, made_at, erased?}                   the head
    {_id: 1, count: 3, at, size, total, mark, topics, packed}    messages 1, 2, 3
    {_id: 4, count: 1, at, size, total, mark, topics, packed, ids?, places?}
    {_id: 5, ...

``first``: the oldest message that is kept; ``removed``: no document before it is a segment of this stream.
``at``: server time, not before that of the segment before; ``packed``: the messages as ZMTP frames
(``packed``), ``size`` bytes; ``total``: bytes of all messages that ever were, to the last in it;
``topics``: each topic in it once, of long ones the first 255 bytes; ``mark``: whose it is; ``ids``
and ``places``: what can be found again, and at which place in the segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson.int64 import Int64

from sluicemq_broker.store.values import date, seconds

#: The ``_id`` of the head.
HEAD: Final = 0
#: What is read of a segment without its messages.
OUTLINE: Final = dict.fromkeys(("count", "at", "size", "total", "mark", "ids", "places"), 1)

Document = dict[str, Any]


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
        """The number behind its last."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Head:
    """The oldest message that is kept; and a number before which no document is a segment, not above it."""

    first: int = 1
    removed: int = 1
    erased: bool = False


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the next segment goes, and what it continues: the time and the total of the last one."""

    next: int = 1
    at: float = 0.0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """What one read has found: segments without a hole between them, and the oldest number kept.

    The first segment may begin before what was asked for, or behind it: what lies between is gone.
    ``more``: there may be others behind them.
    """

    segments: list[Segment]
    first: int
    more: bool = False


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """Those before the first hole."""
    found: list[Segment] = []
    for each in segments:
        if found and each.first != found[-1].next:
            break
        found.append(each)
    return found


def document_of(segment: Segment) -> Document:
    """As it is stored."""
    born: Document = {
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
        born["ids"] = list(segment.ids)
        born["places"] = list(segment.places)
    return born


def segment_of(stored: Document) -> Segment:
    """What was stored, or the outline of it."""
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
