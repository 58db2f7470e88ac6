"""Which subscribers want a message: the topics of all of them in their order, and as a radix tree.

Topics mostly have one of a few lengths: then the longest that begins a message is looked up as so many
first bytes of it, one look for each length. Where there are more lengths, it is found in the order: the last
topic that is not behind a message's first frame, in the order of bytes, is the longest that begins it, if any
of those after which it comes in the tree does not part from it before. So a message takes a search in the
order, however many topics there are and whatever they have in common. A topic that was found once and alone
begins as it does (with so many bytes as nearly all topics have) is looked up by that beginning from then on.
The tree tells which topics begin others; a message is only looked for in it where that topic does not begin
it, but a shorter one may.

    topics a, abcd, abcde, abcdf1, abcdf2:    "a" -- "bcd" -- "e"
                                                         `--- "f" -- "1"
                                                                `--- "2"
    abcdf3: comes behind abcdf2, which does not begin it: in the tree it is one for abcd, and for a
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from sluicemq_devices.relays.sorted_blocks import SortedBlocks
from sluicemq_devices.zmtp import LONG

#: Bytes of a topic, at most. The libzmq of a publisher recurses once for each: half a million overflow
#: a stack of 8 MiB, and threads of some systems have 512 KiB.
LONGEST_TOPIC = 16_384
_SEVERAL: Final = object()
_MOST_KNOWN = 10_000  # nodes whose subscribers, with those above, are remembered
_FEW_LENGTHS: Final = 8  # a look for each costs less than a search in the order
_SHORT: Final = 16  # one of so many topics may be shorter than the beginnings by which topics are known

S = TypeVar("S")
"""A subscriber: anything that can be in a set."""


class _Node(Generic[S]):
    """Where topics part or end: its bytes, behind those of the nodes above."""

    __slots__ = ("above", "bytes", "children", "size", "subscribers")

    def __init__(self, text: bytes, above: _Node[S] | None) -> None:
        self.bytes = text
        self.size = len(text)
        self.above = above
        self.children: dict[int, _Node[S]] | None = None  # by their first byte
        self.subscribers: S | set[S] | None = None  # of the topic that ends here; a set from two on


class Topics(Generic[S]):
    """Topics and who subscribes to them; a message is for those of which a topic begins its first frame.

    No topic is empty, and none longer than :data:`LONGEST_TOPIC`.
    """

    def __init__(self) -> None:
        self._root: _Node[S] = _Node(b"", None)
        self._order: SortedBlocks[_Node[S]] = SortedBlocks()
        self._nodes: dict[bytes, _Node[S]] = {}  # by topic
        self._lengths: Counter[int] = Counter()  # how many topics have each
        # Until topics change: who alone gets the messages of a topic, or that several do, by the
        # topic's place; and everybody on the way to a node.
        self._only: dict[int, list[Any]] = {}
        self._only_of: dict[bytes, Any] = {}  # the same by topic
        self._few_lengths: list[int] | None = None  # the longest first; empty: they are many
        # The topic that alone begins so, and who alone gets its messages or that several do.
        self._by_beginning: dict[bytes, tuple[bytes, Any]] = {}
        self._beginning = 0  # bytes
        self._known: dict[_Node[S], set[S]] = {}

    def add(self, topic: bytes, subscriber: S) -> None:
        """It was not there."""
        self._changed()
        node = self._grow(topic)
        now = node.subscribers
        if now is None:
            node.subscribers = subscriber
            self._order.add(topic, node)
            self._nodes[topic] = node
            self._lengths[len(topic)] += 1
        elif isinstance(now, set):
            now.add(subscriber)
        else:
            node.subscribers = {now, subscriber}

    def remove(self, topic: bytes, subscriber: S) -> None:
        """It was there."""
        self._changed()
        node = self._find(topic)
        now = node.subscribers
        if isinstance(now, set) and len(now) > 1:
            now.remove(subscriber)
            return
        node.subscribers = None
        self._order.remove(topic)
        del self._nodes[topic]
        self._lengths[len(topic)] -= 1
        if not self._lengths[len(topic)]:
            del self._lengths[len(topic)]
        self._prune(node)

    def wanted(self, messages: list[bytes]) -> Iterator[tuple[S, list[bytes]]]:
        """For each subscriber what it wants of them, once and in order; messages are encoded."""
        runs: dict[S, list[list[int]]] = {}
        ones: dict[S, list[int]] = {}
        if self._few_lengths is None:
            lengths = sorted(self._lengths, reverse=True)
            self._few_lengths = lengths if len(lengths) <= _FEW_LENGTHS else []
            self._beginning = self._usual_beginning()
        found = self._looked_up(messages, ones) if self._few_lengths else self._found(messages, ones)
        for node, run in found.items():
            for subscriber in self._everybody(node):
                runs.setdefault(subscriber, []).append(run)
        for subscriber, run in ones.items():
            runs.setdefault(subscriber, []).append(run)
        picked: dict[int, list[bytes]] = {}  # by run: many may want just that one
        for subscriber, several in runs.items():
            first = several[0]
            if len(several) > 1:
                yield subscriber, [messages[at] for at in sorted(chain.from_iterable(several))]
                continue
            if id(first) not in picked:
                picked[id(first)] = [messages[at] for at in first]
            yield subscriber, picked[id(first)]

    def _looked_up(self, messages: list[bytes], ones: dict[S, list[int]]) -> dict[_Node[S], list[int]]:
        """What :meth:`_found` returns, where topics have few lengths."""
        places: dict[_Node[S], list[int]] = {}
        lengths, known = self._few_lengths or [], self._only_of
        latest, run = None, list[int]()
        for place, message in enumerate(messages):
            frame = _first_frame(message)
            for length in lengths:
                topic = frame[:length]
                only = known.get(topic) or self._learn_of(topic)
                if only is None:
                    continue
                if only is _SEVERAL:
                    places.setdefault(self._nodes[topic], []).append(place)
                elif only is latest:
                    run.append(place)
                else:
                    latest, run = only, ones.setdefault(only, [])
                    run.append(place)
                break
        return places

    def _learn_of(self, topic: bytes) -> Any:
        node = self._nodes.get(topic)
        if node is None:
            return None
        only = self._only_of[topic] = self._only_at(node)
        return only

    def _found(self, messages: list[bytes], ones: dict[S, list[int]]) -> dict[_Node[S], list[int]]:
        """Of which messages a node's topic is the longest that begins them.

        Those for one subscriber with one topic, as most are, are put to ``ones`` instead.
        """
        places: dict[_Node[S], list[int]] = {}
        firsts, blocks = self._order.firsts, self._order.blocks
        beginning, by_beginning = self._beginning, self._by_beginning
        latest, run = None, list[int]()
        for place, message in enumerate(messages):
            frame = _first_frame(message)
            known = by_beginning.get(frame[:beginning])
            if known is not None and frame.startswith(known[0]):
                only = known[1]
                if only is not latest:
                    latest, run = only, ones.setdefault(only, [])
                run.append(place)
                continue
            number = bisect_right(firsts, frame) - 1
            if number < 0:
                continue
            block = blocks[number]
            at = bisect_right(block, frame) - 1
            if frame.startswith(block[at]):
                only = (self._only.get(number) or self._remember(number))[at] or self._learn(number, at)
                if only is latest:
                    run.append(place)
                    continue
                if only is not _SEVERAL:
                    latest, run = only, ones.setdefault(only, [])
                    run.append(place)
                    continue
            node: _Node[S] | None = self._order.values[number][at]
            if not frame.startswith(block[at]):
                node = self._last_on_the_way(frame) if _ending_above(node) else None
            if node is not None:
                places.setdefault(node, []).append(place)
        return places

    def _remember(self, number: int) -> list[Any]:
        known = self._only[number] = [None] * len(self._order.blocks[number])
        return known

    def _learn(self, number: int, at: int) -> Any:
        only = self._only[number][at] = self._only_at(self._order.values[number][at])
        topic = self._order.blocks[number][at]
        beginning = topic[: self._beginning]
        whole = len(beginning) == self._beginning
        if whole and only is not _SEVERAL and self._order.alone(number, at, beginning):
            self._by_beginning[beginning] = (topic, only)
        return only

    def _usual_beginning(self) -> int:
        """How many bytes nearly all topics have."""
        left = len(self._nodes) // _SHORT
        for length in sorted(self._lengths):
            left -= self._lengths[length]
            if left < 0:
                return length
        return 0

    def _only_at(self, node: _Node[S]) -> Any:
        """Who alone gets the messages of this topic, or that several do."""
        several = isinstance(node.subscribers, set) or _ending_above(node) is not None
        return _SEVERAL if several else node.subscribers

    def _last_on_the_way(self, frame: bytes) -> _Node[S] | None:
        """Where the longest topic ends that begins this."""
        last: _Node[S] | None = None
        node, at, end = self._root, 0, len(frame)
        while node.children and at < end:
            child = node.children.get(frame[at])
            if child is None or not frame.startswith(child.bytes, at):
                break
            node = child
            at += node.size
            if node.subscribers is not None:
                last = node
        return last

    def _everybody(self, node: _Node[S]) -> set[S]:
        """Subscribers of this topic and of those that begin it."""
        found = self._known.get(node)
        if found is None:
            found = set()
            at: _Node[S] | None = node
            while at is not None:
                now = at.subscribers
                if isinstance(now, set):
                    found |= now
                elif now is not None:
                    found.add(now)
                at = at.above
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[node] = found
        return found

    def _changed(self) -> None:
        self._only.clear()
        self._only_of.clear()
        self._by_beginning.clear()
        self._few_lengths = None
        self._known.clear()

    def _find(self, topic: bytes) -> _Node[S]:
        node, at = self._root, 0
        while at < len(topic):
            node = (node.children or {})[topic[at]]
            at += node.size
        return node

    def _grow(self, topic: bytes) -> _Node[S]:
        """The node of a topic, which is made where it is missing."""
        node, at = self._root, 0
        while at < len(topic):
            if node.children is None:
                node.children = {}
            child = node.children.get(topic[at])
            if child is None:
                child = node.children[topic[at]] = _Node(topic[at:], node)
            elif not topic.startswith(child.bytes, at):
                child = _parted(child, node, _common(child.bytes, topic, at))
            node = child
            at += node.size
        return node

    def _prune(self, node: _Node[S]) -> None:
        """Take away what holds nothing: a leaf, or a place where nothing parts any more."""
        above = node.above
        if node.children:
            _join(node)
        elif above is not None:
            _cut_off(node, above)
            _join(above)


def _first_frame(message: bytes) -> bytes:
    """As far as a topic can reach."""
    if message[0] & LONG:
        return bytes(message[9 : 9 + min(int.from_bytes(message[1:9]), LONGEST_TOPIC)])
    return message[2 : 2 + message[1]]


def _ending_above(node: _Node[S] | None) -> _Node[S] | None:
    """Where the longest topic ends that begins this node's, and is not the same."""
    above = node and node.above
    while above is not None and above.subscribers is None:
        above = above.above
    return above


def _cut_off(node: _Node[S], above: _Node[S]) -> None:
    siblings = above.children or {}
    del siblings[node.bytes[0]]
    if not siblings:
        above.children = None


def _join(node: _Node[S]) -> None:
    """One node of it and of what is below, if that is one only, and nothing ends here."""
    above = node.above
    if above is None or node.subscribers is not None or not node.children or len(node.children) > 1:
        return
    (child,) = node.children.values()
    child.bytes = node.bytes + child.bytes
    child.size = len(child.bytes)
    child.above = above
    (above.children or {})[child.bytes[0]] = child


def _parted(node: _Node[S], above: _Node[S], size: int) -> _Node[S]:
    """A new node above this one, with so many of its first bytes."""
    upper: _Node[S] = _Node(node.bytes[:size], above)
    (above.children or {})[node.bytes[0]] = upper
    node.bytes = node.bytes[size:]
    node.size = len(node.bytes)
    node.above = upper
    upper.children = {node.bytes[0]: node}
    return upper


def _common(text: bytes, topic: bytes, at: int) -> int:
    """How many first bytes a text has in common with a topic from there on: at least one, not all."""
    low, high = 1, min(len(text), len(topic) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if topic.startswith(text[:middle], at):
            low = middle
        else:
            high = middle - 1
    return low
