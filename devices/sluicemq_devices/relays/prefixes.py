"""The topic, of very many, that is a prefix of a frame: looked up by as many bytes as tell topics apart.

    topics 1/a, 1/b, 12/a, 123/a, 124/a …:    by the first 2 bytes:  "1/" -- 1/a, 1/b
                                                                     "12" -- by the first 3: "12/" -- 12/a
                                                                                             "123" -- 123/a

Topics with equal first bytes are a sorted list while they are few, and where no number of bytes separates
many of them, as with topics that are prefixes of each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Final, Generic, Protocol, TypeVar

from sluicemq_devices.relays.bounds import TOPIC_BOUNDS, TopicBounds

_LARGEST_SPLIT: Final = 32_768  # topics: to split a list of them takes up to 15 ms
_SAMPLE: Final = 128  # topics of a list that are looked at to decide whether it can be split
_FEWEST_SHORTER: Final = 8  # one topic in 8 may be shorter than the bytes that split a list
_WORTH_IT: Final = 0.4  # a list is split if the groups that remain are no larger part of it
_AS_GOOD: Final = 1.25
_MORE: Final = 8  # bytes used to split, though fewer would do
DEEPEST: Final = 8  # levels; lists below them are not split
_ANY: Final = frozenset(range(256))


class TopicPlace(Protocol):
    """An object that stands for a topic."""

    topic: bytes


P = TypeVar("P", bound=TopicPlace)


class PrefixLevel(Generic[P]):
    """Topics by their first ``size`` bytes, and topics that are shorter."""

    __slots__ = ("groups", "shorter", "size")
    learnt: Final = None  # as a place or a list that has nothing cached
    known: Final = None

    def __init__(self, size: int) -> None:
        self.size = size
        self.groups: dict[bytes, Any] = {}
        """For each prefix a level, a list, or the one place."""
        self.shorter: Any = None
        """Shorter topics: a level, a list, the one place, or None."""


class SortedList(Generic[P]):
    """Topics in the order of bytes."""

    __slots__ = ("audiences", "filler", "is_chain", "known", "most", "number", "places", "size", "topics")
    learnt: Final = None

    def __init__(self, topics: list[bytes], places: list[P]) -> None:
        self.topics = topics
        self.places = places
        self.most = 2 * len(topics)
        """Length from which it is tried to split the list, if it is not short."""
        self.forget()

    def forget(self) -> None:
        """Drop what was cached of the list."""
        self.is_chain: bool | None = None
        """True if each topic is a prefix of the next, and none is very long; None: not known yet."""
        self.known: object = None
        """Version of the cache that the next ones belong to: see :meth:`learn`."""
        self.size = self.number = 0
        self.filler = b""
        self.audiences: list[Any] = []

    def put(self, place: P) -> None:
        """Add a place with a new topic."""
        at = bisect_left(self.topics, place.topic)
        self.topics.insert(at, place.topic)
        self.places.insert(at, place)

    def near(self, frame: bytes) -> P:
        """Return the last place whose topic is not greater than the frame, or the last of all.

        Each topic that is a prefix of the frame is a prefix of that place's topic, or is it.
        """
        return self.places[bisect_right(self.topics, frame) - 1]

    def learn(self, known: object, audience_of: Callable[[P], Any], longest: int) -> None:
        """Cache, for topics that are prefixes of the next one, the audience by the bytes that a frame lacks.

        Example, topics a, ab and abcde: a frame that lacks 0 bytes of abcde has its audience; 1 to 3 bytes:
        that of ab; 4: that of a; 5: none. Topics at the end with an audience equal to the one before are left
        out. ``known``: version of the cache; ``longest``: most bytes of the longest topic.
        """
        if self.is_chain is None:
            self.is_chain = _is_chain(self.topics, longest)
        if not self.is_chain:
            return
        whose = list(map(audience_of, self.places))
        while len(whose) > 1 and whose[-1] is whose[-2]:
            whose.pop()
        self.audiences = [None]
        for topic, audience in zip(self.topics, whose, strict=False):
            self.audiences += [self.audiences[-1]] * (len(topic) - len(self.audiences)) + [audience]
        self.audiences.reverse()
        last = self.topics[len(whose) - 1]
        self.known, self.size, self.number, self.filler = (
            known,
            len(last),
            int.from_bytes(last),
            _filler(last),
        )

    def audience(self, frame: bytes) -> Any:
        """Return the cached audience of a frame, or None.

        Frame and topic are compared as numbers: the highest bit that differs gives the length they share, in
        one look instead of one for each length.
        """
        number = int.from_bytes(frame[: self.size].ljust(self.size, self.filler))
        return self.audiences[(number ^ self.number).bit_length() + 7 >> 3]


class Prefixes(Generic[P]):
    """Places by their topics, which are unique."""

    def __init__(self, bounds: TopicBounds = TOPIC_BOUNDS) -> None:
        self._bounds = bounds
        self._last = bounds.table_slots - 1
        self.root: Any = None
        """Root: a level, a list, the one place, or None."""
        self.table: list[Any] = []
        """Entries of a very large root by the hashes of prefixes: see :meth:`first_looks`."""

    def __getitem__(self, topic: bytes) -> P:
        """Return the place of a topic. Raises KeyError."""
        place = self.near(topic)
        if place is None or place.topic != topic:
            raise KeyError(topic)
        return place

    def first_looks(self, frames: list[bytes]) -> Iterable[Any]:
        """Return for each frame a level, a list or a place, whose topic is its longest prefix if it is one.

        With very many topics each access misses the caches of the processor: 0.2 us, and a dictionary needs
        four, one after the other. Of a table of slots the processor fetches those of the next frames
        meanwhile.
        """
        root = self.root
        if root.__class__ is not PrefixLevel:
            return repeat(root, len(frames))
        prefixes = [frame[: root.size] for frame in frames]
        if self.table:
            last = self._last
            return map(self.table.__getitem__, [number & last for number in map(hash, prefixes)])
        return map(root.groups.get, prefixes, repeat(root))

    @property
    def remembered(self) -> int:
        """How many entries its dictionary has, and one for its first level: 0 without a topic."""
        return (self.root is not None) + len(self.table)

    def near(self, frame: bytes) -> P | None:
        """Return a place whose topic has all prefixes of the frame as its prefixes, or is one of them.

        If no topic is a prefix of the frame: any place, or None.
        """
        found = self.group(frame)
        place: P | None = found.near(frame) if found.__class__ is SortedList else found
        return place

    def add(self, place: P) -> None:
        """Add a place with a new topic."""
        root = self.root
        self.root = _with(root, place, 0, self._bounds.listed)
        self._note(place.topic, root)

    def remove(self, place: P) -> None:
        """Remove a place, which must be there."""
        root = self.root
        self.root = _without(root, place)
        self._note(place.topic, root)

    def changed(self, topic: bytes) -> None:
        """Drop what was cached of the list that has this topic."""
        found = self.group(topic)
        if found.__class__ is SortedList:
            found.forget()

    def group(self, frame: bytes) -> Any:
        """Return the place or list of all topics that begin like the frame; if none does, any or None."""
        level, found = None, self.root
        while found.__class__ is PrefixLevel:
            level, found = found, found.groups.get(frame[: found.size], found.shorter)
        return _any_of(level) if found is None and level is not self.root else found

    def _note(self, topic: bytes, former: Any) -> None:
        """Follow a topic that was added or removed in the table; ``former``: the root before."""
        root = self.root
        if root is not former:
            self.table = []
        if root.__class__ is not PrefixLevel:
            return
        if not self.table and len(root.groups) > self._bounds.in_dictionary:
            self.table = [root] * self._bounds.table_slots
            for prefix, entry in root.groups.items():
                self.table[hash(prefix) & self._last] = entry
        elif self.table and len(topic) >= root.size:
            prefix = topic[: root.size]
            self.table[hash(prefix) & self._last] = root.groups.get(prefix, root)


def _with(entry: Any, place: Any, depth: int, largest: int) -> Any:
    """Return an entry with a place added, ``depth`` levels below the first.

    ``largest``: topics of a list; a longer one is split, if it can be.
    """
    if entry is None:
        return place
    if entry.__class__ is PrefixLevel:
        _put(entry, place, depth, largest)
        return entry
    if entry.__class__ is not SortedList:
        first, second = sorted((entry, place), key=_topic_of)
        return SortedList([first.topic, second.topic], [first, second])
    entry.put(place)
    return _split(entry, depth) if len(entry.topics) > max(largest, entry.most) else entry


def _without(entry: Any, place: Any) -> Any:
    """Return an entry with a place removed."""
    if entry is place:
        return None
    if entry.__class__ is PrefixLevel:
        _take(entry, place)
        return entry if entry.groups else entry.shorter
    at = bisect_left(entry.topics, place.topic)
    del entry.topics[at], entry.places[at]
    return entry if len(entry.topics) > 1 else entry.places[0]


def _put(level: PrefixLevel[Any], place: Any, depth: int, largest: int) -> None:
    if len(place.topic) < level.size:
        level.shorter = _with(level.shorter, place, depth + 1, largest)
    else:
        prefix = place.topic[: level.size]
        level.groups[prefix] = _with(level.groups.get(prefix), place, depth + 1, largest)


def _take(level: PrefixLevel[Any], place: Any) -> None:
    if len(place.topic) < level.size:
        level.shorter = _without(level.shorter, place)
        return
    prefix = place.topic[: level.size]
    left = _without(level.groups[prefix], place)
    if left is None:
        del level.groups[prefix]
    else:
        level.groups[prefix] = left


def _any_of(entry: Any) -> Any:
    while entry.__class__ is PrefixLevel:
        # Taken and put back: to find the first one is slow where those before it were removed.
        prefix, first = entry.groups.popitem()
        entry.groups[prefix] = entry = first
    return entry


def _split(whole: SortedList[Any], depth: int) -> Any:
    """Return a level in place of a list, or the list, if a level would not be much better."""
    count = len(whole.topics)
    whole.most = 2 * count
    if depth >= DEEPEST or count > _LARGEST_SPLIT:
        return whole
    size = _best_size(whole.topics[:: count // _SAMPLE + 1])
    if not size:
        return whole
    level: PrefixLevel[Any] = PrefixLevel(size)
    shorter: list[int] = []
    groups: dict[bytes, list[int]] = {}
    for at, topic in enumerate(whole.topics):
        (shorter if len(topic) < size else groups.setdefault(topic[:size], [])).append(at)
    level.groups = {prefix: _picked(whole, places) for prefix, places in groups.items()}
    level.shorter = _picked(whole, shorter) if shorter else None
    return level


def _picked(whole: SortedList[Any], picked: list[int]) -> Any:
    if len(picked) == 1:
        return whole.places[picked[0]]
    return SortedList([whole.topics[at] for at in picked], [whole.places[at] for at in picked])


def _best_size(topics: list[bytes]) -> int:
    """Return the number of first bytes that separates sorted topics best; 0: none does well.

    A few bytes more than needed are taken: of the many topics yet to come, more will have equal first bytes.
    """
    alike = {size: _alike(topics, size) for size in _sizes(topics)}
    least = min(alike.values(), default=len(topics))
    if least > _WORTH_IT * len(topics):
        return 0
    good = [size for size in alike if alike[size] <= _AS_GOOD * least]
    common = in_common(topics[0], topics[-1])
    return max(size for size in good if size <= good[0] + 3 * (good[0] - common) + _MORE)


def _alike(topics: list[bytes], size: int) -> float:
    """Return the mean number of topics that share a group, seen from a topic."""
    groups = Counter(topic[:size] for topic in topics if len(topic) >= size)
    shorter = len(topics) - groups.total()
    # Shorter ones take one look more, but are split by themselves.
    return (sum(count * count for count in groups.values()) + shorter * shorter / 4) / len(topics)


def _sizes(topics: list[bytes]) -> Iterator[int]:
    """Yield the sizes worth a try: from where topics differ, up to one that few topics are shorter than."""
    most = sorted(map(len, topics))[len(topics) // _FEWEST_SHORTER]
    common, step = in_common(topics[0], topics[-1]), 1
    size = common + 1
    while size < most:
        yield size
        step = max(1, (size - common) // 2)
        size += step
    if common < most:
        yield most


def in_common(one: bytes, other: bytes, at: int = 0) -> int:
    """Return how many first bytes of ``one`` equal those of ``other`` from ``at`` on."""
    low, high = 0, min(len(one), len(other) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if other.startswith(one[:middle], at):
            low = middle
        else:
            high = middle - 1
    return low


def _is_chain(topics: list[bytes], longest: int) -> bool:
    last = topics[-1]
    return len(last) <= longest and all(map(last.startswith, topics)) and bool(_filler(last))


def _filler(topic: bytes) -> bytes:
    """A byte that is not in it, or none."""
    return bytes(_ANY.difference(topic))[:1]


def _topic_of(place: Any) -> bytes:
    topic: bytes = place.topic
    return topic
