"""Which of very many topics begins a frame: looked up by so many bytes of it as tell topics apart.

    topics 1/a, 1/b, 12/a, 123/a, 124/a …:    by the first 2 bytes:  "1/" -- 1/a, 1/b
                                                                     "12" -- by the first 3: "12/" -- 12/a
                                                                                             "123" -- 123/a

What begins the same is a sorted list while it is short, and where no number of bytes tells much of it apart:
so it is of topics that begin each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Final, Generic, Protocol, TypeVar

from sluicemq_devices.relays.bounds import TOPIC_BOUNDS, TopicBounds

_LARGEST_PARTED: Final = 32_768  # topics: to part them takes up to 15 ms
_SAMPLE: Final = 128  # topics of a list, by which it is told whether it can be parted
_FEWEST_SHORTER: Final = 8  # one of so many may be shorter than what a list is parted by
_WORTH_IT: Final = 0.4  # a list is parted if what is left alike is no more of it
_AS_GOOD: Final = 1.25
_MORE: Final = 8  # bytes by which topics are told apart though fewer would do
_DEEPEST: Final = 8  # levels; below them lists are not parted
_ANY: Final = frozenset(range(256))


class Place(Protocol):
    """What stands for a topic."""

    topic: bytes


P = TypeVar("P", bound=Place)


class Level(Generic[P]):
    """Topics by their first ``size`` bytes, and those that are shorter."""

    __slots__ = ("groups", "shorter", "size")
    learnt: Final = None  # it is no place, nor a list, and knows nothing
    known: Final = None

    def __init__(self, size: int) -> None:
        self.size = size
        self.groups: dict[bytes, Any] = {}
        """Each a level, a list, or the one place."""
        self.shorter: Any = None
        """The same, or None."""


class SortedList(Generic[P]):
    """Topics in the order of bytes."""

    __slots__ = ("audiences", "filler", "is_chain", "known", "most", "number", "places", "size", "topics")
    learnt: Final = None

    def __init__(self, topics: list[bytes], places: list[P]) -> None:
        self.topics = topics
        self.places = places
        self.most = 2 * len(topics)
        """With more it is worth a try to part it, if it is not short."""
        self.forget()

    def forget(self) -> None:
        """What was learnt of it holds no more."""
        self.is_chain: bool | None = None
        """True if each topic begins the next, and none is very long; None: to be found out."""
        self.known: object = None
        """What the next ones hold for: see :meth:`learn`."""
        self.size = self.number = 0
        self.filler = b""
        self.audiences: list[Any] = []

    def put(self, place: P) -> None:
        """No place had its topic."""
        at = bisect_left(self.topics, place.topic)
        self.topics.insert(at, place.topic)
        self.places.insert(at, place)

    def near(self, frame: bytes) -> P:
        """The last place whose topic does not come behind the frame: those that begin the frame begin it.

        The last of all, if all come behind it: those that begin the frame begin all of these.
        """
        return self.places[bisect_right(self.topics, frame) - 1]

    def learn(self, known: object, audience_of: Callable[[P], Any], longest: int) -> None:
        """Where each topic begins the next: whose a frame is, by how much of the last one it does not have.

        Of topics a, ab and abcde: abcde's 0 bytes, ab's 1 to 3, a's 4, and 5 say nothing. The last one is the
        one behind which whose it is does not change: of a subscriber that has all of them the first.
        ``longest``: bytes that the longest topic may have.
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
        """Whose it is, if that was learnt and some topic begins it, or None.

        As numbers they differ from the first bit on that is another: one look, not one for each length.
        """
        number = int.from_bytes(frame[: self.size].ljust(self.size, self.filler))
        return self.audiences[(number ^ self.number).bit_length() + 7 >> 3]


class Beginnings(Generic[P]):
    """Places by their topics, no two of the same."""

    def __init__(self, bounds: TopicBounds = TOPIC_BOUNDS) -> None:
        self._bounds = bounds
        self._last = bounds.table_slots - 1
        self.root: Any = None
        """A level, a list, the one place, or None."""
        self._table: list[Any] = []
        """What the root has, if that is very much, by the hashes of beginnings: see :meth:`first_looks`."""

    def __getitem__(self, topic: bytes) -> P:
        """The place of a topic that is there."""
        place = self.near(topic)
        if place is None or place.topic != topic:
            raise KeyError(topic)
        return place

    def first_looks(self, frames: list[bytes]) -> Iterable[Any]:
        """For each frame a place: if its topic begins the frame, no longer one does. Or a level, or a list.

        Of very many topics, whatever is looked at comes from afar: 0.2 us each time, and a dictionary has to
        look four times, one after the other. In a list the processor looks for the next frames meanwhile.
        """
        root = self.root
        if root.__class__ is not Level:
            return repeat(root, len(frames))
        beginnings = [frame[: root.size] for frame in frames]
        if self._table:
            last = self._last
            return map(self._table.__getitem__, [number & last for number in map(hash, beginnings)])
        return map(root.groups.get, beginnings, repeat(root))

    def near(self, frame: bytes) -> P | None:
        """A place whose topic is begun by all topics that begin the frame, or one of these itself.

        If no topic begins the frame: any place, or None.
        """
        found = self.group(frame)
        place: P | None = found.near(frame) if found.__class__ is SortedList else found
        return place

    def add(self, place: P) -> None:
        """No place had its topic."""
        root = self.root
        self.root = _with(root, place, 0, self._bounds.listed)
        self._note(place.topic, root)

    def remove(self, place: P) -> None:
        """It was there."""
        root = self.root
        self.root = _without(root, place)
        self._note(place.topic, root)

    def changed(self, topic: bytes) -> None:
        """What was learnt of what is with it in a list holds no more."""
        found = self.group(topic)
        if found.__class__ is SortedList:
            found.forget()

    def group(self, frame: bytes) -> Any:
        """The one place, or the list, where all are that begin like the frame; any, or None if none does."""
        level, found = None, self.root
        while found.__class__ is Level:
            level, found = found, found.groups.get(frame[: found.size], found.shorter)
        return _any_of(level) if found is None and level is not self.root else found

    def _note(self, topic: bytes, former: Any) -> None:
        """The topic has come or gone; the root is the former one, or another."""
        root = self.root
        if root is not former:
            self._table = []
        if root.__class__ is not Level:
            return
        if not self._table and len(root.groups) > self._bounds.in_dictionary:
            self._table = [root] * self._bounds.table_slots
            for beginning, entry in root.groups.items():
                self._table[hash(beginning) & self._last] = entry
        elif self._table and len(topic) >= root.size:
            beginning = topic[: root.size]
            self._table[hash(beginning) & self._last] = root.groups.get(beginning, root)


def _with(entry: Any, place: Any, depth: int, largest: int) -> Any:
    """What an entry is when a place has come, that many levels below the first.

    ``largest``: topics of a list; with more it is parted, if it can be.
    """
    if entry is None:
        return place
    if entry.__class__ is Level:
        _put(entry, place, depth, largest)
        return entry
    if entry.__class__ is not SortedList:
        first, second = sorted((entry, place), key=_topic_of)
        return SortedList([first.topic, second.topic], [first, second])
    entry.put(place)
    return _parted(entry, depth) if len(entry.topics) > max(largest, entry.most) else entry


def _without(entry: Any, place: Any) -> Any:
    """What an entry is when a place has gone."""
    if entry is place:
        return None
    if entry.__class__ is Level:
        _take(entry, place)
        return entry if entry.groups else entry.shorter
    at = bisect_left(entry.topics, place.topic)
    del entry.topics[at], entry.places[at]
    return entry if len(entry.topics) > 1 else entry.places[0]


def _put(level: Level[Any], place: Any, depth: int, largest: int) -> None:
    if len(place.topic) < level.size:
        level.shorter = _with(level.shorter, place, depth + 1, largest)
    else:
        beginning = place.topic[: level.size]
        level.groups[beginning] = _with(level.groups.get(beginning), place, depth + 1, largest)


def _take(level: Level[Any], place: Any) -> None:
    if len(place.topic) < level.size:
        level.shorter = _without(level.shorter, place)
        return
    beginning = place.topic[: level.size]
    left = _without(level.groups[beginning], place)
    if left is None:
        del level.groups[beginning]
    else:
        level.groups[beginning] = left


def _any_of(entry: Any) -> Any:
    while entry.__class__ is Level:
        # Taken and put back: to look for the first is slow where those before it have gone.
        beginning, first = entry.groups.popitem()
        entry.groups[beginning] = entry = first
    return entry


def _parted(whole: SortedList[Any], depth: int) -> Any:
    """A level instead of a list, or the list, if that would not be much better."""
    count = len(whole.topics)
    whole.most = 2 * count
    if depth >= _DEEPEST or count > _LARGEST_PARTED:
        return whole
    size = _best_size(whole.topics[:: count // _SAMPLE + 1])
    if not size:
        return whole
    level: Level[Any] = Level(size)
    shorter: list[int] = []
    groups: dict[bytes, list[int]] = {}
    for at, topic in enumerate(whole.topics):
        (shorter if len(topic) < size else groups.setdefault(topic[:size], [])).append(at)
    level.groups = {beginning: _picked(whole, places) for beginning, places in groups.items()}
    level.shorter = _picked(whole, shorter) if shorter else None
    return level


def _picked(whole: SortedList[Any], picked: list[int]) -> Any:
    if len(picked) == 1:
        return whole.places[picked[0]]
    return SortedList([whole.topics[at] for at in picked], [whole.places[at] for at in picked])


def _best_size(topics: list[bytes]) -> int:
    """By how many bytes sorted topics are told apart best; 0: by none well.

    A few bytes more than it takes: of very many topics, which are yet to come, more will begin the same.
    """
    alike = {size: _alike(topics, size) for size in _sizes(topics)}
    least = min(alike.values(), default=len(topics))
    if least > _WORTH_IT * len(topics):
        return 0
    good = [size for size in alike if alike[size] <= _AS_GOOD * least]
    common = in_common(topics[0], topics[-1])
    return max(size for size in good if size <= good[0] + 3 * (good[0] - common) + _MORE)


def _alike(topics: list[bytes], size: int) -> float:
    """How many topics are told apart no further, seen from one of them."""
    groups = Counter(topic[:size] for topic in topics if len(topic) >= size)
    shorter = len(topics) - groups.total()
    # Shorter ones take one look more, but are parted by themselves.
    return (sum(count * count for count in groups.values()) + shorter * shorter / 4) / len(topics)


def _sizes(topics: list[bytes]) -> Iterator[int]:
    """Those worth a try: from where topics part on, and up to what few are shorter than."""
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
    """How many first bytes one has in common with the other's from there on."""
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
