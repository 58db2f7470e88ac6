"""Topics as a radix tree: which of them begin others.

topics a, abcd, abcde, abcdf1, abcdf2:    "a" -- "bcd" -- "e"
                                                     `--- "f" -- "1"
                                                            `--- "2"
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, Generic, TypeVar

from sluicemq_devices.relays.prefixes import in_common

S = TypeVar("S")
"""A subscriber: anything that can be in a set."""


class Node(Generic[S]):
    """Where topics part or end: its bytes, behind those of the nodes above."""

    known: Final = None  # as of a list
    __slots__ = ("above", "audience", "bytes", "children", "learnt", "subscribers", "topic", "upper", "way")

    def __init__(self, text: bytes, above: Node[S] | None) -> None:
        self.bytes = text
        self.above = above
        self.children: dict[int, Node[S]] | None = None  # by their first byte
        self.topic = b""
        """The whole topic that ends here, if one does."""
        self.subscribers: S | set[S] | None = None
        """Of that topic; a set from two on."""
        self.learnt: object = None
        """What the next three hold for: see :class:`~sluicemq_devices.relays.topics.Topics`."""
        self.audience: Any = None
        """Subscribers of all topics on the way here."""
        self.upper: Node[S] | None = None
        """Where the longest topic ends that begins this one."""
        self.way: Way[S] | None = None
        """To here, if that was asked for."""


class Way(Generic[S]):
    """The topics that begin a topic, and itself."""

    __slots__ = ("_lengths", "_nodes")

    def __init__(self, node: Node[S]) -> None:
        nodes = []
        at: Node[S] | None = node
        while at is not None:
            nodes.append(at)
            at = at.upper
        nodes.reverse()
        self._nodes = nodes
        self._lengths = [len(each.topic) for each in nodes]

    def __len__(self) -> int:
        """How much it remembers."""
        return len(self._nodes)

    def longest_of(self, frame: bytes) -> Node[S] | None:
        """Where the longest topic ends that begins the frame."""
        at = bisect_right(self._lengths, in_common(frame, self._nodes[-1].topic))
        return self._nodes[at - 1] if at else None


class TopicTree(Generic[S]):
    """All topics and their subscribers."""

    def __init__(self) -> None:
        self.root: Node[S] = Node(b"", None)

    def grow(self, topic: bytes, near: Node[S] | None) -> Node[S]:
        """The node of a topic, which is made where it is missing; ``near``: one whose topic may begin it."""
        begins = near is not None and topic.startswith(near.topic)
        node, at = (near, len(near.topic)) if near and begins else (self.root, 0)
        while at < len(topic):
            if node.children is None:
                node.children = {}
            child = node.children.get(topic[at])
            if child is None:
                child = node.children[topic[at]] = Node(topic[at:], node)
            elif not topic.startswith(child.bytes, at):
                child = _parted(child, node, in_common(child.bytes, topic, at))
            node = child
            at += len(node.bytes)
        return node

    def prune(self, node: Node[S]) -> None:
        """Take away what holds nothing: a leaf, or a place where nothing parts any more."""
        above = node.above
        if node.children:
            _join(node)
        elif above is not None:
            _cut_off(node, above)
            _join(above)


def _cut_off(node: Node[S], above: Node[S]) -> None:
    siblings = above.children or {}
    del siblings[node.bytes[0]]
    if not siblings:
        above.children = None


def _join(node: Node[S]) -> None:
    """One node of it and of what is below, if that is one only, and nothing ends here."""
    above = node.above
    if above is None or node.subscribers is not None or not node.children or len(node.children) > 1:
        return
    (child,) = node.children.values()
    child.bytes = node.bytes + child.bytes
    child.above = above
    (above.children or {})[child.bytes[0]] = child


def _parted(node: Node[S], above: Node[S], size: int) -> Node[S]:
    """A new node above this one, with so many of its first bytes."""
    between: Node[S] = Node(node.bytes[:size], above)
    (above.children or {})[node.bytes[0]] = between
    node.bytes = node.bytes[size:]
    node.above = between
    between.children = {node.bytes[0]: node}
    return between
