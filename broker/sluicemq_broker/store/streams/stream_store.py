"""One stream in MongoDB: numbered messages in segments (``segments``), and a head that says where it begins.

**The order.** A segment's ``_id`` is where the last one ended. So the unique index of ``_id`` makes each
insert a compare-and-set on the tail: of two writers that know one tail, the second gets a duplicate key,
reads on, and tries again behind the first. Numbers are 1, 2, 3 ... over all brokers: no hole, no number
twice, no transaction.

**A lost answer.** The insert is sent again to its place until that place is taken; ``mark`` tells by whom. A
copy that lands later finds it taken.

**Removal.** ``removed`` is raised (durably) before anything is removed, and every read asks for it after it
has read. Only segments are removed that were seen twice :data:`GUARD` seconds ago; a writer that has not
heard of the tail for one such time asks for ``removed``, too. So a late insert into a place that is free
again lies before ``removed``: it is never read, its writer knows that, and it is removed with the rest. The
newest segment is never removed, as it says where the next one goes.

All reads are of what a majority has: nobody sees a number that an election takes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final, NamedTuple

from bson.int64 import Int64
from pymongo import IndexModel
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError
from pymongo.read_concern import ReadConcern

from sluicemq_broker.store.connection import Documents, durable
from sluicemq_broker.store.creation import by_majority, one_of_few
from sluicemq_broker.store.errors import Unclear, translated
from sluicemq_broker.store.set_aside import ASIDE, COUNT, Damaged, read_or_damaged, readable
from sluicemq_broker.store.streams.segments import (
    HEAD,
    OUTLINE,
    Head,
    Page,
    Segment,
    Tail,
    document_of,
    head_of,
    joined,
    segment_of,
    stand_in,
)
from sluicemq_broker.store.unnumbered_insert import insert
from sluicemq_broker.store.values import Document, date

#: Seconds. A former tail is not removed for twice as long; a writer that takes it for the tail for longer
#: than this asks again. No clock is compared with another.
GUARD: Final = 20.0
#: Documents in one read, at most.
_MOST_READ: Final = 256

STREAM_PREFIX: Final = "stream."
_IDS_INDEX: Final = "ids"
_TOPICS_INDEX: Final = "topics"


class Appended(Enum):
    """The outcome of an append."""

    STORED = auto()
    TAKEN = auto()  # by another segment: the tail is further on


class StreamKept(NamedTuple):
    """The messages that a stream keeps, their bytes, and when the oldest was stored."""

    messages: int
    bytes: int
    oldest: float | None


class StreamStore:
    """The log of one stream. All methods wait for MongoDB, and raise as every statement does.

    Unavailable: nothing was sent; Unclear: a write may have been applied.
    """

    def __init__(self, database: Documents, name: str) -> None:
        self.name = name
        self._database = database
        collection: Collection[Document] = durable(database)[STREAM_PREFIX + name]
        self._segments = collection.with_options(read_concern=ReadConcern("majority"))
        self.weight = 0
        """Bytes of the largest segment that was read lately; 0: none was."""
        self._names = 0  # topics and ids of the segment with most
        self.prepared = False
        """True if :meth:`prepare` has been done."""
        self._topics_indexed = False

    def prepare(self, now: float) -> None:
        """Make the head and the index of ids where they are missing."""
        head = {"first": 1, "removed": 1, "made_at": date(now)}
        with one_of_few(), translated():
            # failpoint streams.index_ids
            self._segments.create_indexes(
                [IndexModel([("ids", 1)], name=_IDS_INDEX, sparse=True)], **by_majority(self._segments)
            )
            with suppress(DuplicateKeyError):  # another broker makes it just now
                # failpoint streams.prepare
                self._segments.update_one({"_id": HEAD}, {"$setOnInsert": head}, upsert=True)
        self.prepared = True

    # ---------------------------------------------------------------- append

    def append(self, segment: Segment) -> Appended:
        """Put a segment at the tail, if it begins there.

        Crash or lost reply: it is there or not. Send it again until this returns: its place is taken then, by
        it or by another segment, and an earlier copy changes nothing.
        """
        # failpoint streams.append
        if insert(self._database, STREAM_PREFIX + self.name, document_of(segment), "majority"):
            self._weigh([segment])
            return Appended.STORED
        with translated():
            there = self._segments.find_one({"_id": segment.first}, {"mark": 1})
        if there is None:
            raise Unclear(f"stream {self.name}: place {segment.first} is taken by what no majority has yet")
        return Appended.STORED if there.get("mark") == segment.mark else Appended.TAKEN

    def tail(self) -> Tail:
        """Return where the next segment goes."""
        newest = self._newest()
        if newest is None:
            return Tail(next=self.head().first)
        return Tail(newest.next, newest.at, newest.total)

    def newer(self, tail: Tail) -> list[Segment]:
        """Return the outlines of segments behind a former tail, a thousand at most."""
        query: Document = {"_id": {"$gte": tail.next}}
        with translated():
            found = list(self._segments.find(query, OUTLINE, sort=[("_id", 1)], limit=1000))
        removed = self.head().removed if found else 0  # after the read, as in read
        return list(self._outlines([document for document in found if document["_id"] >= removed], tail))

    def stored(self, ids: Iterable[str]) -> dict[str, tuple[int, float]]:
        """Return number and time of the messages with these ids that are in the stream still."""
        wanted = set(ids)
        found: dict[str, tuple[int, float]] = {}
        with translated():
            query = self._segments.find({"ids": {"$in": list(wanted)}}, OUTLINE, hint=_IDS_INDEX)
            for segment in readable(self._segments, query.sort("_id", 1), segment_of):
                for message_id, place in zip(segment.ids, segment.places, strict=True):
                    if message_id in wanted:
                        found[message_id] = segment.first + place, segment.at
        return found

    def has_between(self, ranges: Iterable[tuple[str, str]]) -> bool:
        """Return True if an id lies in one of these ranges, of which both ends are excluded."""
        within: list[Document] = [{"ids": {"$elemMatch": {"$gt": low, "$lt": high}}} for low, high in ranges]
        with translated():
            return self._segments.find_one({"$or": within}, {"_id": 1}, hint=_IDS_INDEX) is not None

    # ------------------------------------------------------------------ read

    def read(self, first: int, most_bytes: int) -> Page:
        """Return segments from the one with message ``first`` on, up to about ``most_bytes``; one at least.

        One search of the index of ``_id`` where ``first`` begins a segment, two where it lies inside one.
        """
        first = max(1, first)
        # Bytes that a segment is assumed to have before one was seen.
        # Topics and ids in one read, about: each becomes an object, and 32,768 take 4 ms.
        by_bytes, by_names = most_bytes // (self.weight or 256 * 1024), 32_768 // (self._names or 1)
        limit = max(1, min(_MOST_READ, by_bytes, by_names))
        while True:
            with translated():
                found = list(self._segments.find({"_id": {"$gte": first}}, sort=[("_id", 1)], limit=limit))
                more = len(found) == limit
                if not found or found[0]["_id"] > first:
                    found = [*self._before(first), *found]
            head = self.head()  # after the read: from ``removed`` on each segment is the first in its place
            real = [document for document in found if document["_id"] >= head.removed]
            sound = list(readable(self._segments, real, segment_of))
            kept = [segment for segment in sound if segment.next > head.first]
            segments = joined([segment for segment in kept if self._is_whole(segment)])
            if not segments and head.first > first:  # all that was read is no longer kept, not removed yet
                first = head.first
            elif not segments and real and more:  # all that was read is damaged: others may be behind it
                first = int(real[-1]["_id"]) + 1
            else:
                break
        self._weigh(segments)
        return Page(segments, head.first, more or len(segments) < len(found))

    def _is_whole(self, segment: Segment) -> bool:
        """Return True if a segment has all bytes of its messages."""
        if len(segment.packed) == segment.size:
            return True
        self.set_aside(segment, f"its packed has {len(segment.packed)} bytes, and its size is {segment.size}")
        return False

    def set_aside(self, segment: Segment, why: str) -> None:
        """Note that the messages of a segment can't be read."""
        ASIDE.note(Damaged(self._segments.database.name, self._segments.name, segment.first, why))

    def _before(self, number: int) -> list[Document]:
        """Return the segment with this message, if it begins before it."""
        query: Document = {"_id": {"$lt": number, "$gt": HEAD}}
        before = self._segments.find_one(query, sort=[("_id", -1)])
        return [before] if before and before["_id"] + stand_in(before, Tail()).count > number else []

    def since(self, time: float) -> int:
        """Return the number of the first message that is not older than ``time``, in Unix seconds.

        A binary search over the numbers: some 20 reads in ten million messages.
        """
        found = self._first_where(lambda segment: segment.at >= time)
        return found.first if found else self.tail().next

    def time_of(self, number: int) -> float | None:
        """Return when this message, or the oldest kept one behind it, was stored; None: there is none yet."""
        found = self._at(number, or_next=True)
        return found.at if found and found.next > number else None

    def last_of_topic(self, topic: bytes) -> tuple[int, int] | None:
        """Return first number and count of the newest segment that may have this topic.

        The first call for a stream makes an index of the topics of all its segments, and brokers keep it.
        """
        self._index_topics()
        with translated():
            query = {"topics": topic}
            found = self._segments.find_one(query, {"count": 1}, sort=[("_id", -1)], hint=_TOPICS_INDEX)
        if found is None or found["_id"] < self.head().removed:
            return None
        return int(found["_id"]), stand_in(found, Tail()).count

    def _index_topics(self) -> None:
        if not self._topics_indexed:
            by_topic = IndexModel([("topics", 1), ("_id", 1)], name=_TOPICS_INDEX, sparse=True)
            with translated():
                # failpoint streams.index_topics
                self._segments.create_indexes([by_topic], **by_majority(self._segments))
            self._topics_indexed = True

    # ------------------------------------------------------------- retention

    def head(self) -> Head:
        """Return from where on the stream is kept; one that somebody has damaged keeps all."""
        with translated():
            head = self._segments.find_one({"_id": HEAD})
        if head is None:
            return Head()
        found = read_or_damaged(self._segments, head, head_of)
        if isinstance(found, Head):
            return found
        ASIDE.note(found)
        return head_of({name: value for name, value in head.items() if COUNT.holds(value)})

    def bytes_kept(self) -> int:
        """Return the bytes of all segments with messages that are kept."""
        return self.kept().bytes

    def kept(self) -> StreamKept:
        """Return how much is kept, in three reads."""
        newest, head = self._newest(), self.head()
        oldest = self._at(head.first, or_next=True)
        if newest is None or oldest is None or newest.next <= head.first:
            return StreamKept(0, 0, None)
        return StreamKept(newest.next - head.first, newest.total - oldest.total + oldest.size, oldest.at)

    def raise_first(self, first: int, *, erased: bool = False) -> None:
        """Keep nothing before this number; it never falls. ``erased``: don't list the stream while empty.

        Repeating it is harmless.
        """
        # failpoint streams.raise_first
        self._raise({"first": Int64(first)}, {"erased": True} if erased else {})

    def first_within(self, most_bytes: int) -> int:
        """Return the first message of the newest segments that fit in ``most_bytes``; one segment at least.

        A binary search, as :meth:`since`.
        """
        newest = self._newest()
        if newest is None or newest.total <= most_bytes:
            return 1
        beyond = newest.total - most_bytes
        found = self._first_where(lambda segment: segment.total - segment.size >= beyond)
        return (found or newest).first

    def remove(self, below: int) -> int:
        """Remove the oldest segments that end at ``below`` or before and are not kept; return how many.

        Some hundreds at most. The caller has seen all of them, twice :data:`GUARD` seconds ago; the newest is
        never removed. Crash or lost reply: the next call goes on.
        """
        newest, below = self._newest(), min(below, self.head().first)
        if newest is None:
            return 0
        if newest.next <= below:  # it says where the next one goes; its messages are not kept
            with translated():
                # failpoint streams.empty_newest
                self._segments.update_one({"_id": newest.first}, {"$set": {"packed": b"", "topics": []}})
        query: Document = {"_id": {"$gt": HEAD, "$lt": min(below, newest.first)}}
        with translated():
            oldest = self._segments.find(query, {"count": 1}, sort=[("_id", 1)], limit=500)
            ends = [int(document["_id"]) + stand_in(document, Tail()).count for document in oldest]
        over = [end for end in ends if end <= below]
        if not over:
            return 0
        # failpoint streams.raise_removed
        self._raise({"removed": Int64(max(over))})
        with translated():
            # failpoint streams.remove
            return self._segments.delete_many({"_id": {"$gt": HEAD, "$lt": max(over)}}).deleted_count

    def _raise(self, fields: Document, more: Document | None = None) -> None:
        sound = {name: {"$cond": [{"$isNumber": f"${name}"}, f"${name}", 1]} for name in ("first", "removed")}
        raised = {name: {"$max": [sound[name], number]} for name, number in fields.items()}
        change = [{"$set": {**sound, **raised, **(more or {})}}]
        with translated():
            # failpoint *
            self._segments.update_one({"_id": HEAD}, change, upsert=True)

    # ----------------------------------------------------------- parts of it

    def _newest(self) -> Segment | None:
        with translated():
            newest = self._segments.find_one({"_id": {"$gt": HEAD}}, OUTLINE, sort=[("_id", -1)])
            if newest is None:
                return None
            if not isinstance(read_or_damaged(self._segments, newest, segment_of), Damaged):
                return segment_of(newest)
            before = self._segments.find({"_id": {"$gt": HEAD, "$lt": newest["_id"]}}, OUTLINE).sort(
                "_id", -1
            )
            last = next(readable(self._segments, before.limit(_MOST_READ), segment_of), None)
        tail = Tail(last.next, last.at, last.total) if last else Tail()
        return next(self._outlines([newest], tail))

    def _outlines(self, found: Iterable[Document], before: Tail) -> Iterator[Segment]:
        """Yield segments behind a tail; in the place of one that can't be read stands one without messages.

        So writers and searches step over it, and readers hear that its messages are gone.
        """
        for document in found:
            segment = read_or_damaged(self._segments, document, segment_of)
            if isinstance(segment, Damaged):
                ASIDE.note(segment)
                segment = stand_in(document, before)
            before = Tail(segment.next, segment.at, segment.total)
            yield segment

    def _first_where(self, true: Callable[[Segment], bool]) -> Segment | None:
        """Return the first segment for which ``true`` holds, as for all behind it; None: for none."""
        oldest, found = self._at(self.head().first, or_next=True), self._newest()
        if oldest is None or found is None or not true(found):
            return None
        if true(oldest):
            return oldest
        while oldest.next < found.first:
            middle = self._at((oldest.next + found.first) // 2)
            if middle is None or middle.next <= oldest.next:
                break  # a hole that somebody has made by hand
            if true(middle):
                found = middle
            else:
                oldest = middle
        return found

    def _at(self, number: int, *, or_next: bool = False) -> Segment | None:
        """Return the outline of the segment with this message, or of one before (``or_next``: behind) it."""
        query: Document = {"_id": {"$gt": HEAD, "$lte": number}}
        with translated():
            found = self._segments.find_one(query, OUTLINE, sort=[("_id", -1)])
            if or_next and (found is None or found["_id"] + stand_in(found, Tail()).count <= number):
                found = self._segments.find_one({"_id": {"$gt": number}}, OUTLINE, sort=[("_id", 1)])
        return next(self._outlines([found] if found else [], Tail()), None)

    def _weigh(self, segments: Sequence[Segment]) -> None:
        """Note the sizes of segments, for the next read: the largest lately."""
        self.weight = max(self.weight * 7 // 8, *(segment.size for segment in segments), 0)
        names = (len(segment.topics) + 2 * len(segment.ids) for segment in segments)
        self._names = max(self._names * 7 // 8, *names, 0)


def stream_names(database: Documents) -> list[str]:
    """Return the streams that have a collection."""
    with translated():
        found = database.list_collection_names(filter={"name": {"$regex": "^stream\\."}})
    return sorted(name.removeprefix(STREAM_PREFIX) for name in found)
