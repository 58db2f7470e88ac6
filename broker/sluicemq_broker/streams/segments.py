"""The newest segments of a stream in memory, for readers at its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sluicemq.protocol.packed import scan, slices
from sluicemq_broker.store import Segment
from sluicemq_broker.streams.choosing import TURN
from sluicemq_broker.streams.topics import Topics


class Recent:
    """The newest segments without a gap; none at first."""

    def __init__(self) -> None:
        self.next = 0
        """The number behind the newest known message; 0: none is known."""
        self._oldest = 1  # the first number that readers may get
        self._segments: deque[Segment] = deque()
        self._bytes = 0

    def forget(self, before: int) -> None:
        """Return no messages before this number any more: retention has hidden them."""
        self._oldest = max(self._oldest, before)

    def begin(self, number: int) -> None:
        """Drop all segments; the next one will begin with this number."""
        self._segments.clear()
        self._bytes = 0
        self.next = number

    def add(self, segment: Segment) -> None:
        """Add a durable segment. One behind a gap replaces the others; one that is known is ignored."""
        if segment.first < self.next:
            return
        if segment.first != self.next:
            self.begin(segment.first)
        self._segments.append(segment)
        self._bytes += segment.size
        self.next = segment.next
        # Bytes, and number, of segments in memory for each stream.
        while len(self._segments) > 1 and (self._bytes > (4 << 20) or len(self._segments) > 1000):
            self._bytes -= self._segments.popleft().size

    def read(self, first: int, most_bytes: int) -> list[Segment] | None:
        """Return the segments from message ``first`` on, up to ``most_bytes``; None: read MongoDB."""
        if not self._segments or not max(self._oldest, self._segments[0].first) <= first < self.next:
            return None
        found: list[Segment] = []
        for segment in reversed(self._segments):
            if segment.next <= first:
                break
            found.append(segment)
        found.reverse()
        size = 0
        for at, segment in enumerate(found):
            size += segment.size
            if size > most_bytes:
                return found[: at + 1]
        return found


class ChosenMessages:
    """The messages of a segment that a reader wants; ``places``: theirs in the segment; None: all."""

    __slots__ = ("packed", "places", "segment")

    def __init__(self, segment: Segment, packed: bytes, places: Sequence[int] | None) -> None:
        self.segment = segment
        self.packed = packed
        self.places = places

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.segment.count if self.places is None else len(self.places)


def choose(
    segment: Segment, first: int, topics: Topics, most: int, seconds: float = TURN
) -> tuple[ChosenMessages | None, int]:
    """Choose messages of a segment from message ``first`` on, ``most`` at most; also returns where to go on.

    That is ``first`` when ``seconds`` have passed before all topics of the segment were checked: the next
    call with these ``topics`` goes on with the others.
    """
    start, end = max(0, first - segment.first), segment.count
    if topics.everything and not start and end <= most:
        return ChosenMessages(segment, segment.packed, None), segment.next
    wanted = topics.among(segment.topics, segment.first, seconds)
    if wanted is None:
        return None, first
    if not wanted:
        return None, segment.next
    if not start and len(wanted) == len(segment.topics) and end <= most:
        return ChosenMessages(segment, segment.packed, None), segment.next
    ends, its_topics = scan(segment.packed)
    places = [at for at in range(start, end) if its_topics[at] in wanted]
    if len(places) > most:
        places = places[:most]
        end = places[-1] + 1
    go_on = segment.first + end
    if not places:
        return None, go_on
    messages = slices(segment.packed, ends)
    return ChosenMessages(segment, b"".join([messages[at] for at in places]), places), go_on
