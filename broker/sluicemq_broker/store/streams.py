"""One stream in MongoDB: numbered messages in segments, and a document that says where it begins.

A segment is one document with the messages of one batch; its ``_id`` is the number of the first::

    {_id: 0, first, removed, made_at, erased?}                   the head
    {_id: 1, count: 3, at, size, total, mark, topics, packed}    messages 1, 2, 3
    {_id: 4, count: 1, at, size, total, mark, topics, packed, ids?, places?}
    {_id: 5, ...

``first``: the oldest message that is kept; ``removed``: no document before it is a segment of this stream.
``at``: server time, not before that of the segment before; ``packed``: the messages as ZMTP frames
(``sluicemq.packed``), ``size`` bytes; ``total``: bytes of all messages that ever were, to the last in it;
``topics``: each topic in it once, of long ones the first 255 bytes; ``mark``: whose it is; ``ids``
and ``places``: what can be found again, and at which place in the segment.

**The order.** A segment's ``_id`` is where the last one ended. So the unique index of ``_id`` makes each
insert a compare-and-set on the tail: of two writers that know the same tail one gets a duplicate key, reads
on, and tries again behind the other's. Numbers are 1, 2, 3 ... over all brokers: no hole, none twice, no
transaction.

**An answer that is lost.** The same insert is sent again to the same place until that place is
taken, and ``mark`` tells by whom. Whatever lands later finds it taken.

**Removal.** ``removed`` is raised (durably) before anything is removed, every read asks for it after it
has read, and only segments are removed that were seen twice :data:`GUARD` seconds ago; a writer that has
not heard of the tail for one asks for ``removed``, too. So a late insert that lands in a place that is
free again lies before ``removed``: it is never read, its writer knows, and it is removed with the rest. The
newest segment is never removed, for it says where the next one goes.

All reads are of what a majority has: nobody sees a number that an election takes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from bson.int64 import Int64
from pymongo import IndexModel
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from sluicemq_broker.store.connection import Documents, Unclear, durable, translated
from sluicemq_broker.store.documents import date, seconds

#: Seconds. What was the tail is not removed for twice as long; whoever takes it for the tail for longer
#: than this asks again. No clock is compared with another.
GUARD: Final = 20.0
#: Documents in one read, or one removal, at most.
_MOST_READ: Final = 256
_MOST_REMOVED: Final = 500
_MOST_NEWER: Final = 1000
#: What a segment is taken to weigh before one was seen, in bytes.
_UNKNOWN_WEIGHT: Final = 256 * 1024

_PREFIX: Final = "stream."
_HEAD: Final = 0
_IDS_INDEX: Final = "ids"
_TOPICS_INDEX: Final = "topics"
#: What is read of a segment without its messages.
_OUTLINE: Final = dict.fromkeys(("count", "at", "size", "total", "mark", "ids", "places"), 1)

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


class Appended(Enum):
    """What became of an append."""

    STORED = auto()
    TAKEN = auto()  # by another's segment: the tail is further on


class StreamStore:
    """The log of one stream. All methods wait for MongoDB, and raise as every statement does.

    Unavailable: nothing was sent; Unclear: a write may have been applied.
    """

    def __init__(self, database: Documents, name: str) -> None:
        self.name = name
        collection: Collection[Document] = durable(database)[_PREFIX + name]
        self._segments = collection.with_options(read_concern=ReadConcern("majority"))
        self._weight = 0
        self._prepared = False
        self._topics_indexed = False

    def prepare(self, now: float) -> None:
        """Make the head and the index of ids where they are missing; only the first call asks MongoDB."""
        if self._prepared:
            return
        born = {"first": 1, "removed": 1, "made_at": date(now)}
        with translated():
            self._segments.create_indexes([IndexModel([("ids", 1)], name=_IDS_INDEX, sparse=True)])
            with suppress(DuplicateKeyError):  # another broker makes it just now
                self._segments.update_one({"_id": _HEAD}, {"$setOnInsert": born}, upsert=True)
        self._prepared = True

    # ---------------------------------------------------------------- append

    def append(self, segment: Segment) -> Appended:
        """Put a segment at the tail, if that is where it begins.

        Crash or lost reply: it is there or not. Send the same segment again until this returns: its
        place is taken then, by it or by another, and nothing can come of an earlier copy.
        """
        with translated():
            try:
                self._segments.insert_one(_document(segment))
            except DuplicateKeyError:
                there = self._segments.find_one({"_id": segment.first}, {"mark": 1})
            else:
                self._weigh(segment.size)
                return Appended.STORED
        if there is None:
            raise Unclear(f"stream {self.name}: place {segment.first} is taken by what no majority has yet")
        return Appended.STORED if there.get("mark") == segment.mark else Appended.TAKEN

    def tail(self) -> Tail:
        """Where the next segment goes."""
        newest = self._newest()
        if newest is None:
            return Tail(next=self.head().first)
        return Tail(newest.next, newest.at, newest.total)

    def newer(self, tail: Tail) -> list[Segment]:
        """The outlines of the segments from a tail on that was true once, a thousand at most."""
        query: Document = {"_id": {"$gte": tail.next}}
        with translated():
            found = list(self._segments.find(query, _OUTLINE, sort=[("_id", 1)], limit=_MOST_NEWER))
        removed = self.head().removed if found else 0  # after the read, as in read
        return [_segment(each) for each in found if each["_id"] >= removed]

    def stored(self, ids: Iterable[str]) -> dict[str, tuple[int, float]]:
        """Of those ids that are in the stream, kept or not removed yet: the number and the time."""
        wanted = set(ids)
        found: dict[str, tuple[int, float]] = {}
        with translated():
            query = self._segments.find({"ids": {"$in": list(wanted)}}, _OUTLINE, hint=_IDS_INDEX)
            for segment in map(_segment, query.sort("_id", 1)):
                for each, place in zip(segment.ids, segment.places, strict=True):
                    if each in wanted:
                        found[each] = segment.first + place, segment.at
        return found

    # ------------------------------------------------------------------ read

    def read(self, first: int, most_bytes: int) -> Page:
        """The segments from the one with message ``first`` on, up to about so many bytes; one at least.

        One search of the index of ``_id`` where ``first`` begins a segment, two where it lies inside one.
        """
        first = max(1, first)
        limit = max(1, min(_MOST_READ, most_bytes // max(1, self._weight or _UNKNOWN_WEIGHT)))
        with translated():
            found = list(self._segments.find({"_id": {"$gte": first}}, sort=[("_id", 1)], limit=limit))
            more = len(found) == limit
            if not found or found[0]["_id"] > first:
                found = [*self._before(first), *found]
        head = self.head()  # after the read: what was found from here on is what was written there first
        real = (_segment(each) for each in found if each["_id"] >= head.removed)
        segments = _joined([each for each in real if each.next > head.first])
        if not segments and head.first > first:  # a page of what is not kept, and not removed yet
            return self.read(head.first, most_bytes)
        self._weigh(max((each.size for each in segments), default=0))
        return Page(segments, head.first, more or len(segments) < len(found))

    def _before(self, number: int) -> list[Document]:
        """The segment with this message, if it begins before it."""
        query: Document = {"_id": {"$lt": number, "$gt": _HEAD}}
        before = self._segments.find_one(query, sort=[("_id", -1)])
        return [before] if before and before["_id"] + before["count"] > number else []

    def since(self, time: float) -> int:
        """The number of the first message that is not older than ``time``, in Unix seconds.

        A search by halves over the numbers: some 20 looks in ten million messages.
        """
        found = self._first_where(lambda each: each.at >= time)
        return found.first if found else self.tail().next

    def time_of(self, number: int) -> float | None:
        """When this message, or the oldest behind it that is kept, was stored; None: there is none yet."""
        found = self._at(number, or_next=True)
        return found.at if found and found.next > number else None

    def last_of_topic(self, topic: bytes) -> tuple[int, int] | None:
        """First number and count of the newest segment that may have this topic; to be searched for the last.

        The first call for a stream makes an index of the topics of all its segments, and brokers keep it.
        """
        self._index_topics()
        with translated():
            query = {"topics": topic}
            found = self._segments.find_one(query, {"count": 1}, sort=[("_id", -1)], hint=_TOPICS_INDEX)
        if found is None or found["_id"] < self.head().removed:
            return None
        return int(found["_id"]), int(found["count"])

    def _index_topics(self) -> None:
        if not self._topics_indexed:
            by_topic = IndexModel([("topics", 1), ("_id", 1)], name=_TOPICS_INDEX, sparse=True)
            with translated():
                self._segments.create_indexes([by_topic])
            self._topics_indexed = True

    # ------------------------------------------------------------- retention

    def head(self) -> Head:
        """From where on the stream is kept."""
        with translated():
            head = self._segments.find_one({"_id": _HEAD})
        if head is None:
            return Head()
        return Head(int(head.get("first", 1)), int(head.get("removed", 1)), erased="erased" in head)

    def bytes_kept(self) -> int:
        """Bytes of the messages that are kept, and of those in the same segment as the oldest."""
        newest, oldest = self._newest(), self._at(self.head().first, or_next=True)
        if newest is None or oldest is None or newest.next <= self.head().first:
            return 0
        return newest.total - oldest.total + oldest.size

    def raise_first(self, first: int, *, erased: bool = False) -> None:
        """Keep nothing before this number; it never falls. ``erased``: it is listed no more while empty.

        Repeating it is harmless.
        """
        self._raise({"first": Int64(first)}, {"erased": True} if erased else {})

    def first_within(self, most_bytes: int) -> int:
        """The first message of the newest segments that have, together, at most so many bytes; one at least.

        A search by halves, as :meth:`since`.
        """
        newest = self._newest()
        if newest is None or newest.total <= most_bytes:
            return 1
        beyond = newest.total - most_bytes
        found = self._first_where(lambda each: each.total - each.size >= beyond)
        return (found or newest).first

    def remove(self, below: int) -> int:
        """Remove the oldest segments that end at ``below`` or before and are not kept, some hundreds at most.

        Returns how many. The caller has seen all of them, twice :data:`GUARD` seconds ago; the newest
        is never removed. Crash or lost reply: the next call goes on.
        """
        newest, below = self._newest(), min(below, self.head().first)
        if newest is None:
            return 0
        if newest.next <= below:  # it says where the next one goes, and has no messages to read
            with translated():
                self._segments.update_one({"_id": newest.first}, {"$set": {"packed": b"", "topics": []}})
        query: Document = {"_id": {"$gt": _HEAD, "$lt": min(below, newest.first)}}
        with translated():
            oldest = self._segments.find(query, {"count": 1}, sort=[("_id", 1)], limit=_MOST_REMOVED)
            ends = [each["_id"] + each["count"] for each in oldest]
        over = [each for each in ends if each <= below]
        if not over:
            return 0
        self._raise({"removed": Int64(max(over))})
        with translated():
            return self._segments.delete_many({"_id": {"$gt": _HEAD, "$lt": max(over)}}).deleted_count

    def _raise(self, fields: Document, more: Document | None = None) -> None:
        change: Document = {"$max": fields, **({"$set": more} if more else {})}
        with translated():
            self._segments.update_one({"_id": _HEAD}, change, upsert=True)

    # ----------------------------------------------------------- parts of it

    def _newest(self) -> Segment | None:
        with translated():
            newest = self._segments.find_one({"_id": {"$gt": _HEAD}}, _OUTLINE, sort=[("_id", -1)])
        return _segment(newest) if newest else None

    def _first_where(self, true: Callable[[Segment], bool]) -> Segment | None:
        """The first segment of which something is true that stays true of all behind it; None: of none."""
        oldest, found = self._at(self.head().first, or_next=True), self._newest()
        if oldest is None or found is None or not true(found):
            return None
        if true(oldest):
            return oldest
        while oldest.next < found.first:
            middle = self._at((oldest.next + found.first) // 2)
            if middle is None or middle.next <= oldest.next:
                break  # a hole, that somebody has made by hand
            if true(middle):
                found = middle
            else:
                oldest = middle
        return found

    def _at(self, number: int, *, or_next: bool = False) -> Segment | None:
        """The outline of the segment with this message, or the one before it; ``or_next``: behind it."""
        query: Document = {"_id": {"$gt": _HEAD, "$lte": number}}
        with translated():
            found = self._segments.find_one(query, _OUTLINE, sort=[("_id", -1)])
            if or_next and (found is None or found["_id"] + found["count"] <= number):
                found = self._segments.find_one({"_id": {"$gt": number}}, _OUTLINE, sort=[("_id", 1)])
        return _segment(found) if found else None

    def _weigh(self, size: int) -> None:
        """What a segment weighs, for the next read: the largest of late."""
        self._weight = max(size, self._weight * 7 // 8)


def stream_names(database: Documents) -> list[str]:
    """The streams that have a collection."""
    with translated():
        found = database.list_collection_names(filter={"name": {"$regex": "^stream\\."}})
    return sorted(name.removeprefix(_PREFIX) for name in found)


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    """Those before the first hole."""
    joined: list[Segment] = []
    for each in segments:
        if joined and each.first != joined[-1].next:
            break
        joined.append(each)
    return joined


def _document(segment: Segment) -> Document:
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


def _segment(stored: Document) -> Segment:
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
